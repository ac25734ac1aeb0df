// The GPU work that CUPTI reports, and the nodes it belongs to.

#include "profiler/cupti_fixture.h"
#include "support/testing.h"

namespace barestep {
namespace {

TEST_F(Cupti, TellsWhichNodeEachPieceOfWorkIsOf) {
  open();
  turn_on();
  const std::uint64_t product = queue(4, 7);
  const std::uint64_t copy = queue(5, 7, 1);
  EXPECT_TRUE(fake().stack.empty());
  add_correlation(product, 70);
  add_correlation(product, 71);
  add_correlation(copy, 72);
  add_call(kLaunchKernel, 70, 900, 950);
  add_call(kEventRecord, 99, 960, 970);
  // The node consists of two kernels; CUDA's device number differs from the program's.
  add_kernel(70, 1000, 3000);
  add_kernel(71, 3500, 4000);
  CUpti_ActivityMemcpy5 copied{};
  copied.kind = CUPTI_ACTIVITY_KIND_MEMCPY;
  copied.copyKind = CUPTI_ACTIVITY_MEMCPY_KIND_HTOD;
  copied.srcKind = CUPTI_ACTIVITY_MEMORY_KIND_PINNED;
  copied.dstKind = CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
  copied.bytes = 512;
  copied.start = at(2000);
  copied.end = at(2500);
  copied.deviceId = 1;
  copied.correlationId = 72;
  fake().add(copied);
  source().finish();

  ASSERT_THAT(records(), SizeIs(2));
  EXPECT_EQ(records()[0].tag.node, 4);
  EXPECT_EQ(records()[0].tag.step, 7);
  EXPECT_EQ(records()[0].device, 0);
  expect_at(records()[0].start_s, 1000);
  expect_at(records()[0].end_s, 4000);
  EXPECT_EQ(records()[1].tag.node, 5);
  EXPECT_EQ(records()[1].device, 1);
  // In the order in which they began; calls that queue nothing are left out.
  EXPECT_THAT(names(), ElementsAre("cudaLaunchKernel", "barestep::adam(float*)",
                                   "Memcpy HtoD (Pinned -> Device)", "barestep::adam(float*)"));
  const GpuActivity& kernel = source().activities()[1];
  EXPECT_EQ(kernel.stream, 13);
  EXPECT_EQ(kernel.registers, 40);
  EXPECT_EQ(kernel.shared_bytes, 1024);
  EXPECT_THAT(kernel.grid, ElementsAre(2, 1, 1));
  EXPECT_THAT(kernel.block, ElementsAre(256, 1, 1));
  EXPECT_EQ(source().activities()[0].call_id, static_cast<int>(kLaunchKernel));
  EXPECT_EQ(source().activities()[2].bytes, 512);
  EXPECT_EQ(source().dropped(), 0);
  EXPECT_EQ(source().source(), "CUPTI 13.0.1");
}

/// cuBLASLt launches some of its kernels through the driver instead of the runtime. CUPTI assigns
/// these to their node only if the driver's calls are recorded too.
TEST_F(Cupti, TellsWhichNodeWorkIsOfThatTheDriverLaunched) {
  open();
  turn_on();
  launch(4, CUPTI_ACTIVITY_KIND_DRIVER, kDriverLaunchKernelEx, 100);
  launch(5, CUPTI_ACTIVITY_KIND_RUNTIME, kLaunchKernel, 200);
  // In the driver, the same number is a different call that launches nothing.
  fake().call(CUPTI_ACTIVITY_KIND_DRIVER, kLaunchKernel, at(300), at(305));
  source().finish();
  ASSERT_THAT(records(), SizeIs(2));
  EXPECT_EQ(records()[0].tag.node, 4);
  expect_at(records()[0].start_s, 110);
  EXPECT_EQ(records()[1].tag.node, 5);
  EXPECT_THAT(names(), ElementsAre("cuLaunchKernelEx", "barestep::adam(float*)", "cudaLaunchKernel",
                                   "barestep::adam(float*)"));
}

TEST_F(Cupti, ReadsFillsPeerCopiesAndItsOwnOverhead) {
  open();
  turn_on();
  CUpti_ActivityMemset4 fill{};
  fill.kind = CUPTI_ACTIVITY_KIND_MEMSET;
  fill.bytes = 64;
  fill.start = at(10);
  fill.end = at(20);
  fake().add(fill);
  CUpti_ActivityMemcpyPtoP4 peer{};
  peer.kind = CUPTI_ACTIVITY_KIND_MEMCPY2;
  peer.copyKind = CUPTI_ACTIVITY_MEMCPY_KIND_PTOP;
  peer.srcKind = peer.dstKind = CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
  peer.start = at(30);
  peer.end = at(40);
  fake().add(peer);
  for (const int kind : {1 << 16, 5 << 16, 99 << 16}) {
    CUpti_ActivityOverhead overhead{};
    overhead.kind = CUPTI_ACTIVITY_KIND_OVERHEAD;
    overhead.overheadKind = static_cast<CUpti_ActivityOverheadKind>(kind);
    overhead.start = at(static_cast<std::uint64_t>(kind));
    overhead.end = overhead.start + 1;
    fake().add(overhead);
  }
  source().finish();
  EXPECT_THAT(names(), ElementsAre("Memset (Device)", "Memcpy PtoP (Device -> Device)",
                                   "Buffer Flush", "Lazy Function Loading", "Unknown Overhead"));
  EXPECT_TRUE(records().empty());
}

/// Buffers may return in any order, so a correlation may arrive after the work it belongs to.
TEST_F(Cupti, DoesNotMindTheOrderOfBuffers) {
  open();
  turn_on();
  fake().records_of_a_buffer = 1;
  fake().delivers_backwards = true;
  for (const std::uint32_t i : {0U, 1U, 2U}) {
    const std::uint64_t number = queue(static_cast<NodeId>(i));
    add_correlation(number, 50 + i);
    add_kernel(50 + i, 100 * i + 1, 100 * i + 50);
  }
  source().finish();
  ASSERT_THAT(records(), SizeIs(3));
  for (const NodeId node : {0, 1, 2}) {
    EXPECT_EQ(records()[static_cast<std::size_t>(node)].tag.node, node);
    expect_at(records()[static_cast<std::size_t>(node)].start_s,
              static_cast<std::uint64_t>(100 * node + 1));
  }
}

TEST_F(Cupti, LeavesOutWhatIsOfNoNode) {
  open();
  turn_on();
  add_kernel(40, 10, 20);                                           // queued before profiling began
  add_correlation(1, 41, CUPTI_EXTERNAL_CORRELATION_KIND_OPENACC);  // another client's number
  add_kernel(41, 30, 40);
  add_correlation(77, 42);  // a number that was never assigned
  add_kernel(42, 50, 60);
  CUpti_Activity unknown{};
  unknown.kind = CUPTI_ACTIVITY_KIND_JIT;
  fake().add(unknown);
  source().finish();
  EXPECT_TRUE(records().empty());
  ASSERT_THAT(source().activities(), SizeIs(3));
  for (const GpuActivity& activity : source().activities()) {
    EXPECT_EQ(activity.tag.node, kPartOfNode);
  }
  EXPECT_EQ(source().dropped(), 0);
}

/// Steps profiled only to measure the overhead take no room from those that are shown.
TEST_F(Cupti, ForgetsWhatIsNotToBeKept) {
  open();
  EXPECT_EQ(source().turn(true, false), "");
  queue(1);
  EXPECT_EQ(fake().pushed.back(), 0U);
  start_here();
  add_kernel(50, 1, 2);
  EXPECT_EQ(source().turn(true, true), "");
  start_here();
  const std::uint64_t number = queue(2);
  EXPECT_EQ(number, 1U);
  add_correlation(0, 50);
  add_correlation(number, 51);
  // Later than the error of the clocks' comparison.
  add_kernel(51, 1'000'000, 1'000'010);
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_EQ(source().turn(true, false), "");
  start_here();
  add_kernel(50, 1'000'000, 1'000'001);
  source().finish();
  EXPECT_THAT(source().activities(), SizeIs(1));
  ASSERT_THAT(records(), SizeIs(1));
  EXPECT_EQ(records()[0].tag.node, 2);
  EXPECT_EQ(source().dropped(), 0);
}

TEST_F(Cupti, CountsWhatIsDropped) {
  capacity_ = 5;
  open();
  turn_on();
  fake().dropped = 7;     // by CUPTI
  add_kernel(40, 0, 20);  // without a time
  add_kernel(41, 30, 20);
  for (std::uint32_t i = 0; i < 8; ++i) add_kernel(50 + i, i + 1, i + 2);  // three too many
  source().finish();
  EXPECT_THAT(source().activities(), SizeIs(5));
  EXPECT_EQ(source().dropped(), 7 + 2 + 3);
  // Then nodes for which no number is left; 0, which means no node, is pushed.
  for (NodeId node = 0; node < 6; ++node) queue(node);
  EXPECT_EQ(fake().pushed.back(), 0U);
  EXPECT_EQ(source().dropped(), 7 + 2 + 3 + 1);
}

TEST_F(Cupti, CountsWhatItsBuffersHaveNoRoomFor) {
  open();
  turn_on();
  fake().records_of_a_buffer = 1;
  for (std::uint32_t i = 0; i < kCuptiBuffers + 3; ++i) add_kernel(50 + i, i + 1, i + 2);
  source().finish();
  EXPECT_EQ(fake().refused_buffers, 3);
  EXPECT_EQ(source().dropped(), 3);
  EXPECT_THAT(source().activities(), SizeIs(kCuptiBuffers));
}

/// Between steps, so a long run needs no more buffers than a short one.
TEST_F(Cupti, MakesRoomBetweenSteps) {
  open();
  turn_on();
  fake().records_of_a_buffer = 1;
  for (std::uint32_t step = 0; step < 40; ++step) {
    add_kernel(50 + step, step + 1, step + 2);
    EXPECT_EQ(flush_(0), CUPTI_SUCCESS);
    source().collect();
  }
  source().finish();
  EXPECT_THAT(source().activities(), SizeIs(40));
  EXPECT_EQ(source().dropped(), 0);
}

TEST_F(Cupti, TellsTheWorkOfAGraphByItsNodesAndItsStepByTheTime) {
  open();
  const auto notify = [&](CUpti_CallbackId id, std::uintptr_t node, std::uintptr_t original) {
    CUpti_GraphData graph{};
    graph.node = reinterpret_cast<CUgraphNode>(node);
    graph.originalNode = reinterpret_cast<CUgraphNode>(original);
    CUpti_ResourceData resource{};
    resource.resourceDescriptor = &graph;
    fake().on_event(fake().user, CUPTI_CB_DOMAIN_RESOURCE, id, &resource);
  };
  // One graph for each slot. The executed nodes are copies of the captured ones.
  for (const std::int64_t slot : {0, 1}) {
    const auto first = static_cast<std::uintptr_t>(100 + 1000 * slot);
    source().capture(true);
    for (const NodeId node : {4, 5}) {
      source().begin({.program = 0, .step = 2 + slot, .node = node}, "op", 0);
      notify(CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED, first + static_cast<std::uintptr_t>(node), 0);
      source().end();
    }
    notify(CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED, first + 6, 0);  // belongs to no node
    source().capture(false);
    for (const std::uintptr_t node : {4U, 5U, 6U}) {
      notify(CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED, first + 100 + node, first + node);
    }
  }
  turn_on();
  // Wrong correlations do not matter.
  fake().sessions = 2;
  // Step 9 is launched while step 8 runs, and step 10, of the same graph as 8, only after it.
  const std::uint64_t launch = queue(kGraphLaunch, 8);
  queue(kGraphLaunch, 9);
  start_here();
  add_correlation(launch, 60);
  add_call(kGraphLaunchCall, 60, 5, 9);
  add_kernel(60, 1'000'000, 1'000'020, 3, 205);
  add_kernel(60, 1'000'020, 1'000'030, 3, 204);
  add_kernel(60, 1'000'030, 1'000'040, 3, 206);
  add_kernel(61, 1'000'040, 1'000'050, 3, 1204);
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  queue(kGraphLaunch, 10);
  add_kernel(62, 5'000'000'000, 5'000'000'010, 3, 204);
  source().finish();
  fake().sessions = 1;
  ASSERT_THAT(records(), SizeIs(4));
  const std::pair<std::int64_t, NodeId> expected[] = {{8, 4}, {8, 5}, {9, 4}, {10, 4}};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(records()[i].tag.step, expected[i].first);
    EXPECT_EQ(records()[i].tag.node, expected[i].second);
  }
  expect_at(records()[0].start_s, 1'000'020);
  EXPECT_EQ(source().activities()[0].name, "cudaGraphLaunch");
  EXPECT_EQ(source().activities()[3].tag.node, kPartOfNode);
}

}  // namespace
}  // namespace barestep
