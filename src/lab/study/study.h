// A study: experiments run in a folder that keeps every start, so an interrupted study continues
// where it stopped.
//
// The folder holds study.json (the description of the study), machine.json (the rates of its
// machine) from rates/PASS.json (each time that they were measured),
// runs/EXPERIMENT/CASE.START.json (the steps of each start) and data/ (the data sets used).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/output_file.h"
#include "lab/study/experiment.h"
#include "lab/study/measured_card.h"
#include "lab/study/run_workload.h"

namespace barestep {

/// The shortest step of the model that --quick chooses, since the times of short steps vary too
/// much to conclude anything; and how many times as wide as the narrowest it may become.
constexpr double kQuickStepS = 3e-3;
constexpr std::int64_t kWidestQuick = 8;

struct StudyIdentity {
  bool quick = false;
  bool on_gpu = false;
  GivenOptions options{};  // as for new_setting()
  Machine machine{};
  std::string version{};   // of barestep, with its commit
  std::int64_t width = 0;  // of the model that --quick chose; 0: none yet
  std::string card{};      // hash of machine.json; empty: none yet
  std::string sheet{};     // hash of what was written before the first run; empty: nothing

  friend bool operator==(const StudyIdentity&, const StudyIdentity&) = default;
};

struct StudyProgress {
  int done = 0;  // starts, including those of earlier calls
  int total = 0;
  double left_s = 0;   // 0: not yet known
  std::string what{};  // "amdahl: ranks-2, start 1 of 4"
};

/// What a study is going to do.
struct StudyPlan {
  int starts = 0;      // that are missing
  double seconds = 0;  // that they take, by the card's prediction; 0 without a card
};

/// How long a start of these steps takes, with the program's own start, its data and its end.
double seconds_of_start(const Workload& workload, double step_s);

class Study {
 public:
  /// Creates the folder, or continues the study in it; locks it against other programs for the
  /// lifetime of this object. Throws Error: kCannotCreate if the folder cannot be written,
  /// kTryAgain if another program uses it, kConfiguration if it holds something else, or a study of
  /// another machine, build or length. Makes `starts` starts of each case; 0: the setting's own
  /// number.
  Study(std::filesystem::path folder, StudyIdentity identity, int starts = 0);

  /// Opens a study made elsewhere, for reports. Throws Error(kNoInput) if the folder has none,
  /// kBadData if its file is damaged. With `on_damage`, rounds with a damaged record are left out
  /// of results_of(), which calls it, as long as there is another round.
  using OnDamage = std::function<void(const Experiment&, const std::filesystem::path& record)>;
  static Study open(std::filesystem::path folder, OnDamage on_damage = nullptr);

  /// Chooses the model of --quick, unless its width is given: from the narrowest on, the width
  /// doubles until a step takes kQuickStepS here. Keeps it in the study's file. Blocks. Throws as
  /// run_workload() does.
  void choose_width(const Programs& programs,
                    const std::function<void(const StudyProgress&)>& on_progress);

  /// Throws Error(kMemory) if a missing run needs more than `free_bytes` (see step_programs.h).
  void require_memory(const std::vector<const Experiment*>& requested,
                      std::int64_t free_bytes) const;

  [[nodiscard]] StudyPlan plan_of(const std::vector<const Experiment*>& requested,
                                  bool waits = false) const;

  /// Makes every missing start, in rounds of one start of every case of all experiments, so that
  /// they share what the machine does meanwhile, and in an order that alternates cases: A B B A; of
  /// an experiment that lacks some, and of any if it `waits`, also those that were disturbed. A
  /// start disturbed by other programs is repeated up to twice, after they are quiet if `waits`.
  /// Once they have disturbed several in a row, no start is repeated until one is undisturbed
  /// again, and an experiment ends after two rounds if no case takes kLargeEffect times as long as
  /// another. Calls `on_round` before each round, with its number and that of all rounds. Blocks
  /// for a long time. Throws Error with the run's message and code if a run fails; kTryAgain if
  /// stopped.
  void run(
      const std::vector<const Experiment*>& requested, const Programs& programs,
      const std::function<void(const StudyProgress&)>& on_progress, bool waits = false,
      const std::function<void(int round, int rounds)>& on_round = [](int, int) {});

  /// Whether this folder has an EXPERIMENT.CASE.log of a case.
  [[nodiscard]] bool has_logs(const Experiment& experiment,
                              const std::filesystem::path& logs) const;
  /// Keeps the starts in these logs in place of runs, if there are any of this experiment, and
  /// makes none of its own. Throws Error: kNoInput if a case has no log; as starts_of_log() does.
  void keep_logs(const Experiment& experiment, const std::filesystem::path& logs) const;

  /// The experiments that were run and in which every case has a start.
  [[nodiscard]] std::vector<const Experiment*> measured() const;

  /// Reads the starts of all rounds that are complete, counted from 0 without a gap, and predicts
  /// the cases if there is a card.
  [[nodiscard]] Results results_of(const Experiment& experiment) const;

  /// The rates of the study's machine (measured_card.h). Throws Error(kBadData) if the file is
  /// damaged.
  [[nodiscard]] std::optional<MachineCard> card() const;
  void keep_card(const MachineCard& card);

  /// Keeps a pass of the rates. The card becomes the median of all passes.
  void keep_pass(const MachineCard& pass);
  [[nodiscard]] std::vector<MachineCard> passes() const;

  /// Those of study.json and machine.json that have another content than the program wrote.
  [[nodiscard]] std::vector<std::string> altered_files() const;

  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
  [[nodiscard]] const StudyIdentity& identity() const { return identity_; }
  [[nodiscard]] Setting setting() const;

 private:
  struct Job {
    const Experiment* experiment;
    Case what;
    int start;  // from 0
  };

  Study() = default;
  [[nodiscard]] int starts_of(const Experiment& experiment) const;
  [[nodiscard]] std::vector<Job> jobs_of(const Experiment& experiment) const;
  [[nodiscard]] std::filesystem::path file_of(const Job& job) const;
  [[nodiscard]] bool is_done(const Job& job) const;
  /// The rounds that are complete, of one start of every case.
  [[nodiscard]] int rounds_of(const Experiment& experiment, const std::vector<Case>& cases) const;
  /// The jobs that run() does.
  [[nodiscard]] std::vector<Job> missing_jobs(const std::vector<const Experiment*>& requested,
                                              bool waits) const;
  /// Returns the share of its time that the start lost to other programs.
  double make(const Job& job, const Programs& programs, int max_attempts,
              const std::function<void()>& before_attempt) const;
  /// Whether disturbed starts can answer: by facts, or since an effect is large.
  [[nodiscard]] bool may_answer(const Experiment& experiment) const;

  std::filesystem::path folder_;
  StudyIdentity identity_;
  int starts_ = 0;
  OnDamage on_damage_;
  std::unique_ptr<FolderLock> lock_;  // null if the folder is only read
};

}  // namespace barestep
