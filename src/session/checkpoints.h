// Checkpoints of a run: where it resumes, what it must have in common with the run that was cut
// off, and how they are saved while training goes on.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/communicator.h"
#include "core/config.h"
#include "core/error.h"
#include "core/ops.h"
#include "data/checkpoint_folder.h"
#include "session/job.h"
#include "session/observer.h"
#include "session/place.h"
#include "session/rank_agreement.h"
#include "train/trainer.h"
#include "train/training_state.h"

namespace barestep {

/// Where a run resumes.
struct ResumePoint {
  std::filesystem::path file;
  std::string text;                            // the checkpoint's state, as it was read
  TrainingState state;                         // whose tensors are rank 0's
  Generator generator = Generator::kTorchCpu;  // of random data
};

/// Reads the checkpoint that the options name. For --resume that is the newest whole one; each
/// newer one is a note of `program` on stderr. Nothing for a fresh start. Throws Error, kBadData
/// where no file of the folder is whole.
std::optional<ResumePoint> find_resume_point(std::string_view program,
                                             const CheckpointConfig& config);

/// Throws Error(kConfiguration) where the folder holds checkpoints of a run that this one does not
/// resume: its own would replace them.
void require_own_folder(const CheckpointConfig& config);

/// Sends what rank 0 found to every rank, except for its tensors. Every rank calls it. Blocks.
void share_resume_point(Communicator& ranks, std::optional<ResumePoint>& point);

/// Throws Error(kConfiguration), which names what differs, where a run of this configuration cannot
/// resume there: another model, other data, another batch, other options that decide numbers, or
/// fewer steps than were done; and what require_state() throws. Reads the data files. For rank 0.
void require_same_run(const ResumePoint& point, const TrainConfig& config,
                      const StepPrograms& programs);

/// What differs now and changes only how numbers are rounded: "the number of ranks is 1 in the
/// checkpoint and 4 here". Empty where the resumed run has the bits of an uninterrupted one.
std::string rounding_differences(const ResumePoint& point, const RankSettings& now);

/// The --update of the run that the checkpoint is of; empty where it does not tell.
std::string update_before(const ResumePoint& point);

/// What the rounding of this run depends on: ranks, scheme, device, libraries, build.
RankSettings settings_of_rounding(const TrainConfig& config, const StepPrograms& programs,
                                  const Device& device, TrainerKind trainer);

/// The choices of products that the checkpoint holds; empty where it holds none.
std::string product_choices_of(const ResumePoint& point);

/// Restores the file of --autotune where it is gone: with the same choices products have the same
/// bits. Throws what replace_file() throws.
void restore_product_choices(const ResumePoint& point, const DeviceConfig& device);

/// Throws Error(kConfiguration) on all ranks if a rank does not see the folder that rank 0 has
/// made. Every rank calls it. Blocks.
void require_shared_folder(Job& job, const std::filesystem::path& folder);

/// Saves checkpoints: the run waits until a copy of its state is taken, and a thread writes that
/// while training goes on, one copy at a time. Every rank has one, for ranks write together.
class Checkpoints final : public Observer {
 public:
  /// Opens the folder on rank 0, with CheckpointFolder's errors. `start` is null for a run from the
  /// beginning. All that is referred to must outlive it.
  Checkpoints(const TrainConfig& config, const StepPrograms& programs, const Place& place,
              Trainer& trainer, Job& job, RankSettings rounding, const ResumePoint* start);

  /// Asks for a pause as soon as --checkpoint-every has passed.
  void on_batch() override;
  void on_evaluation(const EvaluationReport& report) override;
  /// Takes a copy of the state and begins to write it; waits for the one before it. A failure is
  /// one line on stderr.
  void on_pause() override;

  /// Saves the state at the end of the run, unless it has been saved. Waits until it is written.
  void save_end();

  /// Blocks until nothing reads the trainer's memory any more. Call it before the trainer ends.
  void finish() const {
    if (writing_.valid()) writing_.wait();
  }

  /// Throws the first failure of any write. Blocks until the last one is done.
  void close() override;

  [[nodiscard]] std::string text() const override;

  /// The newest that was written in this run; empty for none.
  [[nodiscard]] const std::filesystem::path& newest() const { return newest_; }

 private:
  /// Takes a copy of the state, and begins to write it into the folder, which has no value but on
  /// rank 0.
  void save_into(std::optional<CheckpointFolder>& folder);
  /// Of the thread that writes.
  void write(CheckpointFolder* folder, CheckpointForm form);
  [[nodiscard]] std::string state_text() const;
  void wait();

  const TrainConfig& config_;
  const StepPrograms& programs_;
  TrainerKind program_;
  const Device& device_;  // whose choices of products all have
  Trainer& trainer_;
  Communicator* ranks_;  // for the thread that writes
  bool is_first_;        // rank 0
  RankSettings rounding_, deciding_;
  std::optional<CheckpointFolder> folder_, best_folder_;
  std::future<void> writing_;
  std::optional<Error> failure_;
  std::atomic<bool> asks_{false};
  double last_s_;
  std::optional<Position> saved_;  // in the folder
  std::filesystem::path newest_;
  std::int64_t count_ = 0;
  double waited_s_ = 0, written_s_ = 0;
};

}  // namespace barestep
