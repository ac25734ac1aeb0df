// Every program of a run is ordered, without unnecessary waits.
#include "train/step.h"

#include "core/printer.h"
#include "support/testing.h"
#include "support/trainer_harness.h"

namespace barestep {
namespace {

/// Every combination of the settings that change the programs.
std::vector<StepSpec> all_specs() {
  std::vector<StepSpec> specs;
  const std::vector<std::vector<std::int64_t>> shapes = {{3, 2}, {5, 4, 3}, {6, 6, 6, 6}};
  for (const auto& widths : shapes) {
    for (int bits = 0; bits < 64; ++bits) {
      const bool files = (bits & 1) != 0;
      const bool classes = (bits & 2) != 0;
      if (classes && !files) continue;
      const bool tails = (bits & 32) != 0;
      if (tails && !files) continue;
      specs.push_back({.model = {.widths = widths,
                                 .activation = (bits & 4) != 0   ? Activation::kRelu
                                               : (bits & 8) != 0 ? Activation::kGelu
                                                                 : Activation::kNone,
                                 .last_relu = (bits & 8) != 0,
                                 .loss = classes ? LossKind::kCrossEntropy : LossKind::kMse,
                                 .dropout = widths.size() == 4 ? 0.5 : 0,
                                 .fusion = (bits & 16) != 0},
                       .input = {.data = files ? DataKind::kIdx : DataKind::kRandn,
                                 .train_rows = files ? (tails ? 10 : 8) : 0,
                                 .test_rows = files ? (tails ? 7 : 4) : 0},
                       .update = {.zero_grad = widths.size() != 3},
                       .batch_size = 4});
    }
  }
  return specs;
}

TEST(StepPrograms, AreOrderedAndNeedEachOfTheirWaits) {
  const std::vector<StepSpec> specs = all_specs();
  EXPECT_EQ(specs.size(), 3U * (8 + 4 * 8));
  int programs_seen = 0;
  for (const StepSpec& spec : specs) {
    const StepPrograms programs(spec);
    for (const StepProgram* step : programs.all()) {
      expect_ordered(step->program);
      EXPECT_GT(expect_every_deletion_found(step->program), 0) << step->program.name();
      ++programs_seen;
    }
  }
  EXPECT_EQ(programs_seen, 3 * (8 * 1 + 16 * 2 + 16 * 4));
}

/// 2 m n k for each product; the first layer's input needs no gradient.
TEST(StepPrograms, HaveTwoFlopsForEachMultiplyAdd) {
  const auto price_with = [](bool fusion) {
    return price_of(StepPrograms({.model = {.widths = {8, 16, 12, 4}, .fusion = fusion},
                                  .input = {.data = DataKind::kRandn},
                                  .batch_size = 10})
                        .train()
                        .program);
  };
  constexpr std::int64_t kFirst = 2 * 10 * 8 * 16, kOthers = 2 * 10 * (16 * 12 + 12 * 4);
  constexpr std::int64_t kOutputs = 10 * (16 + 12 + 4);
  const Price apart = price_with(false);
  EXPECT_EQ(apart.by_phase[Phase::kForward].flops, kFirst + kOthers + 2 * kOutputs);
  EXPECT_EQ(apart.by_phase[Phase::kBackward].flops, kFirst + 2 * kOthers + 2 * kOutputs);
  const Price fused = price_with(true);
  EXPECT_EQ(fused.by_phase[Phase::kForward].flops, apart.by_phase[Phase::kForward].flops);
  EXPECT_LT(fused.total.bytes, apart.total.bytes);
}

TEST(StepPrograms, ShareTheirBuffers) {
  const StepPrograms programs({.model = {.widths = {5, 4, 3}, .loss = LossKind::kCrossEntropy},
                               .input = {.data = DataKind::kIdx, .train_rows = 10, .test_rows = 7},
                               .batch_size = 4});
  ASSERT_NE(programs.last_batch(), nullptr);
  ASSERT_NE(programs.last_evaluate(), nullptr);
  EXPECT_EQ(programs.last_batch()->rows, 2);
  EXPECT_EQ(programs.last_evaluate()->rows, 3);
  for (const StepProgram* step : programs.all()) {
    EXPECT_EQ(step->tensors.x.buffer, programs.train().tensors.x.buffer);
    EXPECT_EQ(step->tensors.loss_host.buffer, programs.train().tensors.loss_host.buffer);
  }
  EXPECT_EQ(programs.buffers()[programs.train().tensors.x.buffer].bytes, 4 * 5 * 4);
}

TEST(StepPrograms, KeepInputsOnlyOfActivationsThatNeedThem) {
  for (const Activation activation : kValuesOf<Activation>) {
    for (const bool trains : {true, false}) {
      const StepPrograms programs(
          {.model = {.widths = {4, 6, 3},
                     .activation = activation,
                     .last_relu = false,
                     .trains = trains},
           .input = {.data = DataKind::kIdx, .train_rows = trains ? 8 : 0, .test_rows = 4},
           .batch_size = 4});
      std::vector<std::string> kept;
      for (const Buffer& buffer : programs.buffers().all()) {
        if (buffer.name.ends_with("pre_activation")) kept.push_back(buffer.name);
      }
      const bool needs_it = activation == Activation::kGelu ||
                            activation == Activation::kGeluTanh || activation == Activation::kSilu;
      EXPECT_EQ(kept, needs_it && trains ? std::vector<std::string>{"net.0.pre_activation"}
                                         : std::vector<std::string>{})
          << name_of(activation);
    }
  }
}

/// Records its callbacks, with the number of the micro-step and the last buffer written before
/// each.
class ListeningScheme final : public Scheme {
 public:
  void build(Draft& draft) const override {
    const auto note = [&](const std::string& what) {
      std::string written;
      for (const Access& access : accesses_of(draft.program().nodes().back().op)) {
        if (access.writes) written = draft.buffers()[access.tensor.buffer].name;
      }
      heard.push_back(what + ": " + written);
    };
    const auto number = [](const Pass& pass) {
      return std::to_string(pass.micro_step) + (pass.is_last ? " last " : " ");
    };
    const auto name = [&](ParameterId id) { return draft.parameters()[id].name; };
    draft.input([&] { note("x"); });
    draft.passes(
        {.pass = {.complete = [&](const Pass& pass,
                                  ParameterId id) { note(number(pass) + "complete " + name(id)); },
                  .released = [&](const Pass& pass,
                                  ParameterId id) { note(number(pass) + "released " + name(id)); },
                  .linear =
                      [&](const Pass& pass, const Linear& linear, LinearEvent event) {
                        const bool is_input = event == LinearEvent::kInput;
                        note(number(pass) + (is_input ? "input " : "grad_output ") + linear.name());
                      }},
         .loss_ready = [&] { note("loss"); }});
    draft.update();
  }

  mutable std::vector<std::string> heard;
};

TEST(Draft, TellsInEachMicroStepWhatIsReadyRightAfterTheNodeThatMadeIt) {
  const StepSpec spec{
      .model = {.widths = {5, 4, 3}, .fusion = false}, .batch_size = 4, .accumulate = 2};
  const ListeningScheme scheme;
  const StepPrograms programs(spec, &scheme);
  EXPECT_THAT(
      scheme.heard,
      ElementsAre(
          "x: generator", "0 input net.0: scalars", "0 input net.2: net.0.out",
          "0 grad_output net.2: scratch.0", "0 complete net.2.bias: gradients",
          "0 released net.2.bias: gradients", "0 complete net.2.weight: gradients",
          "0 released net.2.weight: scratch.1", "0 grad_output net.0: scratch.1",
          "0 complete net.0.bias: gradients", "0 released net.0.bias: gradients",
          "0 complete net.0.weight: gradients", "0 released net.0.weight: gradients",
          "1 last input net.0: gradients", "1 last input net.2: net.0.out", "loss: loss",
          "1 last grad_output net.2: scratch.0", "1 last complete net.2.bias: gradients",
          "1 last released net.2.bias: gradients", "1 last complete net.2.weight: gradients",
          "1 last released net.2.weight: scratch.1", "1 last grad_output net.0: scratch.1",
          "1 last complete net.0.bias: gradients", "1 last released net.0.bias: gradients",
          "1 last complete net.0.weight: gradients", "1 last released net.0.weight: gradients"));
  const auto labels = [](const Program& program) {
    std::vector<std::string> all;
    for (const Node& node : program.nodes()) all.emplace_back(label_of(node.op));
    return all;
  };
  EXPECT_EQ(labels(programs.train().program), labels(StepPrograms(spec).train().program));
}

TEST(Draft, TellsOfBothGradientsThatOneNodeMakesAfterIt) {
  const StepSpec spec{.model = {.widths = {5, 4, 3}, .last_relu = false}, .batch_size = 4};
  const ListeningScheme scheme;
  const StepPrograms programs(spec, &scheme);
  EXPECT_THAT(scheme.heard, testing::IsSupersetOf({"0 last grad_output net.0: scratch.1",
                                                   "0 last complete net.0.bias: scratch.1"}));
}

TEST(StepPrograms, MakeTwoGradientsOfOutputsTakeTurnsUnlessTheyAreKept) {
  const auto gradients = [](bool stores_gradients) {
    const StepPrograms programs(
        {.model = {.widths = {6, 9, 7, 12, 5}, .stores_gradients = stores_gradients},
         .batch_size = 4});
    return std::ranges::count_if(programs.buffers().all(), [](const Buffer& buffer) {
      return buffer.name.starts_with("scratch") || buffer.name.ends_with("grad_x") ||
             buffer.name == "grad_output";
    });
  };
  EXPECT_EQ(gradients(true), 2);
  EXPECT_EQ(gradients(false), 4);
}

TEST(StepPrograms, SumGradientsOfManyRowsInAnOpOfTheirOwn) {
  const auto nodes = [](std::int64_t rows) {
    const ModelSpec model{.widths = {5, 4, 3}};
    return StepPrograms({.model = model, .batch_size = rows}).train().program.size();
  };
  EXPECT_EQ(nodes(kMaxRowsOfSums + 1), nodes(kMaxRowsOfSums) + 1);
}

/// By hand, for DEPTH linear layers, each with a ReLU. Products: DEPTH forward, DEPTH for weights
/// if their gradients are stored, DEPTH - 1 for inputs.
TEST(StepPrograms, LaunchAsFewKernelsAsTheirDataFlowAllows) {
  const auto kernels = [](const ModelSpec& model) {
    return launches_of(StepPrograms({.model = model, .batch_size = 4}).train().program);
  };
  for (const std::int64_t depth : {1, 2, 6}) {
    const std::vector<std::int64_t> widths(static_cast<std::size_t>(depth) + 1, 8);
    ModelSpec model{.widths = widths};
    // The products, a loss, a gradient of ReLU or a sum for each bias, and one update.
    EXPECT_EQ(kernels(model), (3 * depth - 1) + 1 + depth + 1);
    // Without products for weights and sums for biases; the last ReLU's gradient is in the loss.
    model.stores_gradients = false;
    EXPECT_EQ(kernels(model), (2 * depth - 1) + 1 + (depth - 1) + depth);
    // Bias and ReLU after each product, and both gradients of them in kernels of their own.
    model.stores_gradients = true;
    model.fusion = false;
    EXPECT_EQ(kernels(model), (3 * depth - 1) + depth + 1 + 2 * depth + 1);
  }
}

/// Between the loss and the backward pass, the copy would hold up a GPU.
TEST(TrainStep, ReadsTheLossBackAfterEverythingElse) {
  const StepPrograms programs = programs_of({});
  const StepProgram& train = programs.train();
  const Node& last = train.program.nodes().back();
  const auto* const copy = std::get_if<Copy>(&std::get<DeviceOp>(last.op));
  ASSERT_NE(copy, nullptr);
  EXPECT_EQ(copy->to.buffer, train.tensors.loss_host.buffer);
}

}  // namespace
}  // namespace barestep
