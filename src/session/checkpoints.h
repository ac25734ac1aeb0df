// Checkpoints of a run: where a run resumes, what it must have in common with the interrupted run,
// and how checkpoints are saved while training continues.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <future>
#include <optional>
#include <string>
#include <string_view>

#include "core/config.h"
#include "core/error.h"
#include "core/group.h"
#include "core/ops.h"
#include "data/checkpoint_folder.h"
#include "session/job.h"
#include "session/observer.h"
#include "session/place.h"
#include "session/rank_agreement.h"
#include "train/trainer.h"
#include "train/training_state.h"

namespace barestep {

/// The point at which a run resumes.
struct ResumePoint {
  std::filesystem::path file;
  std::string text;                            // the checkpoint's state, as read
  TrainingState state;                         // its tensors are only on rank 0
  Generator generator = Generator::kTorchCpu;  // for random data
};

/// Reads the checkpoint that the options name. For --resume, that is the newest complete one; for
/// each newer one, `program` prints a note on stderr. Nothing for a fresh start. Throws Error, with
/// kBadData if the folder has files but none is complete.
std::optional<ResumePoint> find_resume_point(std::string_view program,
                                             const CheckpointConfig& config);

/// Throws Error(kConfiguration) if the folder contains checkpoints of a run that this one does not
/// resume, since this run's checkpoints would replace them.
void require_own_folder(const CheckpointConfig& config);

/// Sends rank 0's result to every rank, without its tensors. Every rank calls it. Blocks.
void share_resume_point(Group& ranks, std::optional<ResumePoint>& point);

/// Throws Error(kConfiguration), naming the differences, if a run of this configuration cannot
/// resume there: another model, other data, another batch, other options that affect numbers, or
/// fewer steps than were done. Throws what require_state() throws, too. Reads the data files. For
/// rank 0.
void require_same_run(const ResumePoint& point, const TrainConfig& config,
                      const StepPrograms& programs);

/// The differences that change only how numbers are rounded: "the number of ranks is 1 in the
/// checkpoint and 4 here". Empty if the resumed run is bit-identical to an uninterrupted one.
/// `config` is this run's, and of the same run as the checkpoint's.
std::string rounding_differences(const ResumePoint& point, const TrainConfig& config,
                                 const RankSettings& now);

/// The --update of the checkpoint's run; empty if it is not recorded.
std::string update_before(const ResumePoint& point);

/// The settings that this run's rounding depends on: ranks, scheme, device, libraries, build.
RankSettings settings_of_rounding(const TrainConfig& config, const StepPrograms& programs,
                                  const Device& device);

/// The choices of products in the checkpoint; empty if there are none.
std::string product_choices_of(const ResumePoint& point);

/// Restores the --autotune file if it is missing; with the same choices, products have the same
/// bits. Throws what replace_file() throws.
void restore_product_choices(const ResumePoint& point, const DeviceConfig& device);

/// Throws Error(kConfiguration) on all ranks if a rank cannot see the folder that rank 0 has
/// created. Every rank calls it. Blocks.
void require_shared_folder(Job& job, const std::filesystem::path& folder);

/// Saves checkpoints. The run pauses while its state is copied; then a thread writes the copy while
/// training continues, one copy at a time. Every rank has one of these, since ranks write together.
class Checkpoints final : public Observer {
 public:
  /// Opens the folder on rank 0; throws as CheckpointFolder does. `start` is null for a run from
  /// the beginning. All arguments must outlive this.
  Checkpoints(const TrainConfig& config, const StepPrograms& programs, const Place& place,
              Trainer& trainer, Job& job, RankSettings rounding, const ResumePoint* start);

  /// Requests a pause as soon as --checkpoint-every has passed.
  void on_batch() override;
  void on_evaluation(const EvaluationReport& report) override;
  /// Copies the state and starts writing it, after waiting for the previous write. Reports a
  /// failure in one line on stderr.
  void on_pause() override;

  /// Saves the state at the end of the run unless it is saved already. Waits until it is written.
  void save_end();

  /// Blocks until nothing reads the trainer's memory any more. Call before the trainer is
  /// destroyed.
  void finish() const {
    if (writing_.valid()) writing_.wait();
  }

  /// Throws the first failure of any write. Blocks until the last write is done.
  void close() override;

  [[nodiscard]] std::string text() const override;

  /// The newest checkpoint written in this run; empty if there is none.
  [[nodiscard]] const std::filesystem::path& newest() const { return newest_; }

 private:
  /// Copies the state and starts writing it into the folder, which is empty except on rank 0.
  void save_into(std::optional<CheckpointFolder>& folder);
  /// Runs on the thread that writes.
  void write(CheckpointFolder* folder, CheckpointForm form);
  [[nodiscard]] std::string state_text() const;
  void wait();

  const TrainConfig& config_;
  const StepPrograms& programs_;
  const Device& device_;  // every device has the same choices of products
  Trainer& trainer_;
  Group* ranks_;   // used by the thread that writes
  bool is_first_;  // rank 0
  RankSettings rounding_, deciding_;
  std::optional<CheckpointFolder> folder_, best_folder_;
  std::future<void> writing_;
  std::optional<Error> failure_;
  std::atomic<bool> asks_{false};
  double last_s_;
  std::optional<Position> saved_;  // the newest in the folder
  std::filesystem::path newest_;
  std::int64_t count_ = 0;
  double waited_s_ = 0, written_s_ = 0;
};

}  // namespace barestep
