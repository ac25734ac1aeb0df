#include "lab/made_up.h"
#include "lab/predict/workload.h"
#include "support/expect_error.h"
#include "support/testing.h"

namespace barestep {
namespace {

TEST(PlannedMemory, IsThatOfEveryDevice) {
  const auto one = planned_memory(made_up_workload(256, 2));
  ASSERT_EQ(one.size(), 1U);
  EXPECT_EQ(one[0].bytes, 2'633'216) << "as mlp_single prints it";
  std::int64_t sum = 0;
  for (const std::int64_t bytes : one[0].by_category) sum += bytes;
  EXPECT_EQ(sum, one[0].bytes);
  const auto two = planned_memory(made_up_workload(256, 2, SchemeKind::kDataParallel, 2));
  ASSERT_EQ(two.size(), 2U);
  EXPECT_EQ(two[1].bytes, 1'216'512);
}

/// The plan follows mlp_single with the same options, including the ones that Workload leaves open.
TEST(PlannedMemory, KnowsWhatAnUpdateLeftOpenIs) {
  Workload workload = made_up_workload(1024, 2);
  workload.config.training.update = Update::kAuto;
  EXPECT_EQ(planned_memory(workload)[0].by_category[Category::kGradients], 0);
  workload.config.training.update = Update::kFused;
  const std::int64_t fused = planned_memory(workload)[0].bytes;
  workload.config.training.update = Update::kAuto;
  EXPECT_EQ(planned_memory(workload)[0].bytes, fused);
  workload.config.training.clip_norm = 1;
  EXPECT_GT(planned_memory(workload)[0].by_category[Category::kGradients], 0);
}

TEST(PlannedMemory, OfAllRanksAndDevicesMustFit) {
  const auto expect_least = [](const Workload& workload, std::int64_t bytes,
                               const std::string& line) {
    EXPECT_NO_THROW(require_memory(workload, bytes));
    expect_error(ExitCode::kMemory, line, [&] { require_memory(workload, bytes - 1); });
  };
  Workload single = made_up_workload(256, 2);
  // Its arena, and 1,024 bytes for the loss, which on a GPU are not in device memory.
  expect_least(single, 2'633'216 + 1'024,
               "too little memory: needs 2.51 MiB, this machine has 2.51 MiB free; --batch-size 32 "
               "fits");
  single.on_gpu = true;
  expect_least(single, planned_memory(single)[0].bytes, "needs 34.51 MiB, a GPU has 34.51 MiB");
  Workload ranks = made_up_workload(256, 2, SchemeKind::kDdp, 3);
  ranks.on_gpu = true;
  ranks.gpus = 2;
  expect_least(ranks, 2 * planned_memory(ranks)[0].bytes, "needs 34.35 MiB in each of 2 ranks");
  Workload devices = made_up_workload(256, 2, SchemeKind::kDataParallel, 3);
  devices.on_gpu = true;
  devices.gpus = 2;
  const auto of_devices = planned_memory(devices);
  expect_least(devices, of_devices[0].bytes + of_devices[2].bytes,
               "needs 68.03 MiB for 2 devices, a GPU has 68.03 MiB free");
  Workload loading = made_up_workload(256, 2);
  loading.data_rows = 10 * loading.batch_size();
  loading.config.data.kind = DataKind::kNpy;
  loading.config.data.x = "x.npy";
  loading.config.data.y = "y.npy";
  loading.config.data.workers = 0;
  const WorkloadPrograms programs(loading);
  const MemoryPlan without(programs.steps().buffers());
  loading.config.data.workers = 4;
  loading.config.data.prefetch = 2;
  const std::int64_t bytes_of_batch = loading.batch_size() * (256 + 256) * 4;
  expect_least(loading, without.device_bytes(0) + without.pinned_bytes(0) + 8 * bytes_of_batch,
               "--workers 1 --prefetch 1 fits");
  Workload script = made_up_workload(256, 2);
  script.pytorch = true;
  EXPECT_NO_THROW(require_memory(script, 1));
}

}  // namespace
}  // namespace barestep
