// Small training runs on idx files that cover everything specific to files: a smaller last batch, a
// test set, and a smaller last batch of the test set.
#pragma once

#include "core/config.h"
#include "support/idx_bytes.h"
#include "support/temp_dir.h"
#include "support/testing.h"

namespace barestep {

constexpr std::uint32_t kFileSamples = 40;  // 30 for training, 10 for testing

/// A run of four epochs, each with batches of 8, 8, 8 and 6 samples, then 8 and 2 of the test set.
/// Its files do not exist yet.
inline TrainConfig file_run(const std::filesystem::path& folder) {
  TrainConfig config;
  config.model.layers = {6, 12, 4};
  config.data = {.kind = DataKind::kIdx,
                 .x = folder / "x.idx",
                 .y = folder / "y.idx",
                 .batch_size = 8,
                 .test_split = 0.25};
  config.training.epochs = 4;
  config.optimizer.lr = 0.01;
  config.device.threads = 2;
  return config;
}

/// Cross-entropy with 4 classes on images of 2 x 3 pixels, written into `folder`.
inline TrainConfig class_run(const std::filesystem::path& folder) {
  std::vector<std::uint8_t> pixels;
  std::vector<std::uint8_t> labels;
  for (std::uint32_t i = 0; i < kFileSamples; ++i) {
    for (std::uint32_t p = 0; p < 6; ++p) {
      pixels.push_back(static_cast<std::uint8_t>((37 * i + 91 * p * p + 5 * i * p) % 256));
    }
    labels.push_back(static_cast<std::uint8_t>((i * i + 1) % 4));
  }
  write_file(folder / "x.idx", idx_bytes(0x08, {kFileSamples, 2, 3}, pixels));
  write_file(folder / "y.idx", idx_bytes(0x08, {kFileSamples}, labels));
  TrainConfig config = file_run(folder);
  config.model.last_relu = false;
  config.model.loss = LossKind::kCrossEntropy;
  return config;
}

/// Mean squared error with 4 targets on 6 numbers, written into `folder`.
inline TrainConfig number_run(const std::filesystem::path& folder) {
  std::vector<float> x;
  std::vector<float> y;
  for (std::uint32_t i = 0; i < kFileSamples; ++i) {
    for (std::uint32_t p = 0; p < 6; ++p) x.push_back(static_cast<float>((i * p) % 7) / 8 - 0.25F);
    for (std::uint32_t p = 0; p < 4; ++p) y.push_back(static_cast<float>((i + p) % 5) / 4);
  }
  write_file(folder / "x.idx", idx_bytes(0x0D, {kFileSamples, 6}, x));
  write_file(folder / "y.idx", idx_bytes(0x0D, {kFileSamples, 4}, y));
  return file_run(folder);
}

}  // namespace barestep
