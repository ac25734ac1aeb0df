// The only place that creates schemes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "core/config.h"
#include "parallel/schemes/ddp.h"
#include "train/step.h"

namespace barestep {

struct SchemeOptions {
  int devices = 1;                                   // for mlp_dp
  bool adds_by_pieces = false;                       // see DataParallel
  std::optional<std::int64_t> first_bucket_bytes{};  // instead of the configuration's
};

/// The scheme by which a trainer shares the steps of this configuration; null for a single device.
std::unique_ptr<Scheme> scheme_of(const TrainConfig& config, TrainerKind trainer,
                                  const SchemeOptions& options = {});

}  // namespace barestep
