#include "data/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/index.h"
#include "core/input_file.h"
#include "core/random.h"
#include "core/units.h"
#include "data/array_file.h"
#include "data/safetensors.h"

namespace barestep {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& why,
                         const std::string& remedy) {
  fail(ExitCode::kBadData, {.what = "data", .value = path.string(), .why = why, .remedy = remedy});
}

/// The arrays for one of the two names in --data; from a safetensors file, the tensor `name`.
Shards open_shards(DataKind kind, const std::filesystem::path& pattern, std::string_view name) {
  std::vector<ArrayFile> files;
  for (const std::filesystem::path& path : matching_files(pattern)) {
    files.push_back(kind == DataKind::kIdx   ? open_idx(path)
                    : kind == DataKind::kNpy ? open_npy(path)
                                             : open_safetensors(path, name));
  }
  return Shards(std::move(files));
}

template <class T, class Visit>
void visit_as(const ArrayFile& file, const Visit& visit) {
  // In pieces, since the file may be larger than memory.
  constexpr std::int64_t kPiece = 4096;
  std::vector<T> piece(static_cast<std::size_t>(kPiece));
  const std::int64_t size = file.rows() * file.cols();
  for (std::int64_t first = 0; first < size; first += kPiece) {
    const auto part =
        std::span(piece).first(static_cast<std::size_t>(std::min(kPiece, size - first)));
    file.read(first, std::as_writable_bytes(part));
    for (std::size_t i = 0; i < part.size(); ++i) {
      visit(first + static_cast<std::int64_t>(i), part[i]);
    }
  }
}

/// Calls visit(index, element) for every element, in the array's own type.
template <class Visit>
void visit_elements(const ArrayFile& file, const Visit& visit) {
  switch (file.type()) {
    case ElementType::kU8:
      return visit_as<std::uint8_t>(file, visit);
    case ElementType::kI8:
      return visit_as<std::int8_t>(file, visit);
    case ElementType::kI16:
      return visit_as<std::int16_t>(file, visit);
    case ElementType::kI32:
      return visit_as<std::int32_t>(file, visit);
    case ElementType::kI64:
      return visit_as<std::int64_t>(file, visit);
    case ElementType::kF32:
      return visit_as<float>(file, visit);
    case ElementType::kF64:
      return visit_as<double>(file, visit);
  }
}

/// Refuses NaN and infinities, including those that arise when f64 becomes f32.
void require_finite(const Shards& shards) {
  if (!is_float(shards.type())) return;
  for (const ArrayFile& file : shards.files()) {
    std::int64_t first = -1;
    std::int64_t count = 0;
    visit_elements(file, [&](std::int64_t index, auto value) {
      if (std::isfinite(static_cast<float>(value))) return;
      if (count++ == 0) first = index;
    });
    if (count == 0) continue;
    refuse(file.path(),
           fmt::format("row {}, column {} is not a finite 32-bit number, the first of {}",
                       first / file.cols(), first % file.cols(), count),
           "remove or replace such samples");
  }
}

/// Labels of `outputs` classes; for binary cross-entropy, 0 and 1, which may be floats.
std::vector<std::int32_t> checked_labels(const Shards& shards, LossKind loss,
                                         std::int64_t outputs) {
  const std::filesystem::path& path = shards.files().front().path();
  const bool binary = loss == LossKind::kBce;
  const std::int64_t classes = binary ? 2 : outputs;
  if (is_float(shards.type()) && !binary) {
    refuse(path, fmt::format("labels are {}, cross-entropy needs integers", name_of(shards.type())),
           "use integer labels or --loss mse");
  }
  if (shards.cols() != 1) {
    refuse(path, fmt::format("has {} numbers per sample, {} needs 1", shards.cols(), name_of(loss)),
           "use one label per sample or --loss mse");
  }
  std::vector<std::int32_t> labels;
  labels.reserve(static_cast<std::size_t>(shards.rows()));
  for (const ArrayFile& file : shards.files()) {
    visit_elements(file, [&](std::int64_t row, auto value) {
      if (binary && value != 0 && value != 1) {
        refuse(file.path(), fmt::format("row {} is {}, bce needs 0 or 1", row, value),
               "correct the labels or use --loss mse");
      }
      const auto label = static_cast<std::int64_t>(value);
      if (label < 0 || label >= classes) {
        refuse(file.path(),
               fmt::format("row {} has label {}, the last of --layers gives {}, numbered "
                           "from 0",
                           row, label, counted(classes, "class")),
               "correct the labels or widen the last layer");
      }
      labels.push_back(static_cast<std::int32_t>(label));
    });
  }
  return labels;
}

void require_shapes_fit(const Shards& x, const Shards& y, std::int64_t inputs) {
  const std::filesystem::path& path = x.files().front().path();
  if (x.rows() != y.rows()) {
    refuse(path,
           fmt::format("has {}, '{}' has {}", counted(x.rows(), "sample"),
                       y.files().front().path().string(), y.rows()),
           "use files that belong together");
  }
  if (x.rows() == 0) refuse(path, "has no samples", "use a file that has some");
  if (x.cols() == 0) refuse(path, "its samples have no features", "use a file that has some");
  if (x.cols() != inputs) {
    refuse(
        path,
        fmt::format("data has {}, --layers starts with {}", counted(x.cols(), "feature"), inputs),
        fmt::format("start --layers with {}", x.cols()));
  }
}

std::int64_t test_rows_of(const DataConfig& data, std::int64_t rows) {
  const auto count =
      static_cast<std::int64_t>(std::floor(static_cast<double>(rows) * data.test_split));
  if (data.test_split > 0 && count == 0) {
    fail(ExitCode::kConfiguration,
         {.what = "--test-split",
          .value = fmt::format("{}", data.test_split),
          .why = fmt::format("of {} leaves 0 to test with", counted(rows, "sample")),
          .remedy = "give a larger share, or leave it out"});
  }
  return count;
}

}  // namespace

Dataset::Dataset(Shards features, std::vector<Shards> targets, std::vector<std::int32_t> labels,
                 std::int64_t test_rows)
    : features_(std::move(features)),
      targets_(std::move(targets)),
      labels_(std::move(labels)),
      test_rows_(test_rows) {
  BARESTEP_REQUIRE(test_rows_ >= 0 && test_rows_ <= features_.rows(),
                   "the test set is a part of the samples");
}

std::int64_t Dataset::y_bytes() const {
  // Labels are std::int32_t, targets floats.
  return 4 * (has_labels() ? 1 : targets_.front().cols());
}

namespace {

/// Means of columns and squared distances from them, updated row by row (Welford 1962).
class ColumnMoments {
 public:
  explicit ColumnMoments(std::int64_t cols)
      : means_(static_cast<std::size_t>(cols)), squares_(static_cast<std::size_t>(cols)) {}

  void add(std::span<const float> row) {
    ++rows_;
    for (std::size_t col = 0; col < row.size(); ++col) {
      const double distance = static_cast<double>(row[col]) - means_[col];
      means_[col] += distance / rows_;
      squares_[col] += distance * (static_cast<double>(row[col]) - means_[col]);
    }
  }

  [[nodiscard]] const std::vector<double>& means() const { return means_; }
  /// Sums of squared distances.
  [[nodiscard]] const std::vector<double>& squares() const { return squares_; }

 private:
  std::vector<double> means_, squares_;
  double rows_ = 0;
};

}  // namespace

double Dataset::target_variance(std::int64_t rows) const {
  if (has_labels() || rows == 0) return 0;
  const Shards& targets = targets_.front();
  std::vector<float> row(static_cast<std::size_t>(targets.cols()));
  ColumnMoments moments(targets.cols());
  for (std::int64_t i = 0; i < rows; ++i) {
    targets.read(features_.rows() - rows + i, 1, row.data());
    moments.add(row);
  }
  const double sum = std::accumulate(moments.squares().begin(), moments.squares().end(), 0.0);
  return sum / static_cast<double>(rows * targets.cols());
}

float Dataset::divisor() const {
  return features_.type() == ElementType::kU8 ? 255.0F : 1.0F;
}

void Dataset::standardize() {
  std::vector<float> row(static_cast<std::size_t>(features()));
  ColumnMoments moments(features());
  for (std::int64_t i = 0; i < train_rows(); ++i) {
    features_.read(i, divisor(), row.data());
    moments.add(row);
  }
  for (std::size_t col = 0; col < row.size(); ++col) {
    const double variance = moments.squares()[col] / static_cast<double>(train_rows());
    standard_.mean.push_back(static_cast<float>(moments.means()[col]));
    standard_.deviation.push_back(variance > 0 ? static_cast<float>(std::sqrt(variance)) : 1.0F);
  }
}

void Dataset::read_features(std::int64_t row, float* x) const {
  features_.read(row, divisor(), x);
  for (std::size_t col = 0; col < standard_.mean.size(); ++col) {
    x[col] = (x[col] - standard_.mean[col]) / standard_.deviation[col];
  }
}

float Dataset::largest_feature() const {
  std::vector<float> x(static_cast<std::size_t>(features()));
  float largest = 0;
  for (std::int64_t row = 0; row < features_.rows(); ++row) {
    read_features(row, x.data());
    for (const float each : x) largest = std::max(largest, std::abs(each));
  }
  return largest;
}

void Dataset::gather(std::span<const std::int64_t> rows, float* x, void* y) const {
  for (const std::int64_t row : rows) {
    read_features(row, x);
    x += features();
  }
  if (!has_labels()) {
    auto* out = static_cast<float*>(y);
    for (const std::int64_t row : rows) {
      targets_.front().read(row, 1, out);
      out += targets_.front().cols();
    }
    return;
  }
  auto* labels = static_cast<std::int32_t*>(y);
  for (const std::int64_t row : rows) *labels++ = at(labels_, row);
}

namespace {

Dataset dataset_of(const DataConfig& data, std::span<const std::int64_t> widths, LossKind loss,
                   std::int64_t memory_bytes) {
  BARESTEP_REQUIRE(widths.size() >= 2, "a model has at least one layer");
  Shards x = open_shards(data.kind, data.x, "x");
  Shards y = open_shards(data.kind, data.kind == DataKind::kSafetensors ? data.x : data.y, "y");
  require_shapes_fit(x, y, widths.front());
  const bool is_loaded = x.bytes() <= memory_bytes && y.bytes() <= memory_bytes - x.bytes();
  if (is_loaded) {
    x.load();
    require_finite(x);
  }
  const std::int64_t test_rows = test_rows_of(data, x.rows());
  if (takes_labels(loss)) {
    std::vector<std::int32_t> labels = checked_labels(y, loss, widths.back());
    return {std::move(x), {}, std::move(labels), test_rows};
  }
  if (y.cols() == 0) {
    refuse(y.files().front().path(), "its samples have no targets", "use a file that has some");
  }
  if (y.cols() != widths.back()) {
    const bool labels = y.cols() == 1 && !is_float(y.type());
    refuse(y.files().front().path(),
           fmt::format("data has {} per sample, --layers ends with {}", counted(y.cols(), "target"),
                       widths.back()),
           fmt::format("end --layers with {}{}", y.cols(),
                       labels ? ", or use --loss cross-entropy if they are labels" : ""));
  }
  if (is_loaded) {
    y.load();
    require_finite(y);
  }
  return {std::move(x), {std::move(y)}, {}, test_rows};
}

}  // namespace

Dataset load_dataset(const DataConfig& data, std::span<const std::int64_t> widths, LossKind loss,
                     std::int64_t memory_bytes) {
  Dataset dataset = dataset_of(data, widths, loss, memory_bytes);
  if (data.standardize) dataset.standardize();
  return dataset;
}

void epoch_order(std::uint64_t seed, std::int64_t epoch, std::span<std::int64_t> order) {
  TorchGenerator(seed + static_cast<std::uint64_t>(epoch)).randperm(order);
}

namespace {

/// How many bytes of a row are read from a file at a time.
constexpr std::int64_t kChunkBytes = 8192;

/// The bytes need not be aligned for T.
template <class T>
void convert(const std::byte* from, std::int64_t count, float divisor, float* out) {
  for (std::int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, from + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
    out[i] = divisor == 1 ? static_cast<float>(value) : static_cast<float>(value) / divisor;
  }
}

void convert(ElementType type, const std::byte* from, std::int64_t count, float divisor,
             float* out) {
  switch (type) {
    case ElementType::kU8:
      return convert<std::uint8_t>(from, count, divisor, out);
    case ElementType::kI8:
      return convert<std::int8_t>(from, count, divisor, out);
    case ElementType::kI16:
      return convert<std::int16_t>(from, count, divisor, out);
    case ElementType::kI32:
      return convert<std::int32_t>(from, count, divisor, out);
    case ElementType::kI64:
      return convert<std::int64_t>(from, count, divisor, out);
    case ElementType::kF32:
      return convert<float>(from, count, divisor, out);
    case ElementType::kF64:
      return convert<double>(from, count, divisor, out);
  }
}

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& why,
                         const char* remedy) {
  fail(ExitCode::kBadData, {.what = "data", .value = path.string(), .why = why, .remedy = remedy});
}

}  // namespace

Shards::Shards(std::vector<ArrayFile> files) : files_(std::move(files)), first_rows_{0} {
  BARESTEP_REQUIRE(!files_.empty(), "there is at least one array");
  for (const ArrayFile& file : files_) {
    if (file.type() != type() || file.cols() != cols()) {
      refuse(file.path(),
             fmt::format("has {} of {} per sample, '{}' has {} of {}", file.cols(),
                         name_of(file.type()), files_.front().path().string(), cols(),
                         name_of(type())),
             "use files that belong together");
    }
    first_rows_.push_back(first_rows_.back() + file.rows());
  }
}

std::int64_t Shards::bytes() const {
  std::int64_t sum = 0;
  for (const ArrayFile& file : files_) sum += file.bytes();
  return sum;
}

void Shards::load() {
  for (ArrayFile& file : files_) file.load();
}

void Shards::read(std::int64_t row, float divisor, float* out) const {
  const auto after = std::upper_bound(first_rows_.begin(), first_rows_.end(), row);
  const auto shard = static_cast<std::size_t>(after - first_rows_.begin()) - 1;
  const ArrayFile& file = files_[shard];
  const std::int64_t width = bytes_of(file.type());
  const std::int64_t first = (row - first_rows_[shard]) * cols();
  if (file.is_loaded()) {
    return convert(file.type(), file.elements().data() + first * width, cols(), divisor, out);
  }
  std::array<std::byte, kChunkBytes> chunk;
  for (std::int64_t done = 0; done < cols();) {
    const std::int64_t count = std::min(cols() - done, kChunkBytes / width);
    file.read(first + done, std::span(chunk).first(static_cast<std::size_t>(count * width)));
    convert(file.type(), chunk.data(), count, divisor, out + done);
    done += count;
  }
  if (!is_float(file.type())) return;
  const float* const wrong =
      std::find_if(out, out + cols(), [](float x) { return !std::isfinite(x); });
  if (wrong == out + cols()) return;
  refuse(file.path(),
         fmt::format("row {}, column {} is not a finite 32-bit number", row - first_rows_[shard],
                     wrong - out),
         "remove or replace such samples");
}

}  // namespace barestep
