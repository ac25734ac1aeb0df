#include "train/dataset.h"

#include <cmath>
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/random.h"

namespace barestep {
namespace {

/// A row's elements may not be aligned for T: the array is bytes.
template <class T>
T element(const std::byte* data, std::int64_t index) {
  T value;
  std::memcpy(&value, data + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

/// Calls `visit` with a function index -> element of the array's own type.
template <class Visit>
auto visit_elements(const IdxArray& array, Visit&& visit) {
  const std::byte* data = array.data.data();
  switch (array.type) {
    case IdxType::kU8:
      return visit([data](std::int64_t i) { return element<std::uint8_t>(data, i); });
    case IdxType::kI8:
      return visit([data](std::int64_t i) { return element<std::int8_t>(data, i); });
    case IdxType::kI16:
      return visit([data](std::int64_t i) { return element<std::int16_t>(data, i); });
    case IdxType::kI32:
      return visit([data](std::int64_t i) { return element<std::int32_t>(data, i); });
    case IdxType::kF32:
      return visit([data](std::int64_t i) { return element<float>(data, i); });
    case IdxType::kF64:
      return visit([data](std::int64_t i) { return element<double>(data, i); });
  }
  fail(ExitCode::kBug, {.what = "idx array", .value = {}, .why = "unknown type", .remedy = {}});
}

bool is_float(IdxType type) {
  return type == IdxType::kF32 || type == IdxType::kF64;
}

/// Rows of `array` to floats, each divided by `divisor`.
void gather_rows(const IdxArray& array, std::int64_t cols, std::span<const std::int64_t> rows,
                 float divisor, float* out) {
  visit_elements(array, [&](auto at) {
    for (const std::int64_t row : rows) {
      const std::int64_t first = row * cols;
      if (divisor == 1) {
        for (std::int64_t c = 0; c < cols; ++c) out[c] = static_cast<float>(at(first + c));
      } else {
        for (std::int64_t c = 0; c < cols; ++c) {
          out[c] = static_cast<float>(at(first + c)) / divisor;
        }
      }
      out += cols;
    }
  });
}

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& why,
                         const std::string& remedy) {
  fail(ExitCode::kBadData, {.what = "data", .value = path.string(), .why = why, .remedy = remedy});
}

/// NaN and infinities, also those that arise when f64 becomes f32.
void require_finite(const IdxArray& array, const std::filesystem::path& path) {
  if (!is_float(array.type)) return;
  const std::int64_t cols = array.cols();
  const std::int64_t size = array.rows() * cols;
  std::int64_t first = -1;
  std::int64_t count = 0;
  visit_elements(array, [&](auto at) {
    for (std::int64_t i = 0; i < size; ++i) {
      if (std::isfinite(static_cast<float>(at(i)))) continue;
      if (count++ == 0) first = i;
    }
  });
  if (count == 0) return;
  refuse(path,
         "row " + std::to_string(first / cols) + ", column " + std::to_string(first % cols) +
             " is not a finite 32-bit number, the first of " + std::to_string(count),
         "remove or replace such samples");
}

std::vector<std::int32_t> checked_labels(const IdxArray& array, std::int64_t classes,
                                         const std::filesystem::path& path) {
  if (is_float(array.type)) {
    refuse(path,
           "labels are " + std::string(name_of(array.type)) + ", cross-entropy needs integers",
           "use integer labels or --loss mse");
  }
  if (array.cols() != 1) {
    refuse(path,
           "has " + std::to_string(array.cols()) + " numbers per sample, cross-entropy needs 1",
           "use one label per sample or --loss mse");
  }
  std::vector<std::int32_t> labels(static_cast<std::size_t>(array.rows()));
  visit_elements(array, [&](auto at) {
    for (std::int64_t row = 0; row < array.rows(); ++row) {
      const auto label = static_cast<std::int32_t>(at(row));
      if (label < 0 || label >= classes) {
        refuse(path,
               "row " + std::to_string(row) + " has label " + std::to_string(label) +
                   ", the last of --layers gives " + std::to_string(classes) +
                   " classes, numbered from 0",
               "correct the labels or widen the last layer");
      }
      labels[static_cast<std::size_t>(row)] = label;
    }
  });
  return labels;
}

void require_shapes_fit(const DataConfig& data, const IdxArray& x, const IdxArray& y,
                        std::int64_t inputs) {
  if (x.rows() != y.rows()) {
    refuse(data.x,
           "has " + std::to_string(x.rows()) + " samples, '" + data.y.string() + "' has " +
               std::to_string(y.rows()),
           "use files that belong together");
  }
  if (x.rows() == 0) refuse(data.x, "has no samples", "use a file that has some");
  if (x.cols() != inputs) {
    refuse(data.x,
           "data has " + std::to_string(x.cols()) + " features, --layers starts with " +
               std::to_string(inputs),
           "start --layers with " + std::to_string(x.cols()));
  }
}

}  // namespace

Dataset::Dataset(IdxArray features, IdxArray targets, std::vector<std::int32_t> labels,
                 std::int64_t test_rows)
    : features_(std::move(features)),
      targets_(std::move(targets)),
      labels_(std::move(labels)),
      feature_cols_(features_.cols()),
      test_rows_(test_rows) {
  BARESTEP_REQUIRE(test_rows_ >= 0 && test_rows_ <= features_.rows(),
                   "the test set is a part of the samples");
}

void Dataset::gather(std::span<const std::int64_t> rows, float* x, void* y) const {
  gather_rows(features_, feature_cols_, rows, features_.type == IdxType::kU8 ? 255.0F : 1.0F, x);
  if (!has_labels()) {
    return gather_rows(targets_, targets_.cols(), rows, 1, static_cast<float*>(y));
  }
  auto* labels = static_cast<std::int32_t*>(y);
  for (const std::int64_t row : rows) *labels++ = labels_[static_cast<std::size_t>(row)];
}

Dataset load_dataset(const DataConfig& data, std::span<const std::int64_t> widths, LossKind loss) {
  BARESTEP_REQUIRE(widths.size() >= 2, "a model has at least one layer");
  IdxArray x = read_idx(data.x);
  IdxArray y = read_idx(data.y);
  require_shapes_fit(data, x, y, widths.front());
  require_finite(x, data.x);
  const auto test_rows =
      static_cast<std::int64_t>(std::floor(static_cast<double>(x.rows()) * data.test_split));
  if (loss == LossKind::kCrossEntropy) {
    std::vector<std::int32_t> labels = checked_labels(y, widths.back(), data.y);
    return {std::move(x), {}, std::move(labels), test_rows};
  }
  if (y.cols() != widths.back()) {
    const bool labels = y.cols() == 1 && !is_float(y.type);
    refuse(data.y,
           "data has " + std::to_string(y.cols()) + " targets per sample, --layers ends with " +
               std::to_string(widths.back()),
           "end --layers with " + std::to_string(y.cols()) +
               (labels ? ", or use --loss cross-entropy if they are labels" : ""));
  }
  require_finite(y, data.y);
  return {std::move(x), std::move(y), {}, test_rows};
}

void epoch_order(std::uint64_t seed, std::int64_t epoch, std::span<std::int64_t> order) {
  TorchGenerator(seed + static_cast<std::uint64_t>(epoch)).randperm(order);
}

}  // namespace barestep
