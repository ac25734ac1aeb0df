// The one place that makes schemes.
#pragma once

#include <cstdint>
#include <memory>

#include "core/config.h"
#include "parallel/schemes/ddp.h"
#include "train/step.h"

namespace barestep {

struct SchemeOptions {
  int devices = 1;              // of mlp_dp
  bool adds_by_pieces = false;  // see DataParallel
  std::int64_t first_bucket_bytes = kFirstBucketBytes;
};

/// By what a trainer shares the steps of this configuration; null for one device, which shares with
/// nobody.
std::unique_ptr<Scheme> scheme_of(const TrainConfig& config, TrainerKind trainer,
                                  const SchemeOptions& options = {});

}  // namespace barestep
