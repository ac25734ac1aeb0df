// Arrays in files: samples in rows, read whole or a few rows at a time; the formats idx (MNIST's,
// plain or gzip-compressed) and npy (NumPy's).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/input_file.h"

namespace barestep {

enum class ElementType : std::uint8_t { kU8, kI8, kI16, kI32, kI64, kF32, kF64 };

std::int64_t bytes_of(ElementType type);
std::string_view name_of(ElementType type);  // "u8"
constexpr bool is_float(ElementType type) {
  return type == ElementType::kF32 || type == ElementType::kF64;
}

/// dims[0] x dims[1] x ... elements, row-major.
struct ArrayHeader {
  ElementType type = ElementType::kU8;
  bool big_endian = false;  // in the file
  std::vector<std::int64_t> dims;
  std::int64_t begin_bytes = 0;  // where the elements begin in the file

  /// The first dimension: samples. 1 if there is none.
  [[nodiscard]] std::int64_t rows() const { return dims.empty() ? 1 : dims.front(); }

  /// The product of the other dimensions: numbers per sample, 1 if there are none.
  [[nodiscard]] std::int64_t cols() const;

  /// Bytes of all elements; nothing if a number on the way, with empty dimensions counted as 1, is
  /// beyond 2^63 - 1.
  [[nodiscard]] std::optional<std::int64_t> bytes() const;
};

/// "10000 x 28 x 28 of u8"
std::string shape_of(const ArrayHeader& header);

/// Copies share their elements, or the open file.
class ArrayFile {
 public:
  /// `elements` as many as the header says, in the file's byte order.
  ArrayFile(std::filesystem::path path, ArrayHeader header, std::vector<std::byte> elements);

  /// The elements stay in `file`, which is long enough for them.
  ArrayFile(std::filesystem::path path, ArrayHeader header, std::shared_ptr<const InputFile> file);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] const ArrayHeader& header() const { return header_; }
  [[nodiscard]] ElementType type() const { return header_.type; }
  [[nodiscard]] std::int64_t rows() const { return header_.rows(); }
  [[nodiscard]] std::int64_t cols() const { return header_.cols(); }
  [[nodiscard]] std::int64_t bytes() const { return header_.bytes().value_or(0); }

  /// Brings all elements into memory, if they are not there. Throws Error: kInputOutput when
  /// reading fails, kMemory when they do not fit.
  void load();
  [[nodiscard]] bool is_loaded() const { return elements_ != nullptr; }

  /// All elements in the host's byte order; they must be loaded.
  [[nodiscard]] std::span<const std::byte> elements() const { return *elements_; }

  /// Copies elements, from number `first` on, as many as fill `out`, in the host's byte order.
  /// Throws Error(kInputOutput). Allocates nothing; several threads may read at once.
  void read(std::int64_t first, std::span<std::byte> out) const;

 private:
  std::filesystem::path path_;
  ArrayHeader header_;
  std::shared_ptr<const std::vector<std::byte>> elements_;  // or
  std::shared_ptr<const InputFile> file_;
};

/// An idx file, the format of MNIST. Layout, big-endian: two zero bytes, the element type, the
/// number of dimensions, the dimensions as 32-bit numbers, then the elements, last dimension
/// fastest.
///
/// Reads the header, and of a compressed file the elements too; whether it is compressed is seen
/// from its first bytes, not from its name. Memory grows with what the file really holds, never
/// with what its header claims. Elements are u8, i8, i16, i32, f32 or f64. Throws Error: kNoInput
/// when it cannot be opened, kBadData when it is not an idx file or holds more or less than its
/// header says, kMemory when it does not fit, kInputOutput when the disk fails.
ArrayFile open_idx(const std::filesystem::path& path);

/// What the header of an npy file, NumPy's format, says; begin_bytes is not set.
///
/// Layout: "\x93NUMPY", version, header length (little-endian), the header as a Python dictionary
/// of literals ('descr', 'fortran_order', 'shape'), then the elements. The format is that of
/// numpy/lib/format.py; the header is read by a grammar of just these literals and never evaluated.
///
///  Elements are u1, i1, b1 (as u8), i2, i4, i8, f4 or
/// f8, of either byte order. Throws Error(kBadData) naming `path`.
ArrayHeader parse_npy_header(std::string_view text, const std::filesystem::path& path);

/// Reads the header of an npy file; the elements stay in the file. Refuses what NumPy refuses, in
/// its order: magic, version (1 to 3), a header longer than 10,000 bytes or than the file, keys,
/// shape, order, type. Beyond that it refuses column-major arrays, types that are no plain numbers,
/// more than 8 dimensions, and files longer than the header says. Throws Error: kNoInput when the
/// file cannot be opened, kBadData, kInputOutput when reading fails.
ArrayFile open_npy(const std::filesystem::path& path);

}  // namespace barestep
