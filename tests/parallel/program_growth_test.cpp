// The time to build the programs of a deep model is proportional to its depth.

#include "parallel/schemes/data_parallel.h"
#include "parallel/schemes/ddp.h"
#include "parallel/schemes/other_schemes.h"
#include "parallel/schemes/scheme_of.h"
#include "parallel/schemes/zero.h"
#include "support/busy_machine.h"
#include "support/testing.h"

namespace barestep {
namespace {

/// What is built, and how; `depth` is the depth of the smaller model.
struct Growing {
  const char* name;
  std::function<void(const TrainConfig&)> build;
  std::int64_t depth = 2000;
};

void build_alone(const TrainConfig& config) {
  const StepPrograms programs(spec_of(config, DeviceKind::kCpu, nullptr));
}

void build_of_rank(const Scheme& scheme, const TrainConfig& config) {
  const StepPrograms programs(spec_of_rank(config, DeviceKind::kCpu, nullptr, 0, 2), &scheme);
}

std::vector<Growing> all_growing() {
  return {
      {"Separate", build_alone},
      {"Fused",
       [](TrainConfig config) {
         config.training.update = Update::kFused;
         config.training.clip_norm = 1;
         build_alone(config);
       }},
      {"MicroSteps",
       [](TrainConfig config) {
         config.training.accumulate = *config.model.depth;
         config.model.depth = 4;
         build_alone(config);
       },
       400},
      {"DataParallel",
       [](const TrainConfig& config) {
         const DataParallel scheme(3, true);
         const StepPrograms programs(spec_of(config, DeviceKind::kCpu, nullptr), &scheme);
       },
       4000},
      {"Ddp",
       [](const TrainConfig& config) {
         DdpSettings settings;
         settings.bucket_bytes = settings.first_bucket_bytes = 1;  // one bucket per tensor
         settings.update_per_bucket = true;
         build_of_rank(Ddp(settings), config);
       }},
      {"Zero1", [](const TrainConfig& config) { build_of_rank(Zero(1, DdpSettings{}), config); }},
      {"Zero2", [](const TrainConfig& config) { build_of_rank(Zero(2, DdpSettings{}), config); }},
      {"Zero3", [](const TrainConfig& config) { build_of_rank(Zero(3, DdpSettings{}), config); }},
      {"Factor", [](const TrainConfig& config) { build_of_rank(Factor(), config); }},
  };
}

class ProgramGrowth : public testing::TestWithParam<Growing> {};

TEST_P(ProgramGrowth, IsInProportionToTheModel) {
  TrainConfig config;
  config.model.dim = 4;
  config.data.batch_size = 8;
  expect_linear_time(
      [&](std::int64_t depth) {
        config.model.depth = depth;
        GetParam().build(config);
      },
      GetParam().depth);
}

INSTANTIATE_TEST_SUITE_P(, ProgramGrowth, testing::ValuesIn(all_growing()),
                         [](const auto& each) { return std::string(each.param.name); });

}  // namespace
}  // namespace barestep
