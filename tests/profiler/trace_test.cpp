#include "profiler/trace.h"

#include <nlohmann/json.hpp>

#include "core/clock.h"
#include "parallel/schemes/scheme_of.h"
#include "support/sample_profile.h"
#include "support/temp_dir.h"
#include "support/testing.h"
#include "support/trace_rules.h"

namespace barestep {
namespace {

using OrderedJson = nlohmann::ordered_json;

TraceContext context_of_rank(int rank, int world) {
  return {.program = "mlp \"single\"",
          .version = "0.1.0",
          .trace_name = "t.json",
          .mesh = Mesh::of_data(rank, world),
          .backend = world > 1 ? "mpi" : "",
          .device_name = "AMD EPYC",
          .device_bytes = 1 << 30,
          .pid = 4711,
          .thread = 4712};
}

std::string trace_of(const Profile& profile, const TraceContext& context) {
  TraceEvents events({.host_s = 99.5, .unix_ns = 1711964646000000000});
  add_profile(events, profile, context);
  events.counter("memory", host_row(context), events.ns(100.001), {{"activations", 12}});
  events.instant("cpu_instant_event", "[memory]", host_row(context), events.ns(100.001),
                 {{"Total Reserved", 9},
                  {"Total Allocated", 8},
                  {"Bytes", -3},
                  {"Addr", 64},
                  {"Device Id", 0},
                  {"Device Type", 0},
                  {"Ev Idx", 1}});
  events.close();
  return events.file(trace_head(context), context.trace_name);
}

std::string sample_trace() {
  return trace_of(SampleProfile().profile(), context_of_rank(0, 1));
}

std::vector<OrderedJson> events_named(const std::string& text, const std::string& name) {
  std::vector<OrderedJson> found;
  const OrderedJson trace = OrderedJson::parse(text);
  for (const OrderedJson& event : trace.at("traceEvents")) {
    if (event.at("name") == name) found.push_back(event);
  }
  return found;
}

TEST(Trace, KeepsEveryRule) {
  EXPECT_THAT(broken_rules(sample_trace()), IsEmpty());
}

/// One of two ranks, with collectives on the comm lane.
TEST(Trace, KeepsEveryRuleWithCommunication) {
  TrainConfig config;
  config.model.layers = {5, 7, 6, 3};
  const Ddp ddp({.first_bucket_bytes = 50, .bucket_bytes = 100});
  const StepPrograms programs(spec_of_rank(config, DeviceKind::kCpu, nullptr, 1, 2), &ddp);
  const Program& program = programs.train().program;
  const RunPlan plan(program, RunDetail::kNodes);
  const double end_s = 100 + 1e-4 * static_cast<double>(program.size());
  const HostTimes host{.begin_s = 100, .start_s = 100, .end_s = end_s};
  const std::vector<ProfiledStep> steps = {profiled_step(plan, 0, host, [](NodeId node) -> Span {
    const double at_s = 100 + 1e-4 * node;
    return {.queued_s = at_s,
            .queued_until_s = at_s + 1e-5,
            .begin_s = at_s + 2e-5,
            .end_s = at_s + 9e-5};
  })};
  const Profile profile = profile_of(steps, 0, {});
  const std::string text = trace_of(profile, context_of_rank(1, 2));
  EXPECT_THAT(broken_rules(text), IsEmpty());
  EXPECT_THAT(text, HasSubstr("\n\"rank\": 1,\n\"world_size\": 2\n"));
  EXPECT_FALSE(events_named(text, "nccl:all_reduce").empty());
}

TEST(Trace, NamesTheTypeThatIsSummedAsNcclDoes) {
  const auto kernel = [](DType dtype) {
    const Tensor gradients{.buffer = 0, .rows = 1, .cols = 8, .dtype = dtype};
    return std::string(names_of(AllReduce{.tensors = {gradients}}).kernel);
  };
  EXPECT_EQ(kernel(DType::kF32), "ncclDevKernel_AllReduce_Sum_f32");
  EXPECT_EQ(kernel(DType::kBF16), "ncclDevKernel_AllReduce_Sum_bf16");
  EXPECT_EQ(kernel(DType::kF16), "ncclDevKernel_AllReduce_Sum_f16");
}

/// The arguments of a collective in the trace of a rank of two data ranks x two tensor ranks x two
/// stages.
OrderedJson arguments_of(const Collective& collective, int rank) {
  Buffers buffers;
  static_cast<void>(buffers.tensor("numbers", Category::kActivations, 2, 4, DType::kF16));
  Program program("step", buffers);
  program.add({.op = collective, .lane = Lane::kComm, .phase = Phase::kCommunication});
  const TimedOp op{.tag = {.node = 0},
                   .node = &program.node(0),
                   .program = &program,
                   .cost = cost_of(program.node(0).op),
                   .start_s = 100,
                   .end_s = 101};
  TraceContext context = context_of_rank(0, 8);
  context.mesh = {.data = 2, .tensor = 2, .pipeline = 2, .rank = rank};
  TraceEvents events({.host_s = 99.5, .unix_ns = 0});
  add_profile(events, {.ops = {op}, .queued = {}, .steps = {}}, context);
  const std::string text = events.file(trace_head(context), "t");
  return events_named(text, names_of(collective).kernel).at(0).at("args");
}

TEST(Trace, TellsWhichRanksOfAMeshTakePartInACollective) {
  const Tensor half{.buffer = 0, .rows = 2, .cols = 4, .dtype = DType::kF16};
  const AllReduce of_tensor_ranks{.tensors = {half}, .axis = Axis::kTensor};
  const OrderedJson args = arguments_of(of_tensor_ranks, 3);
  EXPECT_EQ(args.at("dtype"), "Half");
  EXPECT_EQ(args.at("Group size"), 2);
  EXPECT_EQ(args.at("Process Group Ranks"), "[2, 3]");
  EXPECT_EQ(args.at("Process Group Description"), "tensor");
  const auto group = [&](const Collective& collective, int rank) {
    return arguments_of(collective, rank).at("Process Group Name");
  };
  EXPECT_EQ(group(of_tensor_ranks, 2), group(of_tensor_ranks, 3));
  EXPECT_NE(group(of_tensor_ranks, 1), group(of_tensor_ranks, 3)) << "they never meet";
  EXPECT_EQ(group(AllReduce{.tensors = {half}}, 3), "0") << "PyTorch's name of the group of all";
  // The second stage's rank that has the same place in its stage.
  const SendReceive exchange{.sends = half, .peer = 1, .axis = Axis::kPipeline};
  EXPECT_EQ(arguments_of(exchange, 3).at("Process Group Ranks"), "[3, 7]");
}

TEST(Trace, HasTheTimesOfTheRecords) {
  const std::string text = sample_trace();
  const auto gemms = events_named(text, "gemm");
  // Two per step, each as a host op and as a kernel.
  ASSERT_EQ(gemms.size(), 8U);
  const auto kernel = std::ranges::find_if(
      gemms, [](const OrderedJson& event) { return event.at("cat") == "kernel"; });
  EXPECT_EQ(kernel->at("ts"), 501'000.0);
  EXPECT_EQ(kernel->at("dur"), 2'000.0);
  EXPECT_EQ(kernel->at("args").at("phase"), "forward");
  EXPECT_EQ(kernel->at("args").at("block"), "net.0");
  const auto copy = events_named(text, "Memcpy HtoD (Pinned -> Device)").at(0);
  EXPECT_EQ(copy.at("args").at("bytes"), 128);
  EXPECT_EQ(copy.at("tid"), 2);
  const auto step = events_named(text, "ProfilerStep#1").at(0);
  EXPECT_EQ(step.at("ts"), 510'000.0);
  EXPECT_EQ(step.at("dur"), 8'000.0);
  EXPECT_EQ(OrderedJson::parse(text).at("baseTimeNanoseconds"), 1711964646000000000);
}

TEST(Trace, GivesTheWorkOfAGraphToItsLaunch) {
  const SampleProfile sample;
  Profile profile = sample.profile();
  profile.queued.clear();
  for (const ProfiledStep& step : profile.steps) {
    for (const NodeId launch : {kInputLaunch, kGraphLaunch}) {
      const double begin_s = step.host().start_s + (launch == kGraphLaunch ? 2e-5 : 0);
      profile.queued.push_back({.tag = {.program = 0, .step = step.timeline.step, .node = launch},
                                .label = label_of_launch(launch),
                                .start_s = begin_s,
                                .end_s = begin_s + 1e-5});
    }
  }
  const std::string text = trace_of(profile, context_of_rank(0, 1));
  EXPECT_THAT(broken_rules(text), IsEmpty());
  const auto launches = events_named(text, "cudaGraphLaunch");
  ASSERT_EQ(launches.size(), 4U);
  const auto correlation_of = [&](const auto& event) { return event.at("args").at("correlation"); };
  const auto copy = events_named(text, "Memcpy HtoD (Pinned -> Device)").at(0);
  EXPECT_EQ(correlation_of(copy), correlation_of(launches[0])) << "input has its own launch";
  const auto loss = events_named(text, "aten::mse_loss");
  EXPECT_TRUE(loss.empty()) << "no call of its own";
  EXPECT_TRUE(events_named(text, "cudaLaunchKernel").empty());
}

/// CUPTI's records of the sample's first step: the forward product has two kernels that overlap,
/// and some work belongs to no node.
std::vector<GpuActivity> sample_activities() {
  using Kind = GpuActivity::Kind;
  std::vector<GpuActivity> all;
  const auto at = [](double ms) { return 100 + ms / 1e3; };
  const auto call = [&](const char* name, std::int64_t correlation, NodeId node, double ms) {
    all.push_back({.kind = Kind::kCall,
                   .name = name,
                   .tag = {.program = 0, .step = 0, .node = node},
                   .correlation = correlation,
                   .start_s = at(ms),
                   .end_s = at(ms + 0.004),
                   .call_id = 211});
  };
  const auto work = [&](Kind kind, const char* name, std::int64_t correlation, NodeId node,
                        double begin_ms, double end_ms) {
    all.push_back({.kind = kind,
                   .name = name,
                   .tag = {.program = 0, .step = 0, .node = node},
                   .correlation = correlation,
                   .start_s = at(begin_ms),
                   .end_s = at(end_ms),
                   .stream = 13,
                   .bytes = kind == Kind::kKernel ? 0 : 128,
                   .registers = 40,
                   .shared_bytes = 1024,
                   .grid = {264, 1, 1},
                   .block = {256, 1, 1}});
  };
  call("cudaMemcpyAsync", 5, SampleProfile::kCopyX, 0.003);
  call("cudaLaunchKernel", 6, SampleProfile::kForward, 0.021);
  call("cudaLaunchKernelExC", 7, SampleProfile::kForward, 0.026);
  call("cudaLaunchKernel", 11, kPartOfNode, 0.095);
  work(Kind::kCopy, "Memcpy HtoD (Pinned -> Device)", 5, SampleProfile::kCopyX, 0.2, 0.7);
  work(Kind::kKernel, "sm90_xmma_gemm", 6, SampleProfile::kForward, 1, 2.5);
  work(Kind::kKernel, "bias_relu", 7, SampleProfile::kForward, 2.4, 3);
  work(Kind::kKernel, "mse", 8, SampleProfile::kLoss, 3, 3.5);  // its call was lost
  work(Kind::kKernel, "wgrad", 10, SampleProfile::kBackward, 3.5, 6.5);
  work(Kind::kKernel, "adam", 9, SampleProfile::kAdam, 6.6, 7.6);
  work(Kind::kKernel, "other", 11, kPartOfNode, 7.7, 7.8);
  work(Kind::kKernel, "from before", 12, kPartOfNode, 7.85, 7.9);
  all.push_back(
      {.kind = Kind::kOverhead, .name = "Buffer Flush", .start_s = at(7.8), .end_s = at(7.9)});
  return all;
}

/// Kernels have their own names, are cut where they overlap, and follow the calls that queued them.
TEST(Trace, OfCuptiHasEveryKernelAndTheCallThatQueuedIt) {
  const SampleProfile sample;
  Profile profile = sample.profile();
  profile.activities = sample_activities();
  TraceContext context = context_of_rank(0, 1);
  context.kind = DeviceKind::kCuda;
  context.multiprocessors = {
      .count = 132, .threads = 2048, .registers = 65536, .shared_bytes = 233472};
  const std::string text = trace_of(profile.of({.first = 0, .end = 1}), context);
  EXPECT_THAT(broken_rules(text), IsEmpty());
  const auto product = events_named(text, "sm90_xmma_gemm").at(0);
  EXPECT_EQ(product.at("ts"), 501'000.0);
  EXPECT_EQ(product.at("dur"), 1'400.0);  // until the next begins
  EXPECT_EQ(product.at("tid"), 1);
  const OrderedJson& args = product.at("args");
  EXPECT_EQ(args.at("true duration (us)"), 1'500.0);
  EXPECT_EQ(args.at("op"), "gemm");
  EXPECT_EQ(args.at("phase"), "forward");
  EXPECT_EQ(args.at("blocks per SM"), 2);
  EXPECT_EQ(args.at("warps per SM"), 16);
  // By CUDA's calculator, 6 blocks of 256 threads with 40 registers fit; there are 2: 512 of 2048.
  EXPECT_EQ(args.at("est. achieved occupancy %"), 25);
  EXPECT_EQ(args.at("grid"), OrderedJson({264, 1, 1}));
  EXPECT_EQ(args.at("shared memory"), 1024);
  const auto call = events_named(text, "cudaLaunchKernel").at(0);
  EXPECT_EQ(call.at("args").at("correlation"), args.at("correlation"));
  EXPECT_EQ(call.at("args").at("External id"), args.at("External id"));
  EXPECT_EQ(call.at("args").at("cbid"), 211);
  const auto bias = events_named(text, "bias_relu").at(0);
  EXPECT_EQ(bias.at("args").at("External id"), args.at("External id"));
  EXPECT_EQ(events_named(text, "other").at(0).at("tid"), 113);
  EXPECT_TRUE(events_named(text, "from before").empty());
  EXPECT_EQ(events_named(text, "Buffer Flush").at(0).at("pid"), -1);
  EXPECT_EQ(events_named(text, "Memcpy HtoD (Pinned -> Device)").size(), 1U);
}

/// Changes the first event that `which` selects, and returns the rules that this breaks.
template <class Which, class Change>
std::vector<std::string> broken_by(const Which& which, const Change& change) {
  OrderedJson trace = OrderedJson::parse(sample_trace());
  auto& events = trace.at("traceEvents");
  const auto event = std::ranges::find_if(events, which);
  EXPECT_NE(event, events.end());
  change(*event);
  std::string text = trace.dump();
  // The layout in the file, which dump() does not keep.
  text.replace(text.find("\"rank\":0"), 8, "\n\"rank\": 0\n");
  return broken_rules(text);
}

auto named(const std::string& name) {
  return [name](const OrderedJson& event) { return event.at("name") == name; };
}
auto in_category(const std::string& category) {
  return [category](const OrderedJson& event) {
    return event.contains("cat") && event.at("cat") == category && event.at("ph") == "X";
  };
}

TEST(TraceRules, NoticeEachBreach) {
  const auto expect = [](const std::vector<std::string>& broken, const std::string& what) {
    EXPECT_THAT(broken, Contains(HasSubstr(what)));
  };
  const auto set = [](const char* key, const OrderedJson& value) {
    return [key, value](OrderedJson& event) { event[key] = value; };
  };
  const auto set_arg = [](const char* key, const OrderedJson& value) {
    return [key, value](OrderedJson& event) { event["args"][key] = value; };
  };
  const auto kernel = in_category("kernel");
  expect(broken_rules("{"), "not JSON");
  expect(broken_rules(OrderedJson::parse(sample_trace()).dump()), "the rank does not stand");
  expect(broken_by(kernel, set("cat", "kernels")), "unknown category");
  expect(broken_by(kernel, set("ts", "1")), "another type");
  expect(broken_by(kernel, set("ts", 2e12)), "not small");
  expect(broken_by(kernel, set("ts", 1.0)), "runs before it was queued");
  expect(broken_by(kernel, set("dur", -1)), "without duration");
  expect(broken_by(kernel, set("dur", 4000)), "overlaps");
  expect(broken_by(kernel, set("pid", 3)), "pid is not its device");
  expect(broken_by(kernel, set("tid", 3)), "tid is not its stream");
  expect(broken_by(kernel, set_arg("stream", 0)), "stream is not above 0");
  expect(broken_by(kernel, set_arg("correlation", 0)), "correlation is not above 0");
  expect(broken_by(kernel, set_arg("correlation", 999)), "no call of the host");
  expect(broken_by(kernel, set("name", "gemmSync")), "holds Sync");
  expect(broken_by(kernel, set("name", "ncclKernel")), "described as such");
  expect(broken_by(in_category("gpu_memcpy"), set("name", "Memcpy")), "unknown copy");
  expect(broken_by(in_category("gpu_memcpy"), set_arg("bytes", 1 << 30)), "is not bytes / ns");
  expect(broken_by(in_category("cuda_runtime"), set_arg("correlation", 100'003)), "two calls");
  expect(broken_by(in_category("cuda_runtime"), set("name", "launch")), "unknown call");
  expect(broken_by(named("thread_name"), set("name", "x")), "no thread_name");
  expect(broken_by(named("process_labels"), set("name", "x")), "no process_labels");
  expect(broken_by(named("ProfilerStep#1"), set("name", "ProfilerStep#7")), "does not follow");
  expect(broken_by(named("ac2g"), set("ph", "f")), "has no bp");
  expect(broken_by(named("ac2g"), set("ts", 0)), "touches no slice");
  expect(broken_by(named("ac2g"), set("id", 12345)), "lacks an end");
  expect(broken_by(named("memory"), set_arg("activations", "12")), "is no number");
  expect(broken_by(named("[memory]"), set("s", "p")), "is an instant of a thread");
  expect(broken_by(in_category("gpu_user_annotation"), set("dur", 1)), "is not its work's");
  expect(broken_by(named("Record Window End"), set("name", "x")), "no Record Window End");
}

TEST(TraceEvents, KeepNanosecondsAndTheirSign) {
  TraceEvents events({.host_s = 10, .unix_ns = 0});
  events.slice("cpu_op", "x", {1, 1}, {-1'500, 2'034}, {});
  const std::string text = events.file({}, "\"x\xff");
  EXPECT_THAT(text, HasSubstr("\"ts\":-1.5,\"dur\":3.534"));
  EXPECT_THAT(text, HasSubstr("\"traceName\": \"\\\"x")) << "quoted, whatever a file is called";
  EXPECT_EQ(events.ns(10.000000007), 7);
}

TEST(ClockOrigin, ReadsBothClocksAtOnce) {
  const double before_s = now_s();
  const ClockOrigin origin = clock_origin();
  EXPECT_LE(before_s, origin.host_s);
  EXPECT_LE(origin.host_s, now_s());
  const auto unix_s =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  EXPECT_NEAR(static_cast<double>(origin.unix_ns) / 1e9, unix_s, 60);
}

class TraceFile : public TempDirTest {};

TEST_F(TraceFile, IsPackedWhereItsNameEndsInGz) {
  const std::string text = sample_trace();
  write_trace(folder() / "t.json", text);
  write_trace(folder() / "t.json.gz", text);
  EXPECT_EQ(read_file(folder() / "t.json"), text);
  const std::string packed = read_file(folder() / "t.json.gz");
  EXPECT_LT(packed.size(), text.size() / 4);
  EXPECT_EQ(packed.substr(0, 2), "\x1f\x8b");
  EXPECT_THAT(names(), UnorderedElementsAre("t.json", "t.json.gz"));
}

}  // namespace
}  // namespace barestep
