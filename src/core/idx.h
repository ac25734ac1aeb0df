// idx files, the format of MNIST: an array of up to 8 dimensions, plain or gzip-compressed.
//
// Layout, big-endian: two zero bytes, the element type, the number of dimensions, the dimensions as
// 32-bit numbers, then the elements, last dimension fastest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace barestep {

/// The element types, numbered as in the file.
enum class IdxType : std::uint8_t {
  kU8 = 0x08,
  kI8 = 0x09,
  kI16 = 0x0B,
  kI32 = 0x0C,
  kF32 = 0x0D,
  kF64 = 0x0E,
};

std::int64_t bytes_of(IdxType type);
std::string_view name_of(IdxType type);  // "u8"

/// dims[0] x dims[1] x ... elements of `type`, row-major, in the host's byte order. Owns them.
struct IdxArray {
  IdxType type = IdxType::kU8;
  std::vector<std::int64_t> dims;
  std::vector<std::byte> data;

  /// The first dimension: samples.
  [[nodiscard]] std::int64_t rows() const { return dims.front(); }

  /// The product of the other dimensions: numbers per sample, 1 if there are none.
  [[nodiscard]] std::int64_t cols() const;
};

/// "10000 x 28 x 28 of u8"
std::string shape_of(const IdxArray& array);

/// Reads a whole file; whether it is compressed is seen from its first bytes, not from its name.
/// Memory grows with what the file really holds, never with what its header claims. Throws Error:
/// kNoInput when it cannot be opened, kBadData when it is not an idx file or holds more or less
/// than its header says, kMemory when it does not fit, kInputOutput when the disk fails.
IdxArray read_idx(const std::filesystem::path& path);

}  // namespace barestep
