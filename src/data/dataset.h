// Samples from files: features plus targets or labels, split into a training and a test set.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/config.h"
#include "data/array_file.h"

namespace barestep {

/// The rows of several arrays with equal types and columns, one after another.
class Shards {
 public:
  /// Throws Error(kBadData) if the arrays differ in type or columns. At least one array.
  explicit Shards(std::vector<ArrayFile> files);

  [[nodiscard]] std::int64_t rows() const { return first_rows_.back(); }
  [[nodiscard]] std::int64_t cols() const { return files_.front().cols(); }
  [[nodiscard]] ElementType type() const { return files_.front().type(); }
  [[nodiscard]] std::int64_t bytes() const;
  [[nodiscard]] const std::vector<ArrayFile>& files() const { return files_; }

  /// Loads the rows that are needed into memory; a row's bit says whether it is.
  void load(const std::vector<bool>& needed);

  /// Makes read() divide each number.
  void divide_by(double divisor) { divisor_ = divisor; }
  [[nodiscard]] double divisor() const { return divisor_; }

  /// Fills `out` with a row's numbers from column `first` on, divided and then rounded once to
  /// Number, float or double, from memory or from the file. Throws Error: kInputOutput, and
  /// kBadData naming the first number of a row from a file that is not finite as a float. Allocates
  /// nothing; several threads may read at once.
  template <class Number>
  void read(std::int64_t row, std::int64_t first, std::span<Number> out) const;

 private:
  std::vector<ArrayFile> files_;
  std::vector<std::int64_t> first_rows_;  // of each file, then the total
  double divisor_ = 1;
};

/// The number subtracted from each feature, and the divisor of the difference.
struct Standard {
  std::vector<double> mean, deviation;
};

/// N samples as the files store them, e.g. 1 byte per pixel; gather() converts. Row r is sample r
/// of the files, taken in the order of their names. Rows 0 .. train_rows() - 1 are the training
/// set, the rest is the test set.
class Dataset {
 public:
  /// Takes ownership of arrays that load_dataset() has checked. For regression `labels` is empty;
  /// for classification `targets` has no arrays.
  Dataset(Shards features, std::vector<Shards> targets, std::vector<std::int32_t> labels,
          std::int64_t test_rows);

  [[nodiscard]] std::int64_t train_rows() const { return features_.rows() - test_rows_; }
  [[nodiscard]] std::int64_t test_rows() const { return test_rows_; }

  /// Numbers per sample, all dimensions after the first flattened.
  [[nodiscard]] std::int64_t features() const { return features_.cols(); }

  /// The size of one sample in gather()'s `y`.
  [[nodiscard]] std::int64_t y_bytes() const;

  /// True if gather() writes labels, false if it writes targets.
  [[nodiscard]] bool has_labels() const { return !labels_.empty(); }

  /// The mean squared distance of the last `rows` samples' targets from their mean, for each
  /// column; empty with labels. Reads them all. Throws what Shards::read() throws.
  [[nodiscard]] std::vector<double> target_variances(std::int64_t rows) const;

  /// The classes in the test set that do not occur in the training set, in ascending order.
  [[nodiscard]] std::vector<std::int32_t> untrained_classes() const;

  /// False if gather() reads samples from the files.
  [[nodiscard]] bool is_loaded() const { return features_.files().front().is_loaded(); }

  /// Makes gather() give each feature mean 0 and standard deviation 1 over the training set. The
  /// deviation is the population's, as in sklearn's StandardScaler; a constant feature is only
  /// shifted to 0. Reads the training set once. Throws what Shards::read() throws.
  void standardize();
  /// Empty before standardize().
  [[nodiscard]] const Standard& standard() const { return standard_; }

  /// What is divided: "features / 255", "features and targets / 255", ... Empty if all numbers are
  /// as the files have them.
  [[nodiscard]] std::string division() const;

  /// The largest magnitude among the features that gather() gives. Reads all samples. Throws what
  /// Shards::read() throws.
  [[nodiscard]] float largest_feature() const;

  /// Copies `rows` in the given order. `x` receives rows.size() x features() floats, divided as
  /// load_dataset() says, then standardized, if requested; computed in double and rounded last. `y`
  /// receives rows.size() std::int32_t labels, or rows.size() x targets floats. Throws what
  /// Shards::read() throws. Allocates nothing; several threads may gather at once.
  void gather(std::span<const std::int64_t> rows, float* x, void* y) const;

 private:
  void gather_standardized(std::int64_t row, std::span<float> x) const;
  void read_features(std::int64_t row, std::span<float> x) const;

  Shards features_;
  std::vector<Shards> targets_;  // empty or one element
  std::vector<std::int32_t> labels_;
  std::int64_t test_rows_;
  Standard standard_;
};

/// The rows that a process reads, a bit for each, and the largest number that any process of the
/// run reads.
struct NeededRows {
  std::vector<bool> own;
  std::int64_t max_count = 0;
};
using NeededRowsOf = std::function<NeededRows(std::int64_t train_rows, std::int64_t test_rows)>;

/// Opens the files of `data`, idx, npy or safetensors, for a model whose layers have `widths`
/// (inputs first, outputs last). Cross-entropy needs one integer label per sample, in [0, outputs);
/// binary cross-entropy needs one number, 0 or 1; other losses need `outputs` numbers per sample.
/// Numbers are taken as they are, except for images: u8 with several numbers per sample. Images in
/// idx files are divided by 255, features and targets alike. `data.input_scale` is the divisor of
/// all features instead, and of targets that are images if the files are idx files or the features
/// are u8 of the same size, as an autoencoder's. The last samples become the test set: as many as
/// make a share of at most test_split. If as
/// many rows as any process needs, all by default, have at most `memory_bytes`, this one's are
/// loaded into memory and checked for NaN and infinities; other rows stay in their files and are
/// checked as they are gathered. Standardizes if `data` says so. Throws what the readers throw,
/// kNoInput if a pattern matches no file, kConfiguration if a test split leaves no sample for the
/// test set, and Error(kBadData) if the files do not match each other, the model or the loss.
Dataset load_dataset(const DataConfig& data, std::span<const std::int64_t> widths, LossKind loss,
                     std::int64_t memory_bytes = std::numeric_limits<std::int64_t>::max(),
                     const NeededRowsOf& needed_of = {});

/// Writes the order in which epoch `epoch`, counted from 0, visits order.size() training samples:
/// torch.randperm with a generator seeded with seed + epoch modulo 2^64. Allocates nothing.
void epoch_order(std::uint64_t seed, std::int64_t epoch, std::span<std::int64_t> order);

/// What to do about a loss that is not finite: `other`, unless `numbers` is fp16 and the data set,
/// which may be null, has features that it cannot hold. Reads all samples then.
std::string overflow_remedy(const Dataset* dataset, DType numbers, std::string other);

/// The samples of a batch. For the training set: those at positions first, first + stride, ... of
/// the epoch's order, which wraps around. For the test set: its rows first, first + 1, ...
struct BatchRows {
  bool from_test_set = false;
  std::int64_t epoch = 0;  // counted from 0
  std::int64_t first = 0;
  std::int64_t stride = 1;  // above 1 if ranks share a batch by turns
  std::int64_t count = 0;
};

/// Returns the next batch of a run, or nothing after the last.
using NextBatch = std::function<std::optional<BatchRows>()>;

}  // namespace barestep
