// --reproducible: the same bits on any number of ranks and for any accumulation.
#include "train/chunk_sums.h"

#include "core/index.h"
#include "core/program.h"
#include "parallel/schemes/scheme_of.h"
#include "support/file_runs.h"
#include "support/rank_run.h"
#include "support/sanitized.h"
#include "support/temp_dir.h"
#include "support/testing.h"
#include "support/trainer_harness.h"

namespace barestep {
namespace {

/// The sum of the chunks of a node as the definition of the tree says it: "((0+1)+2)".
std::string sum_text(const TreeNode& node, std::int64_t chunks) {
  if (node.level == 0) return std::to_string(node.number);
  const TreeNode left{node.level - 1, 2 * node.number}, right{left.level, left.number + 1};
  if (right.number << right.level >= chunks) return sum_text(left, chunks);
  return fmt::format("({}+{})", sum_text(left, chunks), sum_text(right, chunks));
}

int root_level(std::int64_t chunks) {
  int level = 0;
  while (std::int64_t{1} << level < chunks) ++level;
  return level;
}

/// Puts the sums of consecutive nodes on a stack, as texts.
std::vector<std::string> added_up(const std::vector<TreeNode>& nodes, std::int64_t chunks,
                                  TreeStack& stack) {
  std::vector<std::string> sums;
  for (const TreeNode& node : nodes) {
    sums.push_back(sum_text(node, chunks));
    for (int left = stack.push(node); left > 0; --left) {
      const std::string newest = sums.back();
      sums.pop_back();
      sums.back() = fmt::format("({}+{})", sums.back(), newest);
    }
  }
  return sums;
}

TEST(TreeStack, AddsUpInOneOrderWhoeverHasTheChunks) {
  for (std::int64_t chunks = 1; chunks <= 33; ++chunks) {
    const std::string expected = sum_text({root_level(chunks), 0}, chunks);
    for (const int ranks : {1, 2, 3, 4, 5, 7, 8}) {
      SCOPED_TRACE(fmt::format("{} chunks on {} ranks", chunks, ranks));
      std::vector<TreeNode> of_all;
      for (int rank = 0; rank < ranks; ++rank) {
        const Rows own = share_of_rank(chunks, rank, ranks);
        std::vector<TreeNode> leaves;
        for (std::int64_t i = 0; i < own.count; ++i) leaves.push_back({0, own.first + i});
        TreeStack stack(chunks);
        const std::vector<std::string> sums = added_up(leaves, chunks, stack);
        ASSERT_EQ(sums.size(), stack.nodes().size());
        for (std::size_t i = 0; i < sums.size(); ++i) {
          EXPECT_EQ(sums[i], sum_text(stack.nodes()[i], chunks));
        }
        of_all.insert(of_all.end(), stack.nodes().begin(), stack.nodes().end());
      }
      TreeStack stack(chunks);
      EXPECT_THAT(added_up(of_all, chunks, stack), ElementsAre(expected));
    }
  }
}

/// A run whose step has at least four chunks, of `rows` samples each but the last.
TrainConfig chunked(std::int64_t rows = 3) {
  TrainConfig config = rank_config();
  config.data.batch_size = 16;
  config.training.chunk_rows = rows;
  return config;
}

std::vector<Trained> train(const TrainConfig& config, int ranks,
                           const Interruption& interruption = {}) {
  const auto scheme = scheme_of(config, {.first_bucket_bytes = 50});
  return train_threads_by(*scheme, ranks, config, interruption);
}

/// A number from `first` to `last`.
int drawn(std::mt19937& random, int first, int last) {
  return first + static_cast<int>(random() % static_cast<unsigned>(last - first + 1));
}

/// What decides the numbers of a run: model, data, chunks and training.
TrainConfig drawn_run(std::mt19937& random, const std::filesystem::path& folder) {
  const auto one_in = [&](int count) { return drawn(random, 1, count) == 1; };
  TrainConfig config = rank_config();
  config.data.batch_size = 4 * drawn(random, 2, 6);
  if (one_in(3)) {
    config = one_in(2) ? class_run(folder) : number_run(folder);
    config.data.test_split = 0;  // 40 samples
    config.data.batch_size = 4 * drawn(random, 2, 4);
    config.training.epochs = 2;
    config.device.threads = 1;
  } else {
    config.model.layers = {drawn(random, 1, 20), drawn(random, 1, 33), drawn(random, 1, 20),
                           drawn(random, 1, 9)};
    config.model.last_relu = one_in(4);
  }
  config.training.chunk_rows = drawn(random, 1, static_cast<int>(config.data.batch_size - 1) / 3);
  config.training.seed = random();
  if (one_in(3)) config.model.dropout = 0.3;
  if (one_in(3)) config.training.clip_norm = 0.05;
  if (one_in(3)) config.optimizer = {.kind = OptimizerKind::kSgd, .lr = 0.05, .momentum = 0.9};
  if (one_in(4)) config.training.recompute = 2;
  if (one_in(4)) config.device.fusion = false;
  if (one_in(4)) config.model.activation = Activation::kGelu;
  if (one_in(4)) {
    config.device.precision = Precision::kBf16;
    config.device.fusion = true;
  }
  return config;
}

/// How the same run is spread: what must not change a bit.
TrainConfig spread(std::mt19937& random, TrainConfig config) {
  const auto one_in = [&](int count) { return drawn(random, 1, count) == 1; };
  config.training.accumulate = 1 << drawn(random, 0, 2);
  config.data.batch_size /= config.training.accumulate;
  if (one_in(2)) config.parallel.bucket_mib = 0.0002;
  if (one_in(2)) config.parallel.overlap = false;
  if (one_in(2)) {
    constexpr SchemeKind kZero[] = {SchemeKind::kZero1, SchemeKind::kZero2, SchemeKind::kZero3};
    config.parallel.scheme = kZero[drawn(random, 0, 2)];
  } else if (!config.training.clip_norm && one_in(3)) {
    config.training.update = Update::kPerBucket;
  } else if (one_in(3)) {
    config.parallel.whole_first_bucket = true;
  }
  return config;
}

class Reproducible : public TempDirTest {};
class DrawnRuns : public TempDirTest {};

TEST_F(Reproducible, RunsHaveTheSameBitsHoweverTheyAreSpread) {
  std::mt19937 random(17);
  for (int number = 0; number < 40 / kOneOf; ++number) {
    const TrainConfig config = drawn_run(random, folder());
    const Trained one = train_single(config);
    for (const int ranks : {1, 2, 3, 4}) {
      const TrainConfig other = spread(random, config);
      SCOPED_TRACE(fmt::format("run {} on {} ranks, {} x {} samples in chunks of {}", number, ranks,
                               other.training.accumulate, other.data.batch_size,
                               *other.training.chunk_rows));
      for (const Trained& rank : train(other, ranks)) {
        EXPECT_EQ(rank.parameters, one.parameters);
        EXPECT_EQ(rank.losses, one.losses);
      }
    }
  }
}

/// Factor needs no chunks: all ranks multiply the rows of one rank's batch, whatever their shares.
TEST_F(DrawnRuns, OfFactorHaveTheBitsOfOneRank) {
  std::mt19937 random(23);
  for (int number = 0; number < 20 / kOneOf; ++number) {
    TrainConfig config = drawn_run(random, folder());
    config.training.chunk_rows.reset();
    config.training.recompute = 1;  // refused
    config.training.accumulate = drawn(random, 1, 2);
    config.data.batch_size += drawn(random, 0, 3);
    config.checkpoint.folder = "checkpoints";
    const FlatWeights one = train_single(config).parameters;
    config.parallel.scheme = SchemeKind::kFactor;
    const auto scheme = scheme_of(config);
    for (const int ranks : {1, 2, 3, 5, 8}) {
      config.device.instructions =
          kValuesOf<Instructions>[static_cast<std::size_t>(drawn(random, 0, 3))];
      SCOPED_TRACE(fmt::format("run {} on {} ranks, {} x {} samples, {}", number, ranks,
                               config.training.accumulate, config.data.batch_size,
                               name_of(config.device.instructions)));
      for (const Trained& rank : train_threads_by(*scheme, ranks, config)) {
        EXPECT_EQ(rank.parameters, one);
      }
    }
    TrainingState state;
    train_threads_by(*scheme, 4, config, {.kept = &state, .pause_every = 3});
    const int ranks = drawn(random, 1, 3);
    EXPECT_EQ(train_threads_by(*scheme, ranks, config, {.start = &state})[0].parameters, one)
        << "run " << number << " of 4 ranks, resumed on " << ranks;
  }
}

TEST_F(Reproducible, RunsAreThoseOfDdpUpToRounding) {
  for (const int ranks : {1, 3}) {
    TrainConfig config = chunked();
    const auto sums = train(config, ranks);
    config.training.chunk_rows.reset();
    const auto plain = train(config, ranks);
    for (std::size_t rank = 0; rank < sums.size(); ++rank) {
      EXPECT_LT(largest_distance(spec_of(config, DeviceKind::kCpu, nullptr).model,
                                 sums[rank].parameters, plain[rank].parameters),
                1e-6);
      EXPECT_LT(relative_distance(sums[rank].losses, plain[rank].losses), 1e-6);
    }
    EXPECT_NE(sums[0].parameters, plain[0].parameters) << "another order of sums";
  }
}

TEST_F(Reproducible, ChunksOfAnotherSizeAreAnotherRun) {
  EXPECT_NE(train(chunked(3), 2)[0].parameters, train(chunked(4), 2)[0].parameters);
}

/// The mean of the ranks' own losses, by their rows, is the loss.
TEST_F(Reproducible, RunsHaveTheOwnLossOfEachRank) {
  const TrainConfig config = chunked();  // chunks of 3, 3, 3 | 3, 3, 1
  const auto two = train(config, 2);
  for (std::size_t step = 0; step < two[0].losses.size(); ++step) {
    EXPECT_NEAR((9 * two[0].own_losses[step] + 7 * two[1].own_losses[step]) / 16,
                two[0].losses[step], 1e-6 * two[0].losses[step]);
    EXPECT_NE(two[0].own_losses[step], two[0].losses[step]);
  }
}

TEST_F(Reproducible, ProgramsNeedEveryWaitAndNoRankIsStuck) {
  for (const SchemeKind kind : {SchemeKind::kDdp, SchemeKind::kZero1}) {
    TrainConfig config = chunked();
    config.parallel.scheme = kind;
    config.parallel.bucket_mib = 0.0002;
    config.training.clip_norm = 1;
    const auto scheme = scheme_of(config);
    for (const int ranks : {1, 2, 3, 4, 6}) {
      EXPECT_NO_THROW(check_all_ranks(config, DeviceKind::kCpu, nullptr, ranks));
      const StepPrograms programs = programs_by(*scheme, config, 0, ranks);
      EXPECT_GE(expect_every_deletion_found(programs.train().program), ranks > 1 ? 10 : 1);
    }
  }
}

/// Sums of 16 chunks of a rank: those of 8, 4, 2, 1, and the newest chunk.
TEST_F(Reproducible, RunsKeepFewSumsAtOnce) {
  TrainConfig config = chunked(1);
  const auto names_of = [&](int ranks) {
    const auto scheme = scheme_of(config);
    const StepPrograms programs = programs_by(*scheme, config, 0, ranks);
    std::vector<std::string> names;
    for (BufferId id = 0; id < programs.buffers().size(); ++id) {
      const Buffer& buffer = programs.buffers()[id];
      if (buffer.category == Category::kGradients) names.push_back(buffer.name);
    }
    return names;
  };
  EXPECT_THAT(names_of(1), UnorderedElementsAre("gradients", "gradients.1", "gradients.2",
                                                "gradients.3", "gradients.4"));
  EXPECT_THAT(names_of(16), ElementsAre("gradients"));
}

/// Two ranks with a subtree each send each other half of the sums, then the others' halves.
TEST_F(Reproducible, RanksWithSubtreesSendWhatAnAllReduceSends) {
  TrainConfig config = chunked(4);
  const auto sent = [&] {
    const auto scheme = scheme_of(config);
    return bytes_sent(programs_by(*scheme, config, 0, 4).train().program, Mesh::of_data(0, 4));
  };
  const std::int64_t in_order = sent();
  config.training.chunk_rows.reset();
  // Besides padding and the losses of chunks.
  EXPECT_NEAR(static_cast<double>(in_order), static_cast<double>(sent()), 256);
}

}  // namespace
}  // namespace barestep
