// Ranks that share one batch: strong scaling, and the serial fraction of a step.
#include <fmt/format.h>

#include <algorithm>

#include "core/units.h"
#include "lab/experiments/conclusion.h"
#include "lab/report/samples.h"

namespace barestep {
namespace {

/// Above this efficiency the course (docs/lab.md) calls scaling good.
constexpr double kGoodEfficiency = 0.8;

/// The serial share in an exercise of the course.
constexpr double kExercise = 0.3;

std::vector<Case> ranks_cases(const Setting& setting, std::int64_t batch_size) {
  std::vector<Case> cases;
  for (const int ranks : rank_counts(setting)) {
    cases.push_back(
        new_case(setting, fmt::format("ranks-{}", ranks),
                 with(ddp_workload(setting, ranks), fmt::format("--batch-size {}", batch_size))));
  }
  return cases;
}

Estimate gain_of(const Results& results, const Measurement& each) {
  return results.compare(results.cases.front().what().key, each.what().key).speed();
}

/// The gain divided by the ranks.
Estimate efficiency_of(const Results& results, const Measurement& each) {
  const Estimate gain = gain_of(results, each);
  const double ranks = each.workload().ranks;
  return {gain.median / ranks, gain.low / ranks, gain.high / ranks};
}

double ranks_of(const Measurement& each) {
  return each.workload().ranks;
}

/// Whether the speed-up of the most ranks within the cores is linear.
std::string linear_scaling(const Results& results, const Measurement& many) {
  const Estimate gain = gain_of(results, many);
  const int ranks = many.workload().ranks;
  return fmt::format(
      "{}: {} reach {}, where linear would be {}x.",
      by_side(side_of(gain, 0.9 * ranks), "The speed-up is linear, within a tenth",
              "The speed-up is not linear", "Whether the speed-up is linear is unclear"),
      counted(ranks, "rank"), factor_text(gain), ranks);
}

/// The phase with the largest part of the time lost against perfect scaling.
LargestPart loss_of(const Measurement& one, const Measurement& each) {
  const double ranks = each.workload().ranks;
  const auto lost = [&](const std::vector<double>& ideal, const std::vector<double>& real) {
    return by_round(ideal, real, [&](double a, double b) { return b - a / ranks; });
  };
  std::vector<PartSeries> parts;
  for (const std::string_view phase : account_phases()) {
    parts.push_back(
        {phase_words(phase), lost(one.phase_s_by_start(phase), each.phase_s_by_start(phase))});
  }
  return largest_of(parts, lost(one.mean_s_by_start(), each.mean_s_by_start()));
}

std::string loss_text(const LargestPart& loss) {
  const std::string share = percent_text(loss.share);
  if (loss.is_alone() && side_of(loss.share, 1) == Side::kAbove) {
    return fmt::format(
        "{} alone is longer than what is lost, {} of it, since other parts of a step "
        "become shorter",
        loss.names.front(), share);
  }
  if (loss.is_alone()) {
    return fmt::format("{} is {}, {}",
                       loss.is_most() ? "most of what is lost" : "the largest part of what is lost",
                       loss.names.front(), share);
  }
  return fmt::format("the main cause of the loss is unclear, perhaps {} with {}",
                     loss.names.front(), share);
}

std::string efficiency_sentence(const Results& results, const std::vector<std::string>& keys) {
  const std::string border = chosen_percent(kGoodEfficiency);
  const Measurement* open = nullptr;
  for (const std::string& key : keys) {
    const Measurement& each = results.at(key);
    const Estimate efficiency = efficiency_of(results, each);
    const Side side = side_of(efficiency, kGoodEfficiency);
    if (side == Side::kOpen && open == nullptr) open = &each;
    if (side != Side::kBelow) continue;
    return fmt::format(
        "Efficiency falls below {} at {} ranks{}: it is {} there, and {}.", border,
        each.workload().ranks,
        open == nullptr ? "" : fmt::format(", or before, at {}", open->workload().ranks),
        percent_text(efficiency), loss_text(loss_of(results.cases.front(), each)));
  }
  const Measurement& last = results.at(keys.back());
  const std::string end = fmt::format("at {} it is {}", counted(last.workload().ranks, "rank"),
                                      percent_text(efficiency_of(results, last)));
  return open == nullptr
             ? fmt::format("Efficiency stays above {}: {}.", border, end)
             : fmt::format("Whether efficiency falls below {} is unclear: {}.", border, end);
}

void add_fastest_ranks(Conclusion& all, const Results& results,
                       const std::vector<std::string>& keys) {
  std::vector<Series> series;
  std::vector<std::string> names;
  for (const std::string& key : keys) {
    series.push_back(results.samples_of(key));
    names.push_back(counted(results.at(key).workload().ranks, "rank"));
  }
  const Fastest fastest = fastest_of(series, results.setting.margin);
  std::string text = fastest_sentence(fastest, names);
  if (fastest.place > 0) {
    const Comparison gain = compare(series.front(), series[fastest.place], results.setting.margin);
    text += fmt::format(" {} train {} as many samples per second as one rank.",
                        names[fastest.place], factor_text(gain.speed()));
  } else if (fastest.is_alone()) {
    text += " More ranks gain nothing.";
  }
  all.timed("fastest", text).keep(fastest.others);
}

Findings conclude_scaling(const Results& results) {
  const std::vector<std::string> keys = keys_within_cores(results);
  Conclusion all(results);
  if (keys.size() < 2) {
    all.fact("not-compared",
             fmt::format("Fewer than two of these numbers of ranks have enough {} here, so they "
                         "are not compared.",
                         units_word(results.setting)));
  } else {
    all.timed("efficiency", efficiency_sentence(results, keys));
    add_fastest_ranks(all, results, keys);
    all.timed("linear", linear_scaling(results, results.at(keys.back())));
  }
  std::vector<std::string> labels;
  PlotSeries ideal{.name = "ideal", .style = SeriesStyle::kDashed};
  for (const Measurement& each : results.cases) {
    labels.push_back(counted(each.workload().ranks, "rank"));
    ideal.points.push_back(plot_point(ranks_of(each), ranks_of(each)));
  }
  return all
      .table("The same batch on more ranks",
             {"ranks", "batch", "time", "speed-up", "efficiency", "communication", "beyond"})
      .plot({.title = "Samples per second, as a multiple of one rank's",
             .x_label = "ranks",
             .y_label = "speed-up",
             .log_x = true,
             .log_y = true,
             .series = {ideal, points_of("measured", results, keys_of(results), ranks_of,
                                         [&](const Measurement& each) {
                                           return gain_of(results, each);
                                         })}})
      .phases(labels);
}

// Amdahl's law.

/// Fitted to the ranks within the cores.
Estimate fitted_share(const Results& results, const std::vector<std::string>& keys) {
  std::vector<std::vector<double>> step_s;
  for (const std::string& key : keys) step_s.push_back(results.at(key).mean_s_by_start());
  return estimate_by_round(step_s, [&](std::span<const double> of_round) {
    std::vector<SpeedUp> speed_ups;
    for (std::size_t i = 1; i < keys.size(); ++i) {
      speed_ups.push_back({results.at(keys[i]).workload().ranks, of_round[0] / of_round[i]});
    }
    return serial_fraction(speed_ups);
  });
}

/// `many` has the most ranks. Two numbers of ranks have one unknown: they fit any law.
std::string share_sentence(const Estimate& serial, const Measurement& many, bool is_tested) {
  const std::string share = percent_text(serial);
  switch (side_of(serial, 1)) {
    case Side::kAbove:
      return fmt::format(
          "No serial fraction below 1 fits: {} of a step of {} ranks is exposed communication.",
          percent_text(share_of(many, "communication")), many.workload().ranks);
    case Side::kOpen:
      return fmt::format(
          "Whether a serial fraction below 1 fits is unclear: {} of a step behaves as if it were "
          "serial.",
          share);
    case Side::kBelow:
      break;
  }
  if (side_of(serial, 0) != Side::kAbove) {
    return fmt::format(
        "{} of a step behaves as if it were serial, so these runs set no limit to "
        "the speed-up.",
        share);
  }
  const std::string limit = factor_text(reciprocal(serial));
  return is_tested ? fmt::format(
                         "{} of a step behaves as if it were serial, so no number of ranks "
                         "makes it more than {} as fast.",
                         share, limit)
                   : fmt::format(
                         "On {} ranks {} of a step behaves as if it were serial; if more "
                         "ranks do not change that share, which two numbers of ranks "
                         "cannot show, the limit is {}.",
                         many.workload().ranks, share, limit);
}

/// By Amdahl's law, for a column of cases.
auto speed_up_by_law(double share) {
  return
      [=](const Measurement& each) { return factor_text(amdahl_speed_up(share, ranks_of(each))); };
}

Findings conclude_amdahl(const Results& results) {
  const std::vector<std::string> keys = keys_within_cores(results);
  Conclusion all(results);
  Estimate serial{1, 1, 1};
  if (keys.size() > 1) {
    serial = fitted_share(results, keys);
    const std::vector<Comparison> gains = results.compare(keys.front(), std::span(keys).subspan(1));
    const Measurement& many = results.at(keys.back());
    const int ranks = many.workload().ranks;
    all.timed("serial", share_sentence(serial, many, keys.size() > 2))
        .timed("linear", linear_scaling(results, many))
        .fact("exercise",
              fmt::format("A step of 30 % serial and 70 % parallel work would reach {} on {} ranks "
                          "and {} at most (calculated).",
                          factor_text(amdahl_speed_up(kExercise, ranks)), ranks,
                          factor_text(1 / kExercise)))
        .keep(gains);
  } else {
    all.fact("not-fitted", fmt::format("Fewer than two of these numbers of ranks have enough {} "
                                       "here, so no serial fraction can be fitted.",
                                       units_word(results.setting)));
  }
  // A share far below 0 has no curve: its speed-up is infinite on few ranks already.
  const bool fits = serial.median < 1 &&
                    amdahl_speed_up(serial.median, results.cases.back().workload().ranks) > 0;
  const auto curve = [&](const char* name, SeriesStyle style, double share) {
    PlotSeries series{.name = name, .style = style};
    for (const Measurement& each : results.cases) {
      series.points.push_back(plot_point(ranks_of(each), amdahl_speed_up(share, ranks_of(each))));
    }
    return series;
  };
  PlotSeries measured = points_of("measured", results, keys_of(results), ranks_of,
                                  [&](const Measurement& each) { return gain_of(results, each); });
  measured.style = SeriesStyle::kMarks;
  Plot plot{.title = "Speed-up against ranks",
            .x_label = "ranks",
            .y_label = "speed-up",
            .log_x = true,
            .log_y = true,
            .series = {curve("ideal", SeriesStyle::kDashed, 0),
                       curve("30 % serial", SeriesStyle::kLine, kExercise), measured}};
  if (fits) plot.series.push_back(curve("Amdahl, fitted", SeriesStyle::kLine, serial.median));
  return all
      .table(fmt::format("Speed-up against Amdahl's law, batch {}",
                         results.cases.front().workload().batch_size()),
             {"ranks",
              "time",
              "speed-up",
              {"fitted",
               [&](const Measurement& each) {
                 return fits ? speed_up_by_law(serial.median)(each) : std::string("-");
               }},
              {"30 % serial", speed_up_by_law(kExercise)},
              {"",
               [](const Measurement& each) {
                 return each.what().beyond_cores ? beyond_text(each) + ", not fitted" : "";
               }}})
      .plot(std::move(plot));
}

}  // namespace

Experiment strong_scaling_experiment() {
  return {.name = "strong-scaling",
          .title = "Strong scaling",
          .question =
              "The same batch on 1, 2, 4 ranks: how much faster is a step, and where and why "
              "does efficiency drop?",
          .cases = [](const Setting& setting) { return ranks_cases(setting, setting.batch_size); },
          .conclude = conclude_scaling,
          .names = "efficiency fastest linear not-compared table plot phases-plot",
          .needs_mpi = true};
}

Experiment amdahl_experiment() {
  return {
      .name = "amdahl",
      .title = "Amdahl's law",
      .question = "Which share of a step is serial, and how fast can ranks make it at most?",
      .cases =
          [](const Setting& setting) { return ranks_cases(setting, setting.scaling_batch_size); },
      .conclude = conclude_amdahl,
      .names = "serial linear exercise not-fitted table plot",
      .needs_mpi = true};
}

}  // namespace barestep
