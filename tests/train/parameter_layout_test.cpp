#include "train/parameter_layout.h"

#include <gtest/gtest.h>

#include <set>

#include "support/trainer_harness.h"

namespace barestep {
namespace {

TEST(ParameterLayout, BeginsWithTheLastLayerAndPutsTheBiasBeforeTheWeight) {
  const ParameterLayout layout({3, 5, 2});
  EXPECT_EQ(layout.bias(0, 1), (Tensor{0, 0, 1, 2}));
  EXPECT_EQ(layout.weight(0, 1), (Tensor{0, 64, 2, 5}));
  EXPECT_EQ(layout.bias(0, 0), (Tensor{0, 128, 1, 5}));
  EXPECT_EQ(layout.weight(0, 0), (Tensor{0, 192, 5, 3}));
  EXPECT_EQ(layout.bytes(), 256);
  EXPECT_EQ(layout.flat(7), (Tensor{7, 0, 1, 64}));
  EXPECT_EQ(layout.parameters(), 5 * 3 + 5 + 2 * 5 + 2) << "without padding";
}

TEST(ParameterLayout, AlignsEveryTensorTo64BytesWithoutOverlap) {
  const ParameterLayout layout({1, 17, 16, 33, 1, 4});
  std::int64_t end = 0;
  for (int layer = layout.layers() - 1; layer >= 0; --layer) {
    for (const Tensor& tensor : {layout.bias(0, layer), layout.weight(0, layer)}) {
      EXPECT_EQ(tensor.offset_bytes % 64, 0);
      EXPECT_GE(tensor.offset_bytes, end);
      EXPECT_LT(tensor.offset_bytes - end, 64) << "no more padding than it takes";
      end = tensor.end_bytes();
    }
  }
  EXPECT_EQ(layout.bytes(), (end + 63) / 64 * 64);
}

/// The indices of a flat buffer that are not part of any tensor.
std::set<std::size_t> padding_of(const ParameterLayout& layout) {
  std::set<std::size_t> padding;
  for (std::size_t i = 0; i < static_cast<std::size_t>(layout.bytes()) / 4; ++i) padding.insert(i);
  for (int layer = 0; layer < layout.layers(); ++layer) {
    for (const Tensor& tensor : {layout.bias(0, layer), layout.weight(0, layer)}) {
      for (std::int64_t byte = tensor.offset_bytes; byte < tensor.end_bytes(); byte += 4) {
        padding.erase(static_cast<std::size_t>(byte / 4));
      }
    }
  }
  return padding;
}

TEST(ParameterLayout, PaddingIsZeroAfterFiftySteps) {
  TrainConfig config;
  config.model.layers = {5, 7, 3, 9};
  config.data.batch_size = 4;
  config.training.steps = 50;
  config.optimizer.lr = 0.01;
  config.training.zero_grad = false;
  TrainerHarness run(config);
  run.run();
  const std::set<std::size_t> padding = padding_of(run.programs->spec().model.layout);
  ASSERT_GT(padding.size(), 30U);
  std::vector<BufferId> buffers = run.programs->optimizer_state();
  buffers.insert(buffers.end(), {run.programs->parameters(), run.programs->gradients()});
  for (const BufferId buffer : buffers) {
    const FlatWeights flat = run.trainer->download(buffer);
    for (const std::size_t i : padding) {
      EXPECT_EQ(flat[i], 0.0F) << run.programs->buffers()[buffer].name << " at " << i;
    }
  }
}

}  // namespace
}  // namespace barestep
