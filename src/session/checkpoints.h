// Checkpoints of a run: where it goes on, what it must have in common with the run that was cut
// off, and the writing beside training.
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

/// Where a run goes on.
struct ResumePoint {
  std::filesystem::path file;
  std::string text;                            // the checkpoint's state, as it was read
  TrainingState state;                         // whose tensors are rank 0's
  Generator generator = Generator::kTorchCpu;  // of random data
  std::optional<double> best_test_loss;
};

/// Reads the checkpoint that the options name: of --resume the newest whole one, with a note of
/// `program` on stderr for each that is not. Nothing for a fresh start. Throws Error, kBadData
/// where no file of the folder is whole.
std::optional<ResumePoint> find_resume_point(std::string_view program,
                                             const CheckpointConfig& config);

/// Throws Error(kConfiguration) where the folder holds checkpoints of a run that this one does not
/// go on from: its own would take their place.
void require_own_folder(const CheckpointConfig& config);

/// What rank 0 found, but for its tensors, on every rank. Every rank calls it. Blocks.
void share_resume_point(Communicator& ranks, std::optional<ResumePoint>& point);

/// Throws Error(kConfiguration), which names what differs, where a run of this configuration cannot
/// go on from there: another model, other data, another batch, options that decide numbers, or
/// fewer steps than were done; and what require_state() throws. Reads the data files. Of rank 0.
void require_same_run(const ResumePoint& point, const TrainConfig& config,
                      const StepPrograms& programs);

/// What the bits of a run depend on besides, and differs now: "ranks is 1 in the checkpoint and 4
/// here"; empty where the run goes on to the bit.
std::string rounding_differences(const ResumePoint& point, const RankSettings& now);

/// What bits depend on, of this run: ranks, scheme, device, libraries, build.
RankSettings settings_of_rounding(const TrainConfig& config, const StepPrograms& programs,
                                  const Device& device, TrainerKind trainer);

/// Where there is no file of --autotune, writes it as it was when the checkpoint was made: with the
/// same choices products have the same bits. Throws what replace_file() throws.
void restore_product_choices(const ResumePoint& point, const DeviceConfig& device);

/// Throws Error(kConfiguration), on all ranks, where a rank does not see the folder that rank 0 has
/// made. Every rank calls it. Blocks.
void require_shared_folder(Job& job, const std::filesystem::path& folder);

/// Writes checkpoints: the run waits for a copy in the host's memory, and a thread brings that to
/// the disk. One is written at a time. Of every rank, for the state is gathered; rank 0 writes.
class Checkpoints final : public Observer {
 public:
  /// Opens the folder on rank 0, with CheckpointFolder's errors. `start` is null for a run from the
  /// beginning. All that is referred to must outlive it.
  Checkpoints(const TrainConfig& config, const StepPrograms& programs, TrainerKind program,
              Trainer& trainer, Job& job, RankSettings rounding, const ResumePoint* start);

  /// Asks for a pause as soon as --checkpoint-every has passed.
  void on_batch() override;
  void on_evaluation(const EvaluationReport& report) override;
  /// Copies the state and begins to write it, once the one before it is written. A failure is one
  /// line on stderr.
  void on_pause() override;

  /// The state at the end of the run, unless it has been saved. Waits until it is written.
  void save_end();

  /// Throws the first failure of any write. Blocks until the last one is done.
  void close() override;

  [[nodiscard]] std::string text() const override;

  /// The newest that was written in this run; empty for none.
  [[nodiscard]] const std::filesystem::path& newest() const { return newest_; }

 private:
  /// Copies the state, and begins to write it into the folder, which has no value but on rank 0.
  void keep(std::optional<CheckpointFolder>& folder, const std::filesystem::path& path);
  [[nodiscard]] std::string state_text() const;
  void wait();

  const TrainConfig& config_;
  const StepPrograms& programs_;
  TrainerKind program_;
  Trainer& trainer_;
  bool writes_;  // this is rank 0
  RankSettings rounding_, deciding_;
  std::optional<CheckpointFolder> folder_, best_folder_;
  TrainingState state_;    // the copy, while none is written
  CheckpointImage image_;  // the one that is written
  std::future<void> writing_;
  std::optional<Error> failure_;
  std::atomic<bool> asks_{false};
  double last_s_;
  std::optional<Position> saved_;  // in the folder
  std::optional<double> best_test_loss_;
  std::filesystem::path newest_;
  std::int64_t count_ = 0;
  double copied_s_ = 0, written_s_ = 0;
};

}  // namespace barestep
