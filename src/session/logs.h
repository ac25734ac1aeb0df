// The files that a run writes step by step: --metrics and --tensorboard. If one cannot be written,
// the run continues without it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/config.h"
#include "core/error.h"
#include "core/group.h"
#include "core/host.h"
#include "core/output_file.h"
#include "profiler/event_file.h"
#include "session/observer.h"
#include "session/run_program.h"

namespace barestep {

/// A file that a run writes as it proceeds. `File` is constructed from a path, throws Error once a
/// write has failed, and has close().
template <class File>
class RunFile {
 public:
  /// `program` must outlive it. `more` is passed to the file's constructor too. Throws
  /// Error(kCannotCreate).
  template <class... More>
  RunFile(std::string_view program, const std::filesystem::path& path, const More&... more)
      : program_(program), file_(path, more...) {}

  /// Calls `write(file)`. After the first failure, which is reported as a note on stderr, does
  /// nothing.
  template <class Write>
  void write(const Write& write) {
    if (failure_) return;
    try {
      write(file_);
    } catch (const Error& error) {
      failure_ = error;
      print_note(program_, std::string(error.what()) + "; the run continues without it");
    }
  }

  /// Closes the file. Throws Error(kInputOutput) if it is incomplete.
  void close() {
    if (failure_) throw Error(*failure_);
    file_.close();
  }

 private:
  std::string_view program_;
  File file_;
  std::optional<Error> failure_;
};

/// --metrics: JSON Lines. The configuration comes first, then a record of each step and rank, and
/// last the time that each rank lost to other programs after its warm-up, or in an evaluation.
class MetricsLog final : public Observer {
 public:
  /// Rank 0 creates the file; the others send it the figures of their steps, of about a second at a
  /// time: a rank that sent them after each step would wait there, outside of any step, for the
  /// slower ones. `ranks` may be null, and must outlive it; they form `mesh`. `config` is the
  /// run's, resolved. If the run has `done` steps already, the file keeps their records and
  /// continues after them. Throws Error(kCannotCreate).
  MetricsLog(const TrainConfig& config, Group* ranks, const Mesh& mesh = {}, std::int64_t done = 0);

  /// Watches from here on the time that an evaluation loses; training is watched from its first
  /// step after warm-up.
  void watch() {
    if (!watch_) watch_.emplace();
  }

  /// Writes what rank 0 still keeps of its own, if the run failed.
  ~MetricsLog() override;
  MetricsLog(const MetricsLog&) = delete;
  MetricsLog& operator=(const MetricsLog&) = delete;

  void on_step(const StepFigures& step) override;
  /// Every rank calls it. Flushes, so that a run resumed from here finds the records of all earlier
  /// steps.
  void on_pause() override;
  /// Every rank calls it. Blocks.
  void close() override;

  /// Writes a line of JSON, after the steps before it; for rank 0.
  void write(const std::string& record);

 private:
  void gather_kept();
  void write_lost_time();

  Group* ranks_;
  Mesh mesh_;
  std::optional<RunFile<OutputFile>> file_;  // only on rank 0
  std::vector<StepFigures> kept_{};          // of this rank, not yet sent
  std::vector<std::string> others_{};        // what was written since
  std::ptrdiff_t due_ = 1;                   // so many of them are sent
  std::optional<LostTimeWatch> watch_;       // this process, since its warm-up or watch()
};

/// --tensorboard: loss, step time, throughput and utilization of every step, as event files.
class TensorBoardLog final : public Observer {
 public:
  /// Creates a file in `folder`. If the run goes on after `done` steps, TensorBoard drops what
  /// files of earlier starts say about later ones. `program` must outlive it. Throws
  /// Error(kCannotCreate).
  TensorBoardLog(std::string_view program, const std::filesystem::path& folder,
                 std::optional<std::int64_t> done);

  void on_step(const StepFigures& step) override;
  void on_evaluation(const EvaluationReport& report) override;
  void close() override { file_.close(); }

 private:
  RunFile<EventFile> file_;
  std::int64_t last_step_ = 0;
};

}  // namespace barestep
