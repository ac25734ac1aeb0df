#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <charconv>
#include <cmath>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "core/error.h"
#include "core/host.h"
#include "core/input_file.h"
#include "core/json_document.h"
#include "core/units.h"
#include "lab/class/class.h"
#include "lab/report/page.h"
#include "options/option_values.h"
#include "options/options.h"

namespace barestep {
namespace {

constexpr std::int64_t kMaxHandedBytes = 1 << 22;
constexpr double kSameLoss = 1e-6;  // relative, of other machines
constexpr std::size_t kFirstSteps = 5;

// Figures as text.

/// A number at the start of a text, its unit, and how many decimals it has.
struct ReadFigure {
  double number = 0;
  int decimals = 0;
  std::string unit{};
};

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
  if (point != std::string_view::npos) figure.decimals = static_cast<int>(read.size() - point) - 1;
  figure.unit = plain.substr(read.size());
  const std::size_t blank = text.find(' ');
  if (figure.unit.empty() && blank != std::string_view::npos && text[blank + 1] != '(') {
    figure.unit = text.substr(blank + 1, text.find_first_of(" (", blank + 1) - blank - 1);
  }
  return figure;
}

/// Whether what is written is what was recorded, as far as it is rounded.
bool is_same_figure(const std::string& recorded, const std::string& written) {
  if (recorded == written) return true;
  const auto a = read_figure(recorded), b = read_figure(written);
  if (!a || !b || (!b->unit.empty() && a->unit != b->unit)) return false;
  const double size = std::abs(a->number);
  const double rounded = std::min(0.5 * std::pow(10, -b->decimals), 0.05 * size);
  return std::abs(a->number - b->number) <= std::max(rounded, 0.005 * size) * (1 + 1e-9);
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
  std::filesystem::path study{}, sheet{};
};

HandedFiles files_in(const std::filesystem::path& folder, const std::string& sheet) {
  HandedFiles found;
  const auto take = [](std::filesystem::path& kept, std::filesystem::path path) {
    if (kept.empty() || path < kept) kept = std::move(path);
  };
  std::error_code error;
  for (std::filesystem::recursive_directory_iterator each(
           folder, std::filesystem::directory_options::skip_permission_denied, error);
       !error && each != std::filesystem::recursive_directory_iterator(); each.increment(error)) {
    const std::filesystem::path& path = each->path();
    if (path.filename() == "study.json") take(found.study, path.parent_path());
    if (path.filename() == sheet + "-figures.md") take(found.sheet, path);
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
        if (const auto number = read_figure(figure.recorded)) figure.number = number->number;
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
};

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
    const auto why = refusal_of([&] {
      if (!files.sheet.empty()) {
        handed_ = InputFile(files.sheet, "sheet").text(kMaxHandedBytes);
      }
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

  template <class Visit>
  void for_starts(const Visit& visit) const {
    if (!report_) return;
    for (const ReportSection& section : report_->sections) {
      for (const Measurement& measured : section.results.cases) {
        for (const Start& start : measured.starts()) {
          visit(fmt::format("{}.{}", section.experiment->name, measured.what().key), start);
        }
      }
    }
  }

  /// A case that another run makes in seconds, on any machine.
  [[nodiscard]] const Measurement* case_to_rerun() const {
    if (!report_ || identity_->on_gpu) return nullptr;
    for (const ReportSection& section : report_->sections) {
      for (const Measurement& measured : section.results.cases) {
        const Workload& workload = measured.workload();
        const bool is_plain = workload.scheme() == SchemeKind::kSingle && !workload.pytorch &&
                              measured.what().made == nullptr &&
                              workload.config.data.kind == DataKind::kRandn;
        if (is_plain) return &measured;
      }
    }
    return nullptr;
  }

  /// `others` are the students who have a record as well, by its hash; `rerun` is another run of
  /// case_to_rerun(), if there is one.
  GradedStudent grade(const std::map<std::string, std::set<const Student*>>& others,
                      const std::optional<Start>& rerun) {
    if (!graded_.has(MistakeKind::kNothing)) {
      read_figures();
      const std::map<std::string_view, Mark> checks = {{kIdentityCheck, identity(others, rerun)},
                                                       {kArithmeticCheck, arithmetic()},
                                                       {kPhysicsCheck, physics()}};
      questions(checks);
    } else {
      questions({});
    }
    return std::move(graded_);
  }

 private:
  void found(MistakeKind kind, std::string text) {
    graded_.mistakes.push_back({kind, std::move(text)});
  }

  /// Experiments that are calculated need no records; of others, says which are missing.
  void complete() {
    for (const auto& [name, value] : report_->environment) {
      if (name == "processor" || name == "GPU" || name == "cores") {
        graded_.machine += fmt::format("{}{} {}", graded_.machine.empty() ? "" : ", ", name, value);
      }
    }
    for (const Experiment* const each : experiments_of(plan_.sheet)) {
      if (section_named(each->name) != nullptr) continue;
      const Setting setting = report_->sections.front().results.setting;
      if (each->cases(setting).empty()) {
        report_->sections.push_back(
            section_of(*each, Results{.setting = setting, .name = each->name, .cases = {}}));
      } else {
        missing_.insert(each->name);
        found(MistakeKind::kMissing, fmt::format("{} was not measured to its end", each->name));
      }
    }
    for (const ReportSection& section : report_->sections) {
      for (const Measurement& measured : section.results.cases) {
        if (const std::string why = measured.trouble(); !why.empty()) {
          found(MistakeKind::kBusy, fmt::format("{}: {}", section.experiment->name, why));
          break;
        }
      }
    }
  }

  [[nodiscard]] const ReportSection* section_named(std::string_view experiment) const {
    if (!report_) return nullptr;
    const auto at = std::ranges::find_if(report_->sections, [&](const ReportSection& section) {
      return experiment == section.experiment->name;
    });
    return at == report_->sections.end() ? nullptr : &*at;
  }

  void read_figures() {
    const std::optional<SheetRuns> runs =
        report_ ? std::optional<SheetRuns>(std::in_place, *report_, gpus_) : std::nullopt;
    graded_.figures = figures_of(plan_.sheet, handed_, [&](std::string_view name) {
      const std::optional<SheetName> figure = sheet_name(name);
      const bool is_there = runs && std::ranges::all_of(figure->experiments, [&](const auto& each) {
                              return section_named(each) != nullptr;
                            });
      return is_there ? figure->text(*runs) : std::string();
    });
    if (runs && missing_.empty()) {
      keys_ = questions_in(markdown_of(plan_.sheet, *runs, SheetCopy::kKey));
    }
  }

  /// By what the files say, and, if it was run again, by its losses and weights.
  Mark identity(const std::map<std::string, std::set<const Student*>>& others,
                const std::optional<Start>& rerun) {
    if (!report_) return {.points = 0, .text = "There are no records."};
    const std::size_t before = graded_.mistakes.size();
    if (identity_->options != student().options || identity_->quick != plan_.quick) {
      found(MistakeKind::kVariant,
            fmt::format("the study is of{}, the variant is{}", options_text(identity_->options),
                        options_text(student().options)));
    }
    std::set<std::string> copied, altered;
    for_starts([&](const std::string& name, const Start& start) {
      if (start.is_altered || start.hash.empty()) altered.insert(name);
      const auto same = others.find(start.hash);
      if (!start.hash.empty() && same != others.end() && same->second.size() > 1) {
        copied.insert(name);
      }
    });
    if (!altered.empty()) {
      found(MistakeKind::kAltered,
            fmt::format("this figure is not the one that the run recorded: {}",
                        fmt::join(altered, ", ")));
    }
    if (!copied.empty()) {
      found(MistakeKind::kCopied, fmt::format("another student handed in the same records of {}",
                                              fmt::join(copied, ", ")));
    }
    check_configurations();
    std::string text = "Options, seed, losses and hashes of the records are those of the variant";
    if (rerun) text += check_rerun(*rerun);
    const bool is_same = graded_.mistakes.size() == before;
    return {.points = is_same ? 1 : 0, .text = is_same ? text + "." : "See what was found."};
  }

  /// That the starts of a case are runs of the variant, which repeat each other's losses.
  void check_configurations() {
    std::set<std::string> others;
    for (const ReportSection& section : report_->sections) {
      for (const Measurement& measured : section.results.cases) {
        const Start& first = measured.starts().front();
        for (const Start& start : measured.starts()) {
          if (!has_options(measured, start) || !are_same_losses(start, first)) {
            others.insert(fmt::format("{}.{}", section.experiment->name, measured.what().key));
          }
        }
      }
    }
    if (others.empty()) return;
    found(MistakeKind::kVariant,
          fmt::format("the runs of {} are not those of the variant", fmt::join(others, ", ")));
  }

  /// Whether a start has the values that its case has of the options that vary.
  [[nodiscard]] bool has_options(const Measurement& measured, const Start& start) const {
    if (start.configuration.empty()) return true;
    const JsonDocument written(start.configuration, {"configuration", "", ""});
    const std::string expected = json_of(measured.workload().config);
    const JsonDocument made(expected, {"configuration", "", ""});
    return std::ranges::all_of(student().options, [&](const auto& option) {
      std::string key = option.first;
      std::ranges::replace(key, '-', '_');
      const bool is_known = written.root().has(key.c_str()) && made.root().has(key.c_str());
      return !is_known ||
             written.root().at(key.c_str()).json() == made.root().at(key.c_str()).json();
    });
  }

  static bool are_same_losses(const Start& a, const Start& b) {
    const std::vector<double>&x = a.ranks.front().loss, &y = b.ranks.front().loss;
    for (std::size_t i = 0; i < std::min({kFirstSteps, x.size(), y.size()}); ++i) {
      if (!(std::abs(x[i] - y[i]) <= kSameLoss * std::abs(y[i]))) return false;
    }
    return x.size() == y.size();
  }

  std::string check_rerun(const Start& rerun) {
    const Measurement& measured = *case_to_rerun();
    const Start& start = measured.starts().front();
    if (!are_same_losses(rerun, start)) {
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
    check_rates(wrong, tally);
    const double share = tally.all == 0 ? 0 : double(tally.passed) / tally.all;
    return {.points = share,
            .text = fmt::format("{} of {} figures and their ratios are right.", tally.passed,
                                tally.all)};
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

  /// The workload of a case by its name, "batch-sweep.batch-32".
  [[nodiscard]] std::optional<Workload> workload_of_case(const std::string& name) const {
    const std::size_t dot = name.find('.');
    const Experiment& experiment = experiment_of(name.substr(0, dot));
    const ReportSection* const section = section_named(experiment.name);
    const std::vector<Case> cases = experiment.cases(
        section != nullptr ? section->results.setting
                           : new_setting(plan_.quick, false, 2, student().options));
    const auto at = std::ranges::find(cases, name.substr(dot + 1), &Case::key);
    return at == cases.end() ? std::nullopt : std::optional(at->workload);
  }

  /// Throughput and efficiency against times and speed-ups in the same row, unless one of them is
  /// named already.
  void check_rates(const std::vector<const HandedFigure*>& wrong, Tally& tally) {
    std::map<std::string, std::map<std::string, double>> cases;
    for (const HandedFigure& figure : graded_.figures) {
      const auto number = read_figure(figure.written);
      const bool is_named = std::ranges::find(wrong, &figure) != wrong.end();
      if (!number || is_named) continue;
      const std::size_t dot = figure.name.rfind('.');
      cases[figure.name.substr(0, dot)][figure.name.substr(dot + 1)] = number->number;
    }
    for (const auto& each : cases) {
      const std::string& name = each.first;
      const std::map<std::string, double>& figures = each.second;
      const auto check = [&](const char* figure, const char* from, double expected) {
        if (!figures.contains(figure) || !figures.contains(from)) return;
        const double written = figures.at(figure);
        if (tally.count(std::abs(written - expected) <= 0.02 * std::abs(expected))) return;
        found(MistakeKind::kArithmetic,
              fmt::format("{}.{} is {}, and {} with {} {}", name, figure, number_text(written),
                          number_text(expected), from, number_text(figures.at(from))));
      };
      const bool has_seconds = figures.contains("seconds"), has_gain = figures.contains("speed-up");
      const std::optional<Workload> workload =
          has_seconds || has_gain ? workload_of_case(name) : std::nullopt;
      if (!workload) continue;
      if (has_seconds) {
        check("samples-per-s", "seconds",
              static_cast<double>(workload->step_samples()) / figures.at("seconds"));
      }
      if (has_gain) check("efficiency", "speed-up", 100 * figures.at("speed-up") / workload->ranks);
    }
  }

  /// No time is below the floor of its products, accounts add up, and intervals are there.
  Mark physics() {
    if (!report_) return {.points = 0, .text = "There are no records."};
    Tally tally;
    for (const ReportSection& section : report_->sections) {
      for (const Measurement& measured : section.results.cases) {
        if (measured.workload().pytorch) continue;
        const std::string name =
            fmt::format("{}.{}", section.experiment->name, measured.what().key);
        if (section.results.card) check_floor(name, measured, *section.results.card, tally);
        check_account(name, measured, tally);
      }
    }
    if (plan_.header.asks_intervals) check_intervals(tally);
    const double share = tally.all == 0 ? 0 : double(tally.passed) / tally.all;
    return {
        .points = share,
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
    double flops = 0;
    const WorkloadPrograms programs(measured.workload());
    for (const Node& node : programs.step().nodes()) {
      if (label_of(node.op) == "gemm" && node.device == 0) {
        flops += static_cast<double>(cost_of(node.op).flops);
      }
    }
    const double floor_s = flops / rate / kFasterThanMeasured;
    if (tally.count(step_s.high >= floor_s)) return;
    found(MistakeKind::kPhysics,
          fmt::format("{} takes {}, and the products alone at least {} at the rates of the machine",
                      name, time_text(step_s), time_text(floor_s)));
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

  void questions(const std::map<std::string_view, Mark>& checks) {
    const std::vector<SheetQuestion> answers = questions_in(handed_);
    const auto text_in = [](const std::vector<SheetQuestion>& all, const std::string& number) {
      const auto at = std::ranges::find(all, number, &SheetQuestion::number);
      return at == all.end() ? SheetQuestion{} : *at;
    };
    for (const MarkedItem& item : plan_.header.items) {
      Mark mark;
      if (item.by == MarkedBy::kCheck) {
        const auto check = checks.find(item.name);
        if (check == checks.end()) {
          mark = {.points = 0, .text = "Nothing was handed in."};
        } else {
          mark = check->second;
        }
      } else {
        mark.answer = text_in(answers, item.name).answer;
        const SheetQuestion key = text_in(keys_, item.name);
        mark.key = key.answer + (key.key.empty() ? "" : " " + key.key);
        if (mark.answer.empty()) {
          mark.points = 0;
          mark.text = "There is no answer.";
        } else if (item.by == MarkedBy::kWord) {
          choose(item, mark);
        } else {
          mark.text = item.by == MarkedBy::kPrediction
                          ? "Marked by its reason, not by how close it is."
                          : "For the teacher.";
        }
      }
      mark.item = &item;
      if (mark.points) *mark.points *= item.points;
      graded_.marks.push_back(std::move(mark));
    }
  }

  /// The choice that the word of the student's own finding makes right.
  void choose(const MarkedItem& item, Mark& mark) {
    std::string answer = mark.answer;
    std::ranges::transform(answer, answer.begin(), [](unsigned char letter) {
      return static_cast<char>(std::tolower(letter));
    });
    std::vector<std::string> chosen;
    if (has_word(answer, kCannotBeSaid)) chosen.emplace_back(kCannotBeSaid);
    for (const auto& [choice, word] : item.choices) {
      if (has_word(answer, choice)) chosen.push_back(choice);
    }
    const ReportSection* const section =
        section_named(item.finding.substr(0, item.finding.find('.')));
    const Finding* const finding =
        section == nullptr ? nullptr : finding_named(section->findings, item.finding);
    if (chosen.size() != 1 || finding == nullptr) {
      mark.text = "For the teacher: there is not one choice, or nothing was measured.";
      return;
    }
    std::string right(kCannotBeSaid);
    const bool is_valid = section->trouble.empty();
    for (const auto& [choice, word] : item.choices) {
      if (is_valid && finding->word == word) right = choice;
    }
    if (chosen.front() == right) {
      mark.points = 1;
      mark.text = fmt::format("'{}' is what the student's own figures say.", right);
    } else if (!is_valid) {
      mark.text = "For the teacher: the measurement was disturbed, and decides nothing.";
    } else {
      mark.points = 0;
      mark.text = fmt::format("'{}', and the student's own figures say '{}': {}", chosen.front(),
                              right, finding->text);
      found(MistakeKind::kAnswer, fmt::format("{}: {}", item.name, mark.text));
    }
  }

  static bool has_word(std::string_view text, std::string_view word) {
    const auto is_letter = [&](std::size_t at) {
      return at < text.size() && std::isalnum(static_cast<unsigned char>(text[at])) != 0;
    };
    for (std::size_t at = text.find(word); at != std::string_view::npos;
         at = text.find(word, at + 1)) {
      if (!is_letter(at - 1) && !is_letter(at + word.size())) return true;
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
  std::vector<SheetQuestion> keys_;
};

/// The records that two or more have, by hash.
std::map<std::string, std::set<const Student*>> owners_of(const std::vector<StudentsWork>& all) {
  std::map<std::string, std::set<const Student*>> owners;
  for (const StudentsWork& work : all) {
    work.for_starts([&](const std::string&, const Start& start) {
      owners[start.hash].insert(&work.student());
    });
  }
  return owners;
}

/// Another run of a case of each, as many at once as there are cores.
std::vector<std::optional<Start>> reruns_of(
    const std::vector<StudentsWork>& all, const Rerun& rerun,
    const std::function<void(int, const std::string&)>& on_progress) {
  std::vector<std::optional<Start>> starts(all.size());
  if (!rerun) return starts;
  std::atomic<std::size_t> next = 0;
  std::mutex reporting;
  std::optional<Error> failure;
  int done = 0;
  const auto work = [&] {
    for (std::size_t i = next++; i < all.size(); i = next++) {
      const Measurement* const measured = all[i].case_to_rerun();
      const auto why = refusal_of([&] {
        if (measured != nullptr) starts[i] = rerun(measured->what());
      });
      const std::scoped_lock lock(reporting);
      on_progress(++done, all[i].student().name);
      if (why) {
        failure = why;
        next = all.size();
      }
    }
  };
  std::vector<std::jthread> threads;
  for (int i = 0; i < usable_cpus(); ++i) threads.emplace_back(work);
  threads.clear();
  if (failure) throw Error(*failure);
  return starts;
}

}  // namespace

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
  const std::vector<std::optional<Start>> reruns = reruns_of(all, rerun, on_progress);
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
