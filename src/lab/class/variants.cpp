#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>

#include "core/error.h"
#include "core/input_file.h"
#include "core/json_document.h"
#include "core/output_file.h"
#include "core/units.h"
#include "lab/class/class.h"
#include "lab/experiments/case_figures.h"
#include "lab/predict/prediction.h"
#include "lab/report/page.h"
#include "lab/study/step_parts.h"
#include "options/option_values.h"

namespace barestep {
namespace {

constexpr const char* kClassFormat = "barestep class 1";
constexpr const char* kClassFile = "class.json";
constexpr std::int64_t kMaxClassBytes = 1 << 24;
constexpr const char* kSeed = "seed";

/// The cells of each line of CSV, as spreadsheets write it: separated by commas, or semicolons if
/// there are no commas; quotes may enclose a cell, and are then doubled within it.
std::vector<std::vector<std::string>> csv_rows(std::string_view text) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  const char separator = text.find(',') == std::string_view::npos ? ';' : ',';
  std::vector<std::vector<std::string>> rows(1, {""});
  bool is_quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string& cell = rows.back().back();
    if (text[i] == '"') {
      const bool is_doubled = is_quoted && i + 1 < text.size() && text[i + 1] == '"';
      if (is_doubled) cell += text[++i];
      is_quoted = is_doubled || !is_quoted;
    } else if (text[i] == separator && !is_quoted) {
      rows.back().emplace_back();
    } else if (text[i] == '\n' && !is_quoted) {
      rows.push_back({""});
    } else if (text[i] != '\r') {
      cell += text[i];
    }
  }
  return rows;
}

/// The name, where a folder may have it.
std::string folder_of(std::string name) {
  for (char& letter : name) {
    const bool is_control = static_cast<unsigned char>(letter) < ' ';
    if (is_control || std::string_view("/\\:*?\"<>|").find(letter) != std::string_view::npos) {
      letter = '-';
    }
  }
  if (name.starts_with('.')) name.front() = '-';
  return name;
}

std::string without_blanks(const std::string& text) {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t") + 1 - first);
}

std::vector<Student> students_in(const std::filesystem::path& file) {
  const auto refuse = [&](std::size_t line, std::string why, std::string remedy) {
    fail(ExitCode::kBadData, {.what = "--students",
                              .value = file.string(),
                              .why = fmt::format("{} in line {}", why, line),
                              .remedy = std::move(remedy)});
  };
  std::vector<Student> students;
  std::set<std::string> folders;
  const auto rows = csv_rows(InputFile(file, "--students").text(kMaxClassBytes));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::string name = without_blanks(rows[i].front());
    const std::string other = rows[i].size() > 1 ? without_blanks(rows[i][1]) : "";
    if (name.empty() || (i == 0 && (name == "name" || name == "Name"))) continue;
    if (name.find('\n') != std::string::npos) {
      refuse(i + 1, "a quote is not closed", "write a name on one line");
    }
    students.push_back(
        {.name = on_one_line(name), .folder = folder_of(other.empty() ? name : other)});
    if (folders.insert(students.back().folder).second) continue;
    refuse(i + 1, fmt::format("'{}' stands twice, the second time", name),
           "give one of them a folder of its own in a second column");
  }
  if (students.empty()) refuse(1, "there is no name", "write a name on each line");
  return students;
}

/// A number that follows from the secret and nobody can guess without it.
std::uint64_t drawn_number(const ClassPlan& plan, const Student& student, int attempt,
                           const std::string& option) {
  const std::string hash =
      hash_of_bytes(fmt::format("{}\n{}\n{}\n{}", plan.secret, student.folder, attempt, option));
  return std::stoull(hash.substr(0, 16), nullptr, 16);
}

std::uint64_t values_of(const VariedOption& option) {
  return static_cast<std::uint64_t>((option.high - option.low) / option.step) + 1;
}

template <class NumberOf>
GivenOptions options_with(const SheetHeader& header, const NumberOf& number_of) {
  GivenOptions options;
  for (const VariedOption& each : header.varied) {
    const auto number = static_cast<std::int64_t>(number_of(each) % values_of(each));
    options[each.name] = text_of_number(each.low + each.step * number);
  }
  return options;
}

/// The word of each finding that choices are marked by, where every start takes the simulated time;
/// empty for what records more than times.
std::vector<std::string> simulated_words(const ClassPlan& plan, const Setting& setting,
                                         const Simulations& simulations, std::string& trouble) {
  std::vector<std::string> words;
  for (const MarkedItem& item : plan.header.items) {
    if (item.by != MarkedBy::kWord) continue;
    const Experiment& experiment = experiment_of(item.finding.substr(0, item.finding.find('.')));
    Results results{.setting = setting, .name = experiment.name, .cases = {}};
    for (const Case& what : experiment.cases(setting)) {
      const bool is_timed = !what.record_ops && !what.workload.config.output.monitor;
      const SimulatedStep* const step =
          is_timed && what.made == nullptr ? simulations.step_of(what.workload) : nullptr;
      if (step == nullptr) continue;
      RankSteps steps;
      const auto count = static_cast<std::size_t>(what.workload.steps());
      steps.step_s.assign(count, step->step_s);
      steps.loss.assign(count, 0);
      steps.queued_s.assign(count, 0);
      for (const std::string_view phase : account_phases()) {
        steps.phase_s[std::string(phase)].assign(count, step->account.seconds_of(phase));
      }
      Start start;
      start.ranks.assign(
          static_cast<std::size_t>(what.workload.has_ranks() ? what.workload.ranks : 1), steps);
      results.cases.emplace_back(
          what, std::vector(static_cast<std::size_t>(starts_of(experiment, setting)), start));
    }
    if (results.cases.size() < experiment.cases(setting).size()) {
      words.emplace_back();
      continue;
    }
    const ReportSection section = section_of(experiment, std::move(results));
    if (!section.trouble.empty()) trouble = section.trouble;
    const Finding* const finding = finding_named(section.findings, item.finding);
    words.emplace_back(finding != nullptr && finding->word ? name_of(*finding->word) : "");
  }
  return words;
}

}  // namespace

Setting ClassPlan::setting(const GivenOptions& options, const MachineCard& card) const {
  return new_setting(quick, card.on_gpu, card.max_ranks(), options);
}

const Finding* finding_named(const Findings& findings, std::string_view name) {
  const std::string_view own = name.substr(name.find('.') + 1);
  for (const std::vector<Finding>* const all : {&findings.timed, &findings.untimed}) {
    const auto found = std::ranges::find(*all, own, &Finding::name);
    if (found != all->end()) return &*found;
  }
  return nullptr;
}

PricedVariant priced(const ClassPlan& plan, const GivenOptions& options, const MachineCard& card) {
  PricedVariant price;
  const Simulations simulations(card);
  const auto refusal = refusal_of([&] {
    const Setting setting = plan.setting(options, card);
    for (const Experiment* const experiment : experiments_of(plan.sheet)) {
      const int starts = starts_of(*experiment, setting);
      for (const Case& what : experiment->cases(setting)) {
        price.starts += starts;
        const SimulatedStep* const step = simulations.step_of(what.workload);
        if (step == nullptr) continue;
        price.step_s += step->step_s;
        price.seconds += starts * seconds_of_start(what.workload, step->step_s);
        if (price.trouble.empty()) price.trouble = why_too_large(what.workload, card);
      }
    }
    price.words = simulated_words(plan, setting, simulations, price.trouble);
  });
  if (refusal) price.trouble = refusal->what();
  return price;
}

namespace {

/// Draws until a variant takes about as long as the middle one and has its answers.
class VariantDrawer {
 public:
  VariantDrawer(ClassPlan& plan, const MachineCard& card) : plan_(plan), card_(card) {
    middle_ = price_of(options_with(
        plan_.header, [](const VariedOption& option) { return values_of(option) / 2; }));
    if (!middle_.trouble.empty())
      refuse("the middle of what varies cannot be given: " + middle_.trouble);
  }

  void draw(Student& student) {
    constexpr int kAttempts = 500;
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      student.options = options_with(plan_.header, [&](const VariedOption& option) {
        return drawn_number(plan_, student, attempt, option.name);
      });
      const PricedVariant& price = price_of(student.options);
      student.step_s = price.step_s;
      const double ratio = price.step_s / middle_.step_s;
      const bool is_near =
          middle_.step_s == 0 || std::max(ratio, 1 / ratio) <= 1 + plan_.header.band;
      if (!is_near || price.words != middle_.words || !price.trouble.empty()) continue;
      if (used_.insert(student.options).second) return;
    }
    refuse(
        fmt::format("{} drawn variants for {} are out of the band of {}, have other answers than "
                    "the middle one, or are others'",
                    kAttempts, student.name, chosen_percent(plan_.header.band)));
  }

 private:
  [[noreturn]] void refuse(std::string why) const {
    fail(ExitCode::kConfiguration, {.what = "sheet",
                                    .value = plan_.sheet.name,
                                    .why = std::move(why),
                                    .remedy = "change 'vary' and 'band' in its header"});
  }

  const PricedVariant& price_of(GivenOptions options) {
    options.erase(kSeed);  // which no time depends on
    const auto [found, is_new] = prices_.try_emplace(options);
    if (is_new) found->second = priced(plan_, options, card_);
    return found->second;
  }

  ClassPlan& plan_;
  const MachineCard& card_;
  std::map<GivenOptions, PricedVariant> prices_;
  PricedVariant middle_;
  std::set<GivenOptions> used_;
};

std::string new_secret() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

/// What a run of the student's sheet needs besides its names.
std::string shell_options(const ClassPlan& plan, const Student& student) {
  return options_text(student.options) + (plan.quick ? " --quick" : "");
}

std::string cost_text(const PricedVariant& price) {
  std::string text = counted(price.starts, "start");
  if (price.seconds > 0) {
    text +=
        fmt::format(", about {}", counted(std::lround(std::ceil(price.seconds / 60)), "minute"));
  }
  return text;
}

/// For sh, and for sbatch, which reads the lines of #SBATCH.
std::string script_of(const ClassPlan& plan, const Student& student, const PricedVariant& price) {
  const std::string& sheet = plan.sheet.name;
  const Sheet given{.name = sheet, .text = template_of(plan.sheet, student.name)};
  std::string others;
  for (const Experiment* const each : experiments_of(plan.sheet)) {
    const auto named = experiments_of(given);
    if (std::ranges::find(named, each) == named.end()) others += fmt::format(" {}", each->name);
  }
  const std::string options = shell_options(plan, student);
  std::string text = fmt::format(
      "#!/bin/sh\n# Measures, then fills in the tables of {0}.md: {1}. Run it by `sh run.sh`, or "
      "by "
      "`sbatch run.sh`.\n# If it is stopped, the same command continues.\n"
      "#SBATCH --job-name={0}\n#SBATCH --nodes=1\n#SBATCH --exclusive\n#SBATCH --time={2}\n\n"
      "cd \"${{SLURM_SUBMIT_DIR:-$(dirname \"$0\")}}\" || exit\n"
      "echo \"{1}\"\n",
      sheet, cost_text(price), 15 + std::lround(std::ceil(3 * price.seconds / 60)));
  if (!others.empty()) {
    text += fmt::format("\"${{MLP_LAB:-mlp_lab}}\" run{}{} --output results \"$@\" || exit\n",
                        others, options);
  }
  return text +
         fmt::format("\"${{MLP_LAB:-mlp_lab}}\" sheet {}.md --figures{} --output results \"$@\"\n",
                     sheet, options);
}

std::string how_to_hand_in(const ClassPlan& plan, const Student& student,
                           const PricedVariant& price) {
  return fmt::format(
      "# {0} of {1}\n\n"
      "1. Run `sh run.sh` in this folder, or `sbatch run.sh` under Slurm ({2}). `MLP_LAB` names "
      "the "
      "program if it is not on `PATH`. Nothing else should run meanwhile.\n"
      "2. It fills in the tables of `results/{0}-figures.md`. Write your answers into that file, "
      "below "
      "each question.\n"
      "3. Hand in this folder, with `results` as the runs wrote it. Figures are compared with what "
      "the "
      "runs recorded.\n\n"
      "Your variant is `{3}`. It differs from your neighbor's in its figures, not in its "
      "difficulty. "
      "An answer is right if it fits your own figures: where they decide nothing, \"{4}\" is "
      "right.\n",
      plan.sheet.name, markdown_text(student.name), cost_text(price),
      shell_options(plan, student).substr(1), kCannotBeSaid);
}

void write_class(const std::filesystem::path& folder, const ClassPlan& plan,
                 const MachineCard& card) {
  nlohmann::json students = nlohmann::json::array();
  std::map<GivenOptions, PricedVariant> prices;
  for (const Student& student : plan.students) {
    students.push_back({{"name", student.name},
                        {"folder", student.folder},
                        {"options", student.options},
                        {"simulated_s", student.step_s}});
    GivenOptions options = student.options;
    options.erase(kSeed);
    const auto [price, is_new] = prices.try_emplace(options);
    if (is_new) price->second = priced(plan, options, card);
    const std::filesystem::path own = folder / "students" / student.folder;
    make_folder(own);
    replace_file(own / (plan.sheet.name + ".md"), template_of(plan.sheet, student.name));
    replace_file(own / "run.sh", script_of(plan, student, price->second));
    replace_file(own / "README.md", how_to_hand_in(plan, student, price->second));
  }
  const std::string fence = plan.sheet.header.empty() ? "" : "---\n";
  replace_file(folder / (plan.sheet.name + ".md"),
               fence + plan.sheet.header + fence + plan.sheet.text);
  const nlohmann::json all = {{"format", kClassFormat}, {"sheet", plan.sheet.name},
                              {"secret", plan.secret},  {"machine", plan.machine},
                              {"quick", plan.quick},    {"students", std::move(students)}};
  replace_file(folder / kClassFile, all.dump(1) + "\n");
}

/// The secret of the class in the folder, or a new one.
std::string secret_for(const NewClass& requested, const std::string& sheet) {
  if (!std::filesystem::exists(requested.output / kClassFile)) {
    return requested.secret.empty() ? new_secret() : requested.secret;
  }
  const ClassPlan there = load_class(requested.output);
  const bool is_same = there.sheet.name == sheet && there.quick == requested.quick &&
                       (requested.secret.empty() || there.secret == requested.secret);
  if (is_same) return there.secret;
  fail(ExitCode::kConfiguration, {.what = "--output",
                                  .value = requested.output.string(),
                                  .why = fmt::format("it holds a class of {}{}", there.sheet.name,
                                                     there.quick ? " with --quick" : ""),
                                  .remedy = "name another folder"});
}

}  // namespace

ClassPlan new_class(const NewClass& requested) {
  ClassPlan plan{.sheet = load_sheet(requested.sheet),
                 .machine = requested.machine,
                 .quick = requested.quick,
                 .students = students_in(requested.students)};
  plan.header = header_of(plan.sheet);
  const MachineCard card = load_card(plan.machine);
  plan.secret = secret_for(requested, plan.sheet.name);
  VariantDrawer drawer(plan, card);
  for (Student& student : plan.students) drawer.draw(student);
  make_folder(requested.output);
  write_class(requested.output, plan, card);
  return plan;
}

ClassPlan load_class(const std::filesystem::path& folder) {
  if (!std::filesystem::exists(folder / kClassFile)) {
    fail(ExitCode::kNoInput, {.what = "class",
                              .value = folder.string(),
                              .why = "there is none in this folder",
                              .remedy = "name the --output of mlp_lab class new"});
  }
  const JsonDocument document(folder / kClassFile, kMaxClassBytes, "class",
                              "make it again by mlp_lab class new");
  const JsonValue from = document.root();
  if (from.at("format").text() != kClassFormat) {
    from.at("format").refuse(fmt::format("is not '{}'", kClassFormat));
  }
  ClassPlan plan{.secret = from.at("secret").exact_text(),
                 .machine = from.at("machine").exact_text(),
                 .quick = from.at("quick").boolean()};
  for (const JsonValue& each : from.at("students").items()) {
    Student student{.name = each.at("name").text(),
                    .folder = each.at("folder").exact_text(),
                    .step_s = each.at("simulated_s").number(0, 1e9)};
    for (const auto& [name, value] : each.at("options").members()) {
      student.options[name] = value.exact_text();
    }
    plan.students.push_back(std::move(student));
  }
  plan.sheet = load_sheet((folder / (from.at("sheet").exact_text() + ".md")).string());
  plan.header = header_of(plan.sheet);
  document.require_known();
  return plan;
}

}  // namespace barestep
