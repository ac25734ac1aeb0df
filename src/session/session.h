// A run, from its configuration to its last file; the same for one device, several devices, and
// many ranks.
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

/// The batch sizes of a configuration: those of a sweep, or the single one.
std::vector<std::int64_t> batch_sizes_of(const TrainConfig& config);

class Session {
 public:
  /// Checks the configuration, reads data and weights, builds the programs, and opens the devices
  /// unless the run only shows something. Everything that can be checked without a device is
  /// checked before one is opened. `data` may come from an earlier session whose options differed
  /// only in the batch size; that session has then checked the files too. Every rank calls it.
  /// `place` and `job` must outlive it. Throws Error; with several ranks, SilentExit on all.
  Session(Place& place, const TrainConfig& config, Job& job,
          std::shared_ptr<const Dataset> data = nullptr);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// The output of --plan and --explain; if it is not empty, there is nothing to run.
  [[nodiscard]] const std::string& answer() const { return answer_; }

  /// Trains. Saves the results in this order: weights; a checkpoint; metrics and event files;
  /// stdout; traces. A file that cannot be written does not prevent the others; the first such
  /// failure is thrown at the end. A run that fails saves the traces of its steps. Throws Error,
  /// and SilentExit with 75 if the run was asked to stop. Every rank calls it. Blocks.
  void run();

  /// The step times of run().
  [[nodiscard]] SweepRow row() const;

  /// For --evaluate-only: evaluates the weights of --load. `metrics` receives a record of each
  /// batch and one of the whole evaluation; it may be null. `first`, if given, is an evaluation of
  /// the same samples in another precision, and answers are compared with it. Throws what
  /// Evaluator::run() throws. Every rank calls it. Blocks.
  Evaluation evaluate(MetricsLog* metrics, const Evaluation* first = nullptr);

  /// The spec of its programs.
  [[nodiscard]] const StepSpec& spec() const { return programs_->spec(); }

  /// The configuration as resolved by resolve(), with the devices that were opened.
  [[nodiscard]] const TrainConfig& config() const { return config_; }
  /// Null for random data.
  [[nodiscard]] const std::shared_ptr<const Dataset>& data() const { return data_; }

 private:
  /// `memory_bytes` is for samples.
  void resolve_config(std::int64_t memory_bytes);
  /// Prints a note if the test set has classes that training never sees.
  void note_untrained_classes() const;
  /// Takes what the environment says where --threads is not given.
  void resolve_threads();
  void find_start();
  void prepare();
  /// Chooses the update if the options leave it open. Whether the run may try both.
  bool resolve_update();
  /// Has the programs built for both, if the warm-up has enough steps.
  void try_updates(StepSpec& spec);
  /// For --recompute auto: sets `spec` to the segments that fit, and reports them.
  std::string choose_segments(StepSpec& spec, std::span<const MemoryPool> stated);
  /// Reads --load; prints a note if its names have a prefix.
  void load(const ModelSpec& model);
  /// Prints a note, once a program, if an activation changes the scores that a loss takes.
  void note_last_activation() const;
  /// Prints a note if a fixed --loss-scale is too small for the batch size.
  void note_lost_gradients(const StepSpec& spec) const;
  [[nodiscard]] std::string preview() const;
  [[nodiscard]] FlatWeights weights_of_all();
  /// If products are timed, only one device does so; all use its choices, or those of a checkpoint.
  void choose_products();
  void set_up();
  /// Null without --metrics.
  MetricsLog* new_metrics(std::int64_t done);
  void note_start(const RankSettings& rounding) const;
  void train();
  /// What to do after --verify-every has found a difference.
  [[nodiscard]] std::string remedy_for_corruption() const;
  /// Prints a message if --early-stop has ended the run.
  void note_early_end();
  void end();
  void save_weights();
  void hash_weights();
  void save_checkpoint();
  void report();
  void end_if_stopped();

  Place& place_;
  Job& job_;
  TrainConfig config_;
  bool is_first_;  // of the program's sessions on the same data
  std::shared_ptr<const Dataset> data_;
  std::unique_ptr<Scheme> scheme_;
  std::unique_ptr<StepPrograms> programs_;
  std::string threads_line_;  // which variable sets --threads; else empty
  std::string update_line_;   // the choice of --update auto; else empty
  std::string answer_;
  FlatWeights loaded_;
  double begin_s_;
  std::optional<ResumePoint> start_;
  Observers observers_;
  Console* console_ = nullptr;          // only on rank 0
  std::string weights_hash_;            // of the weights at the end; only on rank 0
  Checkpoints* checkpoints_ = nullptr;  // may be null
  bool limit_is_reached_ = false;
  // Kept after a failure on one rank, since its streams may be inside a collective.
  std::unique_ptr<Trainer> trainer_;
};

/// Evaluates with each batch size and prints a table of all, or prints the output of --plan or
/// --explain. Throws what Session does. Every rank calls it. Blocks.
void evaluate(Place& place, TrainConfig config, Job& job);

}  // namespace barestep
