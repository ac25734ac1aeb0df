// Observers: who receives each step and makes lines, files and tables of it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/communicator.h"
#include "profiler/report.h"
#include "train/trainer.h"

namespace barestep {

/// One of a run. All are called in the order of the run's list, but close() in the reverse order:
/// one may write what it has left into those before it.
class Observer {
 public:
  virtual ~Observer() = default;

  /// A batch is done, of training or of evaluation; comes before what it has to report.
  virtual void on_batch() {}
  virtual void on_step(const StepFigures& /*step*/) {}
  virtual void on_evaluation(const EvaluationReport& /*report*/) {}

  /// The run pauses after the last step, on all ranks after the same one, so that its state can be
  /// saved.
  virtual void on_pause() {}

  /// No step comes any more: completes the files that were written step by step. Throws
  /// Error(kInputOutput) where one is incomplete.
  virtual void close() {}

  /// Tells the other ranks what this one saw. Every rank calls it, where there are any, while no
  /// work is queued. Blocks.
  virtual void gather(Communicator& /*ranks*/) {}

  /// What it shows on stdout after the last step, on rank 0; empty for nothing.
  [[nodiscard]] virtual std::string text() const { return ""; }

  /// Writes its files. `failed`: the run did not come to its end, so they hold what there is, and
  /// no error of theirs counts. Throws Error as replace_file() does.
  virtual void save(bool /*failed*/) {}
};

/// The observers of a run, as the trainer notifies them.
class Observers final : public TrainObserver {
 public:
  /// Behind those that are there. Null counts as nothing.
  void add(std::unique_ptr<Observer> observer) {
    if (observer != nullptr) all_.push_back(std::move(observer));
  }
  /// Makes one, and returns it.
  template <class T, class... Arguments>
  T& make(Arguments&&... arguments) {
    auto made = std::make_unique<T>(std::forward<Arguments>(arguments)...);
    T& observer = *made;
    all_.push_back(std::move(made));
    return observer;
  }

  void on_batch() override {
    for (const auto& each : all_) each->on_batch();
  }
  void on_step(const StepReport& report) override {
    const StepFigures step(report);
    for (const auto& each : all_) each->on_step(step);
  }
  void on_evaluation(const EvaluationReport& report) override {
    for (const auto& each : all_) each->on_evaluation(report);
  }
  void on_pause() override {
    for (const auto& each : all_) each->on_pause();
  }

  [[nodiscard]] const std::vector<std::unique_ptr<Observer>>& all() const { return all_; }

  /// To close each, in that order.
  [[nodiscard]] std::vector<std::function<void()>> closing() const {
    std::vector<std::function<void()>> works;
    for (auto each = all_.rbegin(); each != all_.rend(); ++each) {
      works.emplace_back([observer = each->get()] { observer->close(); });
    }
    return works;
  }

 private:
  std::vector<std::unique_ptr<Observer>> all_;
};

}  // namespace barestep
