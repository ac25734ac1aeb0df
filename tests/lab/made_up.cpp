#include "lab/made_up.h"

#include <array>

#include "options/options.h"

namespace barestep {

Workload made_up_workload(std::int64_t dim, std::int64_t depth, TrainerKind trainer, int ranks) {
  Workload workload{.trainer = trainer, .ranks = ranks};
  workload.config.model.dim = dim;
  workload.config.model.depth = depth;
  return workload;
}

RankSteps made_up_rank(const MadeUpStep& step, std::int64_t steps) {
  RankSteps rank;
  for (std::int64_t i = 0; i < steps; ++i) {
    const auto place = static_cast<std::size_t>(i);
    constexpr std::array kJitter = {1.0, 1.004, 0.997, 1.001, 0.999};
    const double factor = kJitter[place % kJitter.size()];
    rank.step_s.push_back(place < step.first_s.size() ? step.first_s[place] : factor * step.step_s);
    rank.loss.push_back(step.loss);
    rank.queued_s.push_back(step.queued_s);
    for (const std::string phase : {"data", "injected", "forward", "loss", "backward", "reduce",
                                    "optimizer", "host", "idle"}) {
      const auto found = step.phase_s.find(phase);
      rank.phase_s[phase].push_back(found == step.phase_s.end() ? 0 : found->second);
    }
  }
  return rank;
}

Results made_up(const Experiment& experiment, const Setting& setting, const HowCasesWent& how) {
  Results results{.setting = setting, .name = experiment.name, .cases = {}};
  for (const Case& what : experiment.cases(setting)) {
    const MadeUpStep step = how(what);
    Start start{.command = command_line_of(what.workload),
                .weights_hash = step.weights_hash,
                .configuration = json_of(what.workload.config, what.workload.trainer),
                .ops = step.ops,
                .watched = step.watched};
    start.ranks.push_back(made_up_rank(step, what.workload.steps()));
    for (const MadeUpStep& other : step.other_ranks) {
      start.ranks.push_back(made_up_rank(other, what.workload.steps()));
    }
    results.cases.emplace_back(what, std::vector<Start>(2, start));
  }
  return results;
}

Findings concluded(const std::string& experiment, const HowCasesWent& how) {
  const Experiment& found = experiment_of(experiment);
  return found.conclude(made_up(found, made_up_setting(), how));
}

std::string sentences_of(const Findings& findings) {
  std::string text;
  for (const std::string& sentence : findings.sentences) text += sentence + "\n";
  return text;
}

Setting made_up_setting() {
  Setting setting = new_setting(false, false, 4);
  setting.data = "data";
  return setting;
}

}  // namespace barestep
