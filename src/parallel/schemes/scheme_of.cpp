#include "parallel/schemes/scheme_of.h"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "core/error.h"
#include "core/index.h"
#include "core/rank_checker.h"
#include "core/units.h"
#include "parallel/schemes/data_parallel.h"
#include "parallel/schemes/factor.h"
#include "parallel/schemes/local_sgd.h"
#include "parallel/schemes/parameter_server.h"
#include "parallel/schemes/pipeline.h"
#include "parallel/schemes/zero.h"

namespace barestep {
namespace {

std::unique_ptr<Scheme> scheme_of_ranks(const TrainConfig& config, const SchemeOptions& options) {
  const auto zero = [&config](int stage) {
    return std::make_unique<Zero>(stage, ddp_settings_of(config),
                                  config.training.chunk_rows.has_value());
  };
  switch (config.parallel.scheme) {
    case RankScheme::kDdp: {
      if (config.parallel.sync_every > 1) return std::make_unique<LocalSgd>();
      DdpSettings settings = ddp_settings_of(config);
      settings.first_bucket_bytes =
          options.first_bucket_bytes.value_or(settings.first_bucket_bytes);
      return std::make_unique<Ddp>(settings);
    }
    case RankScheme::kZero1:
      return zero(1);
    case RankScheme::kZero2:
      return zero(2);
    case RankScheme::kZero3:
      return zero(3);
    case RankScheme::kFactor:
      return std::make_unique<Factor>();
    case RankScheme::kServer:
      return std::make_unique<ParameterServer>(static_cast<int>(config.parallel.servers),
                                               config.parallel.server_reduce,
                                               ddp_settings_of(config));
  }
  return nullptr;
}

}  // namespace

std::unique_ptr<Scheme> scheme_of(const TrainConfig& config, TrainerKind trainer,
                                  const SchemeOptions& options) {
  switch (trainer) {
    case TrainerKind::kSingle:
      return nullptr;
    case TrainerKind::kDataParallel:
      if (config.parallel.pipeline > 1) return std::make_unique<Pipeline>();
      return std::make_unique<DataParallel>(options.devices, options.adds_by_pieces);
    case TrainerKind::kDdp:
      return scheme_of_ranks(config, options);
  }
  return nullptr;
}

Mesh mesh_of(const TrainConfig& config, int rank, int ranks) {
  const ParallelConfig& parallel = config.parallel;
  const std::int64_t per_copy = parallel.tensor * parallel.pipeline;
  if (ranks % per_copy == 0) {
    return {.data = static_cast<int>(ranks / per_copy),
            .tensor = static_cast<int>(parallel.tensor),
            .pipeline = static_cast<int>(parallel.pipeline),
            .rank = rank};
  }
  const bool is_both = parallel.tensor > 1 && parallel.pipeline > 1;
  const bool is_tensor = parallel.tensor > 1;
  fail(ExitCode::kConfiguration,
       {.what = is_tensor ? "--tensor" : "--pipeline",
        .value = is_both ? fmt::format("{} --pipeline {}", parallel.tensor, parallel.pipeline)
                         : std::to_string(per_copy),
        .why = fmt::format("a copy of the model takes {} ranks, which do not divide {}", per_copy,
                           counted(ranks, "rank")),
        .remedy = fmt::format("start {} ranks, or a multiple", per_copy)});
}

namespace {

void require_for_each_tensor_rank(const StepSpec& spec, int layer, std::int64_t count,
                                  std::string_view noun) {
  if (count >= spec.mesh.tensor) return;
  fail(ExitCode::kConfiguration,
       {.what = "--tensor",
        .value = std::to_string(spec.mesh.tensor),
        .why = fmt::format("{} has {}, so some ranks would have none",
                           spec.model.name_of_layer(layer), counted(count, noun)),
        .remedy = fmt::format("use at most --tensor {}", count)});
}

/// Tensor ranks share the outputs of every other layer; of a block, the heads of attention and the
/// hidden layer.
void require_width_for_tensor_ranks(const StepSpec& spec) {
  const ModelSpec& model = spec.model;
  if (model.transformer) {
    require_for_each_tensor_rank(spec, 0, model.transformer->attention.heads, "head");
    require_for_each_tensor_rank(spec, 0, model.transformer->ffn, "hidden number");
    return;
  }
  for (std::size_t layer = 0; layer + 2 < model.widths.size(); layer += 2) {
    require_for_each_tensor_rank(spec, static_cast<int>(layer), model.widths[layer + 1], "output");
  }
}

void require_chunk_for_each_rank(const StepSpec& spec) {
  const std::int64_t ranks = spec.mesh.data, samples = spec.step_rows();
  if (spec.chunk_rows == 0 || spec.chunks_of(samples) >= ranks) return;
  const std::int64_t chunks = spec.chunks_of(samples);
  const std::int64_t largest = (samples - 1) / (ranks - 1);  // that gives enough chunks
  fail(ExitCode::kConfiguration,
       {.what = "--reproducible",
        .value = std::to_string(spec.chunk_rows),
        .why = fmt::format("a step of {} has {}, and {} share it", counted(samples, "sample"),
                           counted(chunks, "chunk"), counted(ranks, "rank")),
        .remedy = largest > 0 ? fmt::format("give at most {}, or start at most {}", largest,
                                            counted(chunks, "rank"))
                              : fmt::format("start at most {}", counted(chunks, "rank"))});
}

}  // namespace

StepSpec spec_of_rank(const TrainConfig& config, DeviceKind kind, const Dataset* dataset, int rank,
                      int ranks) {
  StepSpec spec = spec_of(config, kind, dataset);
  spec.mesh = mesh_of(config, rank, ranks);
  require_layer_for_each_stage(spec);
  spec.model = spec.model.of(spec.mesh);
  require_width_for_tensor_ranks(spec);
  if (const auto& slow = config.injected.slow_rank) {
    if (slow->rank >= ranks) {
      fail(ExitCode::kConfiguration,
           {.what = "--slow-rank",
            .value = fmt::format("{}:{}", slow->rank, slow->delay_ms),
            .why = fmt::format("there {} {}", ranks == 1 ? "is" : "are", counted(ranks, "rank")),
            .remedy = fmt::format("ranks are numbered from 0 to {}", ranks - 1)});
    }
    if (slow->rank == rank) spec.delay_s += slow->delay_ms / 1e3;
  }
  spec.own_data = config.parallel.seed_per_rank;
  // Gathered rows are then in the order of the epoch, as on one rank.
  spec.in_turns = config.parallel.scheme != RankScheme::kFactor && spec.chunk_rows == 0;
  const int copies = spec.mesh.data;
  if (config.parallel.batch_per_rank) spec.batch_size *= copies;
  require_chunk_for_each_rank(spec);
  if (spec.batch_size < copies && spec.chunk_rows == 0) {
    fail(ExitCode::kConfiguration,
         {.what = "--global-batch-size",
          .value = std::to_string(spec.batch_size),
          .why = fmt::format("leaves some of {} ranks without a sample", copies),
          .remedy = fmt::format("give at least {}, or start fewer ranks", copies)});
  }
  if (config.parallel.servers > copies) {
    fail(ExitCode::kConfiguration,
         {.what = "--servers",
          .value = std::to_string(config.parallel.servers),
          .why = fmt::format("servers are ranks, and {} {} the batch", counted(copies, "rank"),
                             copies == 1 ? "has" : "share"),
          .remedy = fmt::format("give at most {}, or start more ranks", copies)});
  }
  if (!limits::kBatchSizes.contains(spec.step_rows())) {
    fail(ExitCode::kConfiguration,
         {.what = "--batch-size",
          .value = std::to_string(config.data.batch_size),
          .why = fmt::format("{} {} {} samples in a step", counted(copies, "rank"),
                             copies == 1 ? "makes" : "make", spec.step_rows()),
          .remedy = fmt::format("a step has at most {}", limits::kBatchSizes.last)});
  }
  return spec;
}

void check_all_ranks(const TrainConfig& config, DeviceKind kind, const Dataset* dataset,
                     int ranks) {
  const auto scheme = scheme_of(config, TrainerKind::kDdp);
  std::vector<std::unique_ptr<StepPrograms>> programs;
  for (int rank = 0; rank < ranks; ++rank) {
    programs.push_back(std::make_unique<StepPrograms>(
        spec_of_rank(config, kind, dataset, rank, ranks), scheme.get()));
  }
  for (std::size_t number = 0; number < programs.front()->all().size(); ++number) {
    std::vector<RankProgram> together;
    for (const auto& of_rank : programs) {
      together.push_back({at(of_rank->all(), number)->program, of_rank->spec().mesh});
    }
    const std::string why = check_ranks(together);
    if (!why.empty()) {
      fail(ExitCode::kBug, {.what = "the ranks' programs",
                            .value = together.front().program.name(),
                            .why = why,
                            .remedy = "this is a bug, please report it"});
    }
  }
}

}  // namespace barestep
