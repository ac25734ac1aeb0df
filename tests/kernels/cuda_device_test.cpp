// The CUDA device on the fake runtime: errors and their messages, and captures. Its results are
// tested in tests/gpu/cuda_parity_test.cpp, which also runs on the fake.
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "kernels/on_fake.h"
#include "profiler/account.h"
#include "support/expect_error.h"
#include "support/fake_cuda.h"
#include "support/testing.h"
#include "support/trainer_harness.h"

namespace barestep {
namespace {

TEST_F(OnFake, TellsAMissingDriverFromAnOldOne) {
  expect_not_opened({.driver_version = 0}, {.device = "cuda:1"},
                    "device 'cuda:1': no NVIDIA driver (libcuda.so.1 was not found)");
  EXPECT_EQ(why_no_cuda_device(), "no NVIDIA driver (libcuda.so.1 was not found)");
  EXPECT_EQ(cuda_device_count(), 0);
  expect_not_opened({.driver_version = 12040}, {.device = "cuda"},
                    "the driver supports CUDA 12.4, this program needs 1");
}

TEST_F(OnFake, PrintsTheVariableThatHidesGpus) {
  ::setenv("CUDA_VISIBLE_DEVICES", "", 1);
  expect_not_opened({.devices = 0}, {.device = "cuda"},
                    "the driver shows no GPU, CUDA_VISIBLE_DEVICES is ''; unset it");
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  expect_not_opened({.devices = 0}, {.device = "auto"}, "device 'auto': the driver finds no GPU;");
}

TEST_F(OnFake, ListsTheGpusThereAre) {
  expect_not_opened({.devices = 2}, {.device = "cuda:2"},
                    "device 'cuda:2': there is only cuda:0 (Fake GPU), cuda:1 (Fake GPU); name one "
                    "of these");
  restart({.devices = 2}, {.device = "cuda:1"});
  EXPECT_EQ(device->name(), "cuda:1");
  EXPECT_EQ(device->index(), 0);
}

// In nvidia-smi's format, by which the management library identifies a GPU.
TEST_F(OnFake, TellsItsPlaceOnThePciBus) {
  EXPECT_EQ(device->info().pci_bus_id, "00000001:17:0a.0");
}

TEST_F(OnFake, SaysThatAnotherProgramHasTheGpu) {
  close();
  fake_cuda::fail("cudaSetDevice", 1, cudaErrorDevicesUnavailable);
  expect_error(ExitCode::kNoDevice, "in exclusive use by another program",
               [] { make_cuda_device({.device = "cuda"}, 0); });
}

TEST_F(OnFake, FindsAnArchitectureItHasNoCodeForWhenItOpens) {
  close();
  fake_cuda::fail("kernel", 1, cudaErrorNoKernelImageForDevice);
  expect_error(ExitCode::kNoDevice,
               "device 'cuda:0': it is of architecture 90, this program was built for 75, 80; "
               "configure with -DCMAKE_CUDA_ARCHITECTURES=90",
               [] { make_cuda_device({.device = "cuda"}, 0); });
}

TEST_F(OnFake, EveryCallThatFailsWhileItOpensIsAnErrorAndLeaksNothing) {
  close();
  for (const char* function :
       {"cudaGetDeviceProperties", "cudaDeviceGetAttribute", "cudaStreamCreateWithPriority",
        "cudaMalloc", "cublasLtCreate", "kernel", "cudaStreamSynchronize"}) {
    SCOPED_TRACE(function);
    fake_cuda::reset();
    fake_cuda::fail(function, 1, cudaErrorInvalidValue);
    EXPECT_THROW(make_cuda_device({.device = "cuda"}, 0), Error);
    EXPECT_EQ(fake_cuda::objects(), 0);
    EXPECT_EQ(fake_cuda::allocated_bytes(), 0);
  }
}

TEST_F(OnFake, SaysHowMuchMemoryWasAskedForAndIsFree) {
  restart({.memory_bytes = std::int64_t{64} << 20});
  expect_error(ExitCode::kMemory,
               "memory of device 'cuda:0': 48.00 MiB asked for, 31.99 MiB of 64.00 MiB free; use a "
               "smaller --batch-size",
               [&] { device->allocate(std::int64_t{48} << 20, MemoryKind::kDevice); });
  fake_cuda::fail("cudaHostAlloc", 1, cudaErrorMemoryAllocation);
  expect_error(ExitCode::kMemory, "pinned host memory: 1.00 MiB could not be allocated",
               [&] { device->allocate(1 << 20, MemoryKind::kPinned); });
}

TEST_F(OnFake, SendsNoRecordsAndSaysSo) {
  class Sink final : public RecordSink {
    void on_record(const Record& /*record*/) override {}
  } sink;
  device->set_record_sink(nullptr);
  expect_error(ExitCode::kConfiguration, "records of device 'cuda:0': a CUDA device does not send",
               [&] { device->set_record_sink(&sink); });
}

// Streams and events.

TEST_F(OnFake, CommunicationGoesBeforeOtherWork) {
  const auto priority_of = [&](Lane lane) {
    const auto made = device->new_stream(name_of(lane));
    int priority = 0;
    EXPECT_EQ(cudaStreamGetPriority(static_cast<cudaStream_t>(made->native()), &priority), 0);
    return priority;
  };
  EXPECT_EQ(priority_of(Lane::kCompute), 0);
  EXPECT_EQ(priority_of(Lane::kComm), -5) << "the greatest is the least number";
}

/// Fused updates of this precision, and what they multiply on.
std::int64_t tensor_products_of(Device& device, Stream& stream, DType type) {
  Memory memory;
  LinearAdam op{.weight = memory.add(8, 16),
                .weight_moments1 = memory.add(8, 16),
                .weight_moments2 = memory.add(8, 16),
                .bias = memory.add(1, 8),
                .bias_moments1 = memory.add(1, 8),
                .bias_moments2 = memory.add(1, 8),
                .grad_y = memory.add(5, 8, type),
                .x = memory.add(5, 16, type),
                .scalars = memory.add(1, 2)};
  if (type != DType::kF32) {
    op.rounded_weight = memory.add(8, 16, type);
    op.rounded_bias = memory.add(1, 8, type);
  }
  const DeviceMemory on_device(device, static_cast<std::int64_t>(memory.bytes().size()));
  const std::int64_t before = fake_cuda::tensor_products();
  device.run(op, Addresses({std::vector{on_device.get()}}), stream, {});
  stream.synchronize();
  return fake_cuda::tensor_products() - before;
}

TEST_F(OnFake, FusedUpdatesMultiplyOnTensorCoresInEveryPrecisionButFp32) {
  for (const Precision precision :
       {Precision::kFp32, Precision::kTf32, Precision::kBf16, Precision::kFp16}) {
    SCOPED_TRACE(name_of(precision));
    const DType type = type_of(precision);
    restart({}, {.device = "cuda", .precision = precision});
    const bool is_exact = precision == Precision::kFp32;
    EXPECT_EQ(tensor_products_of(*device, *stream, type) > 0, !is_exact);
    restart({.capability = 7}, {.device = "cuda", .precision = precision});
    EXPECT_EQ(tensor_products_of(*device, *stream, type), 0) << "there are none for these numbers";
  }
}

/// Two numbers on the device, and ops that fill the first one.
class StreamOfFake : public OnFake {
 protected:
  void SetUp() override {
    OnFake::SetUp();
    memory = std::make_unique<DeviceMemory>(*device, 256);
    addresses = Addresses(std::vector{memory->get()});
  }
  void TearDown() override {
    memory.reset();
    OnFake::TearDown();
  }
  void fill(const DeviceOp& op) { device->run(op, addresses, *stream, {}); }
  float first() {
    float value = 0;
    device->copy(&value, memory->get(), sizeof(value), *stream);
    stream->synchronize();
    return value;
  }

  std::unique_ptr<DeviceMemory> memory;
  Addresses addresses;
  const Tensor number{.buffer = 0, .offset_bytes = 0, .rows = 1, .cols = 1};
  const DeviceOp one = Fill{number, 1};
  const DeviceOp two = Fill{number, 2};
};

TEST_F(StreamOfFake, SkipsWhatIsBehindAFailureAndReportsItOnce) {
  const auto event = device->new_event(EventUse::kOrder);
  fill(one);
  fake_cuda::fail("kernel", 1, cudaErrorInvalidConfiguration);
  fill(two);
  const int copies = fake_cuda::calls("cudaMemcpyAsync");
  float value = 0;
  device->copy(&value, memory->get(), sizeof(value), *stream);
  EXPECT_EQ(fake_cuda::calls("cudaMemcpyAsync"), copies) << "work after the failure is skipped";
  event->record(*stream);
  event->synchronize();
  EXPECT_TRUE(event->reached()) << "events are signalled all the same";
  expect_error(ExitCode::kBug,
               "launch of a kernel 'cudaErrorInvalidConfiguration': the fake was told to fail on "
               "cuda:0, the last op queued was fill of 1x1; this is a bug",
               [&] { stream->check(); });
  stream->check();
  EXPECT_EQ(first(), 1);
}

TEST_F(StreamOfFake, ReportsTheFirstOfTheErrorsOfALostDevice) {
  fill(one);
  fake_cuda::fail("cudaStreamSynchronize", 1, cudaErrorECCUncorrectable);
  const std::string line =
      "device 'cuda:0': lost: the fake was told to fail (cudaErrorECCUncorrectable), the last op "
      "queued was fill of 1x1; run again";
  expect_error(ExitCode::kTryAgain, line, [&] { stream->synchronize(); });
  // From now on every call fails, each with a different code from the cause.
  fake_cuda::fail_all(cudaErrorLaunchFailure);
  fill(two);
  expect_error(ExitCode::kTryAgain, line, [&] { stream->check(); });
  expect_error(ExitCode::kTryAgain, line, [&] { stream->synchronize(); });
  expect_error(ExitCode::kTryAgain, line, [&] { device->allocate(256, MemoryKind::kDevice); });
}

TEST_F(StreamOfFake, ADeviceThatIsTakenAwayInARunIsLost) {
  const auto event = device->new_event(EventUse::kOrder);
  event->record(*stream);
  fake_cuda::fail("cudaEventSynchronize", 1, cudaErrorDevicesUnavailable);
  event->synchronize();
  expect_error(ExitCode::kTryAgain, "device 'cuda:0': lost: ", [&] { stream->check(); });
}

TEST_F(StreamOfFake, AnEventOfALostDeviceIsReached) {
  const auto event = device->new_event(EventUse::kTime);
  event->record(*stream);
  fake_cuda::fail_all(cudaErrorLaunchFailure);
  event->synchronize();
  EXPECT_TRUE(event->reached());
  expect_error(ExitCode::kTryAgain, "lost", [&] { stream->check(); });
}

TEST_F(StreamOfFake, RefusesToWaitForAnEventThatWasNeverRecorded) {
  const auto event = device->new_event(EventUse::kOrder);
  expect_error(ExitCode::kBug, "never recorded", [&] { stream->wait(*event); });
}

TEST_F(StreamOfFake, SaysWhatCublasSays) {
  const Gemm gemm{.c = number, .a = number, .b = number};
  device->prepare(gemm);
  fake_cuda::fail("cublasLtMatmul", 1, CUBLAS_STATUS_NOT_SUPPORTED);
  device->run(gemm, addresses, *stream, {});
  expect_error(ExitCode::kBug,
               "cublasLtMatmul 'CUBLAS_STATUS_NOT_SUPPORTED': the fake was told to fail on cuda:0, "
               "the last op queued was gemm of ",
               [&] { stream->check(); });
}

// Captures.

TEST_F(StreamOfFake, ReplaysWhatWasCaptured) {
  const auto other = device->new_stream("copy");
  const auto fork = device->new_event(EventUse::kOrder);
  const auto join = device->new_event(EventUse::kOrder);
  const auto begin = device->new_event(EventUse::kTime);
  const auto end = device->new_event(EventUse::kTime);
  fill(one);
  device->begin_capture(*stream);
  begin->record(*stream);
  fork->record(*stream);
  other->wait(*fork);
  device->run(two, addresses, *other, {});
  join->record(*other);
  stream->wait(*join);
  end->record(*stream);
  const auto graph = device->end_capture(*stream);
  EXPECT_EQ(first(), 1) << "captured, not done";
  device->launch(*graph, *stream, 0);
  EXPECT_EQ(first(), 2);
  EXPECT_GE(end->seconds_since(*begin), 0) << "a launch stamps the events";
  EXPECT_EQ(fake_cuda::replayed(), 3);
}

TEST_F(StreamOfFake, RefusesACaptureThatIsNotJoined) {
  const auto other = device->new_stream("copy");
  const auto fork = device->new_event(EventUse::kOrder);
  device->begin_capture(*stream);
  fork->record(*stream);
  other->wait(*fork);
  device->run(two, addresses, *other, {});
  expect_error(ExitCode::kBug, "cudaStreamEndCapture 'cudaErrorStreamCaptureUnjoined'",
               [&] { device->end_capture(*stream); });
}

TEST_F(StreamOfFake, ReportsWhatSpoiledACapture) {
  device->begin_capture(*stream);
  float value = 0;
  device->copy(&value, memory->get(), sizeof(value), *stream);
  expect_error(ExitCode::kBug, "cudaMemcpyAsync 'cudaErrorStreamCaptureUnsupported'",
               [&] { device->end_capture(*stream); });
  EXPECT_EQ((fill(two), first()), 2) << "the stream works again";
}

TEST_F(StreamOfFake, KeepsThePriorityOfCommunicationInAGraph) {
  const auto comm = device->new_stream(name_of(Lane::kComm));
  const auto forked = device->new_event(EventUse::kOrder);
  const auto joined = device->new_event(EventUse::kOrder);
  device->begin_capture(*stream);
  fill(one);
  forked->record(*stream);
  comm->wait(*forked);
  device->run(two, addresses, *comm, {});
  joined->record(*comm);
  stream->wait(*joined);
  const auto graph = device->end_capture(*stream);
  device->launch(*graph, *stream, 0);
  stream->synchronize();
  EXPECT_EQ(fake_cuda::priorities_replayed(), (std::vector<int>{0, -5}));
}

/// A binary for sm_80 runs on newer GPUs, but its kernels do not wait for those before them.
TEST_F(StreamOfFake, LaunchesAheadOnlyCodeThatWaits) {
  const auto ahead_of = [&](int code) {
    memory.reset();
    restart({.code_architecture = code});
    memory = std::make_unique<DeviceMemory>(*device, 256);
    addresses = Addresses(std::vector{memory->get()});
    device->begin_capture(*stream);
    fill(one);
    fill(two);
    EXPECT_NE(device->end_capture(*stream), nullptr);
    return fake_cuda::launched_ahead();
  };
  EXPECT_EQ(ahead_of(90), 1);
  EXPECT_EQ(ahead_of(80), 0);
}

TEST_F(StreamOfFake, PreparesNothingInACapture) {
  device->begin_capture(*stream);
  expect_error(ExitCode::kBug, "products are prepared before a capture",
               [&] { device->prepare(Gemm{.c = number, .a = number, .b = number}); });
  device->end_capture(*stream);
}

TEST_F(OnFake, LetsGpusReachEachOtherWhereTheyCan) {
  close();
  fake_cuda::reset({.devices = 3});
  EXPECT_TRUE(enable_peer_access({0, 1, 2}).empty());
  EXPECT_EQ(fake_cuda::calls("cudaDeviceEnablePeerAccess"), 6) << "each pair, both ways";

  fake_cuda::reset({.devices = 3, .peers = false});
  EXPECT_EQ(enable_peer_access({0, 2}), (std::vector<ApartGpus>{{0, 2}}));
  EXPECT_EQ(fake_cuda::calls("cudaDeviceEnablePeerAccess"), 0);
}

TEST_F(OnFake, PeersThatReachEachOtherAlreadyAreNoError) {
  close();
  fake_cuda::reset({.devices = 2});
  fake_cuda::fail("cudaDeviceEnablePeerAccess", 1, cudaErrorPeerAccessAlreadyEnabled);
  EXPECT_TRUE(enable_peer_access({0, 1}).empty());
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "nobody else is to find it";
}

TEST_F(OnFake, APeerThatCannotBeEnabledEndsWithOneLine) {
  close();
  fake_cuda::reset({.devices = 2});
  fake_cuda::fail("cudaDeviceEnablePeerAccess", 2, cudaErrorInvalidValue);
  expect_error(ExitCode::kBug, "cudaDeviceEnablePeerAccess 'cudaErrorInvalidValue'", [&] {
    enable_peer_access({0, 1});
  });
}

// A complete run.

TEST_F(OnFake, ADeviceLostInTheMiddleOfARunEndsItWithOneLine) {
  close();
  TrainConfig config;
  config.model.layers = {8, 8};
  config.training.steps = 10;
  config.device.device = "cuda";
  TrainerHarness run(config, Generator::kTorchCuda, make_cuda_device(config.device, 0));
  run.after_step = [](const StepReport& report) {
    if (report.step == 4) fake_cuda::fail_all(cudaErrorLaunchFailure);
  };
  expect_error(ExitCode::kTryAgain, "device 'cuda:0': lost: ", [&] { run.run(); });
  EXPECT_EQ(run.steps.size(), 5U);
}

/// The baseline model's ops in graphs. With `phases`, an output shows them.
TrainConfig two_layers_in_graphs(bool phases) {
  TrainConfig config;
  config.model.layers = {8, 8, 8};
  config.training.steps = 12;
  config.training.log_every = 6;
  config.device = {.device = "cuda", .graph = true};
  if (phases) config.output.metrics = "metrics";
  return config;
}

/// Each is a node with dependencies on both sides. With phases: the beginning of the step, and the
/// ends of its forward pass, loss, backward pass and update. Else the first and the last of these.
TEST_F(OnFake, AGraphRecordsTwoEventsAndFiveWithPhases) {
  close();
  for (const bool phases : {false, true}) {
    const TrainConfig config = two_layers_in_graphs(phases);
    const int before = fake_cuda::event_nodes();
    TrainerHarness run(config, Generator::kTorchCuda, make_cuda_device(config.device, 0));
    run.after_step = [&](const StepReport& report) {
      const StepTimeline& step = *report.timeline->at(0);
      EXPECT_EQ(step.plan->runs().size(), phases ? 5U : 2U) << "one is the input";
      for (const Span& span : step.spans) EXPECT_TRUE(span.is_known());
      const StepAccount account = account_of(*report.timeline, kMainLane);
      EXPECT_EQ(account[Part::kGraph] > 0, !phases);
      for (const Part part : {Part::kForward, Part::kLoss, Part::kBackward, Part::kOptimizer}) {
        EXPECT_EQ(account[part] > 0, phases) << name_of(part);
      }
      EXPECT_NEAR(std::accumulate(account.part_s.begin(), account.part_s.end(), 0.0), report.wall_s,
                  1e-9);
    };
    run.run();
    EXPECT_EQ(fake_cuda::event_nodes() - before, 2 * (phases ? 5 : 2)) << "in each of two graphs";
  }
}

/// The host queues a small step in less time than the GPU takes for it only if it makes few calls:
/// for the input and for the rest of the work it launches a graph and records an event; it waits
/// for the end, and reads three times. Widths do not matter.
TEST_F(OnFake, AStepInGraphsTakesAtMostTwelveCallsOfTheHost) {
  close();
  for (const std::int64_t log_every : {1, 6}) {
    TrainConfig config = two_layers_in_graphs(false);
    config.training.log_every = log_every;
    TrainerHarness run(config, Generator::kTorchCuda, make_cuda_device(config.device, 0));
    std::vector<int> calls;
    run.after_step = [&](const StepReport&) { calls.push_back(fake_cuda::calls()); };
    run.run();
    std::adjacent_difference(calls.begin(), calls.end(), calls.begin());
    // The clocks are compared once a second.
    std::sort(calls.begin() + 4, calls.end());
    EXPECT_LE(calls[8], 12) << "--log-every " << log_every;
  }
}

/// In the graphs of a run, kernels are launched before the previous kernel has ended.
int launched_ahead_in(bool graph, Update update, bool fusion = true, bool phases = false) {
  TrainConfig config;
  if (phases) config.output.metrics = "metrics";
  config.model.layers = {8, 24, 16, 8};
  config.training.steps = 4;
  config.training.update = update;
  config.device = {.device = "cuda", .fusion = fusion, .graph = graph};
  const int before = fake_cuda::launched_ahead();
  TrainerHarness run(config, Generator::kTorchCuda, make_cuda_device(config.device, 0));
  run.run();
  return fake_cuda::launched_ahead() - before;
}

// In each slot's graph of the input: all kernels that draw it but the first. In the other one: the
// loss after the last layer's bias, unless its product adds that; the first kernel of the backward
// pass after the loss; each layer's sum of rows after the gradient of its output, unless they are
// one kernel; or all updates. Between other kernels are products, and between phases their marks.
TEST_F(OnFake, GraphsLaunchOurKernelsBeforeTheOneAheadOfThemHasEnded) {
  close();
  constexpr int kOfInput = 3;
  EXPECT_EQ(launched_ahead_in(true, Update::kSeparate, false), 2 * (kOfInput + 2 + 3));
  EXPECT_EQ(launched_ahead_in(true, Update::kSeparate, false, true), 2 * (kOfInput + 3));
  EXPECT_EQ(launched_ahead_in(true, Update::kSeparate), 2 * (kOfInput + 1));
  EXPECT_EQ(launched_ahead_in(true, Update::kFused), 2 * (kOfInput + 3));
  EXPECT_EQ(launched_ahead_in(false, Update::kFused), 0);
}

TEST_F(OnFake, GpusBeforeHopperLaunchNothingAhead) {
  close();
  fake_cuda::reset({.capability = 8});
  EXPECT_EQ(launched_ahead_in(true, Update::kFused), 0);
}

TEST_F(OnFake, AGraphRunsCapturedWorkInEveryStepButTheFirst) {
  close();
  TrainConfig config;
  config.model.layers = {8, 8};
  config.training.steps = 4;
  config.device = {.device = "cuda", .graph = true};
  {
    TrainerHarness run(config, Generator::kTorchCuda, make_cuda_device(config.device, 0));
    run.after_step = [](const StepReport& report) {
      if (report.step > 0) return;
      EXPECT_EQ(fake_cuda::calls("cudaStreamBeginCapture"), 0);
      EXPECT_EQ(fake_cuda::calls("cublasLtMatmul"), 2) << "libraries load outside of captures";
    };
    run.run();
  }
  EXPECT_EQ(fake_cuda::calls("cudaGraphInstantiate"), 4) << "two graphs a slot";
  EXPECT_EQ(fake_cuda::calls("cudaGraphLaunch"), 2 * 3);
  EXPECT_GT(fake_cuda::replayed(), 3 * 5);
}

}  // namespace
}  // namespace barestep
