#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <array>
#include <span>

#include "core/error.h"
#include "core/output_file.h"
#include "lab/prediction_report.h"
#include "lab/report.h"
#include "lab/svg.h"
#include "lab/words.h"

namespace barestep {
namespace {

using nlohmann::json;

json json_of_estimate(const Estimate& estimate) {
  return {{"median", estimate.median}, {"low", estimate.low}, {"high", estimate.high}};
}

json json_of_case(const Results& results, std::size_t number) {
  const Measurement& each = results.cases[number];
  json phases = json::object();
  for (const auto& [phase, seconds] : each.starts().front().ranks.front().phase_s) {
    phases[phase] = each.phase_s(phase);
  }
  json all = {{"key", each.what().key},
              {"command", command_line_of(each.workload())},
              {"trainer", program_of(each.workload())},
              {"ranks", each.workload().ranks},
              {"dim", each.workload().dim()},
              {"depth", each.workload().depth()},
              {"batch_size", each.workload().batch_size()},
              {"beyond_cores", each.what().beyond_cores},
              {"starts", each.starts().size()},
              {"steady_steps", each.steady_steps()},
              {"warmup_steps", each.warmup_steps()},
              {"outliers", each.outliers()},
              {"others_share", each.others_share()},
              {"step_s", json_of_estimate(each.step_s())},
              {"step_p95_s", each.p95_s()},
              {"step_p99_s", each.p99_s()},
              {"samples_per_s", json_of_estimate(each.samples_per_s())},
              {"phases_s", phases}};
  if (!each.configuration().empty()) all["configuration"] = json::parse(each.configuration());
  if (!results.predictions.empty()) {
    all["predicted_step_s"] = results.predictions[number].step_s;
    all["prediction_error"] = prediction_error(results, number);
  }
  return all;
}

json json_of_summary(const PredictionSummary& summary) {
  return {{"runs", summary.runs},
          {"beyond_cores", summary.beyond_cores},
          {"median_error", summary.median_error},
          {"within_tenth", summary.within_tenth}};
}

void write_text_file(const std::filesystem::path& path, const std::string& text) {
  const std::array parts = {std::as_bytes(std::span(text))};
  replace_file(path, parts);
}

}  // namespace

std::vector<const Results*> Report::results() const {
  std::vector<const Results*> all;
  for (const ReportSection& section : sections) all.push_back(&section.results);
  return all;
}

Report report_of(const Study& study) {
  Report report;
  report.environment = facts_of(study.identity().machine);
  report.environment.emplace_back("barestep", study.identity().version);
  report.environment.emplace_back("devices", study.identity().on_gpu ? "GPUs" : "CPU");
  report.options = study.identity().quick ? " --quick" : "";
  if (!study.identity().on_gpu && study.identity().machine.gpus > 0) {
    report.options += " --device cpu";
  }
  for (const Experiment* experiment : study.measured()) {
    Results results = study.results_of(*experiment);
    Findings findings = experiment->conclude(results);
    std::string verdict = verdict_of(results.cases);
    report.sections.push_back(
        {experiment, std::move(results), std::move(findings), std::move(verdict)});
  }
  if (report.sections.empty()) {
    fail(ExitCode::kNoInput, {.what = "study",
                              .value = study.folder().string(),
                              .why = "no experiment in it is complete",
                              .remedy = "run mlp_lab run again to complete it"});
  }
  return report;
}

const std::vector<std::string>& method_sentences() {
  static const std::vector<std::string> sentences = {
      "A figure is the median over the steps of several starts, with a bootstrap's 95 % interval.",
      "Steps before the last change of level in the first half of a start are warm-up, left out.",
      "Cases are started in turn, there and back (A B B A), so that a drift meets all of them.",
      "Outliers stay in: they move percentiles, hardly medians.",
      "Ranks beyond the cores share cores; they are shown, and left out of fits.",
      "Step times are rank 0's, as the trainers print them; making random data is not in them."};
  return sentences;
}

std::string command_of(const Report& report, const ReportSection& section) {
  return fmt::format("mlp_lab run {}{}", section.experiment->name, report.options);
}

FindingTable step_table(const Results& results) {
  FindingTable table{.title = "Step times",
                     .columns = {"case", "median (95 % interval)", "p95", "p99", "samples/s",
                                 "starts", "steady steps", "warm-up", "outliers"}};
  const bool predicts = !results.predictions.empty();
  if (predicts) {
    table.columns.insert(table.columns.end(), {"predicted (simulated)", "error"});
  }
  for (std::size_t i = 0; i < results.cases.size(); ++i) {
    const Measurement& each = results.cases[i];
    table.rows.push_back({each.what().key + (each.what().beyond_cores ? " (beyond the cores)" : ""),
                          time_text(each.step_s()), time_text(each.p95_s()),
                          time_text(each.p99_s()), number_text(each.samples_per_s().median),
                          std::to_string(each.starts().size()), std::to_string(each.steady_steps()),
                          std::to_string(each.warmup_steps()), std::to_string(each.outliers())});
    if (predicts) {
      table.rows.back().push_back(time_text(results.predictions[i].step_s));
      table.rows.back().push_back(fmt::format("{:+.1f} %", 100 * prediction_error(results, i)));
    }
  }
  return table;
}

std::string quality_sentence(const Results& results) {
  std::size_t outliers = 0, steps = 0, again = 0;
  double others = 0;
  for (const Measurement& each : results.cases) {
    outliers += each.outliers();
    steps += each.steady_steps();
    others = std::max(others, each.others_share());
    for (const Start& start : each.starts()) again += start.attempts > 1;
  }
  std::string text =
      outliers == 0
          ? fmt::format("None of {} steady steps is an outlier.", steps)
          : fmt::format("{} of {} steady steps are outliers, far slower than their median.",
                        outliers, steps);
  text += fmt::format(
      " Other programs took at most {} of the cores during a start{}.", percent_text(others),
      outliers > 0 && others > kDisturbingShare / 2 ? ", which explains outliers" : "");
  if (again > 0) {
    text += fmt::format(" {} starts were made again, because the machine was disturbed.", again);
  }
  return text;
}

std::string configurations_of(const ReportSection& section) {
  std::string text;
  for (const Measurement& each : section.results.cases) {
    if (each.configuration().empty()) continue;
    text += fmt::format("{}: {}\n", each.what().key, each.configuration());
  }
  return text;
}

std::string plot_file(const std::string& section, std::size_t number) {
  return fmt::format("plots/{}-{}.svg", section, number + 1);
}

std::string csv_of(const Report& report) {
  std::string text =
      "experiment,case,trainer,ranks,dim,depth,batch_size,step_s,step_s_low,step_s_high,step_p95_s,"
      "step_p99_s,samples_per_s,predicted_step_s,prediction_error,beyond_cores,steady_steps,"
      "warmup_steps,outliers,valid,command\n";
  for (const ReportSection& section : report.sections) {
    for (std::size_t i = 0; i < section.results.cases.size(); ++i) {
      const Measurement& each = section.results.cases[i];
      const Workload& workload = each.workload();
      const Estimate& step = each.step_s();
      const std::string predicted =
          section.results.predictions.empty()
              ? ","
              : fmt::format("{},{}", section.results.predictions[i].step_s,
                            prediction_error(section.results, i));
      text += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},\"{}\"\n",
                          section.experiment->name, each.what().key, program_of(workload),
                          workload.ranks, workload.dim(), workload.depth(), workload.batch_size(),
                          step.median, step.low, step.high, each.p95_s(), each.p99_s(),
                          each.samples_per_s().median, predicted, each.what().beyond_cores,
                          each.steady_steps(), each.warmup_steps(), each.outliers(),
                          section.verdict.empty(), command_line_of(workload));
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
    sections.push_back({{"name", section.experiment->name},
                        {"title", section.experiment->title},
                        {"question", section.experiment->question},
                        {"command", command_of(report, section)},
                        {"verdict", section.verdict},
                        {"answers", section.findings.sentences},
                        {"cases", std::move(cases)}});
  }
  json all = {{"format", "barestep results 1"},
              {"environment", std::move(environment)},
              {"experiments", std::move(sections)}};
  if (const auto summary = prediction_summary(report.results())) {
    all["prediction"] = json_of_summary(*summary);
  }
  return all.dump(1) + "\n";
}

void write_report(const std::filesystem::path& folder, const Report& report) {
  std::filesystem::create_directories(folder / "plots");
  const auto write_plots = [&](const std::string& name, const Findings& findings) {
    for (std::size_t i = 0; i < findings.plots.size(); ++i) {
      write_text_file(folder / plot_file(name, i), svg_file_of(findings.plots[i]));
    }
  };
  for (const ReportSection& section : report.sections) {
    write_plots(section.experiment->name, section.findings);
  }
  write_plots("prediction", prediction_findings(report.results()));
  write_text_file(folder / "results.csv", csv_of(report));
  write_text_file(folder / "results.json", json_of(report));
  write_text_file(folder / "report.md", markdown_of(report));
  write_text_file(folder / "report.html", html_of(report));
}

}  // namespace barestep
