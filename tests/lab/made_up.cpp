#include "lab/made_up.h"

#include "options/options.h"

namespace barestep {

Run asked(const std::string& options) {
  GivenOptions given;
  std::istringstream words(options);
  for (std::string name, word; words >> word;) {
    if (word.starts_with("--")) name = word.substr(2);
    given[name] = word.starts_with("--") ? "true" : word;
  }
  return asked_run(given);
}

Workload made_up_workload(std::int64_t dim, std::int64_t depth, SchemeKind scheme, int ranks) {
  Workload workload{{.ranks = ranks}};
  workload.config.parallel.scheme = scheme;
  workload.config.model.dim = dim;
  workload.config.model.depth = depth;
  workload.config.training.update = Update::kSeparate;
  return workload;
}

RankSteps made_up_rank(const MadeUpStep& step, std::int64_t steps) {
  RankSteps rank{.scale = step.scale, .skipped = step.skipped};
  for (std::int64_t i = 0; i < steps; ++i) {
    const auto place = static_cast<std::size_t>(i);
    constexpr std::array kJitter = {1.0, 1.004, 0.997, 1.001, 0.998};
    const double factor = kJitter[place % kJitter.size()];
    const bool is_burst = step.burst_s > 0 && (i + 1) % step.burst_every == 0;
    rank.step_s.push_back(place < step.first_s.size() ? step.first_s[place]
                          : is_burst                  ? step.burst_s
                                                      : factor * step.step_s);
    rank.loss.push_back(step.later_loss != 0 && i >= 3 ? step.later_loss : step.loss);
    rank.queued_s.push_back(step.queued_s);
    for (const std::string phase :
         {"data", "injected", "forward", "loss", "recompute", "backward", "communication",
          "optimizer", "host", "idle", "tensor_ranks", "other_stages"}) {
      const auto& phases = place == 0 && !step.first_phase_s.empty() ? step.first_phase_s
                           : is_burst && !step.burst_phase_s.empty() ? step.burst_phase_s
                                                                     : step.phase_s;
      const auto found = phases.find(phase);
      rank.phase_s[phase].push_back(found == phases.end() ? 0 : found->second);
    }
  }
  return rank;
}

double wobble(double noise, const std::string& name, std::size_t start) {
  constexpr std::array kWays = {0.9, -0.8, 0.3, -1.0, 0.7, -0.4, 1.0, -0.6, 0.0};
  std::size_t offset = 0;
  for (const char each : name) offset = 31 * offset + static_cast<unsigned char>(each);
  const std::size_t stride = std::array{1UL, 2UL, 4UL, 5UL, 7UL, 8UL}.at(offset / 9 % 6);
  return 1 + noise * kWays.at((offset + stride * start) % kWays.size());
}

namespace {

/// The step in one start of a case, with noise.
MadeUpStep in_start(MadeUpStep step, const std::string& key, std::size_t start) {
  const auto factor = [&](const std::string& name) {
    return wobble(step.noise, key + name, start);
  };
  step.step_s *= factor("") * wobble(step.round_noise, "round", start);
  step.burst_s *= factor("");
  step.queued_s *= factor("queued");
  for (double& each : step.first_s) each *= factor("of the first");
  for (auto& [phase, seconds] : step.phase_s) seconds *= factor(phase);
  for (auto& [phase, seconds] : step.burst_phase_s) seconds *= factor(phase);
  for (auto& [phase, seconds] : step.first_phase_s) seconds *= factor("first" + phase);
  for (OpTime& op : step.ops)
    op.seconds *= factor(op.name + op.phase + op.block +
                         std::string(static_cast<std::size_t>(op.device), 'd'));
  for (Watched& watched : step.watched) {
    for (auto& [gauge, level] : watched.gauges) {
      if (gauge == "clock_mhz") continue;  // its answer is about all readings
      level.mean *= factor(gauge);
    }
    if (watched.energy_j_per_sample) *watched.energy_j_per_sample *= factor("energy");
  }
  return step;
}

}  // namespace

Results made_up(const Experiment& experiment, const Setting& setting, const HowCasesWent& how) {
  Results results{.setting = setting, .name = experiment.name, .cases = {}};
  for (const Case& what : experiment.cases(setting)) {
    const MadeUpStep went = how(what);
    std::vector<Start> starts;
    for (int i = 0; i < setting.starts; ++i) {
      const auto number = static_cast<std::size_t>(i);
      const MadeUpStep step = in_start(went, what.key, number);
      Start& start = starts.emplace_back(Start{.command = command_line_of(what.workload),
                                               .weights_hash = step.weights_hash,
                                               .configuration = json_of(what.workload.config),
                                               .ops = step.ops,
                                               .watched = step.watched});
      start.ranks.push_back(made_up_rank(step, what.workload.steps()));
      for (std::size_t rank = 0; rank < step.other_ranks.size(); ++rank) {
        const std::string other = what.key + " of rank " + std::to_string(rank + 1);
        start.ranks.push_back(
            made_up_rank(in_start(step.other_ranks[rank], other, number), what.workload.steps()));
      }
    }
    results.cases.emplace_back(what, std::move(starts));
  }
  return results;
}

Findings concluded(const std::string& experiment, const HowCasesWent& how, bool on_gpu) {
  const Experiment& found = experiment_of(experiment);
  return found.findings(made_up(found, made_up_setting(on_gpu), how));
}

std::string sentences_of(const Findings& findings) {
  std::string text;
  for (const std::string& sentence : texts_of(findings.timed)) text += sentence + "\n";
  for (const std::string& fact : texts_of(findings.untimed)) text += fact + "\n";
  return text;
}

Setting made_up_setting(bool on_gpu) {
  Setting setting = new_setting(false, on_gpu, 4);
  setting.data = "data";
  return setting;
}

}  // namespace barestep
