// Runs have the same bits with any instructions: every activation, loss and optimizer, drawn with
// what else decides which loops a step runs.

#include "support/file_runs.h"
#include "support/rank_run.h"
#include "support/sanitized.h"
#include "support/temp_dir.h"
#include "support/testing.h"

namespace barestep {
namespace {

class DrawnInstructions : public TempDirTest {
 protected:
  std::int64_t drawn(std::int64_t first, std::int64_t last) {
    return std::uniform_int_distribution(first, last)(random_);
  }
  bool one_in(std::int64_t count) { return drawn(1, count) == 1; }

  /// Random numbers, or files if the loss needs labels.
  TrainConfig run_of(LossKind loss) {
    TrainConfig config = rank_config();
    config.training.steps = 4;
    if (is_pointwise(loss) && loss != LossKind::kBce) {
      config.data.batch_size = drawn(1, 40);
      config.model.layers = {drawn(1, 70), drawn(1, 140), drawn(1, 70), drawn(1, 40)};
    } else {
      config = class_run(folder());
      config.training.epochs = 2;
      config.data.batch_size = drawn(3, 30);
      config.model.layers = {6, drawn(1, 140), loss == LossKind::kBce ? 1 : drawn(4, 70)};
    }
    if (loss == LossKind::kBce) {
      std::vector<std::uint8_t> labels;
      for (std::uint32_t i = 0; i < kFileSamples; ++i) labels.push_back(i * i % 3 % 2);
      write_file(folder() / "y.idx", idx_bytes(0x08, {kFileSamples}, labels));
    }
    config.model.loss = loss;
    return config;
  }

  void make_transformer(ModelConfig& model) {
    model.layers.clear();
    model.block = BlockKind::kTransformer;
    model.heads = drawn(1, 3);
    model.dim = *model.heads * drawn(1, 20);
    model.depth = drawn(1, 2);
    model.length = drawn(1, 70);
    model.ffn = drawn(1, 70);
    model.causal = one_in(2);
    model.attention = one_in(2) ? AttentionForm::kFlash : AttentionForm::kStandard;
  }

  TrainConfig run(int number) {
    const auto nth = [number]<class Enum>(const Enum&) {
      constexpr auto& kAll = kValuesOf<Enum>;
      return kAll[static_cast<std::size_t>(number) % kAll.size()];
    };
    TrainConfig config = run_of(nth(LossKind{}));
    config.model.activation = nth(Activation{});
    config.model.last_relu = one_in(4);
    config.optimizer = {.kind = nth(OptimizerKind{}), .lr = 0.01};
    config.training.seed = random_();
    if (config.data.kind == DataKind::kRandn && one_in(3)) {
      make_transformer(config.model);
    } else if (config.optimizer.kind <= OptimizerKind::kAdamW && one_in(2)) {
      config.training.update = Update::kFused;
      return config;
    }
    if (one_in(3)) config.training.clip_norm = 0.05;
    if (one_in(4)) config.model.dropout = 0.3;
    if (one_in(4)) config.device.fusion = false;
    return config;
  }

 private:
  std::mt19937 random_{77};
};

TEST_F(DrawnInstructions, ChangeNoBit) {
  for (int number = 0; number < 60 / kOneOf; ++number) {
    TrainConfig config = run(number);
    config.device.threads = 1;
    config.device.instructions = Instructions::kPlain;
    const Trained plain = train_single(config);
    for (const Instructions other : {Instructions::kAvx2, Instructions::kAvx512}) {
      config.device.instructions = other;
      config.device.threads = static_cast<int>(drawn(1, 3));
      SCOPED_TRACE(fmt::format("run {}: {}, {}, {}, {}", number, name_of(config.model.activation),
                               name_of(config.model.loss), name_of(config.optimizer.kind),
                               name_of(other)));
      EXPECT_EQ(train_single(config), plain);
    }
  }
}

}  // namespace
}  // namespace barestep
