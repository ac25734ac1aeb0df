// The scheme that a configuration asks for.
#pragma once

#include <cstdint>
#include <memory>

#include "core/config.h"
#include "parallel/ddp.h"

namespace barestep {

/// What ranks train by. `first_bucket_bytes` is ddp's limit of its first bucket.
std::unique_ptr<Scheme> rank_scheme_of(const TrainConfig& config,
                                       std::int64_t first_bucket_bytes = kFirstBucketBytes);

}  // namespace barestep
