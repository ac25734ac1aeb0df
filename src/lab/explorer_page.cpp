#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>

#include "core/error.h"
#include "core/input_file.h"
#include "core/json_document.h"
#include "core/output_file.h"
#include "lab/child.h"
#include "lab/commands.h"
#include "lab/predict/explorer.h"
#include "lab/predict/machine_card.h"
#include "lab/predict/prediction.h"
#include "lab/report/findings.h"
#include "lab/report/page.h"
#include "lab/report/svg.h"
#include "lab/study/prediction_errors.h"
#include "lab/study/report.h"
#include "lab/study/run_workload.h"
#include "lab/study/study.h"
#include "options/options.h"
#include "session/run_program.h"

namespace barestep {
namespace {

constexpr std::int64_t kMaxPageFileBytes = std::int64_t{64} << 20;
constexpr const char* kStudyCard = "study";

std::string page_file(const char* name) {
  return InputFile(installed_file(BARESTEP_WEB, std::string("web/") + name), "the page's file")
      .text(kMaxPageFileBytes);
}

/// JSON within an element of HTML, which the text "</script>" would end.
std::string json_in_html(std::string_view whole) {
  std::string text;
  for (const char c : whole) {
    if (c == '<') {
      text += "\\u003c";
    } else {
      text += c;
    }
  }
  return text;
}

/// As the page's parser takes it, which is stricter: without a byte order mark.
std::string card_text(const std::string& name_or_file) {
  load_card(name_or_file);  // refuses what is no card
  return JsonDocument(card_file(name_or_file), kMaxPageFileBytes, "machine card", "").root().json();
}

/// {"h200-nvlink": {...}, ...}, the study's machine first.
std::string cards_json(const ExplorerOptions& options) {
  std::vector<std::string> members;
  if (!options.study.empty()) {
    const std::optional<MachineCard> card = Study::open(options.study).card();
    if (!card) {
      fail(ExitCode::kNoInput, {"study", options.study.string(), "it has no card of its machine",
                                "name a study that has measured one"});
    }
    members.push_back(fmt::format(R"("{}":{})", kStudyCard, json_of(*card)));
  }
  if (options.machine.ends_with(".json")) {
    members.push_back(fmt::format(R"("given":{})", card_text(options.machine)));
  }
  for (const std::string& name : card_names()) {
    members.push_back(fmt::format(R"("{}":{})", name, card_text(name)));
  }
  return fmt::format("{{{}}}", fmt::join(members, ","));
}

/// What the page's controls say for a case of a study: {"dim": "1024", ...}.
nlohmann::ordered_json state_of(const Workload& workload) {
  // They do not change what a step does.
  static constexpr std::string_view kOthers[] = {"steps",   "warmup",    "device", "devices",
                                                 "threads", "transport", "seed",   "log-every"};
  nlohmann::ordered_json state = {{"card", kStudyCard}, {"ranks", std::to_string(workload.ranks)}};
  if (workload.scheme() == SchemeKind::kDataParallel) state["scheme"] = name_of(workload.scheme());
  for (const auto& [name, text] : given_of(workload)) {
    if (std::ranges::find(kOthers, name) != std::end(kOthers)) continue;
    state[name == "global-batch-size" ? "batch-size" : name] = text;
  }
  return state;
}

void add_rows(nlohmann::ordered_json& rows, const std::string& experiment, const Results& results) {
  for (std::size_t i = 0; i < results.cases.size(); ++i) {
    const Measurement& measured = results.cases[i];
    if (i >= results.predictions.size() || !results.predictions[i]) continue;
    rows.push_back({{"name", fmt::format("{}: {}", experiment, measured.what().key)},
                    {"measured", time_text(measured.step_s())},
                    {"simulated", simulated_time(results.predictions[i]->step_s)},
                    {"difference", fmt::format("{:+.1f} %", 100 * prediction_error(results, i))},
                    {"state", state_of(measured.workload())}});
  }
}

/// What the study measured, beside what was simulated by its card, and how it was measured:
/// {"rows": [{"name": "timing: step", "measured": "1.2 ms", "simulated": "1.3 ms",
/// "difference": "+8.3 %", "state": {...}}], "checklist": "Checklist: ..."}. Empty without a study.
std::string measurements_json(const ExplorerOptions& options) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  std::vector<Results> all;
  if (!options.study.empty()) {
    const Study study = Study::open(options.study);
    for (const Experiment* experiment : study.measured()) {
      all.push_back(study.results_of(*experiment));
      add_rows(rows, experiment->name, all.back());
    }
  }
  std::vector<const Results*> measured;
  for (const Results& results : all) measured.push_back(&results);
  return nlohmann::ordered_json{{"rows", std::move(rows)},
                                {"checklist", checklist_line(checklist_of(measured))}}
      .dump();
}

std::string first_card(const ExplorerOptions& options) {
  if (options.machine.ends_with(".json")) return "given";
  if (!options.machine.empty()) return options.machine;
  return options.study.empty() ? kUsualCard : kStudyCard;
}

std::string explorer_page(const ExplorerOptions& options) {
  if (!options.machine.empty()) load_card(options.machine);
  const std::map<std::string_view, std::string> parts = {
      {"style", page_file("explore.css") + dark_plot_style()},
      {"script", page_file("explore.js")},
      {"scenes", json_in_html(page_file("scenes.json"))},
      {"cards", json_in_html(cards_json(options))},
      {"measurements", json_in_html(measurements_json(options))},
      {"first card", first_card(options)},
      {"version", options.version},
      {"module", InputFile(page_module(), "the page's module").text(kMaxPageFileBytes)}};
  return filled_template(page_file("explore.html"),
                         [&](std::string_view name) { return parts.at(name); });
}

void answer_question(const std::filesystem::path& file) {
  constexpr const char* kRemedy = "docs/explore.md says what a question has";
  const std::string json = JsonDocument(file, kMaxPageFileBytes, "question", kRemedy).root().json();
  auto question = nlohmann::json::parse(json);
  if (question.is_object() && question.value("card", nlohmann::json()).is_string()) {
    question["card"] = nlohmann::json::parse(card_text(question["card"].get<std::string>()));
  }
  print_now(explore(question.dump()) + "\n");
}

}  // namespace

std::filesystem::path page_module() {
  return installed_file(BARESTEP_WEB_MODULE, "web/engine.base64");
}

void write_explorer(const ExplorerOptions& options) {
  if (!options.question.empty()) return answer_question(options.question);
  replace_file(options.output, explorer_page(options));
  print_now(fmt::format("Page: {}\n", on_one_line(options.output.string())));
  const std::string path = std::filesystem::absolute(options.output).string();
  if (!options.open) return;
  const ChildResult result = run_child({"xdg-open", path});
  if (result.exit_code == 0) return;
  fail(ExitCode::kNoDevice, {"--open", options.output.string(), "no browser could be started",
                             "open this file in a browser"});
}

}  // namespace barestep
