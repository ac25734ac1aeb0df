#include "model/parameters.h"

#include "model/model.h"
#include "support/testing.h"
#include "support/trainer_harness.h"

namespace barestep {
namespace {

TEST(Parameters, BeginWithTheOneAddedLast) {
  Parameters parameters;
  EXPECT_EQ(parameters.add({"a.weight", {5, 3}}), 0);
  EXPECT_EQ(parameters.add({"a.bias", {5}}), 1);
  EXPECT_EQ(parameters.add({"b.weight", {2, 5}}), 2);
  EXPECT_EQ(parameters.add({"b.bias", {2}}), 3);
  EXPECT_EQ(parameters.in(BufferId{0}, 3), (Tensor{0, 0, 1, 2}));
  EXPECT_EQ(parameters.in(BufferId{0}, 2), (Tensor{0, 64, 2, 5}));
  EXPECT_EQ(parameters.in(BufferId{0}, 1), (Tensor{0, 128, 1, 5}));
  EXPECT_EQ(parameters.in(BufferId{0}, 0), (Tensor{0, 192, 5, 3}));
  EXPECT_EQ(parameters.in(BufferId{0}, 0, DType::kBF16), (Tensor{0, 96, 5, 3, DType::kBF16}));
  EXPECT_EQ(parameters.bytes(), 256);
  EXPECT_EQ(parameters.bytes(DType::kBF16), 128);
  EXPECT_EQ(parameters.flat(7), (Tensor{7, 0, 1, 64}));
  EXPECT_EQ(parameters.size(), 5 * 3 + 5 + 2 * 5 + 2) << "without padding";
}

TEST(Parameters, OfAnMlpAreNamedAsInTheStateDict) {
  const Parameters parameters = parameters_of({.widths = {3, 5, 2}});
  std::vector<std::string> names;
  for (const Parameter& each : parameters.all()) names.push_back(each.name);
  EXPECT_THAT(names, ElementsAre("net.0.weight", "net.0.bias", "net.2.weight", "net.2.bias"));
  EXPECT_EQ(parameters[2].shape, (std::vector<std::int64_t>{2, 5}));
  EXPECT_EQ(parameters[3].shape, (std::vector<std::int64_t>{2}));
}

TEST(Parameters, AlignEveryTensorTo64BytesWithoutOverlap) {
  const Parameters parameters = parameters_of({.widths = {1, 17, 16, 33, 1, 4}});
  std::int64_t end = 0;
  for (ParameterId id = parameters.count() - 1; id >= 0; --id) {
    const Tensor tensor = parameters.in(BufferId{0}, id);
    EXPECT_EQ(tensor.offset_bytes % 64, 0);
    EXPECT_GE(tensor.offset_bytes, end);
    EXPECT_LT(tensor.offset_bytes - end, 64) << "no more padding than it takes";
    end = tensor.end_bytes();
  }
  EXPECT_EQ(parameters.bytes(), (end + 63) / 64 * 64);
}

// PyTorch draws from one stream, parameter by parameter; constants take nothing from it.
TEST(Parameters, DrawInitialValuesInTheOrderInWhichTheyAreAdded) {
  Parameters parameters;
  parameters.add({"norm.weight", {3}, {.value = 1}});
  parameters.add({"a", {2, 3}, {.bound = 0.5}});
  parameters.add({"norm.bias", {3}});
  parameters.add({"b", {4}, {.bound = 0.25}});
  TorchGenerator generator(7);
  FlatWeights flat = parameters.initial_values(generator);
  TorchGenerator same(7);
  std::vector<float> a(6), b(4);
  same.uniform(a, -0.5, 0.5);
  same.uniform(b, -0.25, 0.25);
  EXPECT_THAT(parameters.in(flat, 0), Each(1.0F));
  EXPECT_THAT(parameters.in(flat, 1), ElementsAreArray(a));
  EXPECT_THAT(parameters.in(flat, 2), Each(0.0F));
  EXPECT_THAT(parameters.in(flat, 3), ElementsAreArray(b));
}

// A pair of Linears, the first cut by outputs, the second by inputs; the last bias is whole.
TEST(Parameters, OfTensorRanksAreTogetherAllOfThem) {
  Parameters all;
  const Linear up(all, {.name = "up", .inputs = 3, .outputs = 5, .cut = Cut::kRows});
  const Linear down(all, {.name = "down", .inputs = 5, .outputs = 2, .cut = Cut::kCols});
  TorchGenerator generator(3);
  FlatWeights values = all.initial_values(generator);
  for (const int ranks : {1, 2, 3, 5}) {
    std::map<ParameterId, std::vector<float>> rows;
    std::vector<float> columns(10);
    std::int64_t first_col = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const Parameters list = all.part(rank, ranks);
      TorchGenerator same(3);
      FlatWeights own = list.initial_values(same, all);
      ASSERT_EQ(own.size(), list.zeros().size());
      EXPECT_EQ(list[up.weight()].name, "up.weight");
      for (const ParameterId id : {up.weight(), up.bias()}) {
        const std::span<float> part = list.in(own, id);
        rows[id].insert(rows[id].end(), part.begin(), part.end());
      }
      const std::int64_t cols = list[down.weight()].cols();
      for (std::int64_t i = 0; i < 2 * cols; ++i) {
        at(columns, i / cols * 5 + first_col + i % cols) = at(list.in(own, down.weight()), i);
      }
      first_col += cols;
      EXPECT_THAT(list.in(own, down.bias()), ElementsAreArray(all.in(values, down.bias())));
    }
    for (const auto& [id, part] : rows) {
      EXPECT_THAT(part, ElementsAreArray(all.in(values, id)));
    }
    EXPECT_THAT(columns, ElementsAreArray(all.in(values, down.weight())));
  }
}

/// Two groups of four blocks of two: three ranks have 2, 1 and 1 blocks of each group.
TEST(Parameters, OfTensorRanksMayBeBlocksOfSeveralGroups) {
  Parameters all;
  const CutGrid grid{.groups = 2, .unit = 2};
  const Linear cut(all,
                   {.name = "cut", .inputs = 3, .outputs = 16, .cut = Cut::kRows, .grid = grid});
  TorchGenerator generator(3);
  FlatWeights values = all.initial_values(generator);
  std::vector<float> weight(48), bias(16);
  const std::vector<std::int64_t> first_rows = {0, 4, 6, 8};
  for (int rank = 0; rank < 3; ++rank) {
    const Parameters list = all.part(rank, 3);
    TorchGenerator same(3);
    FlatWeights own = list.initial_values(same, all);
    const std::int64_t rows = at(first_rows, rank + 1) - at(first_rows, rank);
    ASSERT_EQ(list[cut.weight()].rows(), 2 * rows);
    ASSERT_EQ(list[cut.bias()].cols(), 2 * rows);
    for (std::int64_t i = 0; i < 2 * rows; ++i) {
      const std::int64_t row = i / rows * 8 + at(first_rows, rank) + i % rows;
      at(bias, row) = at(list.in(own, cut.bias()), i);
      for (std::int64_t col = 0; col < 3; ++col) {
        at(weight, 3 * row + col) = at(list.in(own, cut.weight()), 3 * i + col);
      }
    }
    FlatWeights copied(48);
    copy_to_whole(list[cut.weight()].in_whole(), list.in(own, cut.weight()), copied);
    std::vector<float> back(static_cast<std::size_t>(6 * rows));
    copy_from_whole(list[cut.weight()].in_whole(), copied, back);
    EXPECT_THAT(back, ElementsAreArray(list.in(own, cut.weight())));
  }
  EXPECT_THAT(weight, ElementsAreArray(all.in(values, cut.weight())));
  EXPECT_THAT(bias, ElementsAreArray(all.in(values, cut.bias())));
}

/// The indices of a flat buffer that are not part of any tensor.
std::set<std::size_t> padding_of(const Parameters& parameters) {
  std::set<std::size_t> padding;
  for (std::size_t i = 0; i < parameters.zeros().size(); ++i) padding.insert(i);
  for (ParameterId id = 0; id < parameters.count(); ++id) {
    const Tensor tensor = parameters.in(BufferId{0}, id);
    for (std::int64_t byte = tensor.offset_bytes; byte < tensor.end_bytes(); byte += 4) {
      padding.erase(static_cast<std::size_t>(byte / 4));
    }
  }
  return padding;
}

TEST(Parameters, PaddingIsZeroAfterFiftySteps) {
  TrainConfig config;
  config.model.layers = {5, 7, 3, 9};
  config.data.batch_size = 4;
  config.training.steps = 50;
  config.optimizer.lr = 0.01;
  config.training.zero_grad = false;
  TrainerHarness run(config);
  run.run();
  const std::set<std::size_t> padding = padding_of(run.programs->parameter_list());
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
