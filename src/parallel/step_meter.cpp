#include "parallel/step_meter.h"

#include <map>
#include <utility>
#include <variant>

#include "core/forwarding_communicator.h"
#include "core/forwarding_device.h"

namespace barestep {

std::vector<BusySpan> busy_spans(const Program& program) {
  std::vector<BusySpan> spans;
  std::map<LaneId, std::size_t> open;  // by lane its last span
  for (NodeId id = 0; id < program.size(); ++id) {
    const Node& node = program.nodes()[static_cast<std::size_t>(id)];
    if (node.phase == Phase::kData) continue;
    const bool is_collective = std::holds_alternative<Collective>(node.op);
    for (const LaneId& lane : lanes_of(program, node)) {
      const auto found = open.find(lane);
      if (found != open.end() && !is_collective && node.waits.empty()) {
        BusySpan& span = spans[found->second];
        const Node& last = program.nodes()[static_cast<std::size_t>(span.last)];
        if (last.phase == node.phase && std::holds_alternative<DeviceOp>(last.op)) {
          span.last = id;
          continue;
        }
      }
      open[lane] = spans.size();
      spans.push_back({.lane = lane, .first = id, .last = id});
    }
  }
  return spans;
}

/// Hands everything on, under a name of its own, and marks where spans begin and end.
class StepMeter::MeteredDevice final : public ForwardingDevice {
 public:
  MeteredDevice(Device& inner, std::string name, StepMeter& meter)
      : ForwardingDevice(inner), name_(std::move(name)), meter_(meter) {}

  [[nodiscard]] std::string_view name() const override { return name_; }
  void run(const DeviceOp& op, const Addresses& addresses, Stream& stream, Tag tag) override {
    meter_.begin(tag, index(), stream);
    inner().run(op, addresses, stream, tag);
    meter_.end(tag, index(), stream);
  }

 private:
  std::string name_;
  StepMeter& meter_;
};

class StepMeter::MeteredCommunicator final : public ForwardingCommunicator {
 public:
  MeteredCommunicator(Communicator& inner, StepMeter& meter)
      : ForwardingCommunicator(inner), meter_(meter) {}

  void run(const Collective& collective, const Addresses& addresses,
           std::span<Stream* const> streams, Tag tag) override {
    for (std::size_t i = 0; i < streams.size(); ++i) {
      meter_.begin(tag, static_cast<int>(i), *streams[i]);
    }
    inner().run(collective, addresses, streams, tag);
    for (std::size_t i = 0; i < streams.size(); ++i) {
      meter_.end(tag, static_cast<int>(i), *streams[i]);
    }
  }

 private:
  StepMeter& meter_;
};

StepMeter::StepMeter(const std::vector<const StepProgram*>& programs,
                     const std::vector<Device*>& devices, const std::vector<std::string>& names,
                     Communicator* communicator) {
  for (const StepProgram* step : programs) {
    Measured& measured = programs_.emplace_back();
    measured.program = &step->program;
    const auto nodes = static_cast<std::size_t>(step->program.size());
    measured.begins.resize(nodes);
    measured.ends.resize(nodes);
    for (const BusySpan& span : busy_spans(step->program)) {
      auto& timed = measured.spans.emplace_back(std::make_unique<Timed>(Timed{.span = span}));
      Device& device = *devices[static_cast<std::size_t>(span.lane.device)];
      for (auto* events : {&timed->begin, &timed->end}) {
        for (auto& event : *events) event = device.new_event(EventUse::kTime);
      }
      measured.begins[static_cast<std::size_t>(span.first)].push_back(timed.get());
      measured.ends[static_cast<std::size_t>(span.last)].push_back(timed.get());
    }
  }
  for (std::size_t i = 0; i < devices.size(); ++i) {
    devices_.push_back(std::make_unique<MeteredDevice>(*devices[i], names[i], *this));
  }
  if (communicator != nullptr) {
    communicator_ = std::make_unique<MeteredCommunicator>(*communicator, *this);
  }
}

StepMeter::~StepMeter() = default;

std::vector<Device*> StepMeter::devices() const {
  std::vector<Device*> all;
  for (const auto& device : devices_) all.push_back(device.get());
  return all;
}

Communicator* StepMeter::communicator() const {
  return communicator_.get();
}

StepMeter::Timed* StepMeter::find(const std::vector<Timed*>& spans, int device) {
  for (Timed* timed : spans) {
    if (timed->span.lane.device == device) return timed;
  }
  return nullptr;
}

void StepMeter::begin(const Tag& tag, int device, Stream& stream) {
  const std::size_t set = set_of(tag.step);
  program_of_[set] = static_cast<std::size_t>(tag.program);
  const Measured& measured = programs_[program_of_[set]];
  Timed* const timed = find(measured.begins[static_cast<std::size_t>(tag.node)], device);
  if (timed != nullptr) timed->begin[set]->record(stream);
}

void StepMeter::end(const Tag& tag, int device, Stream& stream) {
  const std::size_t set = set_of(tag.step);
  const Measured& measured = programs_[static_cast<std::size_t>(tag.program)];
  Timed* const timed = find(measured.ends[static_cast<std::size_t>(tag.node)], device);
  if (timed != nullptr) timed->end[set]->record(stream);
}

}  // namespace barestep
