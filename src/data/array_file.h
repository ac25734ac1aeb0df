// Arrays in files: samples as rows, read completely or a few rows at a time. The formats are idx
// (MNIST's, plain or gzip-compressed) and npy (NumPy's).
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

enum class ElementType : std::uint8_t {
  kU8,
  kU16,
  kU32,
  kU64,
  kI8,
  kI16,
  kI32,
  kI64,
  kF16,
  kBF16,
  kF32,
  kF64
};

std::int64_t bytes_of(ElementType type);
std::string_view name_of(ElementType type);  // "u8"
constexpr bool is_float(ElementType type) {
  return type >= ElementType::kF16;
}

/// dims[0] x dims[1] x ... elements.
struct ArrayHeader {
  ElementType type = ElementType::kU8;
  bool big_endian = false;    // byte order in the file
  bool column_major = false;  // the first dimension is the fastest in the file, not the last
  std::vector<std::int64_t> dims;
  std::int64_t begin_bytes = 0;  // offset of the elements in the file

  /// The number of samples: the first dimension, or 1 if there are no dimensions.
  [[nodiscard]] std::int64_t rows() const { return dims.empty() ? 1 : dims.front(); }

  /// Numbers per sample: the product of the other dimensions, or 1 if there are none.
  [[nodiscard]] std::int64_t cols() const;

  /// The size of all elements in bytes. Nothing if any partial product, with empty dimensions
  /// counted as 1, exceeds 2^63 - 1.
  [[nodiscard]] std::optional<std::int64_t> bytes() const;
};

/// "10000 x 28 x 28 of u8"
std::string shape_of(const ArrayHeader& header);

/// `count` rows of an array from `first` on.
struct RowRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// An array in memory, or in a file, or with some rows in both. Copies share them.
class ArrayFile {
 public:
  /// `elements` has as many as the header specifies, in the file's byte order.
  ArrayFile(std::filesystem::path path, ArrayHeader header, std::vector<std::byte> elements);

  /// The elements stay in `file`, which is long enough to hold them.
  ArrayFile(std::filesystem::path path, ArrayHeader header, std::shared_ptr<InputFile> file);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] const ArrayHeader& header() const { return header_; }
  [[nodiscard]] ElementType type() const { return header_.type; }
  [[nodiscard]] std::int64_t rows() const { return header_.rows(); }
  [[nodiscard]] std::int64_t cols() const { return header_.cols(); }
  [[nodiscard]] std::int64_t bytes() const { return header_.bytes().value_or(0); }

  /// Loads all elements into memory unless they are loaded already. Throws Error: kInputOutput if
  /// reading fails, kMemory if they do not fit.
  void load() { load({{0, rows()}}); }
  [[nodiscard]] bool is_loaded() const { return file_ == nullptr; }

  /// Loads only these rows, in ascending order, unless all are loaded already. The others stay in
  /// the file.
  void load(std::vector<RowRange> rows);
  /// The rows in memory.
  [[nodiscard]] std::span<const RowRange> loaded_rows() const { return loaded_rows_; }
  /// A row's elements in memory, in the host's byte order; null if they are only in the file.
  [[nodiscard]] const std::byte* row(std::int64_t row) const;

  /// All elements in the host's byte order; they must be loaded.
  [[nodiscard]] std::span<const std::byte> elements() const { return *elements_; }

  /// Closes the file, if there is one. From now on, read() opens it for each call.
  void close();

  /// Fills `out` with elements from index `first` on, in the host's byte order. Throws
  /// Error(kInputOutput). Allocates nothing; several threads may read at once.
  void read(std::int64_t first, std::span<std::byte> out) const;

 private:
  std::filesystem::path path_;
  ArrayHeader header_;
  std::shared_ptr<const std::vector<std::byte>> elements_;  // those of loaded_rows_
  std::vector<RowRange> loaded_rows_;
  std::vector<std::int64_t> rows_before_;  // of each range, in elements_
  std::shared_ptr<InputFile> file_;        // null once all rows are loaded
};

/// Opens an idx file, the format of MNIST. Layout, big-endian: two zero bytes, the element type,
/// the number of dimensions, the dimensions as 32-bit integers, then the elements, last dimension
/// fastest.
///
/// Reads the header, and the elements too if the file is compressed, which is detected by its first
/// bytes, not its name. Memory grows with the file's actual content, never with the size that its
/// header claims. Elements are u8, i8, i16, i32, f32 or f64. Throws Error: kNoInput if the file
/// cannot be opened, kBadData if it is not an idx file or its length contradicts its header,
/// kMemory if it does not fit, kInputOutput if reading fails.
ArrayFile open_idx(const std::filesystem::path& path);

/// Parses the header of an npy file, NumPy's format; does not set begin_bytes.
///
/// Layout: "\x93NUMPY", version, header length (little-endian), the header as a Python dictionary
/// of literals ('descr', 'fortran_order', 'shape'), then the elements. The format is that of
/// numpy/lib/format.py, with what Python 2 wrote. A grammar for just these literals parses the
/// header; it is never evaluated. Of equal keys the last one counts, as in Python.
///
/// Elements are booleans (as u8), whole numbers or floats of up to 8 bytes, of either byte order,
/// by any of NumPy's names for them. Throws Error(kBadData) naming `path`.
ArrayHeader parse_npy_header(std::string_view text, const std::filesystem::path& path);

/// Reads the header of an npy file; the elements stay in the file, unless they are column-major:
/// those are read, and are row-major in memory. Refuses what NumPy refuses, in
/// its order: magic, version (1 to 3), a header longer than 10,000 bytes or than the file, keys,
/// shape, order, type. Also refuses types that are not plain numbers, and files longer than the
/// header specifies. Throws Error: kNoInput if the file cannot be opened, kBadData, kMemory if the
/// elements do not fit, kInputOutput if reading fails.
ArrayFile open_npy(const std::filesystem::path& path);

}  // namespace barestep
