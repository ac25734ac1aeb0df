#include "parallel/rank_scheme.h"

#include "parallel/factor.h"
#include "parallel/zero1.h"

namespace barestep {

std::unique_ptr<Scheme> rank_scheme_of(const TrainConfig& config, std::int64_t first_bucket_bytes) {
  if (config.parallel.scheme == RankScheme::kZero1) return std::make_unique<Zero1>();
  if (config.parallel.scheme == RankScheme::kFactor) return std::make_unique<Factor>();
  DdpSettings settings = ddp_settings_of(config);
  settings.first_bucket_bytes = first_bucket_bytes;
  return std::make_unique<Ddp>(settings);
}

}  // namespace barestep
