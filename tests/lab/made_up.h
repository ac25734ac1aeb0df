// Simulated measurements, to test what experiments conclude from them.
#pragma once

#include "lab/study/experiment.h"
#include "support/testing.h"

namespace barestep {

/// Every step is the same except for the first ones, listed in `first_s`, and a little jitter
/// between steps and starts, which gives intervals some width.
struct MadeUpStep {
  double step_s = 0;
  double noise =
      0.003;  // of starts: each figure varies by up to this share, independently of the others
  double round_noise = 0;  // of rounds: the steps of all cases vary together by up to this share
  std::map<std::string, double> phase_s{};
  double queued_s = 0;
  std::vector<double> first_s{};
  std::map<std::string, double> first_phase_s{};  // of the first step
  int burst_every = 10;  // one of so many steps takes burst_s, if it is not 0
  double burst_s = 0;
  std::map<std::string, double> burst_phase_s{};
  std::vector<MadeUpStep> other_ranks{};
  std::vector<OpTime> ops{};
  std::vector<Watched> watched{};
  std::string weights_hash{};
  double loss = 1;
  double later_loss = 0;        // from the fourth step on, if it is not 0
  std::vector<double> scale{};  // of fp16
  std::int64_t skipped = 0;
};

/// The run that `mlp_lab predict` reads from "--dim 64 --no-overlap".
Run asked(const std::string& options);

/// A workload of a model on the CPU.
Workload made_up_workload(std::int64_t dim, std::int64_t depth,
                          SchemeKind scheme = SchemeKind::kSingle, int ranks = 1);

RankSteps made_up_rank(const MadeUpStep& step, std::int64_t steps);

/// A factor around 1 for the figure with this name in a start; the same in each call.
double wobble(double noise, const std::string& name, std::size_t start);

/// The results of an experiment in which every start of a case went as `how` returns.
using HowCasesWent = std::function<MadeUpStep(const Case& what)>;
Results made_up(const Experiment& experiment, const Setting& setting, const HowCasesWent& how);
Findings concluded(const std::string& experiment, const HowCasesWent& how, bool on_gpu = false);

/// All answers, one per line.
std::string sentences_of(const Findings& findings);

/// A CPU with four cores, or four GPUs.
Setting made_up_setting(bool on_gpu = false);

}  // namespace barestep
