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
#include "lab/predict/prediction.h"
#include "lab/report/page.h"
#include "lab/study/step_parts.h"
#include "options/option_values.h"

namespace barestep {
namespace {

constexpr const char* kClassFormat = "barestep class 1";
constexpr const char* kClassFile = "class.json";
constexpr const char* kClassCard = "machine.json";  // of a class whose card is a file
constexpr std::int64_t kMaxClassBytes = 1 << 24;
constexpr const char* kSeed = "seed";

/// What the first line of CSV has most of: commas, semicolons or tabs.
char separator_of(std::string_view text) {
  std::map<char, int> counts;
  bool is_quoted = false;
  for (const char character : text.substr(0, text.find('\n'))) {
    is_quoted = is_quoted != (character == '"');
    if (!is_quoted) ++counts[character];
  }
  return std::ranges::max(std::string_view(",;\t"), {},
                          [&](char separator) { return counts[separator]; });
}

}  // namespace

std::vector<std::vector<std::string>> csv_rows(std::string_view text) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  const char separator = separator_of(text);
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

namespace {

bool is_utf8(const std::string& text) {
  using Wrong = nlohmann::json::error_handler_t;
  const nlohmann::json json = text;
  return text.find('\0') == std::string::npos &&
         json.dump(-1, ' ', false, Wrong::ignore) == json.dump(-1, ' ', false, Wrong::replace);
}

std::string in_small_letters(std::string text) {
  for (char& letter : text) {
    if ('A' <= letter && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  }
  return text;
}

/// The name, where a folder may have it, also on Windows.
std::string folder_of(std::string name) {
  for (char& letter : name) {
    const bool is_control = static_cast<unsigned char>(letter) < ' ';
    if (is_control || std::string_view("/\\:*?\"<>|").find(letter) != std::string_view::npos) {
      letter = '-';
    }
  }
  if (name.starts_with('.')) name.front() = '-';
  if (name.ends_with('.')) name.back() = '-';
  constexpr std::string_view kDevices[] = {"con", "prn", "aux", "nul"};
  const bool is_device = std::ranges::find(kDevices, in_small_letters(name)) != std::end(kDevices);
  return is_device ? name + "-" : name;
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
    const std::string name(without_blanks(rows[i].front()));
    const std::string other(rows[i].size() > 1 ? without_blanks(rows[i][1]) : "");
    if (!is_utf8(name + other)) {
      refuse(i + 1, "there is no UTF-8", "save it as 'CSV UTF-8'");
    }
    if (name.empty() || (i == 0 && in_small_letters(name) == "name")) continue;
    const auto cells = std::ranges::count_if(
        rows[i], [](const std::string& cell) { return !without_blanks(cell).empty(); });
    if (cells > 2) {
      refuse(i + 1, fmt::format("there are {} columns", cells), "write a name, and a folder");
    }
    if (name.find('\n') != std::string::npos) {
      refuse(i + 1, "a quote is not closed", "write a name on one line");
    }
    students.push_back(
        {.name = on_one_line(name), .folder = folder_of(other.empty() ? name : other)});
    if (folders.insert(in_small_letters(students.back().folder)).second) continue;
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
  for (const VariedOption& option : header.varied) {
    const auto number = static_cast<std::int64_t>(number_of(option) % values_of(option));
    options[option.name] = text_of_number(option.low + option.step * number);
  }
  return options;
}

}  // namespace

Measurement steady(const Case& what, int starts, double step_s,
                   const std::map<std::string, double>& phase_s) {
  const auto count = static_cast<std::size_t>(what.workload.steps());
  RankSteps steps;
  steps.step_s.assign(count, step_s);
  steps.loss.assign(count, 0);
  steps.queued_s.assign(count, 0);
  for (const auto& [phase, seconds] : phase_s) steps.phase_s[phase].assign(count, seconds);
  const int ranks = what.workload.has_ranks() ? what.workload.ranks : 1;
  Start start;
  start.ranks.assign(static_cast<std::size_t>(ranks), steps);
  return {what, std::vector(static_cast<std::size_t>(starts), start)};
}

std::string script_of(const Sheet& sheet, const std::string& file, const SheetPrice& price,
                      const std::string& arguments, const std::string& preparation) {
  return fmt::format(
      R"(#!/bin/sh
# Measures, and fills in {0}{1}. Run it by `sh {2}`, or by `sbatch {2}`.
# If it is stopped, the same command continues.
#SBATCH --job-name='{0}'
#SBATCH --nodes=1
#SBATCH --exclusive
#SBATCH --time={3}

cd "${{SLURM_SUBMIT_DIR:-$(dirname "$0")}}" || exit
{4}"${{MLP_LAB:-mlp_lab}}" sheet {5} "$@"
)",
      sheet.name, price.starts > 0 ? ": " + price.text() : "", file,
      15 + std::lround(std::ceil(3 * price.seconds / 60)), preparation, arguments);
}

namespace {

struct PricedVariant : SheetPrice {
  std::vector<std::string> words{};  // of the findings that choices are marked by
};

/// Draws until a variant takes about as long as the middle one and has its answers.
class VariantDrawer {
 public:
  VariantDrawer(const ClassPlan& plan, MachineCard card)
      : plan_(plan), simulations_(std::move(card)) {
    require_effects();
    middle_ = price_of(options_with(
        plan_.header, [](const VariedOption& option) { return values_of(option) / 2; }));
    constexpr const char* kOther = "name another --machine, or another sheet";
    if (!middle_.trouble.empty())
      refuse("the middle of what varies cannot be given: " + middle_.trouble, kOther);
    const bool has_price = middle_.unpriced == 0 || middle_.unpriced < middle_.runs;
    if (has_price || !simulations_.card().on_gpu) return;  // cores can be shared
    refuse(fmt::format("none of its runs can be priced on {}, which has {}", middle_.machine,
                       counted(simulations_.card().max_ranks(), "device")),
           kOther);
  }

  /// About choice questions whose right choice the simulator does not tell; empty if there is none.
  [[nodiscard]] std::string note() const {
    std::vector<std::string> questions;
    auto word = middle_.words.begin();  // all variants have it
    for (const MarkedItem& item : plan_.header.items) {
      if (item.by != MarkedBy::kWord) continue;
      const std::string& said = *word++;
      const bool has_choice = std::ranges::any_of(item.choices, [&](const auto& choice) {
        return std::ranges::find(choice.second, said, [](Word one) { return name_of(one); }) !=
               choice.second.end();
      });
      if (has_choice) continue;
      questions.push_back(said.empty() ? item.name
                                       : fmt::format("{} ('{}' is none)", item.name, said));
    }
    if (questions.empty()) return "";
    return fmt::format(
        "on {} the simulator tells no right choice for {} {} of any student; grading goes by each "
        "student's own figures: where no choice stands for them, write the points into marks.csv",
        middle_.machine, questions.size() == 1 ? "question" : "questions", list_text(questions));
  }

  /// Nobody else gets this variant.
  void take(const GivenOptions& options) { used_.insert(options); }

  void draw(Student& student) {
    constexpr int kAttempts = 500;
    int far = 0, others = 0;
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      student.options = options_with(plan_.header, [&](const VariedOption& option) {
        return drawn_number(plan_, student, attempt, option.name);
      });
      const PricedVariant& price = price_of(student.options);
      student.price = price;
      const double ratio = price.step_s / middle_.step_s;
      const bool is_near =
          middle_.step_s == 0 || std::max(ratio, 1 / ratio) <= 1 + plan_.header.band;
      if (!is_near) ++far;
      if (!is_near || price.words != middle_.words || !price.trouble.empty()) continue;
      ++others;
      if (used_.insert(student.options).second) return;
    }
    refuse(
        fmt::format("of {} drawn variants for {}, {} are out of the band of {}, {} have other "
                    "answers than the middle one or are too large, and {} are others'",
                    kAttempts, student.name, far, chosen_percent(plan_.header.band),
                    kAttempts - far - others, others));
  }

 private:
  [[noreturn]] void refuse(std::string why,
                           std::string remedy = "change 'vary' and 'band' in its header") const {
    fail(ExitCode::kConfiguration, {.what = "sheet",
                                    .value = plan_.sheet.name,
                                    .why = std::move(why),
                                    .remedy = std::move(remedy)});
  }

  /// Refuses what varies and changes no run.
  void require_effects() const {
    const MachineCard& card = simulations_.card();
    const auto runs_with = [&](const std::string& name, std::int64_t value) {
      const Setting setting =
          new_setting(plan_.quick, card.on_gpu, card.max_ranks(), {{name, text_of_number(value)}});
      std::string runs;
      for (const Experiment* const experiment : experiments_of(plan_.sheet)) {
        for (const Case& what : experiment->cases(setting)) runs += command_line_of(what.workload);
      }
      return runs;
    };
    for (const auto& [name, low, high, step] : plan_.header.varied) {
      const std::string runs = low == high || name == kSeed ? "" : runs_with(name, low);
      if (!runs.empty() && runs == runs_with(name, high)) {
        refuse(fmt::format("its header varies {}, which changes no run", name));
      }
    }
  }

  const PricedVariant& price_of(GivenOptions options) {
    options.erase(kSeed);  // which no time depends on
    const auto [found, is_new] = prices_.try_emplace(options);
    PricedVariant& price = found->second;
    if (!is_new) return price;
    const MachineCard& card = simulations_.card();
    const auto why = refusal_of([&] {
      const Setting setting = new_setting(plan_.quick, card.on_gpu, card.max_ranks(), options);
      static_cast<SheetPrice&>(price) = barestep::price_of(plan_.sheet, setting, simulations_);
      for (const MarkedItem& item : plan_.header.items) {
        if (item.by == MarkedBy::kWord) price.words.push_back(simulated_word(item, setting, price));
      }
    });
    if (why) price.trouble = why->what();
    return price;
  }

  /// The word of a finding where every start takes the simulated time; empty of what records more
  /// than times.
  [[nodiscard]] std::string simulated_word(const MarkedItem& item, const Setting& setting,
                                           PricedVariant& price) const {
    const Experiment& experiment = experiment_of(item.experiment);
    Results results{.setting = setting, .name = experiment.name, .cases = {}};
    for (const Case& what : experiment.cases(setting)) {
      const bool is_timed =
          !what.record_ops && !what.workload.config.output.monitor && what.made == nullptr;
      const SimulatedStep* const step = is_timed ? simulations_.step_of(what.workload) : nullptr;
      if (step == nullptr) return "";
      std::map<std::string, double> phase_s;
      for (const std::string_view phase : account_phases()) {
        phase_s[std::string(phase)] = step->account.seconds_of(phase);
      }
      results.cases.push_back(steady(what, starts_of(experiment, setting), step->step_s, phase_s));
    }
    const ReportSection section = section_of(experiment, std::move(results));
    if (!section.trouble.empty()) price.trouble = section.trouble;
    const Finding* const finding = section.findings.named(item.finding);
    return finding != nullptr && finding->word ? std::string(name_of(*finding->word)) : "";
  }

  const ClassPlan& plan_;
  Simulations simulations_;
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

bool is_card_file(const std::string& machine) {
  return machine.ends_with(".json");
}

/// As an argument of a shell.
std::string shell_text(const std::string& text) {
  return fmt::format("'{}'", fmt::join(split(text, "'"), "'\\''"));
}

bool has_predictions(const ClassPlan& plan) {
  return std::ranges::find(plan.header.items, MarkedBy::kPrediction, &MarkedItem::by) !=
         plan.header.items.end();
}

std::string run_script(const ClassPlan& plan, const Student& student) {
  const std::string& sheet = plan.sheet.name;
  const std::string machine = simulated_machine(plan.machine);
  const std::string file = is_card_file(machine) ? kClassCard : machine;
  return script_of(
      plan.sheet, "run.sh", student.price,
      fmt::format("{}{}{} --output results", shell_text(sheet + ".md") + " --figures",
                  shell_options(plan, student),
                  machine == kUsualCard ? "" : " --machine " + shell_text(file)),
      has_predictions(plan)
          ? fmt::format("[ -e '{0}{1}' ] || cp '{0}.md' '{0}{1}' || exit\n", sheet, kBeforeEnding)
          : "");
}

Page how_to_hand_in(const ClassPlan& plan, const Student& student) {
  const std::string time = student.price.text();
  Page page{.title = fmt::format("{} of {}", plan.sheet.name, student.name)};
  std::string& text = page.markdown;
  if (has_predictions(plan)) {
    text += fmt::format(
        "1. Some questions ask what you expect. Answer these first, in `{0}.md`, below the "
        "question: `run.sh` keeps that as `{0}{1}`. What counts is the reason, not how close it "
        "is.\n",
        plan.sheet.name, kBeforeEnding);
  }
  text += fmt::format(
      "1. Run `sh run.sh` in this folder, or `sbatch run.sh` under Slurm{2}. `MLP_LAB` names the "
      "program if it is not on `PATH`. "
      "Nothing else should run meanwhile.\n"
      "1. It fills in the tables of `results/{0}{1}`. Write your answers into that file, below "
      "each question.\n"
      "1. If it says INVALID there, `sh run.sh --wait-quiet` repeats what other programs "
      "disturbed, once they leave the cores alone. Your answers stay.\n"
      "1. Hand in this folder, with `results` as the runs wrote it; its `data` may be left out. "
      "Figures are compared with what the runs recorded.\n\n"
      "Your variant is `{3}`. It differs from your neighbor's in its figures, not in its "
      "difficulty. An answer is right if it fits your own figures: where they decide "
      "nothing, \"{4}\" is right.\n",
      plan.sheet.name, kFiguresEnding,
      time.empty()
          ? ""
          : fmt::format(": {}. It says what your machine needs before its first start", time),
      shell_options(plan, student).substr(1), kCannotBeSaid);
  return page;
}

bool has_student(const ClassPlan& plan, const std::string& folder) {
  return std::ranges::find(plan.students, folder, &Student::folder) != plan.students.end();
}

/// `given_out` is what the folder held.
void write_class(const std::filesystem::path& folder, const ClassPlan& plan,
                 const std::optional<ClassPlan>& given_out) {
  const std::string card =
      is_card_file(plan.machine)
          ? InputFile(card_file(plan.machine), "--machine").text(kMaxClassBytes)
          : "";
  if (!card.empty()) replace_file(folder / kClassCard, card);
  nlohmann::json students = nlohmann::json::array();
  for (const Student& student : plan.students) {
    students.push_back({{"name", student.name},
                        {"folder", student.folder},
                        {"options", student.options},
                        {"simulated_s", student.price.step_s}});
    const std::filesystem::path own = folder / "students" / student.folder;
    const bool is_kept = given_out && has_student(*given_out, student.folder);
    if (is_kept && std::filesystem::exists(own / "run.sh")) continue;  // they may work there
    make_folder(own);
    replace_file(own / (plan.sheet.name + ".md"), template_of(plan.sheet, student.name));
    if (!card.empty()) replace_file(own / kClassCard, card);
    replace_file(own / "run.sh", run_script(plan, student));
    write_page(own, how_to_hand_in(plan, student), "README");
  }
  const std::string fence = plan.sheet.header.empty() ? "" : "---\n";
  replace_file(folder / (plan.sheet.name + ".md"),
               fence + plan.sheet.header + fence + plan.sheet.text);
  const nlohmann::json all = {
      {"format", kClassFormat}, {"sheet", plan.sheet.name},
      {"secret", plan.secret},  {"machine", card.empty() ? plan.machine : kClassCard},
      {"quick", plan.quick},    {"students", std::move(students)}};
  replace_file(folder / kClassFile, all.dump(1) + "\n");
}

/// The class in the folder, whose secret, card and variants stay, if there is one.
std::optional<ClassPlan> class_there(const NewClass& requested, const ClassPlan& plan) {
  if (!std::filesystem::exists(requested.output / kClassFile)) return std::nullopt;
  ClassPlan there = load_class(requested.output);
  const bool is_same = there.sheet.name == plan.sheet.name && there.quick == requested.quick &&
                       (requested.secret.empty() || there.secret == requested.secret) &&
                       template_of(there.sheet, "") == template_of(plan.sheet, "") &&
                       (requested.machine.empty() ||
                        json_of(load_card(requested.machine)) == json_of(load_card(there.machine)));
  if (!is_same) {
    fail(ExitCode::kConfiguration,
         {.what = "--output",
          .value = requested.output.string(),
          .why = fmt::format("it holds a class of another text, machine or secret: {}{} on {}",
                             there.sheet.name, there.quick ? " --quick" : "",
                             load_card(there.machine).name),
          .remedy = "name another folder"});
  }
  for (const Student& student : there.students) {
    if (has_student(plan, student.folder)) continue;
    fail(ExitCode::kBadData,
         {.what = "--students",
          .value = requested.students.string(),
          .why = fmt::format("it lacks '{}', whose variant is given out", student.folder),
          .remedy = "add the line again, or name another --output"});
  }
  return there;
}

}  // namespace

std::string simulated_machine(const std::string& machine) {
  return load_card(machine).on_gpu ? machine : kUsualCard;
}

ClassPlan new_class(const NewClass& requested) {
  ClassPlan plan{.sheet = load_sheet(requested.sheet),
                 .secret = requested.secret,
                 .machine = requested.machine.empty() ? kUsualCard : requested.machine,
                 .quick = requested.quick,
                 .students = students_in(requested.students)};
  plan.header = header_of(plan.sheet);
  const std::optional<ClassPlan> there = class_there(requested, plan);
  if (there) {
    plan.secret = there->secret;
    plan.machine = there->machine;
  } else if (plan.secret.empty()) {
    plan.secret = new_secret();
  }
  VariantDrawer drawer(plan, load_card(plan.machine));
  for (Student& student : plan.students) {
    if (!there || !has_student(*there, student.folder)) continue;
    const Student& kept = *std::ranges::find(there->students, student.folder, &Student::folder);
    student.options = kept.options;
    student.price = kept.price;
    drawer.take(student.options);
  }
  for (Student& student : plan.students) {
    if (student.options.empty()) drawer.draw(student);
  }
  plan.note = drawer.note();
  make_folder(requested.output);
  write_class(requested.output, plan, there);
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
  if (plan.machine == kClassCard) plan.machine = (folder / kClassCard).string();
  for (const JsonValue& stored : from.at("students").items()) {
    Student student{.name = stored.at("name").text(),
                    .folder = stored.at("folder").exact_text(),
                    .price = {.step_s = stored.at("simulated_s").number(0, 1e9)}};
    for (const auto& [name, value] : stored.at("options").members()) {
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
