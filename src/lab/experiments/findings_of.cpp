#include "lab/experiments/findings_of.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "core/units.h"
#include "options/options.h"

namespace barestep {

Workload with(Workload run, std::string_view options) {
  const std::vector<std::string_view> words = split(options, " ");
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i].empty()) continue;
    const auto found = std::ranges::find(options_to_predict(), words[i].substr(2), &Option::name);
    BARESTEP_REQUIRE(found != options_to_predict().end(), "an option of a trainer");
    RawValue value{.where = std::string(words[i]), .text = "true"};
    if (!is_flag(*found)) value.text = words[++i];
    found->value.read(value, run.config);
  }
  return run;
}

std::vector<Case> cases_of(const Setting& setting, const Workload& run,
                           std::span<const CaseRow> rows) {
  std::vector<Case> cases;
  for (const CaseRow& row : rows) {
    cases.push_back(new_case(setting, row.key, with(run, row.options)));
  }
  return cases;
}

Column::Column(const char* name) : Column(name, "") {
  title = figure_named(name)->title;
}

Column::Column(const char* name, std::string its_title)
    : title(std::move(its_title)), figure(name) {
  const Figure* const found = figure_named(name);
  BARESTEP_REQUIRE(found != nullptr, "a table has a figure that there is not");
  text = found->text;
}

Column::Column(std::string its_title,
               std::function<std::string(const Measurement& measured)> its_text)
    : title(std::move(its_title)),
      text([of = std::move(its_text)](const CaseData& data) { return of(*data.measured()); }) {}

namespace {

void add_columns(FindingTable& table, const std::vector<Column>& columns) {
  for (const Column& column : columns) {
    table.columns.push_back(column.title);
    table.figures.push_back(column.figure);
  }
}

}  // namespace

Column speed_against(const std::string& reference, std::string title) {
  return {std::move(title), [=](const CaseData& of) {
            return factor_text(of.results()->compare(reference, of.what().key).speed());
          }};
}

FindingsOf& FindingsOf::timed(std::string name, std::string text, std::optional<Word> word) {
  all_.timed.emplace_back(std::move(name), std::move(text), word);
  return *this;
}

FindingsOf& FindingsOf::judge(std::string name, const Estimate& of, double border,
                              const std::array<std::string, 3>& texts, const std::string& rest) {
  return judge(std::move(name), side_of(of, border), texts, rest);
}

FindingsOf& FindingsOf::judge(std::string name, Word side, const std::array<std::string, 3>& texts,
                              const std::string& rest) {
  const std::string text = by_side(side, texts[0], texts[1], texts[2]);
  return timed(std::move(name), rest.empty() ? text : fmt::format("{}: {}.", text, rest), side);
}

FindingsOf& FindingsOf::untimed(std::string name, std::string text, std::optional<Word> word) {
  all_.untimed.emplace_back(std::move(name), std::move(text), word);
  return *this;
}

FindingsOf& FindingsOf::compare(const std::vector<Compared>& all, Together how) {
  std::vector<Comparison> comparisons;
  std::vector<const Compared*> kept;
  for (const Compared& pair : all) {
    if (how.within_cores &&
        (results_.at(pair.a).what().beyond_cores || results_.at(pair.b).what().beyond_cores)) {
      continue;
    }
    kept.push_back(&pair);
    comparisons.push_back(how.by_sample ? barestep::compare(results_.samples_of(pair.a),
                                                            results_.samples_of(pair.b),
                                                            results_.setting.margin)
                                        : results_.compare(pair.a, pair.b));
  }
  if (how.as_family) adjust_together(comparisons);
  for (std::size_t i = 0; i < kept.size(); ++i) {
    timed(kept[i]->name.empty() ? kept[i]->b : kept[i]->name,
          text_of(comparisons[i], kept[i]->words_b, kept[i]->words_a, kept[i]->noun),
          comparisons[i].word);
  }
  return keep(comparisons);
}

Fastest FindingsOf::fastest(std::string_view what, const std::vector<std::string>& keys,
                            const std::vector<std::string>& words) {
  Fastest fastest = fastest_of(results_.steps_of(keys), results_.setting.margin);
  timed("fastest", fastest_text(fastest, words.empty() ? keys : words, what));
  keep(fastest.others);
  return fastest;
}

FindingsOf& FindingsOf::table(std::string title, const std::vector<Column>& columns,
                              const std::vector<std::string>& keys, std::string name) {
  FindingTable table{.title = std::move(title), .name = std::move(name)};
  add_columns(table, columns);
  for (const std::string& key : keys.empty() ? keys_of(results_) : keys) {
    const CaseData of(results_, results_.at(key));
    table.commands.push_back(command_line_of(of.what()));
    std::vector<std::string>& row = table.rows.emplace_back();
    for (const Column& column : columns) row.push_back(column.text(of));
  }
  return this->table(std::move(table));
}

FindingsOf& FindingsOf::table(FindingTable table) {
  all_.tables.push_back(std::move(table));
  return *this;
}

FindingsOf& FindingsOf::simulated(const std::vector<int>& ranks, const std::vector<Column>& columns,
                                  bool chooses) {
  const Simulations simulations(load_card("h200-nvlink"));
  Setting setting = new_setting(false, true, simulations.card().max_ranks());
  FindingTable table{
      .title = fmt::format("Simulated: the course's size on {}", simulations.card().name),
      .name = "simulated-table"};
  add_columns(table, columns);
  for (const int count : ranks) {
    setting.ranks = {1, count};
    const std::vector<Case> cases = experiment_of(results_.name).cases(setting);
    const Case *fastest = nullptr, *smallest = nullptr;
    double least_s = 0;
    std::int64_t least_bytes = 0;
    for (const Case& what : cases) {
      if (what.workload.ranks == 1 && count != ranks.front()) continue;
      if (const SimulatedStep* const step = simulations.step_of(what.workload);
          step != nullptr && what.workload.ranks > 1) {
        const std::int64_t bytes = max_rank_bytes(what.workload);
        if (fastest == nullptr || step->step_s < least_s) {
          fastest = &what;
          least_s = step->step_s;
        }
        if (smallest == nullptr || bytes < least_bytes) {
          smallest = &what;
          least_bytes = bytes;
        }
      }
      table.commands.push_back(command_line_of(what.workload));
      std::vector<std::string>& row = table.rows.emplace_back();
      for (const Column& column : columns) {
        row.push_back(simulations.text(cases, what, column.text));
      }
    }
    if (fastest == nullptr || !chooses) continue;
    untimed(fmt::format("simulated-{}", count),
            fmt::format("Simulated, on {} of {}: {} is fastest, {} a step, and {} needs least "
                        "memory, {} on a rank.",
                        count, simulations.card().name, fastest->key, simulated_time(least_s),
                        smallest->key, human_bytes(least_bytes)));
  }
  return this->table(std::move(table));
}

FindingsOf& FindingsOf::plot(Plot plot) {
  all_.plots.push_back(std::move(plot));
  return *this;
}

FindingsOf& FindingsOf::phases(std::vector<std::string> labels) {
  if (labels.empty()) labels = keys_of(results_);
  return plot(account_plot(results_.cases, labels));
}

FindingsOf& FindingsOf::phases_of_ranks(std::vector<std::string> labels) {
  if (labels.empty()) labels = keys_of(results_);
  return plot(ranks_plot(results_.cases, labels));
}

FindingsOf& FindingsOf::keep(std::span<const Comparison> comparisons) {
  all_.comparisons.insert(all_.comparisons.end(), comparisons.begin(), comparisons.end());
  return *this;
}

PlotSeries points_of(std::string name, const Results& results, const std::vector<std::string>& keys,
                     const std::function<double(const Measurement&)>& x,
                     const std::function<Estimate(const Measurement&)>& y, double scale) {
  PlotSeries series{.name = std::move(name)};
  for (const std::string& key : keys) {
    const Measurement& measured = results.at(key);
    series.points.push_back(plot_point(x(measured), y(measured), scale));
    series.points.back().is_hollow = measured.what().beyond_cores;
  }
  return series;
}

double batch_of(const Measurement& measured) {
  return static_cast<double>(measured.workload().batch_size());
}

Estimate samples_per_s_of(const Measurement& measured) {
  return measured.samples_per_s();
}

Estimate mean_s_of(const Measurement& measured) {
  return measured.mean_s();
}

}  // namespace barestep
