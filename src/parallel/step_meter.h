// How long each device of a process works on each part of a step, by events around its work.
//
// Unlike records (core/record.h) events are had from every kind of device, and only a handful are
// recorded in a step: one pair for each run of nodes of a lane that belong together.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/communicator.h"
#include "core/device.h"
#include "core/program.h"
#include "train/step.h"

namespace barestep {

/// Nodes of one phase and kind that follow each other on a lane without a wait between them: for as
/// long as they run, the lane is busy.
struct BusySpan {
  LaneId lane;
  NodeId first = 0;
  NodeId last = 0;
};

/// Those of a program, for each lane in the order of its nodes. Data nodes are left out. A
/// collective is a span on each of its lanes.
std::vector<BusySpan> busy_spans(const Program& program);

/// Stands between a trainer and the devices and the communicator of its process. Not for graphs:
/// captured work is not measured.
class StepMeter {
 public:
  /// `programs` in the order in which the trainer has them, StepPrograms::all(); `names` are what
  /// the devices are called from now on. `communicator` may be null. All must outlive it.
  StepMeter(const std::vector<const StepProgram*>& programs, const std::vector<Device*>& devices,
            const std::vector<std::string>& names, Communicator* communicator);
  ~StepMeter();
  StepMeter(const StepMeter&) = delete;
  StepMeter& operator=(const StepMeter&) = delete;

  /// What to train on; they last as long as the meter. The communicator may be null.
  [[nodiscard]] std::vector<Device*> devices() const;
  [[nodiscard]] Communicator* communicator() const;

  /// Calls f(program, span, seconds) for each span of the runner's step `step`, which must be
  /// finished, and at most the next one queued.
  template <class F>
  void visit(std::int64_t step, const F& f) const {
    const std::size_t set = set_of(step);
    const Measured& measured = programs_[program_of_[set]];
    for (const auto& timed : measured.spans) {
      f(*measured.program, timed->span, timed->end[set]->seconds_since(*timed->begin[set]));
    }
  }

 private:
  class MeteredDevice;
  class MeteredCommunicator;
  static constexpr std::size_t kSets = 3;  // of events; steps take turns on them
  static std::size_t set_of(std::int64_t step) { return static_cast<std::size_t>(step) % kSets; }
  using Events = std::array<std::unique_ptr<Event>, kSets>;

  struct Timed {
    BusySpan span;
    Events begin{}, end{};
  };
  struct Measured {
    const Program* program = nullptr;
    std::vector<std::unique_ptr<Timed>> spans{};
    std::vector<std::vector<Timed*>> begins{}, ends{};  // by node: one for each of its lanes
  };

  /// The span on that device, or null: of work outside of steps there is none.
  static Timed* find(const std::vector<Timed*>& spans, int device);
  void begin(const Tag& tag, int device, Stream& stream);
  void end(const Tag& tag, int device, Stream& stream);

  std::vector<Measured> programs_;
  std::array<std::size_t, kSets> program_of_{};  // of the step that last took each set
  std::vector<std::unique_ptr<MeteredDevice>> devices_;
  std::unique_ptr<MeteredCommunicator> communicator_;
};

}  // namespace barestep
