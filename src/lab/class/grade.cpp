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

/// Without what separates thousands, other than a comma: "7 640".
std::string without_gaps(std::string text) {
  const auto is_digit = [&](std::size_t at) {
    return at < text.size() && std::isdigit(static_cast<unsigned char>(text[at])) != 0;
  };
  for (const std::string_view gap : {" ", "\u00a0", "\u202f", "'"}) {
    for (std::size_t at = text.find(gap); at != std::string::npos; at = text.find(gap, at + 1)) {
      const std::size_t next = at + gap.size();
      const bool is_gap = at > 0 && is_digit(at - 1) && is_digit(next) && is_digit(next + 1) &&
                          is_digit(next + 2) && !is_digit(next + 3);
      if (is_gap) text.erase(at, gap.size());
    }
  }
  return text;
}

std::optional<ReadFigure> read_figure(const std::string& given) {
  const std::string text = without_gaps(given);
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
  if (!a || !b || (!a->unit.empty() && !b->unit.empty() && a->unit != b->unit)) return false;
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
  for (const char character : text.substr(0, text.find(' '))) {
    if (std::isdigit(static_cast<unsigned char>(character)) != 0) digits += character;
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
  std::filesystem::path study{}, sheet{}, before{}, given{}, packed{};
};

constexpr const char* kPacked[] = {".zip", ".gz", ".tgz", ".xz", ".7z", ".tar", ".rar"};

HandedFiles files_in(const std::filesystem::path& folder, const std::string& sheet) {
  HandedFiles found;
  const std::string figures =  // a browser may have added to its name
      sheet + std::string(kFiguresEnding.substr(0, kFiguresEnding.find('.')));
  const auto take = [](std::filesystem::path& kept, const std::filesystem::path& path) {
    if (kept.empty()) kept = path;
  };
  for (const std::filesystem::path& path : files_below(folder)) {
    const std::string name = path.filename().string();
    if (name == kStudyName) take(found.study, path.parent_path());
    if (name == figures + ".md") found.sheet = path;
    if (name.starts_with(figures) && name.ends_with(".md")) take(found.sheet, path);
    if (name == fmt::format("{}{}", sheet, kBeforeEnding)) take(found.before, path);
    if (name == sheet + ".md") take(found.given, path);
    if (std::ranges::find(kPacked, path.extension()) != std::end(kPacked)) take(found.packed, path);
  }
  return found;
}

/// A name in which a letter with an accent is a '?', whether it is written as one or as two, as
/// macOS does.
std::string without_accents(std::string_view name) {
  std::string bare;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const auto byte = static_cast<unsigned char>(name[i]);
    const bool is_accent = byte == 0xcc || byte == 0xcd;  // U+0300 to U+036f
    if (is_accent && !bare.empty()) bare.pop_back();
    if (byte < 0x80) bare += name[i];
    if (byte >= 0xc0) bare += '?';
  }
  return bare;
}

/// The student whose folder, or file, it is: that of this name, or of the longest one before a '_'
/// or a '.'; null if there is none.
const Student* student_of(const ClassPlan& plan, const std::string& name) {
  const auto find = [&](const std::string& full, const auto& form) {
    const Student* found = nullptr;
    for (const Student& student : plan.students) {
      const std::string own = form(student.folder);
      const bool is_own =
          full.starts_with(own) &&
          (full.size() == own.size() || full[own.size()] == '_' || full[own.size()] == '.');
      if (is_own && (found == nullptr || found->folder.size() < student.folder.size()))
        found = &student;
    }
    return found;
  };
  const Student* const found = find(name, [](const std::string& folder) { return folder; });
  const bool has_accents = name.find_first_of("\xcc\xcd") != std::string::npos;
  return found != nullptr || !has_accents ? found : find(without_accents(name), without_accents);
}

/// Takes the folder or file of each student out of those that were handed in: that of just this
/// name, else the first one.
std::map<const Student*, std::filesystem::path> taken_folders(
    std::set<std::filesystem::path>& folders, const ClassPlan& plan) {
  std::map<const Student*, std::filesystem::path> taken;
  for (const std::filesystem::path& folder : folders) {
    const std::string name = folder.filename().string();
    const Student* const student = student_of(plan, name);
    if (student == nullptr) continue;
    std::filesystem::path& own = taken[student];
    if (own.empty() || name == student->folder) own = folder;
  }
  for (const auto& [student, folder] : taken) folders.erase(folder);
  return taken;
}

/// A folder or file that is nobody's, and whose it may be: that of the student whose variant it
/// has, else of one with nearly the same name.
std::string unknown_text(const ClassPlan& plan, const std::filesystem::path& path) {
  const auto quoted = [](const std::string& name) {
    return fmt::format("'{}'", on_one_line(name));
  };
  std::string whose;
  refusal_of([&] {
    const std::filesystem::path study = files_in(path, plan.sheet.name).study;
    if (study.empty()) return;
    const GivenOptions options = Study::open(study).identity().options;
    const auto student = std::ranges::find(plan.students, options, &Student::options);
    if (student != plan.students.end()) whose = "has the variant of " + quoted(student->folder);
  });
  const std::string name = path.filename().string();
  if (const Student* const student = whose.empty() ? student_of(plan, name) : nullptr) {
    whose = "one more of " + quoted(student->folder);
  }
  if (whose.empty()) {
    std::vector<std::string_view> folders;
    for (const Student& student : plan.students) folders.emplace_back(student.folder);
    const std::string_view near = nearest(name.substr(0, name.find_first_of("_.")), folders);
    if (!near.empty()) whose = "perhaps of " + quoted(std::string(near));
  }
  if (!std::filesystem::is_directory(path)) whose = "a file" + (whose.empty() ? "" : ", " + whose);
  return quoted(name) + (whose.empty() ? "" : " (" + whose + ")");
}

// A student's work.

/// The students who have a record, and those of them whose variant it is of.
struct Holders {
  std::set<const Student*> all{}, own{};
};

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
    const auto is_other = [&](const auto& title) {
      return used.contains(at) || !title(all[at].front());
    };
    const auto is_same = [&](const auto& titles) { return titles == table.front(); };
    const auto is_as_wide = [&](const auto& titles) {
      return titles.size() == table.front().size();
    };
    while (at < all.size() && is_other(is_same)) ++at;
    if (at == all.size()) {  // titles may be edited
      for (at = 0; at < all.size() && is_other(is_as_wide);) ++at;
    }
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

std::string all_options(const GivenOptions& options, bool quick) {
  return options_text(options) + (quick ? " --quick" : "");
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
      found(MistakeKind::kNothing, "no folder of this name is there");
      return;
    }
    HandedFiles files = files_in(folder, plan.sheet.name);
    if (!std::filesystem::is_directory(folder)) files.packed = folder;
    if (files.study.empty() && files.sheet.empty() && !files.packed.empty()) {
      packed_ = files.packed.filename().string();
      found(MistakeKind::kUnreadable,
            fmt::format("'{}' is still packed: unpack it, and grade again", packed_));
      return;
    }
    const auto text_of = [](const std::filesystem::path& file) {
      return file.empty() ? "" : InputFile(file, "sheet").text(kMaxHandedBytes);
    };
    const auto why = refusal_of([&] {
      handed_ = text_of(files.sheet);
      before_ = questions_of({.name = plan.sheet.name, .text = text_of(files.before)});
      given_ = questions_of({.name = plan.sheet.name, .text = text_of(files.given)});
      if (files.study.empty()) return;
      const Study study =
          Study::open(files.study, [&](const Experiment& of, const std::filesystem::path& record) {
            damaged_.insert(of.name);
            found(MistakeKind::kUnreadable,
                  fmt::format("{} of {} cannot be read, so figures of {} are not compared",
                              record.filename().string(), of.name, of.name));
          });
      identity_ = study.identity();
      edited_ = study.altered_files();
      is_from_before_ = identity_->sheet.empty() || files.before.empty() ||
                        identity_->sheet == hash_of_sheet(files.before);
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

  /// Whether the study is of the student's variant.
  [[nodiscard]] bool is_own() const {
    return identity_ && identity_->options == student().options && identity_->quick == plan_.quick;
  }
  [[nodiscard]] bool is_own(const Measurement& measured, const Start& start) const {
    return is_own() && has_options(measured, start);
  }

  /// `holders` are the students who have a record, by its hash; `rerun` is of case_to_rerun().
  GradedStudent grade(const std::map<std::string, Holders>& holders, const AnotherRun& rerun) {
    if (graded_.has(MistakeKind::kNothing) || !packed_.empty()) {
      const Mark nothing{.points = 0, .text = "No folder of this name is there."};
      mark_items(
          {{kIdentityCheck, nothing}, {kArithmeticCheck, nothing}, {kPhysicsCheck, nothing}});
    } else {
      read_figures();
      mark_items({{kIdentityCheck, identity(holders, rerun)},
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
    for (const Experiment* const experiment : experiments_of(plan_.sheet)) {
      if (report_->section(experiment->name) != nullptr) continue;
      const Setting setting = report_->sections.front().results.setting;
      if (experiment->cases(setting).empty()) {
        report_->sections.push_back(section_of(
            *experiment, Results{.setting = setting, .name = experiment->name, .cases = {}}));
      } else {
        missing_.insert(experiment->name);
        found(MistakeKind::kMissing,
              fmt::format("{} was not measured to its end; sh run.sh continues it",
                          experiment->name));
      }
    }
    for (const ReportSection& section : report_->sections) {
      if (!is_short(section)) continue;
      found(
          MistakeKind::kMissing,
          fmt::format("{} has {} of each case, and an interval needs {}; sh run.sh makes them",
                      section.experiment->name,
                      counted(std::int64_t(section.results.rounds()), "start"), starts_needed(1)));
    }
    for_cases([&](const Measurement& measured, const std::string& name) {
      const std::string why = measured.trouble(), experiment = without_last(name);
      if (why.empty() || !busy_.insert(experiment).second) return;
      found(MistakeKind::kBusy,
            fmt::format("{}: {}; sh run.sh --wait-quiet repeats these", experiment, why));
    });
  }

  /// Whether starts are missing of an experiment, and not since others disturbed them.
  static bool is_short(const ReportSection& section) {
    const std::vector<Measurement>& cases = section.results.cases;
    return !cases.empty() && !is_logged(section.results) &&
           section.results.rounds() < starts_needed(1) &&
           std::ranges::all_of(cases,
                               [](const auto& measured) { return measured.trouble().empty(); });
  }

  void read_figures() {
    const std::optional<SheetRuns> runs =
        report_ ? std::optional<SheetRuns>(std::in_place, *report_, gpus_) : std::nullopt;
    graded_.figures = figures_of(plan_.sheet, handed_, [&](std::string_view name) {
      const std::optional<SheetName> figure = sheet_name(name);
      const bool is_there =
          runs && std::ranges::all_of(figure->experiments, [&](const auto& experiment) {
            return report_->section(experiment) != nullptr && !damaged_.contains(experiment);
          });
      return is_there ? figure->text(*runs) : std::string();
    });
    if (runs && missing_.empty()) {
      keys_ = questions_in(markdown_of(plan_.sheet, *runs, SheetCopy::kKey));
    }
  }

  /// By what the files say, and, if it was run again, by its losses and weights.
  Mark identity(const std::map<std::string, Holders>& holders, const AnotherRun& rerun) {
    const auto before = std::ssize(graded_.mistakes);
    for (const std::string& file : edited_) {
      found(MistakeKind::kAltered, fmt::format("{} is not as the run wrote it", file));
    }
    if (identity_ && !is_own()) {
      const auto owner = std::ranges::find(plan_.students, identity_->options, &Student::options);
      if (owner != plan_.students.end()) graded_.owner = &*owner;
      found(MistakeKind::kVariant, fmt::format("the study is of{}, the variant is{}",
                                               all_options(identity_->options, identity_->quick),
                                               all_options(student().options, plan_.quick)));
    }
    if (!report_) return {.points = 0, .text = "There are no records."};
    const bool is_contested = check_starts(holders);
    bool has_logs = false;
    for_cases(
        [&](const Measurement& measured, const auto&) { has_logs = has_logs || is_log(measured); });
    std::string text =
        has_logs ? "Options and hashes of the records are those of the variant; losses "
                   "in your own log lines are not compared"
                 : "Options, seed and hashes of the records are those of the variant, and all "
                   "starts of a case have the same losses";
    if (rerun.start) {
      text += check_rerun(*rerun.start);
    } else if (rerun.is_asked && rerun.why_not.empty()) {
      text += identity_->on_gpu
                  ? "; no run was repeated, since GPUs draw other random data than the CPU"
                  : "; no run was repeated, since none of them can be";
    } else if (rerun.why_not.empty()) {
      text += "; no run was repeated";
    }
    const bool is_same =
        std::all_of(graded_.mistakes.begin() + before, graded_.mistakes.end(),
                    [](const Mistake& mistake) { return mistake.kind == MistakeKind::kShared; });
    if (is_contested) return {.text = "For the teacher: either of two may have made these files."};
    if (!rerun.why_not.empty()) found(MistakeKind::kNoRerun, rerun.why_not);
    return {.points = is_same ? 1 : 0, .text = is_same ? text + "." : "See what was found."};
  }

  /// That the starts of a case are runs of the variant which repeat each other's losses, as they
  /// were recorded, and that no other student has them. Who has the variant has made them: returns
  /// whether another may have made them as well.
  bool check_starts(const std::map<std::string, Holders>& holders) {
    std::map<MistakeKind, std::set<std::string>> all;
    bool is_contested = false;
    for_cases([&](const Measurement& measured, const std::string& name) {
      for (std::size_t i = 0; i < measured.starts().size(); ++i) {
        const Start& start = measured.starts()[i];
        if (start.is_altered || start.hash.empty()) {
          all[MistakeKind::kAltered].insert(fmt::format("{}.{}.json", name, i));
          altered_.insert(name);
        }
        if (const Holders& who = holders.at(start.hash);
            !start.hash.empty() && who.all.size() > 1) {
          const bool may_be_own = who.own.contains(&student()), is_only = who.own.size() == 1;
          all[may_be_own && is_only ? MistakeKind::kShared : MistakeKind::kCopied].insert(name);
          is_contested = is_contested || (may_be_own && !is_only);
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
                                  ? "not as the run wrote it, so figures of this case are not "
                                    "compared"
                              : kind == MistakeKind::kCopied
                                  ? "another student handed in the same records"
                              : kind == MistakeKind::kShared
                                  ? "somebody else handed in these files, which costs you nothing"
                                  : "these runs are not those of the variant",
                              fmt::join(names, ", ")));
    }
    return is_contested;
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
      if (figure.recorded.empty() || altered_.contains(without_last(figure.name))) continue;
      if (figure.written.empty()) ++empty;
      const bool is_same = is_same_figure(figure.recorded, figure.written);
      if (!tally.count(is_same) && !figure.written.empty()) wrong.push_back(&figure);
    }
    if (empty > 0) {
      found(MistakeKind::kOther, fmt::format("{} of the tables {} empty", counted(empty, "figure"),
                                             empty == 1 ? "is" : "are"));
    }
    name_wrong(wrong);
    check_relations(wrong, tally);
    for_cases([&](const Measurement& measured, const std::string& name) {
      if (!is_log(measured)) return;
      const std::string why = wrong_line_of(measured);
      if (!tally.count(why.empty())) found(MistakeKind::kArithmetic, name + ": " + why);
    });
    std::string text =
        fmt::format("{} of {} figures and their ratios are right{}.", tally.passed, tally.all,
                    report_ ? "" : ", as far as they follow from each other");
    if (!report_) return {.text = "For the teacher, since there are no records: " + text};
    if (tally.all == 0) return {.text = "For the teacher: no figure can be compared."};
    return {.points = tally.share(), .text = std::move(text)};
  }

  void name_wrong(std::vector<const HandedFigure*> wrong) {
    while (!wrong.empty()) {
      const HandedFigure& figure = *wrong.front();
      wrong.erase(wrong.begin());
      const std::string what = fmt::format(
          "this figure is not the one that the run recorded: {} is written '{}', "
          "recorded '{}'",
          figure.name, figure.written, figure.recorded);
      const auto other = std::ranges::find_if(wrong, [&](const HandedFigure* handed) {
        return is_same_figure(figure.recorded, handed->written) &&
               is_same_figure(handed->recorded, figure.written);
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
    const auto measured = std::ranges::find_if(results.cases, [&](const Measurement& of_case) {
      return without_last(figure.name) == fmt::format("{}.{}", results.name, of_case.what().key);
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
      if (measured.workload().pytorch || is_log(measured) || altered_.contains(name)) return;
      const std::optional<MachineCard>& card = report_->sections.front().results.card;
      if (card) check_floor(name, measured, *card, tally);
      check_account(name, measured, tally);
    });
    if (plan_.header.asks_intervals) check_intervals(tally);
    if (tally.all == 0) return {.text = "For the teacher: no time can be checked."};
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
      for (const double step_s : steps.step_s) all_s += step_s;
      for (const auto& [phase, seconds] : steps.phase_s) {
        for (const double part_s : seconds) parts_s += part_s;
      }
      return steps.phase_s.empty() || std::abs(parts_s - all_s) <= 0.02 * all_s;
    });
    if (tally.count(adds_up)) return;
    found(MistakeKind::kPhysics,
          fmt::format("the parts of the steps of {} do not add up to their time", name));
  }

  void check_intervals(Tally& tally) {
    for (const HandedFigure& figure : graded_.figures) {
      const bool is_time = figure.kind() == "time" || figure.kind() == "seconds";
      const bool has_interval = figure.recorded.find(" to ") != std::string::npos;
      const bool is_busy = busy_.contains(without_last(without_last(figure.name)));
      if (figure.written.empty() || !(is_time || has_interval) || is_busy) continue;
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
      Mark mark = !packed_.empty() ? Mark{.text = "For the teacher: the files are still packed."}
                  : item.by == MarkedBy::kCheck ? checks.at(item.name)
                                                : answer(item, answers);
      mark.item = &item;
      const bool is_of_figures = item.by == MarkedBy::kWord ||
                                 (item.by == MarkedBy::kCheck && item.name != kIdentityCheck);
      if (is_of_figures && report_ && !is_own() && mark.points.value_or(0) > 0) {
        mark.points.reset();
        mark.text = "For the teacher: the figures are not of your variant. " + mark.text;
      }
      if (mark.points) *mark.points *= item.points;
      graded_.marks.push_back(std::move(mark));
    }
  }

  Mark answer(const MarkedItem& item, const std::vector<SheetQuestion>& answers) {
    const SheetQuestion key = question_in(keys_, item.name);
    Mark mark{.text = "For the teacher.",
              .answer = question_in(answers, item.name).answer,
              .key = key.answer + (key.key.empty() ? "" : " " + key.key)};
    if (mark.answer.empty()) mark.answer = question_in(given_, item.name).answer;
    if (item.by == MarkedBy::kPrediction) {
      const std::string before = question_in(before_, item.name).answer;
      mark.text = fmt::format(
          "{} what run.sh kept before the first run{}. Marked by its reason, not by how close it "
          "is.",
          before.empty() ? "Not in" : "In",
          before.empty() || is_from_before_ ? "" : ", but that was changed after it");
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
    std::string chosen = begins_with(mark.answer, kCannotBeSaid) ? std::string(kCannotBeSaid) : "";
    for (const auto& [choice, words] : item.choices) {
      if (begins_with(mark.answer, choice)) chosen = choice;
    }
    const ReportSection* const section = report_ ? report_->section(item.experiment) : nullptr;
    const Finding* const finding =
        section == nullptr ? nullptr : section->findings.named(item.finding);
    if (chosen.empty() || finding == nullptr) {
      mark.text =
          "For the teacher: the answer does not begin with a choice, or nothing was measured.";
      return;
    }
    const bool is_valid = section->trouble.empty(),
               has_word = is_valid && finding->word && decides(*finding->word);
    std::string right(has_word ? "" : kCannotBeSaid);
    for (const auto& [choice, words] : item.choices) {
      if (has_word && std::ranges::find(words, finding->word) != words.end()) right = choice;
    }
    if (is_short(*section) || (!is_valid && chosen != right)) {
      mark.text = fmt::format("For the teacher: {}", trouble_line(*section));
    } else if (right.empty()) {
      mark.text = fmt::format("For the teacher: no choice of the sheet stands for '{}'.",
                              name_of(*finding->word));
    } else if (chosen == right) {
      mark.points = 1;
      mark.text = fmt::format("'{}' is what your own figures say.", right);
    } else {
      mark.points = 0;
      mark.text =
          fmt::format("'{}', and your own figures say '{}': {}", chosen, right, finding->text);
      found(MistakeKind::kAnswer, fmt::format("{}: {}", item.name, mark.text));
    }
  }

  /// Whether an answer begins with a choice, in small or large letters, and a sign or nothing is
  /// below it: "No, ...", but not "No doubt".
  static bool begins_with(std::string_view answer, std::string_view choice) {
    answer.remove_prefix(std::min(answer.find_first_not_of(" *_`\"'"), answer.size()));
    const auto is_same = [](unsigned char a, unsigned char b) {
      return std::tolower(a) == std::tolower(b);
    };
    return std::ranges::equal(answer.substr(0, choice.size()), choice, is_same) &&
           (answer.size() == choice.size() ||
            std::ispunct(static_cast<unsigned char>(answer[choice.size()])) != 0 ||
            answer.substr(choice.size()).starts_with(" - ") ||
            answer.substr(choice.size()).starts_with(" \u2013 "));
  }

  const ClassPlan& plan_;
  const MachineCard& gpus_;
  GradedStudent graded_;
  std::string packed_;  // the file that is all that was handed in
  std::string handed_;  // the sheet
  std::optional<StudyIdentity> identity_;
  std::optional<Report> report_;
  bool is_from_before_ = true;       // predictions are as they were before the first run
  std::vector<std::string> edited_;  // files of the study, other than records
  std::set<std::string> missing_, busy_;
  std::vector<SheetQuestion> keys_, before_, given_;
  std::set<std::string> altered_;  // cases, whose figures are not compared
  std::set<std::string> damaged_;  // experiments with a record that cannot be read
};

/// Who has each record, by its hash.
std::map<std::string, Holders> holders_of(const std::vector<StudentsWork>& all) {
  std::map<std::string, Holders> holders;
  for (const StudentsWork& work : all) {
    work.for_cases([&](const Measurement& measured, const std::string&) {
      for (const Start& start : measured.starts()) {
        holders[start.hash].all.insert(&work.student());
        if (work.is_own(measured, start)) holders[start.hash].own.insert(&work.student());
      }
    });
  }
  return holders;
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
  for (std::future<void>& worker : workers) worker.get();
  return runs;
}

/// Names the sheets without records that have another student's figures.
void name_same_figures(std::vector<GradedStudent>& students) {
  constexpr std::size_t kFew = 3;  // may be the same by chance
  const auto written_by = [](const GradedStudent& student) {
    std::vector<std::string> all;
    for (const HandedFigure& figure : student.figures) {
      if (!figure.written.empty()) all.push_back(figure.written);
    }
    return all;
  };
  for (GradedStudent& student : students) {
    const std::vector<std::string> own = written_by(student);
    const bool is_copy = std::ranges::any_of(students, [&](const GradedStudent& other) {
      return !other.machine.empty() && written_by(other) == own;
    });
    if (!student.machine.empty() || own.size() <= kFew || !is_copy) continue;
    student.mistakes.push_back(
        {MistakeKind::kCopied, "another student's sheet has the same figures"});
  }
}

}  // namespace

std::vector<std::filesystem::path> files_below(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  std::error_code error;
  for (std::filesystem::recursive_directory_iterator entry(
           folder, std::filesystem::directory_options::skip_permission_denied, error);
       !error && entry != std::filesystem::recursive_directory_iterator(); entry.increment(error)) {
    files.push_back(entry->path());
  }
  std::ranges::sort(files);
  return files;
}

std::string hash_of_sheet(const std::filesystem::path& file) {
  std::string text = InputFile(file, "sheet").text(kMaxHandedBytes);
  std::erase(text, '\r');
  return hash_of_bytes(text);
}

std::string machine_text(const Report& report) {
  const auto is_of_logs = [](const ReportSection& section) { return is_logged(section.results); };
  if (std::ranges::any_of(report.sections, is_of_logs)) return "own logs";
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
  for (const auto& entry : std::filesystem::directory_iterator(handed_in, error)) {
    if (!entry.path().filename().string().starts_with('.')) folders.insert(entry.path());
  }
  if (error) {
    fail(ExitCode::kNoInput, {.what = "handed in",
                              .value = handed_in.string(),
                              .why = error.message(),
                              .remedy = "name the folder with a folder of each student"});
  }
  std::map<const Student*, std::filesystem::path> own = taken_folders(folders, plan);
  std::vector<StudentsWork> all;
  for (const Student& student : plan.students) {
    all.emplace_back(plan, student, gpus, own[&student]);
    if (!rerun) on_progress(static_cast<int>(all.size()), student.name);
  }
  const auto holders = holders_of(all);
  const std::vector<AnotherRun> reruns = reruns_of(all, rerun, on_progress);
  GradedClass result;
  for (std::size_t i = 0; i < all.size(); ++i) {
    result.students.push_back(all[i].grade(holders, reruns[i]));
  }
  name_same_figures(result.students);
  for (const std::filesystem::path& folder : folders) {
    result.unknown.push_back(unknown_text(plan, folder));
  }
  return result;
}

}  // namespace barestep
