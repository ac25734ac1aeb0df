// An array in a file: samples in rows, read whole or a few rows at a time.
//
// The readers of the formats (data/idx.h, data/npy.h, data/safetensors.h) check a header and make
// an ArrayFile of it.
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

}  // namespace barestep
