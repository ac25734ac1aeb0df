// Observers: they receive each step and produce lines, files and tables.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/group.h"
#include "profiler/report.h"
#include "train/trainer.h"

namespace barestep {

/// An observer of a run. Observers are called in the order of the run's list, except close(), which
/// is called in reverse order, because an observer may write its remaining data into those before
/// it.
class Observer {
 public:
  virtual ~Observer() = default;

  /// Called after each batch, of training or of evaluation, before its report.
  virtual void on_batch() {}
  virtual void on_step(const StepFigures& /*step*/) {}
  virtual void on_evaluation(const EvaluationReport& /*report*/) {}
  virtual void on_updates_tried(const UpdateTimes& /*times*/) {}

  /// Called when the run pauses so that its state can be saved. All ranks pause after the same
  /// step.
  virtual void on_pause() {}

  /// Called after the last step: completes the files that were written step by step. Throws
  /// Error(kInputOutput) if one is incomplete.
  virtual void close() {}

  /// Sends the other ranks this rank's observations. Every rank calls it, if there are several,
  /// while no work is queued. Blocks.
  virtual void gather(Group& /*ranks*/) {}

  /// The text for stdout after the last step, on rank 0; may be empty.
  [[nodiscard]] virtual std::string text() const { return ""; }

  /// Writes its files. If `failed`, the run ended early: files contain what there is, and their
  /// errors are ignored. Throws Error as replace_file() does.
  virtual void save(bool /*failed*/) {}
};

/// The observers of a run, as the trainer notifies them.
class Observers final : public TrainObserver {
 public:
  /// Appends an observer. Null is ignored.
  void add(std::unique_ptr<Observer> observer) {
    if (observer != nullptr) all_.push_back(std::move(observer));
  }
  /// Creates and appends an observer, and returns it.
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
  void on_updates_tried(const UpdateTimes& times) override {
    for (const auto& each : all_) each->on_updates_tried(times);
  }
  void on_pause() override {
    for (const auto& each : all_) each->on_pause();
  }

  [[nodiscard]] const std::vector<std::unique_ptr<Observer>>& all() const { return all_; }

  /// Functions that close each observer, in the order of closing.
  [[nodiscard]] std::vector<std::function<void()>> closing() const {
    std::vector<std::function<void()>> tasks;
    for (auto each = all_.rbegin(); each != all_.rend(); ++each) {
      tasks.emplace_back([observer = each->get()] { observer->close(); });
    }
    return tasks;
  }

 private:
  std::vector<std::unique_ptr<Observer>> all_;
};

}  // namespace barestep
