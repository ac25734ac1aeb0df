// How gradients become new weights.
#include <utility>

#include "option_table.h"

namespace barestep {
namespace {

constexpr std::string_view kUpdateLevels[] = {"separate", "fused"};

}  // namespace

std::vector<Option> update_options() {
  return {
      {"clip-norm", kTrainingGroup, "X", JsonKind::kNumber,
       with_range("scale gradients down where the norm of all together is larger, as\n"
                  "torch.nn.utils.clip_grad_norm_ does (default: never)",
                  limits::kPositive),
       [](const Given& given, TrainConfig& c) {
         c.training.clip_norm = real_number(given, limits::kPositive);
       }},
      {"update",
       kTrainingGroup,
       "separate|fused",
       JsonKind::kString,
       "fused: the weight gradients go straight into Adam and are never\n"
       "stored; in fp32, also with --precision tf32 (default separate)",
       [](const Given& given, TrainConfig& c) {
         c.training.update = static_cast<Update>(choice(given, kUpdateLevels));
       },
       {},
       {"mlp_single"}},
      {"update",
       kTrainingGroup,
       "separate|fused",
       JsonKind::kString,
       "as in mlp_single; fused stores no gradients, which several\n"
       "devices exchange, so it is refused (default separate)",
       [](const Given& given, TrainConfig& c) {
         c.training.update = static_cast<Update>(choice(given, kUpdateLevels));
       },
       {},
       {"mlp_dp"}},
      {"update",
       kParallelGroup,
       "separate|fused|per-bucket",
       JsonKind::kString,
       "the optimizer's step after all communication, or of each bucket\n"
       "after its own; fused needs --scheme factor, as in mlp_single\n"
       "(default separate)",
       [](const Given& given, TrainConfig& c) {
         c.training.update = static_cast<Update>(choice(given, kNamesOf<Update>));
       },
       {},
       {"mlp_ddp"}},
  };
}

}  // namespace barestep
