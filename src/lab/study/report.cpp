#include "lab/study/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "core/error.h"
#include "core/input_file.h"
#include "core/output_file.h"
#include "lab/predict/prediction.h"
#include "lab/report/findings.h"
#include "lab/study/prediction_errors.h"
#include "lab/study/step_parts.h"

namespace barestep {
namespace {

using nlohmann::json;

constexpr std::int64_t kMaxMethodBytes = 1 << 16;
constexpr const char* kPredictionTitle = "Prediction against measurement";
constexpr const char* kPredictionName = "prediction";

/// The ends are null if there is no interval.
json json_of_estimate(const Estimate& estimate) {
  json all = {{"median", estimate.median}, {"low", nullptr}, {"high", nullptr}};
  if (!estimate.has_interval()) return all;
  all["low"] = estimate.low;
  all["high"] = estimate.high;
  return all;
}

/// Without a word if the times are not to be trusted.
json json_of_comparison(const Comparison& comparison, bool valid) {
  return {{"a", comparison.a},
          {"b", comparison.b},
          {"ratio", json_of_estimate(comparison.ratio)},
          {"rounds", comparison.rounds},
          {"faster_rounds", comparison.faster_rounds},
          {"p", comparison.p},
          {"p_holm", comparison.p_holm},
          {"word", valid ? json(name_of(comparison.word)) : json()}};
}

json json_of_finding(const Finding& finding, bool is_timed) {
  return {{"name", finding.name},
          {"text", finding.text},
          {"timed", is_timed},
          {"word", finding.word ? json(name_of(*finding.word)) : json()}};
}

json json_of_gain(const PredictedGain& gain) {
  const auto estimate = [](const std::optional<Estimate>& of) {
    return of ? json_of_estimate(*of) : json();
  };
  return {{"case", gain.key},
          {"change", gain.change},
          {"made_from", gain.made_from},
          {"step_s", estimate(gain.step_s)},
          {"gain", estimate(gain.gain)},
          {"measured_gain", estimate(gain.measured)}};
}

json json_of_case(const Results& results, std::size_t number) {
  const Measurement& measured = results.cases[number];
  json phases = json::object();
  for (const auto& [phase, seconds] : measured.starts().front().ranks.front().phase_s) {
    phases[phase] = measured.phase_s(phase);
  }
  std::vector<int> attempts;
  for (const Start& start : measured.starts()) attempts.push_back(start.attempts);
  json all = {{"key", measured.what().key},
              {"command", command_line_of(measured.what())},
              {"trainer", program_of(measured.workload())},
              {"ranks", measured.workload().ranks},
              {"dim", measured.workload().dim()},
              {"depth", measured.workload().depth()},
              {"batch_size", measured.workload().batch_size()},
              {"beyond_cores", measured.what().beyond_cores},
              {"starts", measured.starts().size()},
              {"steady_steps", measured.steady_steps()},
              {"warmup_steps", measured.warmup_steps()},
              {"outliers", measured.outliers()},
              {"attempts", attempts},
              {"lost_share", measured.lost_share()},
              {"disturbed_starts", measured.disturbed_starts()},
              {"start_medians_s", measured.step_s_by_start()},
              {"start_means_s", measured.mean_s_by_start()},
              {"step_s", json_of_estimate(measured.step_s())},
              {"mean_step_s", json_of_estimate(measured.mean_s())},
              {"step_deviation_s", json_of_estimate(estimate_of(measured.deviation_s_by_start()))},
              {"step_variation", json_of_estimate(estimate_of(measured.variation_by_start()))},
              {"total_s", json_of_estimate(estimate_of(measured.total_s_by_start()))},
              {"step_p95_s", measured.p95_s()},
              {"step_max_s", measured.slowest_s()},
              {"samples_per_s", json_of_estimate(measured.samples_per_s())},
              {"phases_s", phases}};
  if (measured.has_p99()) all["step_p99_s"] = measured.p99_s();
  if (!measured.configuration().empty())
    all["configuration"] = json::parse(measured.configuration());
  if (!results.predictions.empty() && results.predictions[number]) {
    const SimulatedStep& predicted = *results.predictions[number];
    json parts = json::object(), compared = json::object();
    for (const std::string_view phase : account_phases()) {
      parts[std::string(phase)] = predicted.account.seconds_of(phase);
      compared[std::string(phase)] = compared_phase_s(results, number, phase);
    }
    all["predicted_phases_s"] = std::move(parts);
    all["compared_phases_s"] = std::move(compared);
    all["compared_step_s"] = json_of_estimate(compared_step_s(results, number));
    all["predicted_step_s"] = predicted.step_s;
    all["prediction_error"] = prediction_error(results, number);
  }
  return all;
}

/// Empty, or that an answer compares a case beyond the cores. Experiments that can do without such
/// cases leave them out.
std::string crowding_of(const Results& results, const Findings& findings) {
  for (const Measurement& measured : results.cases) {
    const std::string& key = measured.what().key;
    const bool is_compared = std::ranges::any_of(
        findings.comparisons,
        [&](const Comparison& comparison) { return comparison.a == key || comparison.b == key; });
    if (!measured.what().beyond_cores || !is_compared) continue;
    return fmt::format("INVALID: the {} of {} share {}", ranks_text(measured.workload()), key,
                       units_text(results.setting));
  }
  return "";
}

/// The comparisons of disturbed starts whose interval is beyond kLargeEffect.
std::vector<std::string> large_effects(const ReportSection& section) {
  std::vector<std::string> sentences;
  if (!crowding_of(section.results, section.findings).empty()) return sentences;
  for (const Comparison& comparison : section.findings.comparisons) {
    const bool is_large =
        comparison.ratio.low >= kLargeEffect || comparison.ratio.high <= 1 / kLargeEffect;
    if (!comparison.ratio.has_interval() || !is_large) continue;
    const bool is_longer = comparison.ratio.median > 1;
    sentences.push_back(
        fmt::format("However disturbed: a step of {} takes {} as long as one of {}.",
                    is_longer ? comparison.b : comparison.a,
                    factor_text(is_longer ? comparison.ratio : reciprocal(comparison.ratio)),
                    is_longer ? comparison.a : comparison.b));
  }
  return sentences;
}

json json_of_summary(const PredictionSummary& summary) {
  return {{"runs", summary.runs},
          {"beyond_cores", summary.beyond_cores},
          {"median_error", summary.median_error},
          {"p90_error", summary.p90_error},
          {"worst_error", summary.worst_error},
          {"pairs", summary.pairs},
          {"right_pairs", summary.right_pairs},
          {"within_tenth", summary.within_tenth}};
}

/// How a case was measured; the governor is empty if it is unknown.
Conditions how_measured(const Measurement& measured) {
  const auto starts = std::ssize(measured.starts());
  Conditions found{.governor = std::string(kSteadyGovernor),
                   .lost_share = measured.lost_share(),
                   .seed = measured.workload().config.training.seed,
                   .warmup_steps = static_cast<std::int64_t>(measured.warmup_steps()),
                   .steps = static_cast<std::int64_t>(measured.steady_steps()) / starts,
                   .starts = starts};
  for (const Start& start : measured.starts()) {
    if (start.governor != kSteadyGovernor) found.governor = start.governor;
  }
  return found;
}

/// Of each item the one that is met less.
Conditions less_met(const Conditions& a, const Conditions& b) {
  return {.governor = b.governor == kSteadyGovernor ? a.governor : b.governor,
          .lost_share = std::max(a.lost_share, b.lost_share),
          .seed = a.seed,
          .warmup_steps = std::min(a.warmup_steps, b.warmup_steps),
          .steps = std::min(a.steps, b.steps),
          .starts = std::min(a.starts, b.starts)};
}

/// Explains the statistical methods.
std::vector<std::string> method_texts(double margin) {
  const std::string text =
      InputFile(installed_file(BARESTEP_LAB, "method.md"), "method").text(kMaxMethodBytes);
  std::vector<std::string> sentences;
  for (const std::vector<std::string>& lines : blocks_of(text)) {
    sentences.push_back(
        filled_template(fmt::format("{}", fmt::join(lines, " ")), [&](std::string_view name) {
          return chosen_percent(name == "margin" ? margin - 1 : kDisturbingShare);
        }));
  }
  return sentences;
}

/// A row per case with its step times, its starts and steps, and the prediction if there is one.
FindingTable step_table(const Results& results) {
  FindingTable table{.title = "Step times",
                     .columns = {"case", "median (95 % interval)", "mean (95 % interval)",
                                 "deviation", "p95", "p99", "slowest", "samples/s", "all steps",
                                 "starts", "steady steps", "warm-up", "outliers"}};
  const bool predicts = !results.predictions.empty();
  if (predicts) {
    table.columns.insert(table.columns.end(), {"predicted (simulated)", "error"});
  }
  for (std::size_t i = 0; i < results.cases.size(); ++i) {
    const Measurement& measured = results.cases[i];
    std::string name = measured.what().key;
    if (measured.what().beyond_cores) name += fmt::format(" ({})", beyond_text(measured));
    if (measured.disturbed_starts() > 0) {
      name += fmt::format(" ({} disturbed)",
                          counted(static_cast<std::int64_t>(measured.disturbed_starts()), "start"));
    }
    if (measured.is_uncertain()) name += " (uncertain by more than half)";
    table.rows.push_back(
        {name, time_text(measured.step_s()), time_text(measured.mean_s()), deviation_text(measured),
         time_text(measured.p95_s()), measured.has_p99() ? time_text(measured.p99_s()) : "-",
         time_text(measured.slowest_s()), number_text(measured.samples_per_s().median),
         time_text(estimate_of(measured.total_s_by_start()).median),
         std::to_string(measured.starts().size()), std::to_string(measured.steady_steps()),
         std::to_string(measured.warmup_steps()), std::to_string(measured.outliers())});
    if (!predicts) continue;
    if (!results.predictions[i]) {
      table.rows.back().insert(table.rows.back().end(), {"-", "-"});
    } else {
      table.rows.back().push_back(simulated_time(results.predictions[i]->step_s));
      table.rows.back().push_back(fmt::format("{:+.1f} %", 100 * prediction_error(results, i)));
    }
  }
  return table;
}

/// Outliers, drift, repeated starts, time lost to other programs.
std::string quality_text(const Results& results) {
  std::size_t outliers = 0, steps = 0;
  std::int64_t again = 0;
  double lost = 0;
  std::vector<std::string> drifts;
  for (const Measurement& measured : results.cases) {
    outliers += measured.outliers();
    steps += measured.steady_steps();
    lost = std::max(lost, measured.lost_share());
    for (const Start& start : measured.starts()) again += start.attempts > 1;
    if (const double drift = measured.drift(); drift != 0) {
      drifts.push_back(fmt::format("{} by {} {}", measured.what().key,
                                   percent_text(std::abs(drift)), drift > 0 ? "slower" : "faster"));
    }
  }
  std::string text =
      outliers == 0
          ? fmt::format("None of {} steady steps is an outlier.", steps)
          : fmt::format("{} of {} steady steps are outliers, far slower than their median.",
                        outliers, steps);
  text +=
      fmt::format(" A start lost at most {} of its time to other programs.", percent_text(lost));
  if (!drifts.empty()) {
    text += fmt::format(" Step times drift during a run: {}.", list_text(drifts));
  }
  if (again > 0) {
    text += fmt::format(" {} repeated, because other programs disturbed {}.",
                        again == 1 ? "1 start was" : fmt::format("{} starts were", again),
                        again == 1 ? "it" : "them");
  }
  return text;
}

/// A row of the summary: a small plot, the title, the main finding and whether it may be trusted.
std::string summary_row(const std::string& name, const std::string& title,
                        const std::vector<std::string>& texts, const std::string& trust,
                        const Findings& findings) {
  const std::string plot = findings.plots.empty() ? "" : fmt::format("![]({})", plot_file(name, 0));
  return fmt::format("| {} | {} | {} | {} |\n", plot, section_link(title),
                     texts.empty() ? "" : markdown_text(texts.front()), trust);
}

std::string summary_of(const Report& report, const Findings& prediction) {
  std::string text = "## Summary\n\n";
  for (const auto& [name, value] : report.environment) {
    text += fmt::format("- {}: {}\n", name, markdown_text(value));
  }
  text += "\n| | Experiment | Answer | Verdict |\n| --- | --- | --- | --- |\n";
  for (const ReportSection& section : report.sections) {
    text += summary_row(section.experiment->name, section.experiment->title, texts_of(section),
                        !section.trouble.empty()        ? "**INVALID**"
                        : section.results.cases.empty() ? "calculated"
                                                        : "valid",
                        section.findings);
  }
  if (!prediction.timed.empty()) {
    text += summary_row(kPredictionName, kPredictionTitle, texts_of(prediction.timed), "simulated",
                        prediction);
  }
  return text + "\n";
}

void add_section(Page& page, const Report& report, const ReportSection& section) {
  const Experiment& experiment = *section.experiment;
  std::string& text = page.markdown;
  text += fmt::format("## {}\n\n*{}*\n\n", markdown_text(experiment.title),
                      markdown_text(experiment.question));
  if (!section.trouble.empty()) {
    text += fmt::format("> **{}**\n\n", markdown_text(trouble_line(section)));
  }
  page.add(shown_texts(section), section.findings, experiment.name);
  const std::string command = fmt::format("Reproduce: `{}`\n\n", command_of(report, section));
  if (section.results.cases.empty()) {
    text += command;
    return;
  }
  text +=
      fmt::format("{}{}\n\n{}\n\n{}Its runs:\n```\n", markdown_table(step_table(section.results)),
                  markdown_text(quality_text(section.results)),
                  markdown_text(checklist_line(checklist_of({&section.results}))), command);
  for (const Measurement& measured : section.results.cases) {
    text += command_line_of(measured.what()) + "\n";
  }
  const std::string configurations = configurations_of(section.results);
  text += "```\n\n";
  if (configurations.empty()) return;
  text += fmt::format("Their configurations:\n```\n{}```\n\n", configurations);
}

}  // namespace

const ReportSection* Report::section(std::string_view experiment) const {
  const auto found = std::ranges::find_if(sections, [&](const ReportSection& section) {
    return experiment == section.experiment->name;
  });
  return found == sections.end() ? nullptr : &*found;
}

std::vector<const Results*> Report::results() const {
  std::vector<const Results*> all;
  for (const ReportSection& section : sections) {
    const bool is_certain = std::ranges::none_of(section.results.cases, &Measurement::is_uncertain);
    if (section.trouble.empty() && is_certain) all.push_back(&section.results);
  }
  return all;
}

ReportSection section_of(const Experiment& experiment, Results results) {
  Findings findings = experiment.findings(results);
  std::string trouble;
  if (!findings.timed.empty()) {
    trouble = crowding_of(results, findings);
    if (trouble.empty()) trouble = trouble_of(results);
    std::string bursts = bursts_of_cases(results.cases);
    if (!bursts.empty()) findings.timed.emplace_back("bursts", std::move(bursts));
  }
  return {&experiment, std::move(results), std::move(findings), std::move(trouble)};
}

Report report_of(const Study& study, double margin) {
  Report report;
  report.margin = margin;
  report.environment = facts_of(study.identity().machine);
  report.environment.emplace_back("barestep", study.identity().version);
  report.environment.emplace_back("devices", study.identity().on_gpu ? "GPUs" : "CPU");
  report.options = study.identity().quick ? " --quick" : "";
  if (!study.identity().on_gpu && study.identity().machine.gpus > 0) {
    report.options += " --device cpu";
  }
  report.options += options_text(study.identity().options);
  if (const std::int64_t width = study.identity().width; width > 0) {
    report.options += fmt::format(" --dim {}", width);
    report.environment.emplace_back(
        "model",
        fmt::format(
            "{} wide; --quick doubles the width until a step takes 3 ms, at most to {} times",
            width, kWidestQuick));
  }
  for (const Experiment* experiment : study.measured()) {
    Results results = study.results_of(*experiment);
    results.setting.margin = margin;
    report.sections.push_back(section_of(*experiment, std::move(results)));
  }
  if (report.sections.empty()) {
    fail(ExitCode::kNoInput,
         {"study", study.folder().string(), "none of its experiments is complete",
          "run mlp_lab run again to complete it"});
  }
  return report;
}

std::vector<std::string> texts_of(const ReportSection& section) {
  std::vector<std::string> texts = texts_of(section.findings.timed);
  if (!section.trouble.empty()) {
    const std::size_t why = section.trouble.find(": ");
    texts = {"No conclusion: " +
             (why == std::string::npos ? section.trouble : section.trouble.substr(why + 2)) + "."};
    std::ranges::move(large_effects(section), std::back_inserter(texts));
  }
  std::ranges::move(texts_of(section.findings.untimed), std::back_inserter(texts));
  return texts;
}

std::string trouble_line(const ReportSection& section) {
  return "INVALID. " + texts_of(section).front();
}

std::vector<std::string> shown_texts(const ReportSection& section) {
  std::vector<std::string> texts = texts_of(section);
  if (!section.trouble.empty()) texts.erase(texts.begin());
  return texts;
}

std::string command_of(const Report& report, const ReportSection& section) {
  if (section.experiment->of_command) {
    const std::vector<Measurement>& cases = section.results.cases;
    return fmt::format("mlp_lab what-if {}{}", cases.size() > 1 ? "--check " : "",
                       command_line_of(cases.front().workload()));
  }
  return fmt::format("mlp_lab run {}{}", section.experiment->name, report.options);
}

std::vector<CheckedItem> checklist_of(const std::vector<const Results*>& measured) {
  std::optional<Conditions> all;
  for (const Results* const results : measured) {
    if (is_logged(*results)) continue;  // how is not known
    for (const Measurement& measurement : results->cases) {
      const Conditions found = how_measured(measurement);
      all = all ? less_met(*all, found) : found;
    }
  }
  if (!all) return {};
  if (all->governor->empty()) all->governor.reset();
  return checklist(*all);
}

std::string configurations_of(const Results& results) {
  std::vector<std::pair<std::string, json>> each_case;
  for (const Measurement& measured : results.cases) {
    if (measured.configuration().empty()) continue;
    each_case.emplace_back(measured.what().key, json::parse(measured.configuration()));
  }
  if (each_case.empty()) return "";
  json shared = json::object();
  for (const auto& option : each_case.front().second.items()) {
    const bool in_all = std::ranges::all_of(each_case, [&](const auto& options) {
      return options.second.value(option.key(), json()) == option.value();
    });
    if (in_all) shared[option.key()] = option.value();
  }
  std::string text = fmt::format("all: {}\n", shared.dump());
  for (auto& [key, options] : each_case) {
    for (const auto& option : shared.items()) options.erase(option.key());
    if (!options.empty()) text += fmt::format("{}: {}\n", key, options.dump());
  }
  return text;
}

std::string csv_of(const Report& report) {
  std::string text =
      "experiment,case,trainer,ranks,dim,depth,batch_size,step_s,step_s_low,step_s_high,mean_step_"
      "s,step_p95_s,step_max_s,samples_per_s,predicted_step_s,prediction_error,beyond_cores,steady_"
      "steps,warmup_steps,outliers,valid,command\n";
  for (const ReportSection& section : report.sections) {
    for (std::size_t i = 0; i < section.results.cases.size(); ++i) {
      const Measurement& measured = section.results.cases[i];
      const Workload& workload = measured.workload();
      const Estimate& step = measured.step_s();
      const std::string predicted =
          section.results.predictions.empty() || !section.results.predictions[i]
              ? ","
              : fmt::format("{},{}", section.results.predictions[i]->step_s,
                            prediction_error(section.results, i));
      text += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},\"{}\"\n",
                          section.experiment->name, measured.what().key, program_of(workload),
                          workload.ranks, workload.dim(), workload.depth(), workload.batch_size(),
                          step.median, step.has_interval() ? fmt::format("{}", step.low) : "",
                          step.has_interval() ? fmt::format("{}", step.high) : "",
                          measured.mean_s().median, measured.p95_s(), measured.slowest_s(),
                          measured.samples_per_s().median, predicted, measured.what().beyond_cores,
                          measured.steady_steps(), measured.warmup_steps(), measured.outliers(),
                          section.trouble.empty(), command_line_of(measured.what()));
    }
  }
  return text;
}

std::string json_of(const Report& report) {
  json environment = json::object();
  for (const auto& [name, value] : report.environment) environment[name] = value;
  json sections = json::array();
  for (const ReportSection& section : report.sections) {
    json cases = json::array();
    for (std::size_t i = 0; i < section.results.cases.size(); ++i) {
      cases.push_back(json_of_case(section.results, i));
    }
    json checks = json::object();
    for (const CheckedItem& item : checklist_of({&section.results})) {
      checks[item.name] = {{"holds", name_of(item.holds)}, {"is", item.is}};
    }
    json comparisons = json::array();
    for (const Comparison& comparison : section.findings.comparisons) {
      comparisons.push_back(json_of_comparison(comparison, section.trouble.empty()));
    }
    json findings = json::array();
    for (const auto* const kind : {&section.findings.timed, &section.findings.untimed}) {
      const bool is_timed = kind == &section.findings.timed;
      if (is_timed && !section.trouble.empty()) continue;
      for (const Finding& finding : *kind) findings.push_back(json_of_finding(finding, is_timed));
    }
    json gains = json::array();
    for (const PredictedGain& gain : section.findings.gains) gains.push_back(json_of_gain(gain));
    sections.push_back({{"name", section.experiment->name},
                        {"title", section.experiment->title},
                        {"question", section.experiment->question},
                        {"command", command_of(report, section)},
                        {"verdict", section.trouble},
                        {"answers", texts_of(section)},
                        {"findings", std::move(findings)},
                        {"checklist", std::move(checks)},
                        {"comparisons", std::move(comparisons)},
                        {"cases", std::move(cases)}});
    if (!gains.empty()) sections.back()["gains"] = std::move(gains);
  }
  json all = {{"format", "barestep results 2"},
              {"environment", std::move(environment)},
              {"experiments", std::move(sections)}};
  if (const auto summary = prediction_summary(report.results())) {
    all["prediction"] = json_of_summary(*summary);
  }
  return all.dump(1) + "\n";
}

Page page_of(const Report& report) {
  const Findings prediction = prediction_findings(report.results());
  Page page{.title = "Report of mlp_lab", .markdown = summary_of(report, prediction)};
  for (const ReportSection& section : report.sections) add_section(page, report, section);
  if (!prediction.timed.empty()) {
    page.markdown += fmt::format("## {}\n\n", kPredictionTitle);
    page.add(texts_of(prediction.timed), prediction, kPredictionName);
  }
  page.markdown += "## How figures were made\n\n";
  page.add(method_texts(report.margin), {}, "");
  return page;
}

void write_report(const std::filesystem::path& folder, const Report& report) {
  write_page(folder, page_of(report));
  replace_file(folder / "results.csv", csv_of(report));
  replace_file(folder / "results.json", json_of(report));
}

}  // namespace barestep
