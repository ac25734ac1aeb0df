// The schemes by which steps are shared among ranks or devices.
#pragma once

#include <cstdint>
#include <memory>

#include "core/config.h"
#include "parallel/ddp.h"
#include "train/step.h"

namespace barestep {

/// What a configuration does not say of its scheme.
struct SchemeOptions {
  int devices = 1;              // of one process
  bool adds_by_pieces = false;  // see DataParallel
  std::int64_t first_bucket_bytes = kFirstBucketBytes;
};

/// What a trainer's steps are built by; null where a device is alone. Schemes of ranks go by their
/// names in core/config.h.
std::unique_ptr<Scheme> scheme_of(const TrainConfig& config, TrainerKind trainer,
                                  const SchemeOptions& options = {});

}  // namespace barestep
