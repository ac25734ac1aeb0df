// The only place that creates schemes, and the specs of their ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "core/config.h"
#include "parallel/schemes/ddp.h"
#include "train/step.h"

namespace barestep {

/// The mesh that --tensor forms of `ranks` ranks. Throws Error(kConfiguration) if they are not a
/// multiple of it.
Mesh mesh_of(const TrainConfig& config, int rank, int ranks);

/// The spec of one rank's programs, of a run that require() accepts. Throws what mesh_of() throws.
StepSpec spec_of_rank(const TrainConfig& config, DeviceKind kind, const Dataset* dataset, int rank,
                      int ranks);

struct SchemeOptions {
  int devices = 1;                                   // for mlp_dp
  bool adds_by_pieces = false;                       // see DataParallel
  std::optional<std::int64_t> first_bucket_bytes{};  // instead of the configuration's
};

/// The scheme of --scheme; null for a single device.
std::unique_ptr<Scheme> scheme_of(const TrainConfig& config, const SchemeOptions& options = {});

/// Builds the programs of all ranks of mlp_ddp and checks them together. Throws what
/// spec_of_rank() throws, and Error(kBug) if ranks would not meet, with what check_ranks() found.
void check_all_ranks(const TrainConfig& config, DeviceKind kind, const Dataset* dataset, int ranks);

}  // namespace barestep
