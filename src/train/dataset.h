// Samples from files: features, and targets or labels, split into a training and a test set.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/config.h"
#include "core/idx.h"

namespace barestep {

/// N samples in memory as the files hold them, 1 byte a pixel; gather() converts. Row r is sample r
/// of the files. Rows 0 .. train_rows() - 1 are the training set, the rest is the test set.
class Dataset {
 public:
  /// Takes over arrays that load_dataset() has checked. `labels` is empty for regression,
  /// `targets` for classification.
  Dataset(IdxArray features, IdxArray targets, std::vector<std::int32_t> labels,
          std::int64_t test_rows);

  [[nodiscard]] std::int64_t train_rows() const { return features_.rows() - test_rows_; }
  [[nodiscard]] std::int64_t test_rows() const { return test_rows_; }

  /// Numbers per sample, all dimensions behind the first flattened.
  [[nodiscard]] std::int64_t features() const { return feature_cols_; }

  /// True when gather() yields labels, false when it yields targets.
  [[nodiscard]] bool has_labels() const { return !labels_.empty(); }

  /// Copies `rows` in their order. `x` takes rows.size() x features() floats: u8 pixels divided by
  /// 255, other types as they are. `y` takes rows.size() std::int32_t labels, or rows.size() x
  /// targets floats, numbers as they are. Allocates nothing; several threads may gather at once.
  void gather(std::span<const std::int64_t> rows, float* x, void* y) const;

 private:
  IdxArray features_, targets_;
  std::vector<std::int32_t> labels_;
  std::int64_t feature_cols_;
  std::int64_t test_rows_;
};

/// Reads the idx files of `data` for a model whose layers have `widths` (inputs first, outputs
/// last). Cross-entropy takes one integer label per sample, in [0, outputs); MSE takes `outputs`
/// numbers per sample. The last floor(N * test_split) samples become the test set. Throws what
/// read_idx throws, and Error(kBadData) when the files do not fit each other, the model or the
/// loss, or hold NaN or infinities.
Dataset load_dataset(const DataConfig& data, std::span<const std::int64_t> widths, LossKind loss);

/// Writes the order in which epoch `epoch`, counted from 0, visits order.size() training samples:
/// torch.randperm from a generator seeded with seed + epoch modulo 2^64. Allocates nothing.
void epoch_order(std::uint64_t seed, std::int64_t epoch, std::span<std::int64_t> order);

}  // namespace barestep
