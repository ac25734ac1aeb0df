#include "lab/study/study.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <map>
#include <set>
#include <tuple>

#include "core/clock.h"
#include "core/error.h"
#include "core/input_file.h"
#include "core/json_document.h"
#include "core/units.h"
#include "lab/child.h"
#include "lab/predict/prediction.h"
#include "lab/predict/simulator.h"
#include "lab/predict/workload.h"
#include "lab/study/core_users.h"
#include "lab/study/prediction_errors.h"
#include "options/option_values.h"

namespace barestep {
namespace {

using nlohmann::json;

constexpr const char* kStudyFormat = "barestep study 1";
constexpr const char* kStudyFile = "study.json";
constexpr const char* kCardFile = "machine.json";
constexpr const char* kPasses = "rates";
constexpr const char* kStudyHash = "hash";
constexpr int kMaxAttempts = 3;
constexpr int kHopelessStarts = 3;  // disturbed in a row, in all attempts
constexpr int kRoundsOfHope = 2;
constexpr std::chrono::milliseconds kShortWatch(300);
constexpr std::int64_t kMaxStudyBytes = 1 << 20;
constexpr std::int64_t kMaxStartBytes = std::int64_t{256} << 20;
constexpr std::int64_t kMaxDevices = 1 << 20;
constexpr std::int64_t kMaxWidth = 1 << 20;
constexpr std::int64_t kMaxMemoryBytes = std::int64_t{1} << 60;

GivenOptions options_of_json(const JsonValue& from) {
  GivenOptions options;
  for (const auto& [name, value] : from.members()) options[name] = value.text();
  if (const auto why = refusal_of([&] { new_setting(false, false, 1, options); })) {
    from.refuse(fmt::format("are not those of a study: {}", why->what()));
  }
  return options;
}

/// With the hash of what it holds.
void write_identity(const std::filesystem::path& folder, const StudyIdentity& identity) {
  const Machine& machine = identity.machine;
  json all = {{"format", kStudyFormat},      {"options", identity.options},
              {"quick", identity.quick},     {"on_gpu", identity.on_gpu},
              {"version", identity.version}, {"processor", machine.processor},
              {"cores", machine.cores},      {"memory_bytes", machine.memory_bytes},
              {"gpu", machine.gpu},          {"gpus", machine.gpus},
              {"system", machine.system},    {"width", identity.width},
              {"card", identity.card},       {"sheet", identity.sheet}};
  all[kStudyHash] = hash_of_bytes(all.dump());
  replace_file(folder / kStudyFile, all.dump(1) + "\n");
}

StudyIdentity read_identity(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / kStudyFile;
  if (!std::filesystem::exists(path)) {
    fail(ExitCode::kNoInput, {"study", folder.string(), "there is none in this folder",
                              "name the --output of an earlier mlp_lab run"});
  }
  const JsonDocument document(path, kMaxStudyBytes, "study", "name another folder");
  const JsonValue from = document.root();
  if (from.at("format").text() != kStudyFormat) {
    from.at("format").refuse(fmt::format("is not '{}'", kStudyFormat));
  }
  const auto devices = [&](const char* key, int min) {
    return static_cast<int>(from.at(key).whole(min, kMaxDevices));
  };
  const bool on_gpu = from.at("on_gpu").boolean();
  StudyIdentity identity = {
      .quick = from.at("quick").boolean(),
      .on_gpu = on_gpu,
      .options = options_of_json(from.at("options")),
      .machine = {.processor = from.at("processor").text(),
                  .cores = devices("cores", 1),
                  .memory_bytes = from.at("memory_bytes").whole(0, kMaxMemoryBytes),
                  .gpu = from.at("gpu").text(),
                  .gpus = devices("gpus", on_gpu ? 1 : 0),
                  .system = from.at("system").text()},
      .version = from.at("version").text(),
      .width = from.at("width").whole(0, kMaxWidth)};
  if (from.has(kStudyHash)) {  // not in older ones
    std::ignore = from.at(kStudyHash).text();
    identity.card = from.at("card").text();
    identity.sheet = from.at("sheet").text();
  }
  document.require_known();
  return identity;
}

/// How the study in a folder differs from this one; empty if it does not.
std::string difference(const StudyIdentity& there, const StudyIdentity& here) {
  if (there.quick != here.quick) {
    return there.quick ? "with --quick" : "without --quick";
  }
  if (there.on_gpu != here.on_gpu) return there.on_gpu ? "of GPUs" : "of the CPU";
  GivenOptions kept = there.options;
  if (here.options.contains("dim") && there.width > 0) {
    kept["dim"] = std::to_string(there.width);  // as reports name it
  }
  if (kept != here.options) {
    const std::string options = options_text(kept);
    return options.empty() ? "without such options" : "with" + options;
  }
  if (there.version != here.version) return fmt::format("of {}", there.version);
  return there.machine == here.machine ? "" : "of another machine";
}

[[noreturn]] void refuse_folder(const std::filesystem::path& folder, const std::string& why) {
  fail(ExitCode::kConfiguration, {"--output", folder.string(), why, "name another folder"});
}

/// A study that goes on keeps the width that was chosen for it.
void claim_study_folder(const std::filesystem::path& folder, StudyIdentity& identity) {
  const std::filesystem::path path = folder / kStudyFile;
  if (std::filesystem::exists(path)) {
    // A study that was refused before it measured anything leaves nothing to clean up.
    const bool has_results =
        std::filesystem::exists(folder / "runs") || std::filesystem::exists(folder / kCardFile);
    const StudyIdentity there = read_identity(folder);
    const std::string other = difference(there, identity);
    if (has_results && !other.empty()) {
      refuse_folder(folder, fmt::format("it holds a study {}", other));
    }
    if (other.empty()) identity.width = there.width;
    if (has_results) {
      identity.card = there.card;
      identity.sheet = there.sheet;
    }
  } else if (!std::filesystem::is_empty(folder)) {
    refuse_folder(folder, "it holds files that do not belong to a study");
  }
  write_identity(folder, identity);
}

Start start_in(const std::filesystem::path& path) {
  return parse_start(InputFile(path, "records of a run").text(kMaxStartBytes), path.string());
}

/// Blocks until other programs leave the cores alone for a few seconds.
void wait_until_quiet(StudyProgress progress,
                      const std::function<void(const StudyProgress&)>& on_progress) {
  constexpr int kQuietSeconds = 3;
  for (int quiet = 0; quiet < kQuietSeconds && !children_are_stopped();) {
    const CoreUsers others = watch_core_users(std::chrono::seconds(1));
    quiet = others.disturb() ? 0 : quiet + 1;
    if (quiet > 0) continue;
    progress.what = "waits while other programs take " + others.text();
    on_progress(progress);
  }
}

/// Forward, then backward: cases to be compared alternate, so a drift of the machine affects all of
/// them.
std::vector<std::size_t> order_of_start(std::size_t cases, int start) {
  std::vector<std::size_t> order(cases);
  for (std::size_t i = 0; i < cases; ++i) order[i] = start % 2 == 0 ? i : cases - 1 - i;
  return order;
}

}  // namespace

Study::Study(std::filesystem::path folder, StudyIdentity identity, int starts)
    : folder_(std::move(folder)), identity_(std::move(identity)), starts_(starts) {
  make_folder(folder_);
  lock_ = std::make_unique<FolderLock>(folder_, "--output");
  claim_study_folder(folder_, identity_);
}

Study Study::open(std::filesystem::path folder, OnDamage on_damage) {
  Study study;
  study.folder_ = std::move(folder);
  study.on_damage_ = std::move(on_damage);
  study.identity_ = read_identity(study.folder_);
  return study;
}

Setting Study::setting() const {
  const Machine& machine = identity_.machine;
  GivenOptions options = identity_.options;
  if (identity_.width > 0) options["dim"] = std::to_string(identity_.width);
  Setting setting = new_setting(identity_.quick, identity_.on_gpu,
                                identity_.on_gpu ? machine.gpus : machine.cores, options);
  setting.data = folder_ / "data";
  return setting;
}

void Study::choose_width(const Programs& programs,
                         const std::function<void(const StudyProgress&)>& on_progress) {
  const GivenOptions& options = identity_.options;
  const bool is_given = options.contains("dim") || options.contains("layers");
  if (!identity_.quick || is_given || identity_.width > 0) return;
  const std::filesystem::path scratch = folder_ / "scratch";
  std::filesystem::create_directories(scratch);
  Setting setting = this->setting();
  const std::int64_t widest = kWidestQuick * setting.dim;
  for (;; setting.dim *= 2) {
    on_progress({.what = fmt::format("steps of a model {} wide", setting.dim)});
    const Case what = new_case(setting, "width", base_workload(setting));
    const Start start = run_workload(what, programs, scratch);
    // Other programs only lengthen steps.
    if (std::ranges::min(start.ranks.front().step_s) >= kQuickStepS || setting.dim == widest) break;
  }
  std::filesystem::remove_all(scratch);
  identity_.width = setting.dim;
  write_identity(folder_, identity_);
}

int Study::starts_of(const Experiment& experiment) const {
  return starts_ > 0 ? starts_ : barestep::starts_of(experiment, setting());
}

std::vector<Study::Job> Study::jobs_of(const Experiment& experiment) const {
  const Setting setting = this->setting();
  const std::vector<Case> cases = experiment.cases(setting);
  std::vector<Job> jobs;
  const int starts = starts_of(experiment);
  for (int start = 0; start < starts; ++start) {
    for (const std::size_t place : order_of_start(cases.size(), start)) {
      jobs.push_back({&experiment, cases[place], start});
    }
  }
  return jobs;
}

std::filesystem::path Study::file_of(const Job& job) const {
  return folder_ / "runs" / job.experiment->name /
         fmt::format("{}.{}.json", job.what.key, job.start);
}

bool Study::is_done(const Job& job) const {
  return std::filesystem::exists(file_of(job));
}

double Study::make(const Job& job, const Programs& programs, int max_attempts,
                   const std::function<void()>& before_attempt) const {
  const std::filesystem::path scratch = folder_ / "scratch";
  std::filesystem::create_directories(scratch);
  Start best;
  for (int attempt = 1; attempt <= max_attempts; ++attempt) {
    before_attempt();
    Start start = job.what.made != nullptr ? job.what.made(job.what, job.start)
                                           : run_workload(job.what, programs, scratch);
    // Keeps the attempt that lost the least time to others, however long it took: a start is never
    // dropped for being slow.
    if (attempt == 1 || start.lost_share < best.lost_share) best = std::move(start);
    best.attempts = attempt;
    if (best.lost_share <= kDisturbingShare) break;
  }
  std::filesystem::remove_all(scratch);
  std::filesystem::create_directories(file_of(job).parent_path());
  replace_file(file_of(job), json_of(best));
  return best.lost_share;
}

void Study::require_memory(const std::vector<const Experiment*>& requested,
                           std::int64_t free_bytes) const {
  for (const Experiment* experiment : requested) {
    for (const Job& job : jobs_of(*experiment)) {
      if (job.start > 0 || is_done(job)) continue;
      const Workload& workload = job.what.workload;
      try {
        barestep::require_memory(workload, free_bytes);
      } catch (const Error& error) {
        const bool is_memory = error.code() == ExitCode::kMemory;
        fail(error.code(), {"experiment", experiment->name,
                            fmt::format("{} {} {}", command_line_of(workload),
                                        is_memory ? "has" : "is refused:", error.what()),
                            !is_memory        ? "leave out the option, or this experiment"
                            : identity_.quick ? "free some, or leave this experiment out"
                                              : "--quick takes a smaller model"});
      }
    }
  }
}

namespace {

std::filesystem::path log_of(const Experiment& experiment, const Case& what,
                             const std::filesystem::path& logs) {
  return logs / fmt::format("{}.{}.log", experiment.name, what.key);
}

}  // namespace

bool Study::has_logs(const Experiment& experiment, const std::filesystem::path& logs) const {
  return std::ranges::any_of(experiment.cases(setting()), [&](const Case& what) {
    return std::filesystem::exists(log_of(experiment, what, logs));
  });
}

void Study::keep_logs(const Experiment& experiment, const std::filesystem::path& logs) const {
  if (!has_logs(experiment, logs)) return;
  std::filesystem::create_directories(folder_ / "runs" / experiment.name);
  for (const Case& what : experiment.cases(setting())) {
    const std::filesystem::path log = log_of(experiment, what, logs);
    const std::vector<Start> starts =
        starts_of_log(InputFile(log, "log").text(kMaxStudyBytes), log.string());
    for (std::size_t i = 0; i < starts.size(); ++i) {
      replace_file(file_of({&experiment, what, static_cast<int>(i)}), json_of(starts[i]));
    }
  }
}

std::vector<Study::Job> Study::missing_jobs(const std::vector<const Experiment*>& requested,
                                            bool waits) const {
  std::vector<Job> missing;
  for (const Experiment* experiment : requested) {
    std::vector<Job> jobs = jobs_of(*experiment);
    const auto done = [this](const Job& job) { return is_done(job); };
    if (jobs.empty() || (!waits && std::ranges::all_of(jobs, done))) continue;
    if (done(jobs.front()) && start_in(file_of(jobs.front())).library == kLogged) continue;
    std::erase_if(jobs, [&](const Job& job) {
      return done(job) && start_in(file_of(job)).lost_share <= kDisturbingShare;
    });
    std::ranges::move(jobs, std::back_inserter(missing));
  }
  std::ranges::stable_sort(missing, {}, &Job::start);
  return missing;
}

double seconds_of_start(const Workload& workload, double step_s) {
  constexpr double kProgramS = 1;
  return kProgramS + static_cast<double>(workload.steps()) * step_s;
}

StudyPlan Study::plan_of(const std::vector<const Experiment*>& requested, bool waits) const {
  StudyPlan plan;
  std::map<std::string, double> seconds;  // by command line
  const std::optional<MachineCard> rates = card();
  for (const Job& job : missing_jobs(requested, waits)) {
    ++plan.starts;
    const Workload& workload = job.what.workload;
    if (!rates || !why_no_prediction(workload, *rates).empty()) continue;
    const auto [found, is_new] = seconds.try_emplace(command_line_of(workload));
    if (is_new) {
      found->second = seconds_of_start(workload, predicted_run(workload, *rates).step_s);
    }
    plan.seconds += found->second;
  }
  return plan;
}

bool Study::may_answer(const Experiment& experiment) const {
  const Results results = results_of(experiment);
  if (results.cases.empty() || experiment.findings(results).timed.empty()) return true;
  const auto seconds = [](const Measurement& measured) { return measured.mean_s().median; };
  const auto [min, max] = std::ranges::minmax(results.cases, {}, seconds);
  return seconds(max) >= kLargeEffect * seconds(min);
}

void Study::run(const std::vector<const Experiment*>& requested, const Programs& programs,
                const std::function<void(const StudyProgress&)>& on_progress, bool waits,
                const std::function<void(int round, int rounds)>& on_round) {
  StudyProgress progress;
  int rounds = 0;
  for (const Experiment* experiment : requested) {
    std::filesystem::create_directories(folder_ / "runs" / experiment->name);
    if (experiment->reads_data()) {
      const Setting setting = this->setting();
      make_data_set(setting.data, setting.data_rows, setting.dim);
    }
    progress.total += static_cast<int>(jobs_of(*experiment).size());
    rounds = std::max(rounds, starts_of(*experiment));
  }
  std::vector<Job> jobs = missing_jobs(requested, waits);
  progress.done = progress.total - static_cast<int>(jobs.size());
  const double begin_s = now_s();
  int disturbed_in_row = 0;
  std::set<const Experiment*> given_up;
  const auto wait = [&] {
    if (waits) wait_until_quiet(progress, on_progress);
  };
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const auto& [experiment, what, start] = jobs[i];
    const bool begins_round = i == 0 || jobs[i - 1].start != start;
    if (begins_round) on_round(start, rounds);
    if (given_up.contains(experiment)) continue;
    const bool is_hopeless = disturbed_in_row >= kHopelessStarts;
    const bool is_first = begins_round || jobs[i - 1].experiment != experiment;
    if (is_hopeless && is_first && start >= kRoundsOfHope && !may_answer(*experiment)) {
      given_up.insert(experiment);
      continue;
    }
    progress.what =
        fmt::format("{}: {}, start {} of {}{}", experiment->name, what.key, start + 1,
                    starts_of(*experiment), is_hopeless ? ", disturbed like those before" : "");
    if (i > 0) {
      progress.left_s =
          (now_s() - begin_s) / static_cast<double>(i) * static_cast<double>(jobs.size() - i);
    }
    on_progress(progress);
    const double lost = make(jobs[i], programs, is_hopeless ? 1 : kMaxAttempts, wait);
    disturbed_in_row = lost > kDisturbingShare ? disturbed_in_row + 1 : 0;
    ++progress.done;
    if (disturbed_in_row != 1) continue;
    progress.what = fmt::format("the last start lost {} of its time; other programs take {}",
                                percent_text(lost), watch_core_users(kShortWatch).text());
    on_progress(progress);
  }
}

int Study::rounds_of(const Experiment& experiment, const std::vector<Case>& cases) const {
  int rounds = 0;
  const auto has_all = [&] {
    return std::ranges::all_of(cases, [&](const Case& what) {
      return is_done({&experiment, what, rounds});
    });
  };
  while (!cases.empty() && has_all()) ++rounds;
  return rounds;
}

std::vector<const Experiment*> Study::measured() const {
  std::vector<const Experiment*> found;
  for (const auto& all : {experiments(), what_if_experiments()}) {
    for (const Experiment& experiment : all) {
      if (!std::filesystem::is_directory(folder_ / "runs" / experiment.name)) continue;
      const std::vector<Case> cases = experiment.cases(setting());
      if (cases.empty() || rounds_of(experiment, cases) > 0) found.push_back(&experiment);
    }
  }
  return found;
}

Results Study::results_of(const Experiment& experiment) const {
  Results results{.setting = setting(), .name = experiment.name, .cases = {}};
  const std::vector<Case> cases = experiment.cases(results.setting);
  const int rounds = rounds_of(experiment, cases);
  std::vector<std::vector<Start>> starts(cases.size());
  for (int round = 0; round < rounds; ++round) {
    std::vector<Start> of_round;
    const auto why = refusal_of([&] {
      for (const Case& what : cases) {
        of_round.push_back(start_in(file_of({&experiment, what, round})));
      }
    });
    const bool is_only = round + 1 == rounds && starts.front().empty();
    if (why && (!on_damage_ || is_only)) throw *why;
    if (why) on_damage_(experiment, file_of({&experiment, cases[of_round.size()], round}));
    for (std::size_t i = 0; i < cases.size() && !why; ++i) {
      starts[i].push_back(std::move(of_round[i]));
    }
  }
  for (std::size_t i = 0; i < cases.size(); ++i) {
    results.cases.emplace_back(cases[i], std::move(starts[i]));
  }
  results.card = card();
  if (results.card && !experiment.needs_pytorch() && !is_logged(results)) {
    for (const Measurement& measured : results.cases) {
      const Workload& workload = measured.workload();
      const MachineCard card = card_of_starts(*results.card, measured);
      results.predictions.push_back(why_no_prediction(workload, card).empty()
                                        ? std::optional(predicted_run(workload, card))
                                        : std::nullopt);
    }
  }
  return results;
}

std::optional<MachineCard> Study::card() const {
  const std::filesystem::path file = folder_ / kCardFile;
  if (!std::filesystem::exists(file)) return std::nullopt;
  return load_card(file.string());
}

void Study::keep_card(const MachineCard& card) {
  const std::string text = json_of(card);
  identity_.card = hash_of_bytes(text);
  replace_file(folder_ / kCardFile, text);
  write_identity(folder_, identity_);
}

std::vector<MachineCard> Study::passes() const {
  std::vector<MachineCard> all;
  for (;;) {
    const std::filesystem::path file = folder_ / kPasses / fmt::format("{}.json", all.size());
    if (!std::filesystem::exists(file)) return all;
    all.push_back(load_card(file.string()));
  }
}

void Study::keep_pass(const MachineCard& pass) {
  std::vector<MachineCard> all = passes();
  std::filesystem::create_directories(folder_ / kPasses);
  replace_file(folder_ / kPasses / fmt::format("{}.json", all.size()), json_of(pass));
  all.push_back(pass);
  keep_card(median_card(std::move(all)));
}

std::vector<std::string> Study::altered_files() const {
  const auto text_of = [this](const char* file) {
    return InputFile(folder_ / file, "study").text(kMaxStudyBytes);
  };
  std::vector<std::string> files;
  json all = json::parse(text_of(kStudyFile));
  const std::string hash = all.value(kStudyHash, "");
  all.erase(kStudyHash);
  if (!hash.empty() && hash != hash_of_bytes(all.dump())) files.emplace_back(kStudyFile);
  const bool has_card = !identity_.card.empty() && std::filesystem::exists(folder_ / kCardFile);
  if (has_card && identity_.card != hash_of_bytes(text_of(kCardFile))) {
    files.emplace_back(kCardFile);
  }
  return files;
}

}  // namespace barestep
