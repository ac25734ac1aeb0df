#include "lab/workload.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace barestep {
namespace {

/// Every device by its name.
std::string devices_of(const Workload& workload) {
  std::vector<std::string> names;
  for (int i = 0; i < workload.ranks; ++i) {
    names.push_back(workload.on_gpu ? fmt::format("cuda:{}", i % workload.gpus) : "cpu");
  }
  return fmt::format("{}", fmt::join(names, ","));
}

}  // namespace

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
          "--dim",        std::to_string(workload.dim),
          "--depth",      std::to_string(workload.depth),
          "--steps",      std::to_string(workload.steps),
          "--batch-size", std::to_string(workload.batch_size),
          "--device",     workload.on_gpu ? "cuda" : "cpu",
          "--threads",    std::to_string(workload.threads)};
}

}  // namespace

std::vector<std::string> arguments_of(const Workload& workload) {
  if (workload.pytorch) return arguments_of_script(workload);
  std::vector<std::string> arguments = {"--dim",   std::to_string(workload.dim),
                                        "--depth", std::to_string(workload.depth),
                                        "--steps", std::to_string(workload.steps)};
  const auto add = [&](const std::string& option, const std::string& value) {
    arguments.push_back(option);
    arguments.push_back(value);
  };
  const bool is_ddp = workload.trainer == TrainerKind::kDdp;
  add(is_ddp ? "--global-batch-size" : "--batch-size", std::to_string(workload.batch_size));
  if (workload.trainer == TrainerKind::kDataParallel) {
    add("--devices", devices_of(workload));
  } else {
    add("--device", workload.on_gpu ? "cuda" : "cpu");
  }
  if (workload.scheme != RankScheme::kDdp) add("--scheme", std::string(name_of(workload.scheme)));
  if (workload.threads > 0) add("--threads", std::to_string(workload.threads));
  arguments.insert(arguments.end(), workload.more.begin(), workload.more.end());
  return arguments;
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
