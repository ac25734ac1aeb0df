// A run, from its configuration to its last file: the same on one device, on several, and on many
// ranks.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/config.h"
#include "data/dataset.h"
#include "profiler/report.h"
#include "session/checkpoints.h"
#include "session/console.h"
#include "session/job.h"
#include "session/logs.h"
#include "session/observer.h"
#include "session/place.h"
#include "train/evaluator.h"
#include "train/trainer.h"

namespace barestep {

/// The batch sizes of a configuration: those of a sweep, or the one.
std::vector<std::int64_t> batch_sizes_of(const TrainConfig& config);

class Session {
 public:
  /// Checks the configuration, reads data and weights, builds the programs, and opens the devices
  /// unless there is only something to show. Nothing touches a device before all that needs none is
  /// known to be right. `data` may be that of an earlier session with the same options but for the
  /// batch size, which tried the files too. Every rank calls it. `place` and `job` must outlive it.
  /// Throws Error; where there are ranks, QuietEnd on all.
  Session(Place& place, const TrainConfig& config, Job& job,
          std::shared_ptr<const Dataset> data = nullptr);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// What --plan and --explain ask for; where it is not empty there is nothing to run.
  [[nodiscard]] const std::string& answer() const { return answer_; }

  /// Trains. What it made is saved in this order: weights; a checkpoint; metrics and event files;
  /// what goes to stdout; traces. A file that cannot be written does not keep the others from it;
  /// the first such failure is thrown at the end. A run that fails saves the traces of its steps.
  /// Throws Error, and QuietEnd with 75 where the run was asked to stop. Every rank calls it.
  /// Blocks.
  void run();

  /// Of run(): the times of its steps.
  [[nodiscard]] SweepRow row() const;

  /// For --evaluate-only: evaluates the weights of --load. `metrics` takes a record of each batch,
  /// which may tell the precision; it may be null. Where there is a `first`, of the same samples in
  /// another precision, answers are compared with its. Throws what Evaluator::run() throws. Every
  /// rank calls it. Blocks.
  Evaluation evaluate(MetricsLog* metrics, bool tells_precision = false,
                      const Evaluation* first = nullptr);

  /// What its programs are built from.
  [[nodiscard]] const StepSpec& spec() const { return programs_->spec(); }

  /// As resolve() left it, with what the devices took.
  [[nodiscard]] const TrainConfig& config() const { return config_; }
  /// Null for random data.
  [[nodiscard]] const std::shared_ptr<const Dataset>& data() const { return data_; }

 private:
  void settle();
  void find_start();
  void prepare();
  /// Takes an update where it was left to us.
  void settle_update();
  void settle_updates_beside(StepSpec& spec);
  /// For --recompute auto: enters in `spec` the segments that fit, and reports them.
  std::string choose_segments(StepSpec& spec, std::span<const MemoryPool> stated);
  /// Where a fixed --loss-scale is too small for the size of the batch.
  void note_lost_gradients(const StepSpec& spec) const;
  [[nodiscard]] std::string preview() const;
  [[nodiscard]] FlatWeights weights_of_all();
  /// Where products are timed, one device does so: all take what it chose, or what a checkpoint
  /// holds.
  void choose_products();
  void set_up();
  void note_start(const RankSettings& rounding) const;
  void train();
  /// Prints that --early-stop has ended the run, if it has.
  void note_early_end();
  void end();
  void save_weights();
  void save_checkpoint();
  void report();
  void end_if_stopped();

  Place& place_;
  Job& job_;
  TrainConfig config_;
  std::shared_ptr<const Dataset> data_;
  std::unique_ptr<Scheme> scheme_;
  std::unique_ptr<StepPrograms> programs_;
  std::string update_line_;        // what --update auto took; empty where it was not left to us
  std::string update_order_line_;  // of a fused update: beside backward or after it, and why
  std::string answer_;
  FlatWeights loaded_;
  double begin_s_;
  std::optional<ResumePoint> start_;
  Observers observers_;
  Console* console_ = nullptr;          // on rank 0
  Checkpoints* checkpoints_ = nullptr;  // where there are any
  bool limit_is_reached_ = false;
  // What fails on one rank leaves it as it is: its streams may be inside a collective.
  std::unique_ptr<Trainer> trainer_;
};

/// Evaluates with each batch size, and prints the table of all, or what --plan and --explain ask
/// for. Throws what Session does. Every rank calls it. Blocks.
void evaluate(Place& place, TrainConfig config, Job& job);

}  // namespace barestep
