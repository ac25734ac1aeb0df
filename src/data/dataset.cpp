#include "data/dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <set>
#include <type_traits>
#include <utility>

#include "core/error.h"
#include "core/index.h"
#include "core/input_file.h"
#include "core/random.h"
#include "core/tensor.h"
#include "core/units.h"
#include "data/safetensors.h"

namespace barestep {
namespace {

[[noreturn]] void refuse_dataset(const std::filesystem::path& path, const std::string& why,
                                 const std::string& remedy) {
  fail(ExitCode::kBadData, {"data", path.string(), why, remedy});
}

/// More files are not kept open, since a process may often open only 1024.
constexpr std::size_t kMaxOpenFiles = 128;

/// The arrays for one of the two names in --data; from a safetensors file, the tensor `name`.
Shards open_shards(DataKind kind, const std::filesystem::path& pattern, std::string_view name) {
  const std::vector<std::filesystem::path> paths = matching_files(pattern);
  std::vector<ArrayFile> files;
  for (const std::filesystem::path& path : paths) {
    files.push_back(kind == DataKind::kIdx   ? open_idx(path)
                    : kind == DataKind::kNpy ? open_npy(path)
                                             : open_safetensors(path, name));
    if (paths.size() > kMaxOpenFiles) files.back().close();
  }
  return Shards(std::move(files));
}

/// Calls use(T()) with the type of the elements.
template <class Use>
void with_element_type(ElementType type, const Use& use) {
  // NOLINTBEGIN(bugprone-branch-clone): the branches differ in their types.
  switch (type) {
    case ElementType::kU8:
      return use(std::uint8_t());
    case ElementType::kU16:
      return use(std::uint16_t());
    case ElementType::kU32:
      return use(std::uint32_t());
    case ElementType::kU64:
      return use(std::uint64_t());
    case ElementType::kI8:
      return use(std::int8_t());
    case ElementType::kI16:
      return use(std::int16_t());
    case ElementType::kI32:
      return use(std::int32_t());
    case ElementType::kI64:
      return use(std::int64_t());
    case ElementType::kF16:
      return use(F16());
    case ElementType::kBF16:
      return use(Bf16());
    case ElementType::kF32:
      return use(float());
    case ElementType::kF64:
      return use(double());
  }
  // NOLINTEND(bugprone-branch-clone)
}

template <class T>
T number_of_element(T element) {
  return element;
}
float number_of_element(F16 element) {
  return float_of(element);
}
float number_of_element(Bf16 element) {
  return float_of(element);
}

template <class T, class Visit>
void visit_as(const ArrayFile& file, RowRange rows, const Visit& visit) {
  // In pieces, since the file may be larger than memory.
  constexpr std::int64_t kPiece = 4096;
  const std::int64_t end = (rows.first + rows.count) * file.cols();
  std::vector<T> piece(static_cast<std::size_t>(std::min(kPiece, rows.count * file.cols())));
  for (std::int64_t first = rows.first * file.cols(); first < end; first += kPiece) {
    const auto part =
        std::span(piece).first(static_cast<std::size_t>(std::min(kPiece, end - first)));
    file.read(first, std::as_writable_bytes(part));
    for (std::size_t i = 0; i < part.size(); ++i) {
      visit(first + static_cast<std::int64_t>(i), number_of_element(part[i]));
    }
  }
}

/// Calls visit(index, number) for every element of the rows, in the array's own type or, of 16
/// bits, as float.
template <class Visit>
void visit_elements(const ArrayFile& file, RowRange rows, const Visit& visit) {
  with_element_type(file.type(), [&]<class T>(T) { visit_as<T>(file, rows, visit); });
}

/// Whether all numbers are finite in 32 bits, whatever the file holds.
bool is_always_finite(const Shards& shards) {
  return !is_float(shards.type()) && shards.divisor() >= 1;
}

/// Refuses NaN and infinities in the rows that are in memory, including those that arise when f64
/// becomes f32.
void require_finite(const Shards& shards) {
  if (is_always_finite(shards)) return;
  for (const ArrayFile& file : shards.files()) {
    std::int64_t first = -1;
    std::int64_t count = 0;
    const auto check = [&](std::int64_t index, auto value) {
      if (std::isfinite(static_cast<float>(static_cast<double>(value) / shards.divisor()))) return;
      if (count++ == 0) first = index;
    };
    for (const RowRange& rows : file.loaded_rows()) visit_elements(file, rows, check);
    if (count == 0) continue;
    refuse_dataset(file.path(),
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
    refuse_dataset(
        path, fmt::format("labels are {}, cross-entropy needs integers", name_of(shards.type())),
        "use integer labels or --loss mse");
  }
  if (shards.cols() != 1) {
    refuse_dataset(
        path, fmt::format("has {} numbers per sample, {} needs 1", shards.cols(), name_of(loss)),
        "use one label per sample or --loss mse");
  }
  std::vector<std::int32_t> labels;
  labels.reserve(static_cast<std::size_t>(shards.rows()));
  for (const ArrayFile& file : shards.files()) {
    visit_elements(file, {0, file.rows()}, [&](std::int64_t row, auto value) {
      if (binary && value != 0 && value != 1) {
        refuse_dataset(file.path(), fmt::format("row {} is {}, bce needs 0 or 1", row, value),
                       "correct the labels or use --loss mse");
      }
      const auto label = static_cast<std::int64_t>(value);
      if (label < 0 || label >= classes) {
        refuse_dataset(file.path(),
                       fmt::format("row {} has label {}, the last of --layers gives {}, numbered "
                                   "from 0",
                                   row, value, counted(classes, "class")),
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
    refuse_dataset(path,
                   fmt::format("has {}, '{}' has {}", counted(x.rows(), "sample"),
                               y.files().front().path().string(), y.rows()),
                   "use files that belong together");
  }
  if (x.rows() == 0) refuse_dataset(path, "has no samples", "use a file that has some");
  if (x.cols() == 0)
    refuse_dataset(path, "its samples have no features", "use a file that has some");
  if (x.cols() != inputs) {
    refuse_dataset(
        path, fmt::format("data has {}, the model takes {}", counted(x.cols(), "feature"), inputs),
        fmt::format("make it take {}, by --layers, --dim or --length", x.cols()));
  }
}

std::int64_t test_rows_of(const DataConfig& data, std::int64_t rows) {
  const auto share = [rows](std::int64_t count) {
    return static_cast<double>(count) / static_cast<double>(rows);
  };
  // The product alone would be too small for some shares: 100 * 0.29 is below 29 in doubles.
  auto count = static_cast<std::int64_t>(static_cast<double>(rows) * data.test_split);
  if (share(count + 1) <= data.test_split) ++count;
  if (data.test_split > 0 && count == 0) {
    fail(ExitCode::kConfiguration,
         {"--test-split", fmt::format("{}", data.test_split),
          fmt::format("of {} leaves 0 to test with", counted(rows, "sample")),
          "give a larger share, or leave it out"});
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

  void add(std::span<const double> row) {
    ++rows_;
    for (std::size_t col = 0; col < row.size(); ++col) {
      const double distance = row[col] - means_[col];
      means_[col] += distance / rows_;
      squares_[col] += distance * (row[col] - means_[col]);
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

std::vector<double> Dataset::target_variances(std::int64_t rows) const {
  if (has_labels()) return {};
  const Shards& targets = targets_.front();
  std::vector<double> row(static_cast<std::size_t>(targets.cols()));
  ColumnMoments moments(targets.cols());
  for (std::int64_t i = 0; i < rows; ++i) {
    targets.read(features_.rows() - rows + i, 0, std::span(row));
    moments.add(row);
  }
  std::vector<double> variances = moments.squares();
  for (double& variance : variances)
    variance /= static_cast<double>(std::max<std::int64_t>(rows, 1));
  return variances;
}

std::vector<std::int32_t> Dataset::untrained_classes() const {
  if (!has_labels()) return {};
  const auto test = std::span(labels_).subspan(static_cast<std::size_t>(train_rows()));
  std::set<std::int32_t> found(test.begin(), test.end());
  for (const std::int32_t label : std::span(labels_).first(labels_.size() - test.size())) {
    if (found.empty()) break;
    found.erase(label);
  }
  return {found.begin(), found.end()};
}

std::string Dataset::division() const {
  const bool of_features = features_.divisor() != 1;
  const bool of_targets = !targets_.empty() && targets_.front().divisor() != 1;
  if (!of_features && !of_targets) return "";
  return fmt::format("{}{}{} / {}", of_features ? "features" : "",
                     of_features && of_targets ? " and " : "", of_targets ? "targets" : "",
                     (of_features ? features_ : targets_.front()).divisor());
}

void Dataset::standardize() {
  std::vector<double> row(static_cast<std::size_t>(features()));
  ColumnMoments moments(features());
  for (std::int64_t i = 0; i < train_rows(); ++i) {
    features_.read(i, 0, std::span(row));
    moments.add(row);
  }
  for (std::size_t col = 0; col < row.size(); ++col) {
    const double variance = moments.squares()[col] / static_cast<double>(train_rows());
    standard_.mean.push_back(moments.means()[col]);
    standard_.deviation.push_back(variance > 0 ? std::sqrt(variance) : 1.0);
  }
}

void Dataset::gather_standardized(std::int64_t row, std::span<float> x) const {
  std::array<double, 1024> part;
  for (std::size_t first = 0; first < x.size(); first += part.size()) {
    const auto numbers = std::span(part).first(std::min(part.size(), x.size() - first));
    features_.read(row, static_cast<std::int64_t>(first), numbers);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const std::size_t col = first + i;
      x[col] = static_cast<float>((numbers[i] - standard_.mean[col]) / standard_.deviation[col]);
    }
  }
}

void Dataset::read_features(std::int64_t row, std::span<float> x) const {
  standard_.mean.empty() ? features_.read(row, 0, x) : gather_standardized(row, x);
}

float Dataset::largest_feature() const {
  std::vector<float> x(static_cast<std::size_t>(features()));
  float largest = 0;
  for (std::int64_t row = 0; row < features_.rows(); ++row) {
    read_features(row, x);
    for (const float each : x) largest = std::max(largest, std::abs(each));
  }
  return largest;
}

void Dataset::gather(std::span<const std::int64_t> rows, float* x, void* y) const {
  const auto width = static_cast<std::size_t>(features());
  for (const std::int64_t row : rows) {
    read_features(row, std::span(x, width));
    x += width;
  }
  if (!has_labels()) {
    const auto targets = static_cast<std::size_t>(targets_.front().cols());
    auto* out = static_cast<float*>(y);
    for (const std::int64_t row : rows) {
      targets_.front().read(row, 0, std::span(out, targets));
      out += targets;
    }
    return;
  }
  auto* labels = static_cast<std::int32_t*>(y);
  for (const std::int64_t row : rows) *labels++ = at(labels_, row);
}

namespace {

bool are_images(const Shards& shards) {
  return shards.type() == ElementType::kU8 && shards.cols() > 1;
}

double divisor_of_features(const DataConfig& data, const Shards& x) {
  const bool are_scaled = data.kind == DataKind::kIdx && are_images(x);
  return data.input_scale.value_or(are_scaled ? 255 : 1);
}

double divisor_of_targets(const DataConfig& data, const Shards& x, const Shards& y) {
  const bool are_like_features =
      data.input_scale && x.type() == ElementType::kU8 && x.cols() == y.cols();
  const bool are_scaled = are_images(y) && (data.kind == DataKind::kIdx || are_like_features);
  return are_scaled ? data.input_scale.value_or(255) : 1;
}

Dataset dataset_of(const DataConfig& data, std::span<const std::int64_t> widths, LossKind loss,
                   std::int64_t memory_bytes, const NeededRowsOf& needed_of) {
  BARESTEP_REQUIRE(widths.size() >= 2, "a model has at least one layer");
  Shards x = open_shards(data.kind, data.x, "x");
  Shards y = open_shards(data.kind, data.kind == DataKind::kSafetensors ? data.x : data.y, "y");
  require_shapes_fit(x, y, widths.front());
  x.divide_by(divisor_of_features(data, x));
  const std::int64_t test_rows = test_rows_of(data, x.rows());
  const NeededRows needed =
      needed_of ? needed_of(x.rows() - test_rows, test_rows)
                : NeededRows{std::vector<bool>(static_cast<std::size_t>(x.rows()), true), x.rows()};
  const std::int64_t bytes_of_row = x.bytes() / x.rows() + y.bytes() / y.rows();
  const bool is_loaded = needed.max_count <= memory_bytes / std::max<std::int64_t>(bytes_of_row, 1);
  if (is_loaded) x.load(needed.own);
  require_finite(x);
  if (takes_labels(loss)) {
    std::vector<std::int32_t> labels = checked_labels(y, loss, widths.back());
    return {std::move(x), {}, std::move(labels), test_rows};
  }
  if (y.cols() == 0) {
    refuse_dataset(y.files().front().path(), "its samples have no targets",
                   "use a file that has some");
  }
  if (y.cols() != widths.back()) {
    const bool labels = y.cols() == 1 && !is_float(y.type());
    refuse_dataset(y.files().front().path(),
                   fmt::format("data has {} per sample, the model gives {}",
                               counted(y.cols(), "target"), widths.back()),
                   fmt::format("make it give {}, by --layers, --dim or --length{}", y.cols(),
                               labels ? ", or use --loss cross-entropy if they are labels" : ""));
  }
  y.divide_by(divisor_of_targets(data, x, y));
  if (is_loaded) y.load(needed.own);
  require_finite(y);
  return {std::move(x), {std::move(y)}, {}, test_rows};
}

}  // namespace

Dataset load_dataset(const DataConfig& data, std::span<const std::int64_t> widths, LossKind loss,
                     std::int64_t memory_bytes, const NeededRowsOf& needed_of) {
  Dataset dataset = dataset_of(data, widths, loss, memory_bytes, needed_of);
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
template <class T, class Number, class Convert>
void convert_each(const std::byte* from, std::span<Number> out, const Convert& convert) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, from + i * sizeof(T), sizeof(T));
    out[i] = convert(number_of_element(value));
  }
}

/// The quotients are computed in double and rounded once. If both numbers are floats, so is the
/// quotient in float, which is faster: doubles have more than twice as many bits.
template <class T, class Number>
void convert(const std::byte* from, double divisor, std::span<Number> out) {
  constexpr bool kFitsFloat = sizeof(T) <= 2 || std::is_same_v<T, float>;
  const auto float_divisor = static_cast<float>(divisor);
  if (divisor == 1) {
    convert_each<T>(from, out, [](auto value) { return static_cast<Number>(value); });
  } else if (kFitsFloat && std::is_same_v<Number, float> && float_divisor == divisor) {
    convert_each<T>(from, out,
                    [=](auto value) { return static_cast<float>(value) / float_divisor; });
  } else {
    convert_each<T>(from, out, [=](auto value) {
      return static_cast<Number>(static_cast<double>(value) / divisor);
    });
  }
}

template <class Number>
void convert(ElementType type, const std::byte* from, double divisor, std::span<Number> out) {
  with_element_type(type, [&]<class T>(T) { convert<T>(from, divisor, out); });
}

}  // namespace

Shards::Shards(std::vector<ArrayFile> files) : files_(std::move(files)), first_rows_{0} {
  BARESTEP_REQUIRE(!files_.empty(), "there is at least one array");
  for (const ArrayFile& file : files_) {
    if (file.type() != type() || file.cols() != cols()) {
      refuse_dataset(file.path(),
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

void Shards::load(const std::vector<bool>& needed) {
  for (std::size_t shard = 0; shard < files_.size(); ++shard) {
    const std::int64_t begin = first_rows_[shard];
    std::vector<RowRange> ranges;
    for (std::int64_t row = 0; row < files_[shard].rows(); ++row) {
      if (!needed[static_cast<std::size_t>(begin + row)]) continue;
      const bool follows = !ranges.empty() && ranges.back().first + ranges.back().count == row;
      if (!follows) ranges.push_back({row, 0});
      ++ranges.back().count;
    }
    files_[shard].load(std::move(ranges));
  }
}

template <class Number>
void Shards::read(std::int64_t row, std::int64_t first, std::span<Number> out) const {
  const auto after = std::upper_bound(first_rows_.begin(), first_rows_.end(), row);
  const auto shard = static_cast<std::size_t>(after - first_rows_.begin()) - 1;
  const ArrayFile& file = files_[shard];
  const std::int64_t width = bytes_of(file.type());
  const std::int64_t row_in_file = row - first_rows_[shard];
  const std::int64_t begin = row_in_file * cols() + first;
  if (const std::byte* const in_memory = file.row(row_in_file)) {
    return convert(file.type(), in_memory + first * width, divisor_, out);
  }
  std::array<std::byte, kChunkBytes> chunk;
  for (std::int64_t done = 0; done < std::ssize(out);) {
    const std::int64_t count = std::min(std::ssize(out) - done, kChunkBytes / width);
    file.read(begin + done, std::span(chunk).first(static_cast<std::size_t>(count * width)));
    convert(file.type(), chunk.data(), divisor_,
            out.subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(count)));
    done += count;
  }
  if (is_always_finite(*this)) return;
  const auto wrong = std::find_if(out.begin(), out.end(),
                                  [](Number x) { return !std::isfinite(static_cast<float>(x)); });
  if (wrong == out.end()) return;
  refuse_dataset(file.path(),
                 fmt::format("row {}, column {} is not a finite 32-bit number", row_in_file,
                             first + (wrong - out.begin())),
                 "remove or replace such samples");
}

template void Shards::read(std::int64_t row, std::int64_t first, std::span<float> out) const;
template void Shards::read(std::int64_t row, std::int64_t first, std::span<double> out) const;

std::string overflow_remedy(const Dataset* dataset, DType numbers, std::string other) {
  constexpr float kBeyondF16 = 65520;  // what rounds to 65504, its largest, is below
  if (dataset == nullptr || numbers != DType::kF16) return other;
  const float largest = dataset->largest_feature();
  if (largest < kBeyondF16) return other;
  const bool is_standard = !dataset->standard().mean.empty();
  return fmt::format("the samples reach {}, and fp16 ends at 65504: {}use --precision bf16",
                     largest, is_standard ? "" : "give --standardize, or ");
}

}  // namespace barestep
