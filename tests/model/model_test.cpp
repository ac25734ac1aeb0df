#include "model/model.h"

#include "core/checker.h"
#include "support/expect_error.h"
#include "support/testing.h"
#include "support/trainer_harness.h"
#include "train/step.h"

namespace barestep {
namespace {

TEST(ModelSpec, DescribesEqualLayersByTheirNumber) {
  EXPECT_EQ((ModelSpec{.widths = {8, 8, 8}}.text()), "2 x Linear(8, 8)");
  EXPECT_EQ((ModelSpec{.widths = {784, 512, 10}}.text()), "Linear 784 - 512 - 10");
  EXPECT_EQ((ModelSpec{.widths = {8, 8, 8}}.short_text()), "8 x 2");
  EXPECT_EQ((ModelSpec{.widths = {784, 512, 10}}.short_text()), "784-512-10");
}

/// A block whose parameter is no factor's: y = x.
class Shift final : public Block {
 public:
  explicit Shift(Parameters& parameters) : Block("shift") { parameters.add({"shift.by", {4}}); }
  Tensor forward(Pass& /*pass*/, const Tensor& x) override { return x; }
  Tensor backward(Pass& /*pass*/, const Tensor& grad_y, bool /*wants_grad_x*/) override {
    return grad_y;
  }
  void add_linears(std::vector<Linear*>& /*linears*/) override {}
};

/// Stages are cut by these numbers. A block has the weights and biases of four products of its
/// width and of two with the hidden layer, and two norms.
TEST(Parameters, AddUpToThoseOfEachLayer) {
  const ModelSpec blocks{
      .widths = {6, 6, 6},
      .transformer = TransformerSpec{.attention = {.heads = 2, .length = 3}, .ffn = 5}};
  constexpr std::int64_t kBlock = 4 * 6 * (6 + 1) + 6 * 5 + 5 + 5 * 6 + 6 + 2 * (6 + 6);
  const auto expect = [](const ModelSpec& spec, const std::vector<std::int64_t>& sizes) {
    std::int64_t sum = 0;
    for (int layer = 0; layer < spec.layers(); ++layer) {
      const std::int64_t size = parameters_of(spec, {layer, layer + 1}).size();
      EXPECT_EQ(size, at(sizes, layer)) << layer;
      sum += size;
    }
    EXPECT_EQ(parameters_of(spec).size(), sum);
  };
  expect({.widths = {7, 3, 5, 1}}, {8 * 3, 4 * 5, 6});
  expect(blocks, {kBlock, kBlock});
}

/// Whatever a rank has of a layer, and whether backward computes its output again.
TEST(LayersOfStages, AreThoseOfTheWholeModel) {
  ModelSpec spec{.widths = {8, 8, 2, 8, 2, 2}};  // 72, 18, 24, 18 and 6 parameters
  const std::vector<LayerRange> expected{{0, 1}, {1, 3}, {3, 5}};
  EXPECT_EQ(layers_of_stages(spec, 3), expected);
  spec.segments = 2;
  spec.tensor_ranks = 2;
  spec.tensor_rank = 1;
  EXPECT_EQ(layers_of_stages(spec, 3), expected);
}

TEST(RequireOnlyLinears, NamesTheFirstParameterWithoutFactors) {
  Parameters parameters;
  Linear linear(parameters, {.name = "net.0", .inputs = 4, .outputs = 4});
  EXPECT_NO_THROW(require_only_linears(parameters, {&linear}, "--scheme", "factor"));
  const Shift shift(parameters);
  expect_error(ExitCode::kConfiguration,
               "--scheme 'factor': shift.by is not a Linear's parameter, and only their gradients "
               "have factors; leave it out",
               [&] { require_only_linears(parameters, {&linear}, "--scheme", "factor"); });
}

/// Runs the passes of a step in this order.
class Scheduled final : public Scheme {
 public:
  explicit Scheduled(PassSchedule schedule) : schedule_(std::move(schedule)) {}
  void build(Draft& draft) const override {
    draft.input();
    draft.passes(schedule_);
    draft.update();
  }

 private:
  PassSchedule schedule_;
};

TrainConfig three_micro_steps() {
  TrainConfig config;
  config.model.layers = {5, 7, 3};
  config.model.dropout = 0.4;
  config.model.activation = Activation::kGelu;
  config.data.batch_size = 4;
  config.training.accumulate = 3;
  config.training.steps = 4;
  return config;
}

// GPipe's order keeps the activations of all micro-steps, 1F1B's of two, one after the other one.
TEST(Passes, HaveTheBitsOfAccumulationInAnyOrderThatAddsInItsOrder) {
  using enum ScheduledPass::Direction;
  const PassSchedule gpipe = {{kForward, 0},  {kForward, 1},  {kForward, 2},
                              {kBackward, 0}, {kBackward, 1}, {kBackward, 2}};
  const PassSchedule alternating = {{kForward, 0}, {kForward, 1},  {kBackward, 0},
                                    {kForward, 2}, {kBackward, 1}, {kBackward, 2}};
  const TrainConfig config = three_micro_steps();
  TrainerHarness expected(config);
  expected.run();
  const auto activations = [](const TrainerHarness& run) {
    std::int64_t bytes = 0;
    for (const Buffer& buffer : run.programs->buffers().all()) {
      if (buffer.name == "net.0.out") bytes = buffer.bytes;
    }
    return bytes;
  };
  for (const auto& [schedule, in_flight] : {std::pair{gpipe, 3}, std::pair{alternating, 2}}) {
    const Scheduled scheme(schedule);
    TrainerHarness run(config, {}, nullptr, nullptr, &scheme);
    EXPECT_TRUE(check(run.programs->train().program).empty());
    run.run();
    EXPECT_EQ(run.losses(), expected.losses());
    EXPECT_EQ(run.trainer->weights(), expected.trainer->weights());
    EXPECT_EQ(activations(run), in_flight * activations(expected));
  }
}

/// Keeps every gradient in a buffer of its own, as schemes without a flat buffer of them do, and
/// copies them where the update reads them.
class OwnGradients final : public Scheme {
 public:
  void build(Draft& draft) const override {
    const Parameters& list = draft.parameters();
    const auto own = [&](ParameterId id) {
      const Parameter& each = list[id];
      return draft.buffers().tensor("gradient of " + each.name, Category::kGradients, each.rows(),
                                    each.cols());
    };
    const Tensor summed =
        list.flat(draft.buffers().get("summed", Category::kGradients, list.bytes()));
    const BufferId weights = draft.buffers().find("parameters");
    draft.input();
    draft.passes({.pass = {.weight = [&](ParameterId id) { return list.in(weights, id); },
                           .gradient = own,
                           .before = [&](const Pass&, ParameterId id) { read.push_back(id); },
                           .complete =
                               [&](const Pass& pass, ParameterId id) {
                                 if (!pass.is_last) return;
                                 pass.add(Copy{.to = list.in(summed.buffer, id), .from = own(id)},
                                          "");
                               }}});
    draft.update(
        {.parts = std::vector{UpdatedPart{
             .range = {0, summed.cols}, .parameters = list.flat(weights), .gradients = summed}}});
  }

  mutable std::vector<ParameterId> read;
};

TEST(Passes, ReadAndWriteWhereTheSchemeSaysThatParametersAndGradientsLive) {
  const TrainConfig config = three_micro_steps();
  TrainerHarness expected(config);
  expected.run();
  const OwnGradients scheme;
  TrainerHarness run(config, {}, nullptr, nullptr, &scheme);
  EXPECT_EQ(run.programs->buffers().find("gradients"), kNoBuffer);
  EXPECT_THAT(scheme.read, ElementsAre(0, 1, 2, 3, 2, 0, 1, 2, 3, 2, 0, 1, 2, 3, 2))
      << "backward needs no input gradient of the first layer";
  run.run();
  EXPECT_EQ(run.losses(), expected.losses());
  EXPECT_EQ(run.trainer->weights(), expected.trainer->weights());
}

// The same numbers as samples of three rows, and as samples of one.
TEST(RowsPerSample, GiveTheLossesOfAsManySamplesOfOneRow) {
  TrainConfig one_row = three_micro_steps();
  one_row.data.batch_size = 12;
  TrainConfig three_rows = one_row;
  three_rows.data.batch_size = 4;
  for (const Update update : {Update::kSeparate, Update::kFused}) {
    one_row.training.update = three_rows.training.update = update;
    TrainerHarness expected(one_row);
    expected.run();
    TrainerHarness run(three_rows, {}, nullptr, nullptr, nullptr, 3);
    run.run();
    EXPECT_EQ(run.losses(), expected.losses());
    EXPECT_EQ(run.trainer->weights(), expected.trainer->weights());
    EXPECT_EQ(run.programs->train().rows, 12) << "samples of a step";
  }
}

}  // namespace
}  // namespace barestep
