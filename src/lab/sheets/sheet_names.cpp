#include "lab/sheets/sheet_names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/text_table.h"
#include "lab/experiments/calculations.h"
#include "options/option_values.h"

namespace barestep {
namespace {

constexpr std::string_view kSimulated = "simulated.";

/// The numbers of ranks of a case are those of the course, or two.
std::vector<Setting> sheet_settings(bool on_gpu) {
  constexpr int kUnits = 8;
  Setting two = new_setting(false, on_gpu, kUnits), four = two;
  four.ranks = {1, 2, 4};
  return {two, four};
}

/// A case of an experiment under one of these settings, and all cases that it has there.
struct FoundCase {
  Case what;
  std::vector<Case> all;
};

std::optional<FoundCase> case_of(const Experiment& experiment, std::string_view key, bool on_gpu) {
  for (const Setting& setting : sheet_settings(on_gpu)) {
    std::vector<Case> all = experiment.cases(setting);
    const auto found = std::ranges::find(all, key, &Case::key);
    if (found == all.end()) continue;
    Case what = *found;
    return FoundCase{std::move(what), std::move(all)};
  }
  return std::nullopt;
}

std::vector<std::string> case_keys(const Experiment& experiment) {
  std::vector<std::string> keys;
  for (const Setting& setting : sheet_settings(false)) {
    for (const Case& what : experiment.cases(setting)) {
      if (std::ranges::find(keys, what.key) == keys.end()) keys.push_back(what.key);
    }
  }
  return keys;
}

const Experiment* experiment_named(std::string_view name) {
  const auto found = std::ranges::find_if(
      experiments(), [&](const Experiment& experiment) { return name == experiment.name; });
  return found == experiments().end() ? nullptr : &*found;
}

std::string measured_text(const SheetRuns& runs, const Experiment& experiment,
                          const std::string& key, const Figure& figure) {
  const Results& results = runs.section(experiment.name).results;
  const auto found = std::ranges::find_if(
      results.cases, [&](const Measurement& measured) { return measured.what().key == key; });
  if (found == results.cases.end()) return std::string(kNotRun);
  return figure.is_of_parts && is_logged(results) ? std::string(kNotSimulated)
                                                  : figure.text({results, *found});
}

/// A figure of a case; `rest` is what follows the experiment's name.
std::optional<SheetName> figure_name(const Experiment& experiment, std::string_view rest,
                                     bool is_simulated) {
  const std::size_t dot = rest.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const std::string key(rest.substr(0, dot));
  const Figure* const figure = figure_named(rest.substr(dot + 1));
  if (figure == nullptr || (is_simulated && !figure->is_simulated)) return std::nullopt;
  const std::optional<FoundCase> found = case_of(experiment, key, is_simulated);
  if (!found) return std::nullopt;
  SheetName name{.kind = SheetNameKind::kFigure};
  if (is_simulated) {
    name.text = [=](const SheetRuns& runs) {
      return runs.simulations().text(found->all, found->what, figure->text);
    };
    name.why_none = [=](const SheetRuns& runs) {
      return runs.simulations().why_none(found->what.workload);
    };
    return name;
  }
  name.experiments = {experiment.name};
  name.text = [=, &experiment](const SheetRuns& runs) {
    return measured_text(runs, experiment, key, *figure);
  };
  name.is_timed = figure->is_timed;
  name.key = key;
  return name;
}

/// Whether one of an experiment's names, of which a star stands for anything, is this one.
bool is_name_of(const Experiment& experiment, std::string_view name) {
  for (const std::string_view pattern : split(experiment.names, " ")) {
    const std::size_t star = pattern.find('*');
    if (star == std::string_view::npos
            ? pattern == name
            : name.size() >= pattern.size() && name.starts_with(pattern.substr(0, star)) &&
                  name.ends_with(pattern.substr(star + 1))) {
      return true;
    }
  }
  const std::vector<std::string> keys = case_keys(experiment);
  return std::ranges::find(keys, name) != keys.end();
}

/// Nothing for what this section did not find.
template <class T>
const T* found_in(const std::vector<T>& all, std::string_view name) {
  const auto found = std::ranges::find(all, name, &T::name);
  return found == all.end() ? nullptr : &*found;
}

std::string finding_text(const ReportSection& section, std::string_view name) {
  const Findings& findings = section.findings;
  if (const Finding* const finding = findings.named(name)) return finding->text;
  if (const FindingTable* const table = found_in(findings.tables, name)) {
    return markdown_table(*table);
  }
  if (const Plot* const plot = found_in(findings.plots, name)) {
    const auto place = static_cast<std::size_t>(plot - findings.plots.data());
    return fmt::format("![{}]({})", plot->title, plot_file(section.experiment->name, place));
  }
  return "This was not measured.";
}

std::optional<SheetName> finding_name(const Experiment& experiment, std::string_view rest) {
  if (!is_name_of(experiment, rest)) return std::nullopt;
  const std::string name(rest);
  SheetName found{.experiments = {experiment.name},
                  .text = [=, &experiment](const SheetRuns& runs) {
                    return finding_text(runs.section(experiment.name), name);
                  }};
  if (rest == "table" || rest.ends_with("-table")) found.kind = SheetNameKind::kTable;
  if (rest == "plot" || rest.ends_with("-plot")) found.kind = SheetNameKind::kPlot;
  if (found.kind == SheetNameKind::kSentence) found.finding = name;
  return found;
}

}  // namespace

Setting SheetRuns::setting() const {
  return report_.sections.empty() ? Setting{} : report_.sections.front().results.setting;
}

const ReportSection& SheetRuns::section(std::string_view experiment) const {
  const ReportSection* const found = report_.section(experiment);
  BARESTEP_REQUIRE(found != nullptr, "a sheet asks for an experiment that was not measured");
  return *found;
}

std::string SheetName::trouble(const SheetRuns& runs) const {
  for (const std::string& experiment : experiments) {
    const ReportSection& section = runs.section(experiment);
    const bool is_fact = found_in(section.findings.untimed, finding) != nullptr;
    const bool rests_on_times = is_timed || (!finding.empty() && !is_fact);
    if (rests_on_times && !section.trouble.empty()) {
      return fmt::format("No conclusion: {} is INVALID.", experiment);
    }
    for (const Measurement& one : section.results.cases) {
      if (!rests_on_times || one.what().key != key || !one.what().beyond_cores) continue;
      return fmt::format("No conclusion: the {} of {} share {}.", ranks_text(one.workload()), key,
                         units_text(section.results.setting));
    }
    if (rests_on_times && section.findings.timed.empty()) {
      return fmt::format("No conclusion: {} compares no times here.", experiment);
    }
  }
  return "";
}

std::optional<SheetName> sheet_name(std::string_view written) {
  std::string hyphened(written);
  std::ranges::replace(hyphened, '_', '-');
  std::string_view name = hyphened;
  for (const SheetName& known : sheet_notes()) {
    if (known.name == name) return known;
  }
  const bool is_simulated = name.starts_with(kSimulated);
  if (is_simulated) name.remove_prefix(kSimulated.size());
  const std::size_t dot = name.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const Experiment* const experiment = experiment_named(name.substr(0, dot));
  if (experiment == nullptr) return std::nullopt;
  const std::string_view rest = name.substr(dot + 1);
  if (auto figure = figure_name(*experiment, rest, is_simulated)) return figure;
  return is_simulated ? std::nullopt : finding_name(*experiment, rest);
}

namespace {

std::vector<std::string> all_sheet_names() {
  std::vector<std::string> all;
  for (const SheetName& known : sheet_notes()) all.push_back(known.name);
  for (const Experiment& experiment : experiments()) {
    for (const std::string_view name : split(experiment.names, " ")) {
      if (name.find('*') == std::string_view::npos) {
        all.push_back(fmt::format("{}.{}", experiment.name, name));
      }
    }
    for (const std::string& key : case_keys(experiment)) {
      all.push_back(fmt::format("{}.{}", experiment.name, key));
      for (const Figure& figure : figures()) {
        all.push_back(fmt::format("{}.{}.{}", experiment.name, key, figure.name));
        all.push_back(std::string(kSimulated) + all.back());
      }
    }
  }
  return all;
}

/// The name with the experiment's whole name for a part of it: data.load is data-parallel.load.
/// Empty if that is not known.
std::string with_whole_experiment(std::string_view name) {
  const std::string_view front = name.starts_with(kSimulated) ? kSimulated : "";
  name.remove_prefix(front.size());
  const std::size_t dot = name.find('.');
  if (dot == std::string_view::npos) return "";
  std::vector<std::string_view> experiment_names;
  for (const Experiment& experiment : experiments()) experiment_names.emplace_back(experiment.name);
  const std::string_view experiment = nearest(name.substr(0, dot), experiment_names);
  return experiment.empty() ? "" : fmt::format("{}{}{}", front, experiment, name.substr(dot));
}

}  // namespace

std::string nearest_sheet_name(std::string_view name) {
  const std::vector<std::string> all = all_sheet_names();
  const std::vector<std::string_view> views(all.begin(), all.end());
  const std::string_view near = nearest(with_whole_experiment(name), views);
  return std::string(near.empty() ? nearest(name, views) : near);
}

std::string sheet_names_text() {
  TextTable notes({{"name"}, {"what it stands for"}});
  for (const SheetName& known : sheet_notes()) notes.add_row({known.name, known.about});
  TextTable of_cases({{"figure"}, {"what it stands for"}});
  for (const Figure& figure : figures()) of_cases.add_row({figure.name, figure.about});
  TextTable findings({{"experiment"}, {"findings"}}), cases({{"experiment"}, {"cases"}});
  for (const Experiment& experiment : experiments()) {
    if (experiment.needs_pytorch()) continue;
    findings.add_row({experiment.name, experiment.names});
    cases.add_row({experiment.name, fmt::format("{}", fmt::join(case_keys(experiment), ", "))});
  }
  return fmt::format(
      "In a sheet, {{{{name}}}} stands for a sentence or a "
      "table:\n\n{}\n{{{{EXPERIMENT.FINDING}}}} is what an experiment found, and "
      "{{{{EXPERIMENT.CASE}}}} what it says of a case (a star stands for numbers and "
      "cases):\n\n{}\n{{{{EXPERIMENT.CASE.FIGURE}}}} is a figure of a case, and "
      "{{{{simulated.EXPERIMENT.CASE.FIGURE}}}} that of the GPUs of --machine:\n\n{}\n{}",
      notes.text(2), findings.text(2), of_cases.text(2), cases.text(2));
}

}  // namespace barestep
