// Samples from files: features, and targets or labels, split into a training and a test set.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "core/config.h"
#include "data/array_file.h"

namespace barestep {

/// The rows of several arrays with equal types and columns, one after the other.
class Shards {
 public:
  /// Throws Error(kBadData) when the arrays differ in type or columns. There must be one.
  explicit Shards(std::vector<ArrayFile> files);

  [[nodiscard]] std::int64_t rows() const { return first_rows_.back(); }
  [[nodiscard]] std::int64_t cols() const { return files_.front().cols(); }
  [[nodiscard]] ElementType type() const { return files_.front().type(); }
  [[nodiscard]] std::int64_t bytes() const;
  [[nodiscard]] const std::vector<ArrayFile>& files() const { return files_; }
  [[nodiscard]] const std::vector<std::int64_t>& first_rows() const { return first_rows_; }

  /// Brings all of them into memory.
  void load();

  /// Converts a row to cols() floats, each divided by `divisor`, from memory or from the file.
  /// Throws Error: kInputOutput, and kBadData naming the first number of a row from a file that is
  /// not finite as a float. Allocates nothing; several threads may read at once.
  void read(std::int64_t row, float divisor, float* out) const;

 private:
  std::vector<ArrayFile> files_;
  std::vector<std::int64_t> first_rows_;  // of each file, and after the last
};

/// What is subtracted from each feature, and what the difference is divided by.
struct Standard {
  std::vector<float> mean, deviation;
};

/// N samples as the files hold them, 1 byte a pixel; gather() converts. Row r is sample r of the
/// files, of several in the order of their names. Rows 0 .. train_rows() - 1 are the training set,
/// the rest is the test set.
class Dataset {
 public:
  /// Takes over arrays that load_dataset() has checked. `labels` is empty for regression, `targets`
  /// has no arrays for classification.
  Dataset(Shards features, std::vector<Shards> targets, std::vector<std::int32_t> labels,
          std::int64_t test_rows);

  [[nodiscard]] std::int64_t train_rows() const { return features_.rows() - test_rows_; }
  [[nodiscard]] std::int64_t test_rows() const { return test_rows_; }

  /// Numbers per sample, all dimensions after the first flattened.
  [[nodiscard]] std::int64_t features() const { return features_.cols(); }

  /// What a sample takes of gather()'s `y`.
  [[nodiscard]] std::int64_t y_bytes() const;

  /// True when gather() yields labels, false when it yields targets.
  [[nodiscard]] bool has_labels() const { return !labels_.empty(); }

  /// The mean squared distance of the targets of the last `rows` samples from the means of their
  /// columns; 0 where there are labels. Reads them all. Throws what Shards::read() throws.
  [[nodiscard]] double target_variance(std::int64_t rows) const;

  /// False when the samples are read from the files each time they are gathered.
  [[nodiscard]] bool is_loaded() const { return features_.files().front().is_loaded(); }

  /// Has gather() give each feature mean 0 and standard deviation 1 over the training set: of the
  /// population, as sklearn's StandardScaler has it; a feature that never changes is only moved to
  /// 0. Reads the training set once. Throws what Shards::read() throws.
  void standardize();
  /// Empty before that.
  [[nodiscard]] const Standard& standard() const { return standard_; }

  /// Copies `rows` in their order. `x` takes rows.size() x features() floats: u8 pixels divided by
  /// 255, other types as they are; then standardized, if asked for. `y` takes rows.size()
  /// std::int32_t labels, or rows.size() x targets floats, numbers as they are. Throws what
  /// Shards::read() throws. Allocates nothing; several threads may gather at once.
  void gather(std::span<const std::int64_t> rows, float* x, void* y) const;

 private:
  [[nodiscard]] float divisor() const;  // of features

  Shards features_;
  std::vector<Shards> targets_;  // one or none
  std::vector<std::int32_t> labels_;
  std::int64_t test_rows_;
  Standard standard_;
};

/// Opens the files of `data`, idx, npy or safetensors, for a model whose layers have `widths`
/// (inputs first, outputs last). Cross-entropy takes one integer label per sample, in [0, outputs),
/// binary cross-entropy one number, 0 or 1; other losses take `outputs` numbers per sample. The
/// last floor(N * test_split) samples become the test set. What has at most `memory_bytes` is
/// brought into memory and looked through for NaN and infinities; the rest stays in its files, and
/// its rows are looked through as they are gathered. Throws what the readers throw, kNoInput when a
/// pattern fits no file, kConfiguration when a test split leaves no sample to test with, and
/// Error(kBadData) when the files do not fit each other, the model or the loss. Standardized where
/// `data` says so.
Dataset load_dataset(const DataConfig& data, std::span<const std::int64_t> widths, LossKind loss,
                     std::int64_t memory_bytes = std::numeric_limits<std::int64_t>::max());

/// Writes the order in which epoch `epoch`, counted from 0, visits order.size() training samples:
/// torch.randperm from a generator seeded with seed + epoch modulo 2^64. Allocates nothing.
void epoch_order(std::uint64_t seed, std::int64_t epoch, std::span<std::int64_t> order);

}  // namespace barestep
