// A study: experiments, run in a folder that keeps every start, so that one that was stopped goes
// on where it stopped.
//
// The folder holds study.json (what the study is of), machine.json (the rates of its machine),
// runs/EXPERIMENT/CASE.START.json (the steps of each start) and data/ (the data sets that were
// read).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/output_file.h"
#include "lab/experiment.h"
#include "lab/measured_card.h"
#include "lab/run_workload.h"

namespace barestep {

struct StudyIdentity {
  bool quick = false;
  bool on_gpu = false;
  SettingOptions options{};
  Machine machine{};
  std::string version{};  // of barestep, with its commit

  friend bool operator==(const StudyIdentity&, const StudyIdentity&) = default;
};

struct StudyProgress {
  int done = 0;  // starts, those of earlier calls included
  int total = 0;
  double left_s = 0;   // 0: not known yet
  std::string what{};  // "amdahl: ranks-2, start 1 of 4"
};

class Study {
 public:
  /// Makes the folder, or goes on with the study in it; no other program can until this object is
  /// gone. Throws Error: kCannotCreate if it cannot be written, kTryAgain if another program is at
  /// it, kConfiguration if it holds something else, or a study of another machine, build or length.
  /// `starts` of each case are made; 0 for the setting's own number.
  Study(std::filesystem::path folder, StudyIdentity identity, int starts = 0);

  /// Of a study that was made somewhere, to be reported on. Throws Error(kNoInput) if there is none
  /// in the folder, kBadData if its file is damaged.
  static Study open(std::filesystem::path folder);

  /// Throws Error(kMemory) when a run that is missing needs more than `free_bytes` (see
  /// step_programs.h).
  void require_memory(const std::vector<const Experiment*>& wanted, std::int64_t free_bytes) const;

  /// Makes every start that is missing, in an order in which cases alternate: A B B A. A start
  /// during which others disturbed the machine is made again, up to twice. Blocks for long. Throws
  /// Error when a run fails, in its words and with its code; kTryAgain when it was stopped.
  void run(const std::vector<const Experiment*>& wanted, const Programs& programs,
           const std::function<void(const StudyProgress&)>& on_progress);

  /// The experiments whose cases all have a start.
  [[nodiscard]] std::vector<const Experiment*> measured() const;

  /// Reads every start there is of each case, counted from 0 without a gap, and predicts them where
  /// there is a card.
  [[nodiscard]] Results results_of(const Experiment& experiment) const;

  /// The rates of its machine (measured_card.h). Throws Error(kBadData) if the file is damaged.
  [[nodiscard]] std::optional<MachineCard> card() const;
  void keep_card(const MachineCard& card) const;

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
  [[nodiscard]] std::vector<Job> jobs_of(const Experiment& experiment) const;
  [[nodiscard]] std::filesystem::path file_of(const Job& job) const;
  [[nodiscard]] bool is_done(const Job& job) const;
  void make(const Job& job, const Programs& programs) const;

  std::filesystem::path folder_;
  StudyIdentity identity_;
  int starts_ = 0;
  std::unique_ptr<FolderLock> lock_;  // null where it is only read
};

}  // namespace barestep
