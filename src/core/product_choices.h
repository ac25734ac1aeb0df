// The file that keeps which algorithm a library is to compute each matrix product with, as measured
// on one device.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "core/ops.h"
#include "core/tensor.h"

namespace barestep {

/// What distinguishes products when an algorithm is chosen: everything about a Gemm but addresses
/// and beta.
struct ProductShape {
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  bool bias = false, relu = false;
  DType type = DType::kF32;       // of a and b
  DType type_of_c = DType::kF32;  // and of a bias
  // What the operands' addresses are multiples of, at most 256.
  std::int32_t alignment_a = 256, alignment_b = 256, alignment_c = 256, alignment_bias = 256;

  friend auto operator<=>(const ProductShape&, const ProductShape&) = default;
};

/// Buffers begin on kPlanAlignmentBytes, so a tensor's offset gives its alignment.
ProductShape shape_of(const Gemm& op);

/// The shape whose algorithm computes each row of a layer's products alike, however many there are:
/// that of `rows` rows, as little aligned as any of them may be. Where the rows are summed up it is
/// `shape` itself.
ProductShape shape_for_rows(const ProductShape& shape, std::int64_t rows);

/// "64x1024x784 NT bias relu": m x n x k, and what else the shape says.
std::string text_of(const ProductShape& shape);

/// Where choices hold. Another version of the library may compute something else under the same
/// bytes.
struct ProductPlace {
  std::string device;     // "NVIDIA H200"
  std::string library;    // "cuBLASLt 13.1.0"
  std::string precision;  // "fp32"

  friend bool operator==(const ProductPlace&, const ProductPlace&) = default;
};

/// The library's name for an algorithm; opaque.
using AlgorithmBytes = std::array<std::byte, 64>;

/// The file in memory. JSON: {"format": "barestep product choices 1", "device", "library",
/// "precision", "choices": [{"m", "n", "k", "transpose": "NT", "bias", "relu", "types": [of a and
/// b, of c], "alignment": [a, b, c, bias], "algorithm": 128 hexadecimal digits}, ...]}; without
/// "types" both are f32.
class ProductChoices {
 public:
  enum class Keeper {
    kFile,   // that somebody named
    kCache,  // which may be lost: what is damaged or of another place is none
  };

  /// Reads `file` if there is one. Throws Error: kConfiguration, in one line, for a file that is no
  /// such file, is damaged, or holds for another place; kNoInput when it cannot be read;
  /// kCannotCreate when it could not be written. Nothing of a cache throws; an empty `file` is one
  /// that keeps nothing.
  ProductChoices(std::filesystem::path file, ProductPlace place, Keeper keeper = Keeper::kFile);

  [[nodiscard]] std::optional<AlgorithmBytes> find(const ProductShape& shape) const;

  /// Keeps the choice and writes the file anew, all of it or nothing. A cache that cannot be
  /// written stays as it is.
  void add(const ProductShape& shape, const AlgorithmBytes& algorithm);

  /// The file's content; empty where there is no choice.
  [[nodiscard]] std::string text() const;
  /// Takes the choices of such a text instead of its own, in memory alone. False, and nothing
  /// taken, where they were made elsewhere or are damaged.
  bool take(const std::string& text);

  [[nodiscard]] const std::filesystem::path& file() const { return file_; }

 private:
  std::filesystem::path file_;
  ProductPlace place_;
  Keeper keeper_;
  std::map<ProductShape, AlgorithmBytes> choices_;
};

/// The file that caches the choices made at a place, of this user; nothing without a home folder.
std::optional<std::filesystem::path> choices_cache(const ProductPlace& place);

}  // namespace barestep
