#include "parallel/schemes/run.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "core/units.h"
#include "options/options.h"
#include "parallel/schemes/scheme_of.h"
#include "train/step.h"

namespace barestep {
namespace {

[[noreturn]] void refuse(std::string what, std::string value, std::string why, std::string remedy) {
  fail(ExitCode::kConfiguration, {.what = std::move(what),
                                  .value = std::move(value),
                                  .why = std::move(why),
                                  .remedy = std::move(remedy)});
}

void require_place(const Run& run) {
  const TrainConfig& config = run.config;
  const bool is_process = run.trainer == TrainerKind::kDataParallel;
  if (config.parallel.transport == TransportKind::kNccl && !run.on_gpu) {
    refuse("--transport", "nccl",
           is_process ? "joins GPUs, and these are CPU devices"
                      : "joins GPUs, and this rank is on the CPU",
           is_process ? "use peer or auto" : "use mpi or auto");
  }
  if (is_process && config.parallel.pipeline > 1 && config.parallel.pipeline != run.ranks) {
    refuse("--pipeline", std::to_string(config.parallel.pipeline),
           fmt::format("each stage is on a device of its own, and there {} {}",
                       run.ranks == 1 ? "is" : "are", counted(run.ranks, "device")),
           "list as many --devices; one may be named several times");
  }
  if (is_process && config.device.graph && run.ranks > 1) {
    refuse("--graph", "",
           fmt::format("captures the work of one device, and there are {}", run.ranks),
           "leave it out, or give one device");
  }
}

}  // namespace

void require(const Run& run) {
  validate(run.config, run.trainer);
  require_place(run);
  if (run.trainer != TrainerKind::kDdp) {
    return require_layer_for_each_stage(spec_of(run.config, run.kind(), nullptr));
  }
  const Mesh mesh = mesh_of(run);
  for (int rank = 0; rank < mesh.ranks(); rank += mesh.ranks_of_stage()) {
    static_cast<void>(spec_of_rank(run.config, run.kind(), nullptr, rank, run.ranks));
  }
}

std::optional<Error> why_not(const Run& run) {
  return refusal_of([&] { require(run); });
}

Mesh mesh_of(const Run& run) {
  return run.trainer == TrainerKind::kDdp ? mesh_of(run.config, 0, run.ranks)
                                          : Mesh::of_data(0, run.ranks);
}

}  // namespace barestep
