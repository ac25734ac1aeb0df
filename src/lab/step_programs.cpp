#include "lab/step_programs.h"

#include <map>
#include <string>

#include "core/error.h"
#include "parallel/data_parallel.h"
#include "parallel/ddp.h"
#include "parallel/rank_scheme.h"
#include "train/trainer.h"

namespace barestep {
namespace {

using SetOption = void (*)(TrainConfig& config, const std::string& value);

void set_slow_rank(TrainConfig& config, const std::string& value) {
  const std::size_t colon = value.find(':');
  config.injected.slow_rank = {.rank = std::stoll(value.substr(0, colon)),
                               .delay_ms = std::stod(value.substr(colon + 1))};
}

/// The options with a value that experiments give.
const std::map<std::string, SetOption>& options_with_value() {
  static const SetOption ignore = [](TrainConfig&, const std::string&) {};
  static const std::map<std::string, SetOption> options = {
      {"--bucket-mib",
       [](auto& c, const auto& value) { c.parallel.bucket_mib = std::stod(value); }},
      {"--data", [](auto& c, const auto&) { c.data.kind = DataKind::kNpy; }},
      {"--delay-ms", [](auto& c, const auto& value) { c.injected.delay_ms = std::stod(value); }},
      {"--fusion", [](auto& c, const auto& value) { c.device.fusion = value == "on"; }},
      {"--io-delay-ms", [](auto& c, const auto& value) { c.data.io_delay_ms = std::stod(value); }},
      {"--log-every", ignore},
      {"--precision", ignore},
      {"--seed", ignore},
      {"--slow-rank", set_slow_rank},
      {"--update",
       [](auto& c, const auto& value) {
         c.training.update = value == "fused" ? Update::kFused : Update::kSeparate;
       }},
      {"--workers", [](auto& c, const auto& value) { c.data.workers = std::stoi(value); }}};
  return options;
}

}  // namespace

TrainConfig config_of(const Workload& workload) {
  TrainConfig config;
  config.model.dim = workload.dim;
  config.model.depth = workload.depth;
  config.data.batch_size = workload.batch_size;
  config.parallel.scheme = workload.scheme;
  for (std::size_t i = 0; i < workload.more.size(); ++i) {
    const std::string& option = workload.more[i];
    if (option == "--graph" || option == "--no-pin" || option == "--monitor") continue;
    const auto found = options_with_value().find(option);
    BARESTEP_REQUIRE(found != options_with_value().end(), "an experiment's option is not known");
    found->second(config, workload.more.at(++i));
  }
  return config;
}

WorkloadPrograms::WorkloadPrograms(const Workload& workload)
    : WorkloadPrograms(config_of(workload), workload.trainer, workload.ranks,
                       workload.on_gpu ? DeviceKind::kCuda : DeviceKind::kCpu) {}

WorkloadPrograms::WorkloadPrograms(const TrainConfig& config, TrainerKind trainer, int ranks,
                                   DeviceKind kind) {
  switch (trainer) {
    case TrainerKind::kSingle:
      steps_ = std::make_unique<StepPrograms>(spec_of(config, kind, nullptr));
      return;
    case TrainerKind::kDataParallel:
      scheme_ = std::make_unique<DataParallel>(ranks, kind == DeviceKind::kCuda);
      steps_ = std::make_unique<StepPrograms>(spec_of(config, kind, nullptr), scheme_.get());
      return;
    case TrainerKind::kDdp:
      scheme_ = rank_scheme_of(config);
      steps_ = std::make_unique<StepPrograms>(spec_of_rank(config, kind, nullptr, 0, ranks),
                                              scheme_.get());
      return;
  }
}

}  // namespace barestep
