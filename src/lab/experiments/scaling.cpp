// Ranks that share one batch: strong scaling, and the serial fraction of a step.
#include <fmt/format.h>

#include <algorithm>

#include "core/units.h"
#include "lab/experiments/findings_of.h"

namespace barestep {
namespace {

/// Above this efficiency the course (docs/sheets.md) calls scaling good.
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

Estimate gain_of(const Results& results, const Measurement& measured) {
  return results.compare(results.cases.front().what().key, measured.what().key).speed();
}

double ranks_of(const Measurement& measured) {
  return measured.workload().ranks;
}

/// The phase with the largest part of the time lost against perfect scaling.
std::string loss_text(const Measurement& one, const Measurement& measured) {
  const double ranks = ranks_of(measured);
  const auto lost = [&](const std::vector<double>& ideal, const std::vector<double>& real) {
    return by_round(ideal, real, [&](double a, double b) { return b - a / ranks; });
  };
  std::vector<PartSeries> parts;
  for (const std::string_view phase : account_phases()) {
    parts.push_back(
        {phase_words(phase), lost(one.phase_s_by_start(phase), measured.phase_s_by_start(phase))});
  }
  const LargestPart loss =
      largest_of(parts, lost(one.mean_s_by_start(), measured.mean_s_by_start()));
  const char* const words = !loss.is_alone() ? "the main cause of the loss is unclear, perhaps"
                            : side_of(loss.share, 1) == Word::kAbove
                                ? "what is lost is less than one of its causes,"
                            : loss.is_most() ? "most of what is lost is"
                                             : "the largest part of what is lost is";
  return fmt::format("{} {}, {}", words, loss.names.front(), percent_text(loss.share));
}

/// Where it falls below the border: the first number of ranks that does, or may.
void add_efficiency(FindingsOf& all, const Results& results, const std::vector<std::string>& keys) {
  const auto efficiency_of = [&](const std::string& key) {
    const Estimate gain = gain_of(results, results.at(key));
    const double ranks = ranks_of(results.at(key));
    return Estimate{gain.median / ranks, gain.low / ranks, gain.high / ranks};
  };
  const auto first_with = [&](Word side) {
    return std::ranges::find_if(keys, [&](const std::string& key) {
      return side_of(efficiency_of(key), kGoodEfficiency) == side;
    });
  };
  const auto below = first_with(Word::kBelow), open = first_with(Word::kOpen);
  const std::string& key = below != keys.end() ? *below : open != keys.end() ? *open : keys.back();
  const Measurement& measured = results.at(key);
  const std::string border = chosen_percent(kGoodEfficiency);
  const std::string before =
      below != keys.end() && open < below
          ? fmt::format(", or before, at {}", results.at(*open).workload().ranks)
          : "";
  all.judge(
      "efficiency", efficiency_of(key), kGoodEfficiency,
      {"Efficiency stays above " + border,
       fmt::format("Efficiency falls below {} at {} ranks{}", border, ranks_of(measured), before),
       fmt::format("Whether efficiency falls below {} is unclear", border)},
      fmt::format(
          "at {} it is {}{}", counted(measured.workload().ranks, "rank"),
          percent_text(efficiency_of(key)),
          below == keys.end() ? "" : ", and " + loss_text(results.cases.front(), measured)));
}

void add_fastest_ranks(FindingsOf& all, const Results& results,
                       const std::vector<std::string>& keys) {
  std::vector<std::string> names;
  for (const std::string& key : keys) {
    names.push_back(counted(results.at(key).workload().ranks, "rank"));
  }
  const Fastest fastest = fastest_of(results.steps_of(keys), results.setting.margin);
  std::string text = fastest_text(fastest, names);
  if (fastest.place > 0) {
    const Estimate gain = gain_of(results, results.at(keys[fastest.place]));
    text += fmt::format(" {} train {} as many samples per second as one rank.",
                        names[fastest.place], factor_text(gain));
  } else if (fastest.is_alone()) {
    text += " More ranks gain nothing.";
  }
  all.timed("fastest", text).keep(fastest.others);
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
std::string serial_text(const Estimate& serial, const Measurement& many, bool is_tested) {
  const std::string share = percent_text(serial);
  if (side_of(serial, 1) == Word::kAbove) {
    return fmt::format(
        "No serial fraction below 1 fits: {} of a step of {} ranks is exposed communication.",
        percent_text(share_of(many, "communication")), many.workload().ranks);
  }
  if (side_of(serial, 1) == Word::kOpen) {
    return fmt::format(
        "Whether a serial fraction below 1 fits is unclear: {} of a step behaves as if it were "
        "serial.",
        share);
  }
  if (side_of(serial, 0) != Word::kAbove) {
    return fmt::format(
        "{} of a step behaves as if it were serial, so these runs set no limit to the speed-up.",
        share);
  }
  return fmt::format("On up to {} ranks {} of a step behaves as if it were serial; {} is {}.",
                     many.workload().ranks, share,
                     is_tested ? "the limit for any number of ranks"
                               : "if more ranks do not change that share, which two numbers of "
                                 "ranks cannot show, the limit",
                     factor_text(reciprocal(serial)));
}

PlotSeries law_curve(const Results& results, const char* name, SeriesStyle style, double share) {
  PlotSeries series{.name = name, .style = style};
  for (const Measurement& measured : results.cases) {
    series.points.push_back(
        plot_point(ranks_of(measured), amdahl_speed_up(share, ranks_of(measured))));
  }
  return series;
}

Findings scaling_findings(const Results& results) {
  std::vector<std::string> keys = keys_of(results);
  std::erase_if(keys, [&](const std::string& key) { return results.at(key).what().beyond_cores; });
  FindingsOf all(results);
  Estimate serial{1, 1, 1};
  if (keys.size() < 2) {
    all.untimed("not-compared", fmt::format("Fewer than two of these numbers of ranks have enough "
                                            "{} here, so they are not compared.",
                                            units_word(results.setting)));
  } else {
    const Measurement& many = results.at(keys.back());
    const int ranks = many.workload().ranks;
    const Estimate gain = gain_of(results, many);
    serial = fitted_share(results, keys);
    add_efficiency(all, results, keys);
    add_fastest_ranks(all, results, keys);
    all.judge("linear", gain, 0.9 * ranks,
              {"The speed-up is linear, within a tenth", "The speed-up is not linear",
               "Whether the speed-up is linear is unclear"},
              fmt::format("{} reach {}, where linear would be {}x", counted(ranks, "rank"),
                          factor_text(gain), ranks))
        .timed("serial", serial_text(serial, many, keys.size() > 2))
        .untimed("exercise", fmt::format("A step of 30 % serial and 70 % parallel work would reach "
                                         "{} on {} ranks and {} at most (calculated).",
                                         factor_text(amdahl_speed_up(kExercise, ranks)), ranks,
                                         factor_text(1 / kExercise)));
  }
  // A share far below 0 has no curve: its speed-up is infinite on few ranks already.
  const bool fits = serial.median < 1 &&
                    amdahl_speed_up(serial.median, results.cases.back().workload().ranks) > 0;
  PlotSeries measured = points_of("measured", results, keys_of(results), ranks_of,
                                  [&](const Measurement& of) { return gain_of(results, of); });
  measured.style = SeriesStyle::kMarks;
  Plot plot{.title = "Speed-up against ranks",
            .x_label = "ranks",
            .y_label = "speed-up",
            .log_x = true,
            .log_y = true,
            .series = {law_curve(results, "ideal", SeriesStyle::kDashed, 0),
                       law_curve(results, "30 % serial", SeriesStyle::kLine, kExercise), measured}};
  if (fits) {
    plot.series.push_back(law_curve(results, "Amdahl, fitted", SeriesStyle::kLine, serial.median));
  }
  return all
      .table("The same batch on more ranks",
             {"ranks",
              "batch",
              "time",
              "speed-up",
              {"by Amdahl's law, fitted",
               [&](const Measurement& of) {
                 return fits ? factor_text(amdahl_speed_up(serial.median, ranks_of(of))) : "-";
               }},
              "efficiency",
              "communication",
              "beyond"})
      .plot(std::move(plot))
      .phases();
}

constexpr const char* kScalingNames =
    "efficiency fastest linear serial exercise not-compared table plot phases-plot";

}  // namespace

Experiment strong_scaling_experiment() {
  return {"strong-scaling",
          "Strong scaling",
          "The same batch on 1, 2, 4 ranks: how much faster is a step, and where and why does "
          "efficiency drop?",
          [](const Setting& setting) { return ranks_cases(setting, setting.batch_size); },
          scaling_findings,
          kScalingNames};
}

Experiment amdahl_experiment() {
  return {
      "amdahl",
      "Amdahl's law",
      "Of a larger batch: which share of a step is serial, and how fast can ranks make it at most?",
      [](const Setting& setting) { return ranks_cases(setting, setting.scaling_batch_size); },
      scaling_findings,
      kScalingNames};
}

}  // namespace barestep
