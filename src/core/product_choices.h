// The file that stores the algorithm chosen for each matrix product, and the kernels for other work
// that has two kinds of them, as measured on one device.
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

/// The properties of a product that determine the choice of its algorithm: everything in a Gemm
/// except addresses and beta.
struct ProductShape {
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  bool bias = false, relu = false;
  bool cached = false;            // its operands stay in the device's cache from step to step
  DType type = DType::kF32;       // of a and b
  DType type_of_c = DType::kF32;  // and of a bias
  // The alignments of the operands' addresses, at most 256.
  std::int32_t alignment_a = 256, alignment_b = 256, alignment_c = 256, alignment_bias = 256;

  friend auto operator<=>(const ProductShape&, const ProductShape&) = default;
};

/// Buffers start at multiples of kPlanAlignmentBytes, so a tensor's offset determines its
/// alignment.
ProductShape shape_of(const Gemm& op);

/// The shape whose algorithm computes each row of a layer's products identically for any number of
/// rows: the shape with `rows` rows and the smallest alignment that any of them may have. If the
/// product sums over rows, it is `shape` itself.
ProductShape shape_for_rows(const ProductShape& shape, std::int64_t rows);

/// "64x1024x784 NT bias relu": m x n x k and the shape's other properties that a user chose.
std::string text_of(const ProductShape& shape);

/// The device and library for which choices are valid. Another version of the library may interpret
/// the same bytes as a different algorithm.
struct ProductPlace {
  std::string device;     // "NVIDIA H200"
  std::string library;    // "cuBLASLt 13.1.0"
  std::string precision;  // "fp32"

  friend bool operator==(const ProductPlace&, const ProductPlace&) = default;
};

/// The library's opaque representation of an algorithm, or the same of a kernel of ours.
using AlgorithmBytes = std::array<std::byte, 64>;

/// The best times when the choice was made, where algorithms of that kind were timed.
struct ProductTimes {
  std::optional<double> library_us{};
  std::optional<double> own_us{};
};

struct ProductChoice {
  AlgorithmBytes algorithm{};
  ProductTimes times;
};

/// The times of two ways to compute something when one was chosen: by the usual kernels, and by
/// others, which have none if they did not run.
struct KernelTimes {
  double usual_us = 0;
  std::optional<double> other_us{};

  [[nodiscard]] bool prefers_other() const { return other_us && *other_us < usual_us; }
};

/// The file's content in memory. JSON: {"format": "barestep product choices 1", "device",
/// "library", "precision", "choices": [{"m", "n", "k", "transpose": "NT", "bias", "relu", "types":
/// [of a and b, of c], "cached", "alignment": [a, b, c, bias], "algorithm": 128 hexadecimal
/// digits, "library_us", "own_us"}, ...], "kernels": [{"work", "usual_us", "other_us"}, ...]};
/// without "types" both are f32, without "cached" it is false; a time is left out where there was
/// no such algorithm, and "kernels" where there is none.
class ProductChoices {
 public:
  enum class Keeper {
    kFile,   // named by the user
    kCache,  // may be lost: a damaged file, or one from another place, counts as missing
  };

  /// Reads `file` if it exists. Throws Error: kBadData if it is of another format or
  /// damaged; kConfiguration if it is from another place; kNoInput if it cannot be read;
  /// kCannotCreate if it could not be written. A cache never throws. With an empty `file`, nothing
  /// is stored.
  ProductChoices(std::filesystem::path file, ProductPlace place, Keeper keeper = Keeper::kFile);

  [[nodiscard]] std::optional<AlgorithmBytes> find(const ProductShape& shape) const;

  /// Adds the choice and replaces the whole file atomically. A cache that cannot be written stays
  /// unchanged.
  void add(const ProductShape& shape, const AlgorithmBytes& algorithm,
           const ProductTimes& times = {});

  /// The same for work that has kernels of two kinds, by its name.
  [[nodiscard]] std::optional<KernelTimes> find_kernels(const std::string& work) const;
  void add_kernels(const std::string& work, const KernelTimes& times);

  /// The file's content; empty if there are no choices.
  [[nodiscard]] std::string text() const;
  /// Replaces the choices in memory, but not in the file, with those of such a text; from then on
  /// nothing is stored. Returns false and changes nothing if the text is from another place or
  /// damaged.
  bool take(const std::string& text);

  [[nodiscard]] const std::filesystem::path& file() const { return file_; }

 private:
  bool load(const std::string& text);
  void keep() const;

  std::filesystem::path file_;
  ProductPlace place_;
  Keeper keeper_;
  bool is_stored_ = true;  // each addition, if there is a file
  std::map<ProductShape, ProductChoice> choices_;
  std::map<std::string, KernelTimes> kernels_;
};

/// This user's cache file for the choices made at a place; nothing without a home folder.
std::optional<std::filesystem::path> choices_cache(const ProductPlace& place);

}  // namespace barestep
