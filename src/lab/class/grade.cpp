#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <charconv>
#include <cmath>
#include <future>
#include <map>
#include <mutex>
#include <set>
#include <tuple>

#include "core/error.h"
#include "core/host.h"
#include "core/input_file.h"
#include "core/json_document.h"
#include "core/lookup.h"
#include "core/units.h"
#include "lab/child.h"
#include "lab/class/class.h"
#include "lab/experiments/calculations.h"
#include "lab/experiments/case_figures.h"
#include "lab/report/page.h"
#include "options/option_values.h"
#include "options/options.h"
#include "profiler/peaks.h"

namespace barestep {
namespace {

constexpr std::int64_t kMaxHandedBytes = 1 << 22;
constexpr std::size_t kFirstSteps = 5;
constexpr double kSameLoss = 1e-6;  // relative, of other machines
/// Of a GPU and the CPU: each step differs by as much (tests/gpu/cuda_parity_test.cpp).
constexpr double kSameLossOfGpu = kFirstSteps * kSameLoss;

// Figures as text.

/// A number at the start of a text, its unit, and a time in seconds.
struct ReadFigure {
  double number = 0;
  double rounding = 0.5;  // half of its last digit
  std::string unit{};
  double scale = 1;

  [[nodiscard]] double plain() const { return scale * number; }
};

constexpr std::pair<std::string_view, double> kUnitsOfTime[] = {
    {"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}};

std::optional<ReadFigure> read_figure(std::string_view text) {
  std::string plain(text.substr(0, text.find(' ')));
  const std::size_t comma = plain.find(',');
  const bool is_point = comma != std::string::npos && plain.find('.') == std::string::npos &&
                        (plain.size() - comma != 4 || plain.starts_with("0"));
  if (is_point) plain[comma] = '.';
  std::erase(plain, ',');
  ReadFigure figure;
  const auto [end, error] = read_real(plain, figure.number);
  if (error != std::errc{}) return std::nullopt;
  const std::string_view read(plain.data(), static_cast<std::size_t>(end - plain.data()));
  const std::size_t point = read.find('.');
  if (point != std::string_view::npos) {
    figure.rounding = 0.5 * std::pow(0.1, static_cast<double>(read.size() - point - 1));
  }
  figure.unit = plain.substr(read.size());
  const std::size_t blank = text.find(' ');
  if (figure.unit.empty() && blank != std::string_view::npos && text[blank + 1] != '(') {
    figure.unit = text.substr(blank + 1, text.find_first_of(" (", blank + 1) - blank - 1);
  }
  if (const double* const scale = found_in(kUnitsOfTime, figure.unit)) {
    figure.unit = "s";
    figure.scale = *scale;
  }
  return figure;
}

/// "10.0 %" of "3.10 ms (10.0 %)"; empty if there is no such share.
std::string share_in(const std::string& text) {
  const std::size_t open = text.find('('), end = text.find("%)");
  const std::string share = open < end ? text.substr(open + 1, end - open) : "";
  return share.find(" to ") == std::string::npos ? share : "";
}

/// Whether what is written is the figure, and its share, as far as both are rounded; a figure may
/// be written without its unit. `slack` is a share of it.
bool is_same_figure(const std::string& figure, const std::string& written, double slack = 0) {
  if (figure == written) return true;
  const auto a = read_figure(figure), b = read_figure(written);
  if (!a || !b || (!b->unit.empty() && a->unit != b->unit)) return false;
  const auto is_near = [&](double expected, double number, double rounding) {
    const double size = std::abs(expected);
    const double rounded = std::max(std::min(rounding, 0.05 * size), 0.005 * size);
    return std::abs(expected - number) <= (rounded + slack * size) * (1 + 1e-9);
  };
  const std::string share = share_in(figure), written_share = share_in(written);
  const bool has_share = !share.empty() && !written_share.empty();
  return (is_near(a->plain(), b->plain(), b->scale * b->rounding) ||
          (b->unit.empty() && is_near(a->number, b->number, b->rounding))) &&
         (!has_share || is_same_figure(share, written_share, slack));
}

std::string digits_of(std::string_view text) {
  std::string digits;
  for (const char each : text.substr(0, text.find(' '))) {
    if (std::isdigit(static_cast<unsigned char>(each)) != 0) digits += each;
  }
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size()));
  digits.erase(digits.find_last_not_of('0') + 1);
  return digits;
}

/// Whether a slip of the hand explains it: a point moved, digits exchanged, or one digit wrong.
bool is_mistyped(const std::string& recorded, const std::string& written) {
  std::string a = digits_of(recorded), b = digits_of(written);
  if (a.size() != b.size() || a.empty()) return false;
  int wrong = 0;
  for (std::size_t i = 0; i < a.size(); ++i) wrong += a[i] != b[i] ? 1 : 0;
  std::ranges::sort(a);
  std::ranges::sort(b);
  return wrong == 1 || a == b;
}

// Files.

/// What a student handed in.
struct HandedFiles {
  std::filesystem::path study{}, sheet{}, before{};
};

HandedFiles files_in(const std::filesystem::path& folder, const std::string& sheet) {
  HandedFiles found;
  const auto take = [](std::filesystem::path& kept, const std::filesystem::path& path) {
    if (kept.empty()) kept = path;
  };
  for (const std::filesystem::path& path : files_below(folder)) {
    const std::string name = path.filename().string();
    if (name == kStudyName) take(found.study, path.parent_path());
    if (name == fmt::format("{}{}", sheet, kFiguresEnding)) take(found.sheet, path);
    if (name == fmt::format("{}{}", sheet, kBeforeEnding)) take(found.before, path);
  }
  return found;
}

/// Takes the student's folder out of those that were handed in; empty if it is not there.
std::filesystem::path taken_folder(std::set<std::filesystem::path>& folders, const ClassPlan& plan,
                                   const Student& student) {
  const auto is_exact = [&](const std::filesystem::path& folder) {
    return folder.filename().string() == student.folder;
  };
  auto found = std::ranges::find_if(folders, is_exact);
  if (found == folders.end()) {
    found = std::ranges::find_if(folders, [&](const std::filesystem::path& folder) {
      const std::string name = folder.filename().string();
      return name.starts_with(student.folder + "_") &&
             std::ranges::find(plan.students, name, &Student::folder) == plan.students.end();
    });
  }
  if (found == folders.end()) return {};
  return folders.extract(found).value();
}

// A student's work.

/// The tables of a sheet, each with its title row first.
std::vector<std::vector<std::vector<std::string>>> tables_in(std::string_view markdown) {
  std::vector<std::vector<std::vector<std::string>>> tables;
  for (const std::vector<std::string>& block : blocks_of(markdown)) {
    if (!block.front().starts_with('|')) continue;
    tables.emplace_back();
    for (const std::string& line : block) tables.back().push_back(cells_of(line));
  }
  return tables;
}

/// The figures of the sheet's tables that were measured.
std::vector<HandedFigure> figures_of(const Sheet& sheet, const std::string& handed,
                                     const FillIn& recorded) {
  std::vector<HandedFigure> figures;
  const auto all = tables_in(handed);
  std::set<std::size_t> used;
  for (const auto& table : tables_in(sheet.text)) {
    std::size_t at = 0;
    while (at < all.size() && (used.contains(at) || all[at].front() != table.front())) ++at;
    used.insert(at);
    for (std::size_t row = 2; row < table.size(); ++row) {
      for (std::size_t i = 0; i < table[row].size(); ++i) {
        const std::string& cell = table[row][i];
        const bool is_name = cell.starts_with(kNameOpen) && cell.ends_with(kNameClose);
        if (!is_name || cell.substr(kNameOpen.size()).starts_with("simulated.")) continue;
        HandedFigure figure{.name = cell.substr(kNameOpen.size(), cell.size() - 4)};
        figure.recorded = recorded(figure.name);
        if (at < all.size() && row < all[at].size() && i < all[at][row].size()) {
          figure.written = all[at][row][i];
        }
        if (const auto number = read_figure(figure.recorded)) figure.number = number->plain();
        figures.push_back(std::move(figure));
      }
    }
  }
  return figures;
}

/// How many checks there were, and how many found nothing.
struct Tally {
  int passed = 0, all = 0;

  bool count(bool is_passed) {
    ++all;
    passed += is_passed ? 1 : 0;
    return is_passed;
  }
  [[nodiscard]] double share() const { return all == 0 ? 0 : double(passed) / all; }
};

/// Figures that follow from the times of their experiment, and from a variant alone.
constexpr std::array<std::string_view, 5> kOfTimes = {"samples-per-s", "sample-time", "speed-up",
                                                      "efficiency", "exposed"};
constexpr std::array<std::string_view, 4> kOfVariant = {"batch", "ranks", "micro-steps", "split"};

/// Of a case of a student; without both if none of them can be repeated.
struct AnotherRun {
  bool is_asked = false;
  std::optional<Start> start{};
  std::string why_not{};  // it failed
};

/// In seconds.
struct WrittenTimes {
  double step_s = NAN, exposed_s = NAN;
};

/// "batch-sweep.batch-32" of "batch-sweep.batch-32.seconds".
std::string without_last(const std::string& name) {
  return name.substr(0, name.rfind('.'));
}

class StudentsWork {
 public:
  StudentsWork(const ClassPlan& plan, const Student& student, const MachineCard& gpus,
               const std::filesystem::path& folder)
      : plan_(plan), gpus_(gpus) {
    graded_.student = &student;
    if (folder.empty()) {
      found(MistakeKind::kNothing, "nothing was handed in");
      return;
    }
    const HandedFiles files = files_in(folder, plan.sheet.name);
    const auto text_of = [](const std::filesystem::path& file) {
      return file.empty() ? "" : InputFile(file, "sheet").text(kMaxHandedBytes);
    };
    const auto why = refusal_of([&] {
      handed_ = text_of(files.sheet);
      before_ = questions_of({.name = plan.sheet.name, .text = text_of(files.before)});
      if (files.study.empty()) return;
      const Study study = Study::open(files.study);
      identity_ = study.identity();
      report_ = report_of(study);
    });
    if (why) found(MistakeKind::kUnreadable, why->what());
    if (!why && files.study.empty()) {
      found(MistakeKind::kMissing, "the folder that the runs wrote, results, is not there");
    }
    if (report_) complete();
  }

  [[nodiscard]] const Student& student() const { return *graded_.student; }

  /// Each case that was measured, and its name: "batch-sweep.batch-32".
  template <class Visit>
  void for_cases(const Visit& visit) const {
    if (!report_) return;
    for (const ReportSection& section : report_->sections) {
      for (const Measurement& measured : section.results.cases) {
        visit(measured, fmt::format("{}.{}", section.experiment->name, measured.what().key));
      }
    }
  }

  /// A case that another run makes in seconds, on any machine: of those with the fewest ranks or
  /// devices the one that took least; null if there is none. GPUs draw random data of their own, so
  /// of these it reads files.
  [[nodiscard]] const Measurement* case_to_rerun() const {
    const Measurement* found = nullptr;
    const auto cost_of = [](const Measurement& measured) {
      const Workload& workload = measured.workload();
      return std::tuple(workload.scheme() != SchemeKind::kSingle, workload.ranks,
                        measured.starts().front().wall_s);
    };
    for_cases([&](const Measurement& measured, const std::string&) {
      const Workload& workload = measured.workload();
      const bool is_plain =
          !workload.pytorch && measured.what().made == nullptr && !is_log(measured);
      const bool is_near = workload.on_gpu
                               ? workload.config.data.kind == DataKind::kNpy &&
                                     workload.config.device.precision == Precision::kFp32
                               : workload.config.data.kind == DataKind::kRandn;
      if (!is_plain || !is_near) return;
      if (found == nullptr || cost_of(measured) < cost_of(*found)) found = &measured;
    });
    return found;
  }

  /// `others` are the students who have a record as well, by its hash; `rerun` is of
  /// case_to_rerun().
  GradedStudent grade(const std::map<std::string, std::set<const Student*>>& others,
                      const AnotherRun& rerun) {
    if (graded_.has(MistakeKind::kNothing)) {
      const Mark nothing{.points = 0, .text = "Nothing was handed in."};
      mark_items(
          {{kIdentityCheck, nothing}, {kArithmeticCheck, nothing}, {kPhysicsCheck, nothing}});
    } else {
      read_figures();
      mark_items({{kIdentityCheck, identity(others, rerun)},
                  {kArithmeticCheck, arithmetic()},
                  {kPhysicsCheck, physics()}});
    }
    return std::move(graded_);
  }

 private:
  void found(MistakeKind kind, std::string text) {
    graded_.mistakes.push_back({kind, std::move(text)});
  }

  /// Experiments that are calculated need no records; of others, says which are missing.
  void complete() {
    graded_.machine = machine_text(*report_);
    for (const Experiment* const each : experiments_of(plan_.sheet)) {
      if (report_->section(each->name) != nullptr) continue;
      const Setting setting = report_->sections.front().results.setting;
      if (each->cases(setting).empty()) {
        report_->sections.push_back(
            section_of(*each, Results{.setting = setting, .name = each->name, .cases = {}}));
      } else {
        missing_.insert(each->name);
        found(MistakeKind::kMissing, fmt::format("{} was not measured to its end", each->name));
      }
    }
    std::set<std::string> busy;
    for_cases([&](const Measurement& measured, const std::string& name) {
      const std::string why = measured.trouble(), experiment = without_last(name);
      if (why.empty() || !busy.insert(experiment).second) return;
      found(MistakeKind::kBusy, fmt::format("{}: {}", experiment, why));
    });
  }

  void read_figures() {
    const std::optional<SheetRuns> runs =
        report_ ? std::optional<SheetRuns>(std::in_place, *report_, gpus_) : std::nullopt;
    graded_.figures = figures_of(plan_.sheet, handed_, [&](std::string_view name) {
      const std::optional<SheetName> figure = sheet_name(name);
      const bool is_there = runs && std::ranges::all_of(figure->experiments, [&](const auto& each) {
                              return report_->section(each) != nullptr;
                            });
      return is_there ? figure->text(*runs) : std::string();
    });
    if (runs && missing_.empty()) {
      keys_ = questions_in(markdown_of(plan_.sheet, *runs, SheetCopy::kKey));
    }
  }

  /// By what the files say, and, if it was run again, by its losses and weights.
  Mark identity(const std::map<std::string, std::set<const Student*>>& others,
                const AnotherRun& rerun) {
    if (!report_) return {.points = 0, .text = "There are no records."};
    const std::size_t before = graded_.mistakes.size();
    if (identity_->options != student().options || identity_->quick != plan_.quick) {
      found(MistakeKind::kVariant,
            fmt::format("the study is of{}, the variant is{}", options_text(identity_->options),
                        options_text(student().options)));
    }
    check_starts(others);
    bool has_logs = false;
    for_cases([&](const Measurement& each, const auto&) { has_logs = has_logs || is_log(each); });
    std::string text =
        has_logs ? "Options and hashes of the records are those of the variant; losses "
                   "in a student's own log lines are not compared"
                 : "Options, seed, losses and hashes of the records are those of the variant";
    if (rerun.start) {
      text += check_rerun(*rerun.start);
    } else if (rerun.is_asked && rerun.why_not.empty()) {
      text += identity_->on_gpu
                  ? "; no run was repeated, since GPUs draw other random data than the CPU"
                  : "; no run was repeated, since none of them can be";
    }
    const bool is_same = graded_.mistakes.size() == before;
    if (!rerun.why_not.empty()) found(MistakeKind::kNoRerun, rerun.why_not);
    return {.points = is_same ? 1 : 0, .text = is_same ? text + "." : "See what was found."};
  }

  /// That the starts of a case are runs of the variant which repeat each other's losses, as they
  /// were recorded, and that no other student has them.
  void check_starts(const std::map<std::string, std::set<const Student*>>& others) {
    std::map<MistakeKind, std::set<std::string>> all;
    for_cases([&](const Measurement& measured, const std::string& name) {
      for (const Start& start : measured.starts()) {
        if (start.is_altered || start.hash.empty()) all[MistakeKind::kAltered].insert(name);
        if (!start.hash.empty() && others.at(start.hash).size() > 1) {
          all[MistakeKind::kCopied].insert(name);
        }
        const bool is_run = !is_log(measured);  // a student's own program may draw other numbers
        if (is_run && (!has_options(measured, start) ||
                       !have_same_losses(start, measured.starts().front(), kSameLoss))) {
          all[MistakeKind::kVariant].insert(name);
        }
      }
    });
    for (const auto& [kind, names] : all) {
      found(kind, fmt::format("{}: {}",
                              kind == MistakeKind::kAltered
                                  ? "this figure is not the one that the run recorded"
                              : kind == MistakeKind::kCopied
                                  ? "another student handed in the same records"
                                  : "these runs are not those of the variant",
                              fmt::join(names, ", ")));
    }
  }

  /// Whether a start has the values that its case has of the options that vary.
  [[nodiscard]] bool has_options(const Measurement& measured, const Start& start) const {
    if (start.configuration.empty()) return true;
    const JsonDocument written(start.configuration, {"configuration", "", ""});
    const std::string expected = json_of(measured.workload().config);
    const JsonDocument made(expected, {"configuration", "", ""});
    std::set<std::string> names = {"global-batch-size", "io-delay-ms", "delay-ms", "slow-rank"};
    for (const auto& [name, value] : student().options) names.insert(name);
    return std::ranges::all_of(names, [&](const std::string& name) {
      const char* const key = name.c_str();
      const bool is_known = written.root().has(key) && made.root().has(key);
      return !is_known || written.root().at(key).json() == made.root().at(key).json();
    });
  }

  static bool have_same_losses(const Start& a, const Start& b, double tolerance) {
    return a.ranks.front().loss.size() == b.ranks.front().loss.size() &&
           loss_difference(a, b, kFirstSteps) <= tolerance;
  }

  /// Whether it was read from the log lines of the student's own program.
  static bool is_log(const Measurement& measured) {
    return measured.starts().front().library == kLogged;
  }

  std::string check_rerun(const Start& rerun) {
    const Measurement& measured = *case_to_rerun();
    const Start& start = measured.starts().front();
    if (!have_same_losses(rerun, start, measured.workload().on_gpu ? kSameLossOfGpu : kSameLoss)) {
      found(MistakeKind::kVariant,
            fmt::format(
                "the losses of {} are not those of another run: {:.6g} and {:.6g} in the first "
                "step",
                measured.what().key, start.ranks.front().loss.front(),
                rerun.ranks.front().loss.front()));
      return "";
    }
    const bool is_same = !start.weights_hash.empty() && start.weights_hash == rerun.weights_hash;
    return is_same ? ", and another run ended with the same weights, to the bit"
                   : ", and another run had the same losses";
  }

  /// The figures of the sheet are those of the records, and follow from each other.
  Mark arithmetic() {
    Tally tally;
    if (handed_.empty()) return {.points = 0, .text = "The sheet with the figures is not there."};
    std::vector<const HandedFigure*> wrong;
    int empty = 0;
    for (const HandedFigure& figure : graded_.figures) {
      if (figure.recorded.empty()) continue;
      if (figure.written.empty()) ++empty;
      const bool is_same = is_same_figure(figure.recorded, figure.written);
      if (!tally.count(is_same) && !figure.written.empty()) wrong.push_back(&figure);
    }
    if (empty > 0) {
      found(MistakeKind::kOther,
            fmt::format("{} of the tables left empty",
                        empty == 1 ? "1 figure is" : fmt::format("{} figures are", empty)));
    }
    name_wrong(wrong);
    check_relations(wrong, tally);
    for_cases([&](const Measurement& measured, const std::string& name) {
      if (!is_log(measured)) return;
      const std::string why = wrong_line_of(measured);
      if (!tally.count(why.empty())) found(MistakeKind::kArithmetic, name + ": " + why);
    });
    return {
        .points = tally.share(),
        .text = fmt::format("{} of {} figures and their ratios are right{}.", tally.passed,
                            tally.all, report_ ? "" : ", as far as they follow from each other")};
  }

  void name_wrong(std::vector<const HandedFigure*> wrong) {
    while (!wrong.empty()) {
      const HandedFigure& figure = *wrong.front();
      wrong.erase(wrong.begin());
      const std::string what = fmt::format(
          "this figure is not the one that the run recorded: {} is written '{}', "
          "recorded '{}'",
          figure.name, figure.written, figure.recorded);
      const auto other = std::ranges::find_if(wrong, [&](const HandedFigure* each) {
        return is_same_figure(figure.recorded, each->written) &&
               is_same_figure(each->recorded, figure.written);
      });
      if (other != wrong.end()) {
        found(MistakeKind::kSwapped,
              fmt::format("{}, and that of {} the other way round", what, (*other)->name));
        wrong.erase(other);
      } else {
        found(is_mistyped(figure.recorded, figure.written) ? MistakeKind::kMistyped
                                                           : MistakeKind::kOther,
              what);
      }
    }
  }

  /// The cases of an experiment as if their steps took the times in the sheet; a case without them,
  /// and what follows from it, is no number.
  [[nodiscard]] Results written_results(const std::string& experiment,
                                        const std::map<std::string, WrittenTimes>& times) const {
    Results results{.setting = {}, .name = experiment, .cases = {}};
    if (const ReportSection* const section = report_ ? report_->section(experiment) : nullptr) {
      results.setting = section->results.setting;
    } else {
      results.setting = new_setting(plan_.quick, false, 2, student().options);
      if (results.setting.ranks.empty()) results.setting.ranks = {1, 2, 4};
    }
    for (const Case& what : experiment_of(experiment).cases(results.setting)) {
      const auto found = times.find(fmt::format("{}.{}", experiment, what.key));
      const WrittenTimes time = found == times.end() ? WrittenTimes{} : found->second;
      results.cases.push_back(steady(what, 1, time.step_s, {{"communication", time.exposed_s}}));
    }
    return results;
  }

  /// Ratios and rates against the times in the sheet, and, where there are no records, what follows
  /// from the variant; unless one of them is named already.
  void check_relations(const std::vector<const HandedFigure*>& wrong, Tally& tally) {
    std::map<std::string, WrittenTimes> times;
    double slack = 0;  // two rounded times
    std::vector<const HandedFigure*> written;
    for (const HandedFigure& figure : graded_.figures) {
      if (figure.written.empty() || std::ranges::find(wrong, &figure) != wrong.end()) continue;
      written.push_back(&figure);
      const std::string kind = figure.kind();
      const auto read = read_figure(figure.written);
      const bool is_step = kind == "time" || kind == "seconds";
      if ((!is_step && kind != "exposed") || !read || !(read->number > 0)) continue;
      WrittenTimes& of = times[without_last(figure.name)];
      (is_step ? of.step_s : of.exposed_s) = read->plain();
      slack = std::max(slack, 2 * read->rounding / read->number);
    }
    std::map<std::string, Results> all;
    for (const HandedFigure* const figure : written) {
      const std::string kind = figure->kind();
      const bool is_of_times = std::ranges::find(kOfTimes, kind) != kOfTimes.end();
      const bool is_of_variant = std::ranges::find(kOfVariant, kind) != kOfVariant.end();
      if (!is_of_times && (report_ || !is_of_variant)) continue;
      const std::string experiment = without_last(without_last(figure->name));
      const auto [results, is_new] = all.try_emplace(experiment);
      if (is_new) results->second = written_results(experiment, times);
      check_relation(*figure, results->second, is_of_times ? slack : 0, tally);
    }
  }

  void check_relation(const HandedFigure& figure, const Results& results, double slack,
                      Tally& tally) {
    const auto measured = std::ranges::find_if(results.cases, [&](const Measurement& each) {
      return without_last(figure.name) == fmt::format("{}.{}", results.name, each.what().key);
    });
    if (measured == results.cases.end()) return;
    const std::string expected = figure_named(figure.kind())->text({results, *measured});
    if (expected.find("nan") != std::string::npos) return;
    if (tally.count(is_same_figure(expected, figure.written, slack))) return;
    found(MistakeKind::kArithmetic,
          fmt::format("{} is written '{}', and from {} follows {}", figure.name, figure.written,
                      slack > 0 ? "the times beside it" : "the variant", expected));
  }

  /// The first of its log lines whose time and throughput do not give the samples of a step, as far
  /// as a time of four decimals says; empty if there is none.
  static std::string wrong_line_of(const Measurement& measured) {
    const auto expected = static_cast<double>(measured.workload().step_samples());
    for (const Start& start : measured.starts()) {
      const RankSteps& steps = start.ranks.front();
      for (std::size_t i = 0; i < steps.samples.size(); ++i) {
        const double seconds = steps.step_s[i], samples = steps.samples[i];
        if (std::abs(samples / expected - 1) <= 0.02 + 0.5e-4 / seconds) continue;
        return fmt::format("a log line has {} and {:.0f} samples/s, so {:.3g} samples, not {}",
                           time_text(seconds), samples / seconds, samples, expected);
      }
    }
    return "";
  }

  /// No time is below the floor of its products, accounts add up, and intervals are there.
  Mark physics() {
    if (!report_) return {.points = 0, .text = "There are no records."};
    Tally tally;
    for_cases([&](const Measurement& measured, const std::string& name) {
      if (measured.workload().pytorch) return;
      const std::optional<MachineCard>& card = report_->sections.front().results.card;
      if (card) check_floor(name, measured, *card, tally);
      check_account(name, measured, tally);
    });
    if (plan_.header.asks_intervals) check_intervals(tally);
    return {
        .points = tally.share(),
        .text = fmt::format("{} of {} times and accounts are possible.", tally.passed, tally.all)};
  }

  /// A time without an interval gets no verdict.
  void check_floor(const std::string& name, const Measurement& measured, const MachineCard& card,
                   Tally& tally) {
    constexpr double kFasterThanMeasured = 1.5;  // a card's rates are medians, and clocks change
    double rate = card.flops_per_s;
    for (const double other :
         {card.tf32_flops_per_s, card.half_flops_per_s, card.fp16_flops_per_s}) {
      rate = std::max(rate, other);
    }
    for (const MachineLoad& load : card.loads) rate = std::max(rate, fastest_product(load));
    const Estimate step_s = measured.mean_s();
    if (!step_s.has_interval() || rate <= 0) return;
    const Workload& workload = measured.workload();
    const double devices = workload.has_ranks() ? 1 : workload.ranks;
    const double least_s = floor_s(WorkloadPrograms(workload).step(),
                                   {.flops_per_s = kFasterThanMeasured * rate * devices});
    if (tally.count(step_s.high >= least_s)) return;
    found(MistakeKind::kPhysics,
          fmt::format("{} takes {}, and the products alone at least {} at the rates of the machine",
                      name, time_text(step_s), time_text(least_s)));
  }

  void check_account(const std::string& name, const Measurement& measured, Tally& tally) {
    const bool adds_up = std::ranges::all_of(measured.starts(), [](const Start& start) {
      const RankSteps& steps = start.ranks.front();
      double parts_s = 0, all_s = 0;
      for (const double each : steps.step_s) all_s += each;
      for (const auto& [phase, seconds] : steps.phase_s) {
        for (const double each : seconds) parts_s += each;
      }
      return steps.phase_s.empty() || std::abs(parts_s - all_s) <= 0.02 * all_s;
    });
    if (tally.count(adds_up)) return;
    found(MistakeKind::kPhysics,
          fmt::format("the parts of the steps of {} do not add up to their time", name));
  }

  void check_intervals(Tally& tally) {
    for (const HandedFigure& figure : graded_.figures) {
      if (figure.recorded.find(" to ") == std::string::npos || figure.written.empty()) continue;
      if (tally.count(figure.written.find(" to ") != std::string::npos)) continue;
      found(MistakeKind::kPhysics, fmt::format("{} has no interval", figure.name));
    }
  }

  static SheetQuestion question_in(const std::vector<SheetQuestion>& all,
                                   const std::string& number) {
    const auto at = std::ranges::find(all, number, &SheetQuestion::number);
    return at == all.end() ? SheetQuestion{} : *at;
  }

  void mark_items(const std::map<std::string_view, Mark>& checks) {
    const std::vector<SheetQuestion> answers = questions_in(handed_);
    for (const MarkedItem& item : plan_.header.items) {
      Mark mark = item.by == MarkedBy::kCheck ? checks.at(item.name) : answer(item, answers);
      mark.item = &item;
      if (mark.points) *mark.points *= item.points;
      graded_.marks.push_back(std::move(mark));
    }
  }

  Mark answer(const MarkedItem& item, const std::vector<SheetQuestion>& answers) {
    const SheetQuestion key = question_in(keys_, item.name);
    Mark mark{.text = "For the teacher.",
              .answer = question_in(answers, item.name).answer,
              .key = key.answer + (key.key.empty() ? "" : " " + key.key)};
    if (item.by == MarkedBy::kPrediction) {
      const std::string before = question_in(before_, item.name).answer;
      mark.text =
          fmt::format("{}ritten before the runs. Marked by its reason, not by how close it is.",
                      before.empty() ? "Not w" : "W");
      if (!before.empty()) mark.answer = before;
    }
    if (mark.answer.empty()) {
      mark.points = 0;
      mark.text = "There is no answer.";
    } else if (item.by == MarkedBy::kWord) {
      choose(item, mark);
    }
    return mark;
  }

  /// The choice that the word of the student's own finding makes right.
  void choose(const MarkedItem& item, Mark& mark) {
    std::vector<std::string> chosen;
    if (has_word(mark.answer, kCannotBeSaid)) chosen.emplace_back(kCannotBeSaid);
    for (const auto& [choice, words] : item.choices) {
      if (has_word(mark.answer, choice)) chosen.push_back(choice);
    }
    const ReportSection* const section = report_ ? report_->section(item.experiment) : nullptr;
    const Finding* const finding =
        section == nullptr ? nullptr : section->findings.named(item.finding);
    if (chosen.size() != 1 || finding == nullptr) {
      mark.text = "For the teacher: there is not one choice, or nothing was measured.";
      return;
    }
    std::string right(kCannotBeSaid);
    const bool is_valid = section->trouble.empty();
    for (const auto& [choice, words] : item.choices) {
      if (is_valid && std::ranges::find(words, finding->word) != words.end()) right = choice;
    }
    if (chosen.front() == right) {
      mark.points = 1;
      mark.text = fmt::format("'{}' is what the student's own figures say.", right);
    } else if (!is_valid) {
      mark.text = fmt::format("For the teacher: {}", trouble_line(*section));
    } else {
      mark.points = 0;
      mark.text = fmt::format("'{}', and the student's own figures say '{}': {}", chosen.front(),
                              right, finding->text);
      found(MistakeKind::kAnswer, fmt::format("{}: {}", item.name, mark.text));
    }
  }

  /// Whether the word stands there, in small or large letters.
  static bool has_word(std::string_view text, std::string_view word) {
    const auto is_letter = [&](std::size_t at) {
      return at < text.size() && std::isalnum(static_cast<unsigned char>(text[at])) != 0;
    };
    const auto is_same = [](unsigned char a, unsigned char b) {
      return std::tolower(a) == std::tolower(b);
    };
    for (std::size_t at = 0; at + word.size() <= text.size(); ++at) {
      const bool is_there = std::ranges::equal(text.substr(at, word.size()), word, is_same);
      if (is_there && !is_letter(at - 1) && !is_letter(at + word.size())) return true;
    }
    return false;
  }

  const ClassPlan& plan_;
  const MachineCard& gpus_;
  GradedStudent graded_;
  std::string handed_;  // the sheet
  std::optional<StudyIdentity> identity_;
  std::optional<Report> report_;
  std::set<std::string> missing_;
  std::vector<SheetQuestion> keys_, before_;
};

/// The records that two or more have, by hash.
std::map<std::string, std::set<const Student*>> owners_of(const std::vector<StudentsWork>& all) {
  std::map<std::string, std::set<const Student*>> owners;
  for (const StudentsWork& work : all) {
    work.for_cases([&](const Measurement& measured, const std::string&) {
      for (const Start& start : measured.starts()) owners[start.hash].insert(&work.student());
    });
  }
  return owners;
}

/// Another run of a case of each, as many at once as there are cores. The others go on after one
/// that fails, unless a signal stopped it.
std::vector<AnotherRun> reruns_of(const std::vector<StudentsWork>& all, const Rerun& rerun,
                                  const std::function<void(int, const std::string&)>& on_progress) {
  std::vector<AnotherRun> runs(all.size());
  if (!rerun) return runs;
  std::atomic<std::size_t> next = 0;
  std::mutex reporting;
  int done = 0;
  const auto work = [&] {
    for (std::size_t i = next++; i < all.size(); i = next++) {
      runs[i].is_asked = true;
      const Measurement* const measured = all[i].case_to_rerun();
      const auto why = refusal_of([&] {
        if (measured != nullptr) runs[i].start = rerun(measured->what());
      });
      if (why && children_are_stopped()) throw *why;
      if (why) runs[i].why_not = fmt::format("{}: {}", measured->what().key, why->what());
      const std::scoped_lock lock(reporting);
      on_progress(++done, all[i].student().name);
    }
  };
  std::vector<std::future<void>> workers;
  for (int i = 0; i < usable_cpus(); ++i) workers.push_back(std::async(std::launch::async, work));
  for (std::future<void>& each : workers) each.get();
  return runs;
}

}  // namespace

std::vector<std::filesystem::path> files_below(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  std::error_code error;
  for (std::filesystem::recursive_directory_iterator each(
           folder, std::filesystem::directory_options::skip_permission_denied, error);
       !error && each != std::filesystem::recursive_directory_iterator(); each.increment(error)) {
    files.push_back(each->path());
  }
  std::ranges::sort(files);
  return files;
}

std::string machine_text(const Report& report) {
  std::string text;
  for (const auto& [name, value] : report.environment) {
    if (name != "processor" && name != "GPU" && name != "cores") continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, value);
  }
  return text;
}

bool GradedStudent::has(MistakeKind kind) const {
  return std::ranges::find(mistakes, kind, &Mistake::kind) != mistakes.end();
}

GradedClass grade_class(const ClassPlan& plan, const std::filesystem::path& handed_in,
                        const MachineCard& gpus, const Rerun& rerun,
                        const std::function<void(int done, const std::string& name)>& on_progress) {
  std::error_code error;
  std::set<std::filesystem::path> folders;
  for (const auto& each : std::filesystem::directory_iterator(handed_in, error)) {
    if (each.is_directory()) folders.insert(each.path());
  }
  if (error) {
    fail(ExitCode::kNoInput, {.what = "handed in",
                              .value = handed_in.string(),
                              .why = error.message(),
                              .remedy = "name the folder with a folder of each student"});
  }
  std::vector<StudentsWork> all;
  for (const Student& student : plan.students) {
    all.emplace_back(plan, student, gpus, taken_folder(folders, plan, student));
    if (!rerun) on_progress(static_cast<int>(all.size()), student.name);
  }
  const auto owners = owners_of(all);
  const std::vector<AnotherRun> reruns = reruns_of(all, rerun, on_progress);
  GradedClass result;
  for (std::size_t i = 0; i < all.size(); ++i) {
    result.students.push_back(all[i].grade(owners, reruns[i]));
  }
  for (const std::filesystem::path& folder : folders) {
    result.unknown.push_back(folder.filename().string());
  }
  return result;
}

}  // namespace barestep
