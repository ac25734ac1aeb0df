#include "profiler/memory_timeline.h"

#include <nlohmann/json.hpp>

#include "parallel/schemes/data_parallel.h"
#include "parallel/schemes/scheme_of.h"
#include "support/busy_machine.h"
#include "support/sample_profile.h"
#include "support/testing.h"
#include "support/trace_rules.h"

namespace barestep {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kBlock = kPlanAlignmentBytes;

/// a -> b -> c, one block each; `kept` is read before it is written.
struct Chain {
  Chain() {
    const auto take = [&](const char* name, Category category, std::int64_t floats = 1) {
      return buffers.tensor(name, category, 1, floats);
    };
    const Tensor kept = take("kept", Category::kParameters);
    const Tensor a = take("a", Category::kActivations);
    const Tensor b = take("b", Category::kActivations, 65);  // two blocks
    const Tensor c = take("c", Category::kGradients);
    take("unused", Category::kWorkspace);
    buffers.tensor("host", Category::kData, 1, 1, DType::kF32, 0, 2, true);
    const auto add = [&](DeviceOp op) { program.add({.op = std::move(op)}); };
    add(Copy{.to = a, .from = kept});
    add(BiasActivation{.values = a, .bias = kept});
    add(Fill{.out = b});
    add(SumRows{.out = c, .in = a});
    add(Copy{.to = kept, .from = c});
  }
  Buffers buffers;
  Program program{"chain", buffers};
};

TEST(MemoryTimeline, HoldsABufferFromItsFirstUseToItsLast) {
  const Chain chain;
  const MemoryPlan plan(chain.buffers);
  const MemoryTimeline timeline = memory_timeline(chain.program, plan, 0);
  std::vector<std::int64_t> blocks;
  for (const MemoryPoint& point : timeline.points) blocks.push_back(point.total_bytes() / kBlock);
  // kept and unused at all times; a in 0 to 3, b (two blocks) in 2, c in 3 and 4.
  EXPECT_THAT(blocks, ElementsAre(3, 3, 5, 4, 3));
  EXPECT_EQ(timeline.highest, 2U);
  EXPECT_EQ(timeline.reserved_bytes, 6 * kBlock);
  EXPECT_THAT(timeline.points[0].begins, ElementsAre(1));
  EXPECT_THAT(timeline.points[3].ends, ElementsAre(1));
  EXPECT_THAT(timeline.points[2].begins, ElementsAre(2));
  EXPECT_THAT(timeline.points[2].ends, ElementsAre(2));
}

TrainConfig config_of(const std::vector<std::int64_t>& widths) {
  TrainConfig config;
  config.model.layers = widths;
  config.data.batch_size = 10;
  config.training.accumulate = 2;
  return config;
}

/// On one device, on a rank and on several devices.
TEST(MemoryTimeline, NeverExceedsThePlan) {
  const TrainConfig config = config_of({5, 7, 6, 3});
  const StepSpec alone = spec_of(config, DeviceKind::kCpu, nullptr);
  const Ddp ddp({.update_per_bucket = true});
  const DataParallel data_parallel(3, true);
  const StepPrograms all[] = {
      StepPrograms(alone),
      StepPrograms(spec_of_rank(config, DeviceKind::kCpu, nullptr, 0, 2), &ddp),
      StepPrograms(alone, &data_parallel)};
  for (const StepPrograms& programs : all) {
    const MemoryPlan plan(programs.buffers());
    for (int device = 0; device < plan.devices(); ++device) {
      const MemoryTimeline timeline = memory_timeline(programs.train().program, plan, device);
      ASSERT_FALSE(timeline.points.empty());
      for (const MemoryPoint& point : timeline.points) {
        EXPECT_LE(point.total_bytes(), plan.device_bytes(device));
        for (const Category category : kValuesOf<Category>) {
          EXPECT_LE(point.in_use_bytes[category], plan.category_bytes(device, category));
        }
      }
    }
  }
}

TEST(MemoryTable, ShowsWhatChangesAndTheHighWaterMark) {
  const Chain chain;
  const MemoryPlan plan(chain.buffers);
  const std::string table = memory_table(chain.program, plan, 0, 100);
  EXPECT_THAT(table, HasSubstr("#2 forward fill               +512       1,280          -512\n"));
  EXPECT_EQ(table.find("#1 "), std::string::npos) << table;
  EXPECT_THAT(table, HasSubstr("At most 1.25 KiB of the 1.50 KiB are in use, at #2 forward fill: "
                               "parameters 256 B, activations 768 B, workspace 256 B.\n"));
  EXPECT_THAT(memory_table(chain.program, plan, 0, 1), HasSubstr("\n... and 3 more\n"));
  EXPECT_EQ(memory_table(Program("none", chain.buffers), plan, 0, 1), "");
}

TEST(AddMemory, WritesEventsThatSumUp) {
  const SampleProfile sample;
  const MemoryPlan plan(sample.program().buffers());
  const TraceContext context{.program = "p",
                             .version = "0",
                             .trace_name = "t",
                             .backend = "",
                             .device_name = "cpu",
                             .pid = 4711,
                             .thread = 4711};
  TraceEvents events({.host_s = 99, .unix_ns = 0});
  add_profile(events, sample.profile(), context);
  add_memory(events, sample.profile(), plan, context);
  events.close();
  const std::string text = events.file(trace_head(context), "t");
  EXPECT_THAT(broken_rules(text), IsEmpty());
  std::int64_t sum = 0;
  int changes = 0;
  const Json trace = Json::parse(text);
  for (const Json& event : trace.at("traceEvents")) {
    if (event.at("name") != "[memory]") continue;
    sum += event.at("args").at("Bytes").get<std::int64_t>();
    ++changes;
    EXPECT_LE(event.at("args").at("Total Allocated"), event.at("args").at("Total Reserved"));
  }
  EXPECT_EQ(sum, 0) << "what comes into use goes out of use";
  EXPECT_GT(changes, 0);
}

TEST(MemoryTimeline, TakesTimeInProportionToTheProgram) {
  const auto with_layers = [](std::int64_t layers) {
    return StepPrograms(
        spec_of(config_of(std::vector<std::int64_t>(static_cast<std::size_t>(layers), 4)),
                DeviceKind::kCpu, nullptr));
  };
  const StepPrograms small = with_layers(2000);
  const StepPrograms large = with_layers(4000);
  expect_linear_time(
      [&](std::int64_t layers) {
        const StepPrograms& programs = layers == 2000 ? small : large;
        memory_timeline(programs.train().program, MemoryPlan(programs.buffers()), 0);
      },
      2000);
}

}  // namespace
}  // namespace barestep
