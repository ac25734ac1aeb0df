#include "parallel/schemes/run.h"

#include <fmt/format.h>

#include <string>

#include "core/units.h"
#include "options/options.h"
#include "parallel/schemes/scheme_of.h"

namespace barestep {
namespace {

void require_place(const Run& run) {
  const TrainConfig& config = run.config;
  const bool is_process = run.scheme() == SchemeKind::kDataParallel;
  if (config.parallel.transport == TransportKind::kNccl && !run.on_gpu) {
    refuse_options("--transport", "nccl",
                   is_process ? "joins GPUs, and these are CPU devices"
                              : "joins GPUs, and this rank is on the CPU",
                   is_process ? "use peer or auto" : "use mpi or auto");
  }
  if (is_process && config.parallel.pipeline > 1 && config.parallel.pipeline != run.ranks) {
    refuse_options("--pipeline", std::to_string(config.parallel.pipeline),
                   fmt::format("each stage is on a device of its own, and there {} {}",
                               run.ranks == 1 ? "is" : "are", counted(run.ranks, "device")),
                   "list as many --devices; one may be named several times");
  }
  const bool shares_batch = is_process && run.ranks > 1 && config.parallel.pipeline == 1;
  if (shares_batch && config.training.update == Update::kFused) {
    refuse_options("--update", "fused",
                   "stores no gradients, which several ranks or devices exchange",
                   "use --update separate");
  }
  if (is_process && config.device.graph && run.ranks > 1) {
    refuse_options("--graph", "",
                   fmt::format("captures the work of one device, and there are {}", run.ranks),
                   "leave it out, or give one device");
  }
}

/// Tensor ranks share the outputs of every other layer; of a block, the heads of attention and the
/// hidden layer.
void require_width_for_tensor_ranks(const ModelSpec& model, int ranks) {
  const auto require_each = [&](int layer, std::int64_t count, std::string_view noun) {
    if (count >= ranks) return;
    refuse_options("--tensor", std::to_string(ranks),
                   fmt::format("{} has {}, so some ranks would have none",
                               model.name_of_layer(layer), counted(count, noun)),
                   fmt::format("use at most --tensor {}", count));
  };
  if (model.transformer) {
    require_each(0, model.transformer->attention.heads, "head");
    require_each(0, model.transformer->ffn, "hidden number");
    return;
  }
  for (std::size_t layer = 0; layer + 2 < model.widths.size(); layer += 2) {
    require_each(static_cast<int>(layer), model.widths[layer + 1], "output");
  }
}

void require_chunk_for_each_rank(const StepSpec& spec) {
  const std::int64_t ranks = spec.mesh.data, samples = spec.step_rows();
  const std::int64_t chunks = spec.chunks_of(samples);
  if (chunks >= ranks) return;
  const std::int64_t largest = (samples - 1) / (ranks - 1);  // that gives enough chunks
  const std::string fewer = fmt::format("start at most {}", counted(chunks, "rank"));
  refuse_options("--reproducible", std::to_string(spec.chunk_rows),
                 fmt::format("a step of {} has {}, and {} share it", counted(samples, "sample"),
                             counted(chunks, "chunk"), counted(ranks, "rank")),
                 largest > 0 ? fmt::format("give at most {}, or {}", largest, fewer) : fewer);
}

/// The option names a rank that is not there.
[[noreturn]] void refuse_rank(const char* option, const std::string& value, int ranks) {
  refuse_options(option, value,
                 fmt::format("there {} {}", ranks == 1 ? "is" : "are", counted(ranks, "rank")),
                 fmt::format("ranks are numbered from 0 to {}", ranks - 1));
}

/// Whether the ranks can share the step; `spec` is of any of them.
void require_ranks(const Run& run, const StepSpec& spec) {
  const ParallelConfig& parallel = run.config.parallel;
  const int copies = spec.mesh.data;
  if (const auto& slow = run.config.injected.slow_rank; slow && slow->rank >= run.ranks) {
    refuse_rank("--slow-rank", fmt::format("{}:{}", slow->rank, slow->delay_ms), run.ranks);
  }
  if (spec.chunk_rows > 0) {
    require_chunk_for_each_rank(spec);
  } else if (spec.batch_size < copies) {
    refuse_options("--global-batch-size", std::to_string(spec.batch_size),
                   fmt::format("leaves some of {} ranks without a sample", copies),
                   fmt::format("give at least {}, or start fewer ranks", copies));
  }
  if (parallel.servers > copies) {
    refuse_options("--servers", std::to_string(parallel.servers),
                   fmt::format("servers are ranks, and {} {} the batch", counted(copies, "rank"),
                               copies == 1 ? "has" : "share"),
                   fmt::format("give at most {}, or start more ranks", copies));
  }
  if (!limits::kBatchSizes.contains(spec.step_rows())) {
    refuse_options("--batch-size", std::to_string(run.config.data.batch_size),
                   fmt::format("{} {} {} samples in a step", counted(copies, "rank"),
                               copies == 1 ? "makes" : "make", spec.step_rows()),
                   fmt::format("a step has at most {}", limits::kBatchSizes.last));
  }
}

}  // namespace

void require(const Run& run) {
  validate(run.config);
  require_place(run);
  const Mesh mesh = mesh_of(run);
  for (int rank = 0; rank < mesh.ranks(); rank += mesh.ranks_of_stage()) {
    require_width_for_tensor_ranks(spec_of(run, rank).model, mesh.tensor);
  }
  if (run.has_ranks()) require_ranks(run, spec_of(run));
  if (const auto& flip = run.config.injected.flip; flip && flip->rank >= run.ranks) {
    refuse_rank("--flip", text_of(*flip), run.ranks);
  }
}

std::optional<Error> why_not(const Run& run) {
  return refusal_of([&] { require(run); });
}

StepSpec spec_of(const Run& run, int rank) {
  return run.has_ranks() ? spec_of_rank(run.config, run.kind(), nullptr, rank, run.ranks)
                         : spec_of(run.config, run.kind(), nullptr);
}

Mesh mesh_of(const Run& run) {
  return run.has_ranks() ? mesh_of(run.config, 0, run.ranks) : Mesh::of_data(0, run.ranks);
}

}  // namespace barestep
