#include "parallel/schemes/scheme_of.h"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "core/error.h"
#include "core/index.h"
#include "core/rank_checker.h"
#include "core/units.h"
#include "options/options.h"
#include "parallel/schemes/data_parallel.h"
#include "parallel/schemes/other_schemes.h"
#include "parallel/schemes/zero.h"

namespace barestep {

std::unique_ptr<Scheme> scheme_of(const TrainConfig& config, const SchemeOptions& options) {
  const auto zero = [&config](int stage) {
    return std::make_unique<Zero>(stage, ddp_settings_of(config),
                                  config.training.chunk_rows.has_value());
  };
  switch (config.parallel.scheme) {
    case SchemeKind::kSingle:
      return nullptr;
    case SchemeKind::kDataParallel:
      if (config.parallel.pipeline > 1) return std::make_unique<Pipeline>();
      return std::make_unique<DataParallel>(options.devices, options.adds_by_pieces);
    case SchemeKind::kDdp: {
      if (config.parallel.sync_every > 1) return std::make_unique<LocalSgd>();
      DdpSettings settings = ddp_settings_of(config);
      settings.first_bucket_bytes =
          options.first_bucket_bytes.value_or(settings.first_bucket_bytes);
      return std::make_unique<Ddp>(settings);
    }
    case SchemeKind::kZero1:
      return zero(1);
    case SchemeKind::kZero2:
      return zero(2);
    case SchemeKind::kZero3:
      return zero(3);
    case SchemeKind::kFactor:
      return std::make_unique<Factor>();
    case SchemeKind::kServer:
      return std::make_unique<ParameterServer>(static_cast<int>(config.parallel.servers),
                                               config.parallel.server_reduce,
                                               ddp_settings_of(config));
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
  refuse_options(parallel.tensor > 1 ? "--tensor" : "--pipeline",
                 is_both ? fmt::format("{} --pipeline {}", parallel.tensor, parallel.pipeline)
                         : std::to_string(per_copy),
                 fmt::format("a copy of the model takes {} ranks, which do not divide {}", per_copy,
                             counted(ranks, "rank")),
                 fmt::format("start {} ranks, or a multiple", per_copy));
}

StepSpec spec_of_rank(const TrainConfig& config, DeviceKind kind, const Dataset* dataset, int rank,
                      int ranks) {
  StepSpec spec = spec_of(config, kind, dataset);
  spec.mesh = mesh_of(config, rank, ranks);
  spec.model = spec.model.of(spec.mesh);
  const auto& slow = config.injected.slow_rank;
  if (slow && slow->rank == rank) spec.delay_s += slow->delay_ms / 1e3;
  spec.input.own_data = config.parallel.seed_per_rank;
  // Gathered rows are then in the order of the epoch, as on one rank.
  spec.input.in_turns = config.parallel.scheme != SchemeKind::kFactor && spec.chunk_rows == 0;
  if (config.parallel.batch_per_rank) spec.batch_size *= spec.mesh.data;
  return spec;
}

void check_all_ranks(const TrainConfig& config, DeviceKind kind, const Dataset* dataset,
                     int ranks) {
  const auto scheme = scheme_of(config);
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
      fail(ExitCode::kBug, {"the ranks' programs", together.front().program.name(), why,
                            "this is a bug, please report it"});
    }
  }
}

}  // namespace barestep
