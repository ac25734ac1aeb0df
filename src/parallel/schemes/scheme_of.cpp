#include "parallel/schemes/scheme_of.h"

#include "core/error.h"
#include "parallel/schemes/data_parallel.h"
#include "parallel/schemes/factor.h"
#include "parallel/schemes/zero1.h"

namespace barestep {
namespace {

std::unique_ptr<Scheme> scheme_of_ranks(const TrainConfig& config, const SchemeOptions& options) {
  switch (config.parallel.scheme) {
    case RankScheme::kDdp: {
      DdpSettings settings = ddp_settings_of(config);
      settings.first_bucket_bytes =
          options.first_bucket_bytes.value_or(settings.first_bucket_bytes);
      return std::make_unique<Ddp>(settings);
    }
    case RankScheme::kZero1:
      return std::make_unique<Zero1>();
    case RankScheme::kFactor:
      return std::make_unique<Factor>();
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
      return std::make_unique<DataParallel>(options.devices, options.adds_by_pieces);
    case TrainerKind::kDdp:
      return scheme_of_ranks(config, options);
  }
  return nullptr;
}

}  // namespace barestep
