// Bits that a drill changes in small runs of two ranks: which detector finds one, and what one that
// nobody notices does to the loss.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <random>

#include "core/error.h"
#include "core/units.h"
#include "lab/experiments/findings_of.h"
#include "lab/study/rank_bench.h"
#include "options/options.h"
#include "train/trainer.h"

namespace barestep {
namespace {

/// A case: bits change in a buffer, before a step or after one of the ops that write it.
struct FlippedPlace {
  const char* key;
  const char* buffer;
  bool is_after_op;
};

constexpr std::array<FlippedPlace, 8> kFlippedPlaces = {
    {{"weights-between-steps", "parameters", false},
     {"moments-between-steps", "exp_avg", false},
     {"input", "x", true},
     {"outputs", "net.2.out", true},
     {"gradients-of-outputs", "scratch.0", true},
     {"gradients-of-weights", "gradients", true},
     {"updated-weights", "parameters", true},
     {"updated-moments", "exp_avg", true}}};

constexpr std::int64_t kFlipStep = 5;

/// A figure of each step: a flip is seen where, in its step or the next one, the figure differs by
/// this factor from that of the same run without the flip.
struct StepFigure {
  const char* gauge;
  double factor;
};
constexpr std::array<StepFigure, 3> kStepFigures = {{{"loss", 2}, {"norm", 4}, {"sum", 1 + 1e-6}}};

/// What a rank sees of a run.
struct SeenRun final : TrainObserver {
  Trainer* trainer = nullptr;
  RankSteps steps{};
  std::vector<std::array<double, kStepFigures.size()>> figures{};
  std::string error{};  // that ended it

  void on_step(const StepReport& report) override {
    steps.step_s.push_back(report.wall_s);
    steps.queued_s.push_back(0);
    steps.loss.push_back(report.loss);
    double squares = 0, sum = 0;
    for (const double gradient : trainer->download(trainer->programs().gradients())) {
      squares += gradient * gradient;
    }
    for (const double parameter : trainer->download(trainer->programs().parameters())) {
      sum += std::abs(parameter);
    }
    figures.push_back({report.loss, std::sqrt(squares), sum});
  }
  [[nodiscard]] double last_loss() const {
    constexpr std::ptrdiff_t kLast = 20;
    return std::accumulate(steps.loss.end() - kLast, steps.loss.end(), 0.0) / kLast;
  }
};

/// The run with ranks as threads; `seen` becomes what the rank of its flip sees.
void run_on_threads(const Workload& run, SeenRun& seen) {
  const auto& flip = run.config.injected.flip;
  try {
    measure_on_ranks({.device = "cpu", .threads = 1, .in_process = run.ranks},
                     [&](const MeasuringRank& rank) {
                       const WorkloadPrograms programs(run, rank.ranks.rank());
                       Trainer trainer(run.config, programs.steps(), {&rank.device},
                                       {&rank.ranks, &rank.transport}, nullptr);
                       SeenRun others;
                       SeenRun& here = rank.ranks.rank() == (flip ? flip->rank : 0) ? seen : others;
                       here.trainer = &trainer;
                       trainer.run(here);
                     });
  } catch (const Error& error) {
    if (!is_of_all_ranks(error.code())) throw;
    seen.error = error.what();
  }
}

Flip drawn_flip(const FlippedPlace& place, const WorkloadPrograms& programs,
                std::mt19937_64& random) {
  const auto below = [&](std::int64_t count) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(count));
  };
  const BufferId buffer = programs.steps().buffers().find(place.buffer);
  Flip flip{.buffer = place.buffer, .bit = below(32), .step = kFlipStep, .rank = below(2)};
  std::vector<std::pair<NodeId, Tensor>> written;
  for (NodeId node = 0; node < programs.step().size(); ++node) {
    for (const auto& [tensor, writes] : accesses_of(programs.step().node(node).op)) {
      if (writes && tensor.buffer == buffer) written.emplace_back(node, tensor);
    }
  }
  const auto& [node, tensor] = at(written, below(std::ssize(written)));
  if (place.is_after_op) flip.node = node;
  flip.word = tensor.offset_bytes / 4 + below(tensor.bytes() / 4);
  return flip;
}

/// Whether a figure shows the flip.
bool is_seen(const SeenRun& with, const SeenRun& clean, std::size_t figure) {
  const double factor = kStepFigures[figure].factor;
  for (std::size_t step = kFlipStep; step < kFlipStep + 2; ++step) {
    if (step >= with.figures.size()) return true;  // it has ended the run
    const double ratio = with.figures[step][figure] / clean.figures[step][figure];
    if (!(ratio <= factor && ratio >= 1 / factor)) return true;
  }
  return false;
}

/// A start draws its own flips. What it watched is one entry for each, whose gauges say its bit,
/// who has found it, and by which share it has changed the loss at the end.
Start drawn_flips(const Case& what, int start) {
  constexpr int kFlipsOfStart = 3;
  constexpr double kMostChange = 10;
  const auto place = std::ranges::find(kFlippedPlaces, what.key, &FlippedPlace::key);
  Workload run = what.workload;
  const WorkloadPrograms programs(run);
  SeenRun clean;
  run_on_threads(run, clean);
  std::mt19937_64 random(kFlippedPlaces.size() * static_cast<std::uint64_t>(start) +
                         static_cast<std::uint64_t>(place - kFlippedPlaces.begin()));
  std::vector<Watched> flips;
  for (int i = 0; i < kFlipsOfStart; ++i) {
    run.config = what.workload.config;
    const Flip flip = drawn_flip(*place, programs, random);
    run.config.injected.flip = flip;
    SeenRun with;
    run_on_threads(run, with);
    const double change =
        with.error.empty() ? with.last_loss() / clean.last_loss() - 1 : kMostChange;
    Watched& seen = flips.emplace_back(Watched{.source = place->buffer});
    const auto note = [&](const char* gauge, double reading) {
      seen.gauges[gauge] = {reading, reading, reading};
    };
    note("bit", static_cast<double>(flip.bit));
    note("change", std::min(change, kMostChange));
    for (std::size_t figure = 0; figure < kStepFigures.size(); ++figure) {
      note(kStepFigures[figure].gauge, is_seen(with, clean, figure));
    }
    run.config.training.steps = kFlipStep + 2;
    const auto finds = [&](std::int64_t every, const char* words) {
      run.config.output.verify_every = every;
      SeenRun verified;
      run_on_threads(run, verified);
      return verified.error.find(words) != std::string::npos;
    };
    note("again", finds(kFlipStep + 1, "gave other bits when it ran again"));
    note("later", finds(kFlipStep + 2, "are not those of the others"));
    note("every", finds(1, "step 5"));
  }
  return {.command = command_line_of(what),
          .configuration = json_of(what.workload.config),
          .ranks = {clean.steps},
          .watched = std::move(flips)};
}

std::vector<Case> bit_flips_cases(const Setting& setting) {
  Workload run = with(ddp_workload(setting, 2),
                      "--scheme ddp --dim 32 --depth 3 --batch-size 16 --data teacher "
                      "--teacher-noise 0.1 --lr 0.01 --update separate --recompute 1 --steps 200");
  run.on_gpu = false;
  run.config.device = {.device = "cpu", .threads = 1};
  std::vector<Case> cases;
  for (const FlippedPlace& place : kFlippedPlaces) {
    cases.push_back(new_case(setting, place.key, run));
    cases.back().made = drawn_flips;
  }
  return cases;
}

/// The readings of a gauge in these cases.
std::vector<double> of_flips(std::span<const Measurement> cases, const char* gauge) {
  std::vector<double> all;
  for (const Measurement& measured : cases) {
    for (const Start& start : measured.starts()) {
      for (const Watched& flips : start.watched) {
        const auto found = flips.gauges.find(gauge);
        if (found != flips.gauges.end()) all.push_back(found->second.mean);
      }
    }
  }
  return all;
}

using Holds = bool (*)(double reading);

bool is_found(double reading) {
  return reading > 0;
}
bool is_harmless(double change) {
  return std::abs(change) < 0.01;
}

std::string share_of_flips(std::span<const Measurement> cases, const char* gauge,
                           Holds holds = is_found) {
  const std::vector<double> all = of_flips(cases, gauge);
  if (all.empty()) return "-";
  return fmt::format("{:.0f} %", 100.0 * static_cast<double>(std::ranges::count_if(all, holds)) /
                                     static_cast<double>(all.size()));
}

Column flips_column(const char* title, const char* gauge, Holds holds = is_found) {
  return {title, [=](const Measurement& measured) {
            return share_of_flips({&measured, 1}, gauge, holds);
          }};
}

/// By the bit of a number.
Plot changes_plot(const Results& results) {
  constexpr double kLeast = 1e-8;
  Plot plot{.title = "Loss after 200 steps with a flip that nobody noticed",
            .x_label = "bit: 0 to 22 mantissa, 23 to 30 exponent, 31 sign",
            .y_label = "change of the loss, as a share (10: more)",
            .log_y = true};
  for (const Measurement& measured : results.cases) {
    const std::vector<double> bits = of_flips({&measured, 1}, "bit");
    const std::vector<double> changes = of_flips({&measured, 1}, "change");
    plot.series.push_back({.name = measured.what().key, .style = SeriesStyle::kMarks});
    for (std::size_t i = 0; i < bits.size(); ++i) {
      plot.series.back().points.push_back(
          plot_point(bits[i], std::max(std::abs(changes[i]), kLeast)));
    }
  }
  return plot;
}

Findings bit_flips_findings(const Results& results) {
  const auto share = [&](const char* gauge, Holds holds = is_found) {
    return share_of_flips(results.cases, gauge, holds);
  };
  return FindingsOf(results)
      .untimed(
          "verified",
          fmt::format("--verify-every 1 finds {} of the flips. Running their step again finds {}, "
                      "comparing the ranks' states after the next one {}.",
                      share("every"), share("again"), share("later")))
      .untimed("others",
               fmt::format("The norm of the gradients finds {}, a sum of the weights {}, the "
                           "loss {}, even beside those of the same run without the flip.",
                           share("norm"), share("sum"), share("loss")))
      .untimed("harmless",
               fmt::format("After 200 steps {} have changed the loss by less than 1 %, and {} have "
                           "doubled it, or ended the run.",
                           share("change", is_harmless),
                           share("change", [](double change) { return change >= 1; })))
      .table("Flipped bits of two ranks: which are found",
             {{"case", "a bit of"},
              {"flips",
               [](const Measurement& measured) {
                 return std::to_string(of_flips({&measured, 1}, "bit").size());
               }},
              flips_column("its step runs again", "again"),
              flips_column("ranks' states after the next one", "later"),
              flips_column("--verify-every 1", "every"),
              flips_column("gradient norm, 4x", "norm"),
              flips_column("sum of weights, 1e-6", "sum"),
              flips_column("loss, 2x", "loss"),
              flips_column("loss within 1 % after 200 steps", "change", is_harmless)})
      .plot(changes_plot(results));
}

}  // namespace

Experiment bit_flips_experiment() {
  return {"bit-flips",
          "Bits that change by themselves",
          "Which detector finds a flipped bit, and what does one that nobody notices do?",
          bit_flips_cases,
          bit_flips_findings,
          "verified others harmless table plot",
          false};
}

}  // namespace barestep
