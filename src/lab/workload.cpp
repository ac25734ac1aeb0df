#include "lab/workload.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "options/options.h"

namespace barestep {

std::string_view program_of(const Workload& workload) {
  return workload.pytorch ? "practical.py" : name_of(workload.trainer);
}

namespace {

/// Of practical.py; more options than these it has not.
std::vector<std::string> arguments_of_script(const Workload& workload) {
  const char* trainer = workload.trainer == TrainerKind::kSingle         ? "single"
                        : workload.trainer == TrainerKind::kDataParallel ? "data-parallel"
                                                                         : "ddp";
  return {"--trainer",    trainer,
          "--ranks",      std::to_string(workload.ranks),
          "--dim",        std::to_string(workload.dim()),
          "--depth",      std::to_string(workload.depth()),
          "--steps",      std::to_string(workload.steps()),
          "--batch-size", std::to_string(workload.batch_size()),
          "--device",     workload.on_gpu ? "cuda" : "cpu",
          "--threads",    std::to_string(workload.config.device.threads.value_or(0))};
}

}  // namespace

std::vector<std::string> arguments_of(const Workload& workload) {
  if (workload.pytorch) return arguments_of_script(workload);
  return arguments_of(workload.config, workload.trainer);
}

std::string command_line_of(const Workload& workload) {
  if (workload.pytorch) {
    return fmt::format("python3 src/lab/pytorch/practical.py {}",
                       fmt::join(arguments_of(workload), " "));
  }
  std::string line;
  if (workload.trainer == TrainerKind::kDdp) {
    line = fmt::format("mpirun -np {} ", workload.ranks);
  }
  return fmt::format("{}{} {}", line, program_of(workload), fmt::join(arguments_of(workload), " "));
}

}  // namespace barestep
