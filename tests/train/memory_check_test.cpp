#include "train/memory_check.h"

#include "core/units.h"
#include "support/expect_error.h"
#include "support/testing.h"

namespace barestep {
namespace {

StepSpec spec_of_batch(std::int64_t batch_size) {
  return {.model = {.widths = {256, 256, 256}}, .batch_size = batch_size};
}

/// The memory of a run with this batch.
std::int64_t device_bytes(std::int64_t batch_size) {
  return MemoryPlan(StepPrograms(spec_of_batch(batch_size)).buffers()).device_bytes(0);
}
std::int64_t pinned_bytes(std::int64_t batch_size) {
  return MemoryPlan(StepPrograms(spec_of_batch(batch_size)).buffers()).pinned_bytes(0);
}

void require(std::int64_t batch_size, std::int64_t available_bytes, DeviceKind kind) {
  require_memory(StepPrograms(spec_of_batch(batch_size)), available_bytes, kind, "cuda:0");
}

TEST(RequireMemory, LetsARunThroughThatFitsToTheByte) {
  EXPECT_NO_THROW(require(64, device_bytes(64), DeviceKind::kCuda));
  EXPECT_THROW(require(64, device_bytes(64) - 1, DeviceKind::kCuda), Error);
}

TEST(RequireMemory, LeavesRoomForWhatALibraryTakes) {
  const StepPrograms programs(spec_of_batch(64));
  MemoryPool pool{.name = "cuda:0",
                  .kind = DeviceKind::kCuda,
                  .available_bytes = device_bytes(64) + 1000,
                  .beside_bytes = 1000,
                  .beside = "NCCL"};
  EXPECT_NO_THROW(require_memory(programs, pool));
  pool.beside_bytes = 1001;
  expect_error(ExitCode::kMemory,
               fmt::format("too little memory: needs {} and {} for NCCL, cuda:0 has {} free; "
                           "--batch-size 32 fits",
                           human_bytes(device_bytes(64)), human_bytes(1001),
                           human_bytes(device_bytes(64) + 1000)),
               [&] { require_memory(programs, pool); });
}

TEST(RequireMemory, SaysThatOneOfTheUpdatesThatAreTriedFits) {
  StepSpec spec = spec_of_batch(64);
  spec.model.stores_gradients = false;
  const std::int64_t fused = MemoryPlan(StepPrograms(spec).buffers()).device_bytes(0);
  spec.update.tries_both = true;
  const auto expect_remedy = [&](std::int64_t available_bytes, const std::string& remedy) {
    expect_error(ExitCode::kMemory, " free; " + remedy, [&] {
      require_memory(StepPrograms(spec), available_bytes, DeviceKind::kCuda, "cuda:0");
    });
  };
  expect_remedy(fused, "--update fused fits");
  expect_remedy(fused - 1, "no batch size fits");
}

TEST(RequireMemory, CountsPinnedMemoryWhereItIsTheDevicesOwn) {
  const std::int64_t all = device_bytes(64) + pinned_bytes(64);
  ASSERT_GT(pinned_bytes(64), 0);
  EXPECT_NO_THROW(require(64, all, DeviceKind::kCpu));
  EXPECT_THROW(require(64, all - 1, DeviceKind::kCpu), Error);
}

TEST(RequireMemory, CountsWhatCheckpointsAreWrittenFrom) {
  StepSpec spec = spec_of_batch(64);
  const std::int64_t device = device_bytes(64);
  // Weights and two moments.
  const std::int64_t numbers = 3 * parameters_of(spec.model).bytes();
  spec.saves_state = true;
  {
    const StepPrograms programs(spec);
    const MemoryPlan plan(programs.buffers());
    EXPECT_EQ(plan.device_bytes(0), device);
    EXPECT_GE(plan.pinned_category_bytes(0, Category::kCheckpoint), numbers);
    EXPECT_THROW(require_memory(programs, device + numbers, DeviceKind::kCpu, "cpu"), Error);
    EXPECT_NO_THROW(
        require_memory(programs, device + plan.pinned_bytes(0), DeviceKind::kCpu, "cpu"));
  }
  // A device with its own memory holds a snapshot there.
  spec.has_own_memory = true;
  const StepPrograms programs(spec);
  EXPECT_NO_THROW(require_memory(programs, device + numbers, DeviceKind::kCuda, "cuda:0"));
  expect_error(
      ExitCode::kMemory,
      fmt::format("too little memory: needs {} ({} for checkpoints), cuda:0 has {} free; "
                  "--batch-size 32 fits",
                  human_bytes(device + numbers), human_bytes(numbers),
                  human_bytes(device + numbers - 1)),
      [&] { require_memory(programs, device + numbers - 1, DeviceKind::kCuda, "cuda:0"); });
}

TEST(RequireMemory, CountsOfRanksWhatEachWrites) {
  StepSpec spec = spec_of_batch(64);
  spec.saves_state = true;
  spec.has_own_memory = true;
  spec.mesh.data = 4;
  const std::int64_t numbers = 3 * parameters_of(spec.model).bytes();
  std::int64_t sum = 0;
  for (spec.mesh.rank = 0; spec.mesh.rank < spec.mesh.data; ++spec.mesh.rank) {
    const StepPrograms programs(spec);
    const std::int64_t own =
        MemoryPlan(programs.buffers()).category_bytes(0, Category::kCheckpoint);
    EXPECT_LE(own, numbers / spec.mesh.data + 2 * kPlanAlignmentBytes) << "rank " << spec.mesh.rank;
    sum += own;
  }
  EXPECT_GE(sum, numbers);
}

TEST(RequireMemory, NamesTheLargestHalvingOfTheBatchThatFits) {
  const std::int64_t available = device_bytes(250);
  expect_error(ExitCode::kMemory,
               fmt::format("too little memory: needs {}, cuda:0 has {} free; --batch-size 250 fits",
                           human_bytes(device_bytes(1000)), human_bytes(available)),
               [&] { require(1000, available, DeviceKind::kCuda); });
}

TEST(RequireMemory, SharesTheMemoryOfAHostAmongItsRanks) {
  const auto spec_of_rank = [](std::int64_t batch_size) {
    StepSpec spec = spec_of_batch(batch_size);
    spec.mesh.data = 4;
    return spec;
  };
  const auto bytes = [&](std::int64_t batch_size) {
    return MemoryPlan(StepPrograms(spec_of_rank(batch_size)).buffers()).device_bytes(0);
  };
  const auto require_ranks = [&](std::int64_t available_bytes) {
    require_memory(StepPrograms(spec_of_rank(1000)), available_bytes, DeviceKind::kCuda, "host", 4);
  };
  EXPECT_NO_THROW(require_ranks(4 * bytes(1000)));
  expect_error(ExitCode::kMemory,
               fmt::format("too little memory: needs {} in each of 4 ranks, host has {} free; "
                           "--global-batch-size 500 fits",
                           human_bytes(bytes(1000)), human_bytes(4 * bytes(500))),
               [&] { require_ranks(4 * bytes(500)); });
}

TEST(RequireMemory, CountsBatchesAheadAndAsksForFewer) {
  StepSpec spec{.model = {.widths = {6, 4}},
                .input = {.data = DataKind::kIdx, .train_rows = 1'000'000, .workers_ahead = 1'000}};
  const StepPrograms programs(spec);
  spec.input.workers_ahead = 1;
  const StepPrograms one(spec);
  const auto bytes_of_all = [](const StepPrograms& of) {
    const MemoryPlan plan(of.buffers());
    return plan.device_bytes(0) + plan.pinned_bytes(0);
  };
  const std::int64_t bytes_of_batch = 64 * (6 + 4) * 4;
  EXPECT_EQ(bytes_of_all(programs) - bytes_of_all(one), 999 * bytes_of_batch);
  require_memory(programs, bytes_of_all(programs), DeviceKind::kCpu, "cpu");
  expect_error(ExitCode::kMemory, "cpu has 1.00 MiB free; --workers 1 --prefetch 1 fits",
               [&] { require_memory(programs, 1 << 20, DeviceKind::kCpu, "cpu"); });
}

/// GPUs' own memory holds none of it.
TEST(RequireMemory, CountsBatchesAheadOfGpusInTheHostsMemory) {
  const StepPrograms programs(
      {.model = {.widths = {6, 4}},
       .input = {.data = DataKind::kIdx, .train_rows = 1'000'000, .workers_ahead = 1'000}});
  const MemoryPlan plan(programs.buffers());
  ASSERT_GT(plan.pinned_bytes(0), 1'000 * 64 * (6 + 4) * 4);
  require_memory(programs, plan.device_bytes(0), DeviceKind::kCuda, "cuda:0");
  MemoryPool host = host_pool({0, 1}, 2);
  EXPECT_GT(host.available_bytes, 0);
  host.available_bytes = 2 * plan.pinned_bytes(0);
  require_memory(programs, host);
  host.available_bytes -= 2;
  expect_error(ExitCode::kMemory,
               fmt::format("too little memory: needs {} in each of 2 ranks for 2 devices, this "
                           "host has {} free; --workers 1 --prefetch 1 fits",
                           human_bytes(plan.pinned_bytes(0)), human_bytes(host.available_bytes)),
               [&] { require_memory(programs, host); });
}

TEST(RequireMemory, SaysWhenNoBatchFits) {
  expect_error(ExitCode::kMemory,
               fmt::format("too little memory: needs {}, cuda:0 has 1.00 MiB free; no batch size "
                           "fits, use a smaller --dim, --depth or --layers",
                           human_bytes(device_bytes(64))),
               [&] { require(64, 1 << 20, DeviceKind::kCuda); });
}

}  // namespace
}  // namespace barestep
