#include "parallel/event_records.h"

#include <span>
#include <utility>

#include "core/forwarding_communicator.h"
#include "core/forwarding_device.h"

namespace barestep {

class EventRecords::MarkedDevice final : public ForwardingDevice {
 public:
  MarkedDevice(Device& inner, EventRecords& records) : ForwardingDevice(inner), records_(records) {}

  void run(const DeviceOp& op, const Addresses& addresses, Stream& stream, Tag tag) override {
    const Marks* const marks = records_.marks_of(tag);
    if (marks != nullptr) marks->start->record(stream);
    inner().run(op, addresses, stream, tag);
    if (marks != nullptr) marks->end->record(stream);
  }

  /// A graph has events of its own: every launch stamps them.
  void begin_capture(Stream& origin) override {
    records_.captured_.push_back(std::make_unique<MarkSet>(records_.new_marks()));
    records_.capturing_ = records_.captured_.back().get();
    records_.marked_in_capture_ = false;
    inner().begin_capture(origin);
  }
  std::unique_ptr<Graph> end_capture(Stream& origin) override {
    const MarkSet* const marks = std::exchange(records_.capturing_, nullptr);
    auto graph = inner().end_capture(origin);
    if (records_.marked_in_capture_) records_.of_graph_[graph.get()] = marks;
    return graph;
  }
  void launch(Graph& graph, Stream& stream, std::int64_t step) override {
    const auto found = records_.of_graph_.find(&graph);
    if (found != records_.of_graph_.end()) records_.at(step) = {found->second, step};
    inner().launch(graph, stream, step);
  }

 private:
  EventRecords& records_;
};

class EventRecords::MarkedCommunicator final : public ForwardingCommunicator {
 public:
  MarkedCommunicator(Communicator& inner, EventRecords& records)
      : ForwardingCommunicator(inner), records_(records) {}

  void run(const Collective& collective, const Addresses& addresses,
           std::span<Stream* const> streams, Tag tag) override {
    const Marks* const marks = records_.marks_of(tag);
    if (marks != nullptr) marks->start->record(*streams[0]);
    inner().run(collective, addresses, streams, tag);
    if (marks != nullptr) marks->end->record(*streams[0]);
  }

 private:
  EventRecords& records_;
};

EventRecords::EventRecords(Device& device, Communicator& communicator, const Program& program,
                           const std::vector<NodeId>& nodes, RecordSink& sink)
    : inner_(device),
      nodes_(nodes),
      sink_(sink),
      clock_(device),
      device_(std::make_unique<MarkedDevice>(device, *this)),
      communicator_(std::make_unique<MarkedCommunicator>(communicator, *this)) {
  for (const NodeId id : nodes_) {
    const Node& node = program.nodes()[static_cast<std::size_t>(id)];
    BARESTEP_REQUIRE(node.phase != Phase::kData, "data nodes are in no graph");
    places_[id] = labels_.size();
    labels_.push_back(label_of(node.op));
  }
  for (MarkSet& marks : eager_) marks = new_marks();
}

EventRecords::~EventRecords() = default;

Device& EventRecords::device() const {
  return *device_;
}

Communicator& EventRecords::communicator() const {
  return *communicator_;
}

EventRecords::MarkSet EventRecords::new_marks() const {
  MarkSet marks(nodes_.size());
  for (Marks& each : marks) {
    each = {inner_.new_event(EventUse::kTime), inner_.new_event(EventUse::kTime)};
  }
  return marks;
}

const EventRecords::Marks* EventRecords::marks_of(const Tag& tag) {
  if (tag.program != 0) return nullptr;
  const auto place = places_.find(tag.node);
  if (place == places_.end()) return nullptr;
  if (capturing_ != nullptr) {
    marked_in_capture_ = true;
    return &(*capturing_)[place->second];
  }
  const MarkSet& marks = eager_[static_cast<std::size_t>(tag.step) % kSets];
  at(tag.step) = {&marks, tag.step};
  return &marks[place->second];
}

void EventRecords::send(std::int64_t step) {
  const MarkedStep& marked = at(step);
  if (marked.step != step) return;  // another program ran
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const Marks& marks = (*marked.marks)[i];
    sink_.on_record({.tag = {.program = 0, .step = step, .node = nodes_[i]},
                     .label = labels_[i],
                     .start_s = clock_.time_of(*marks.start),
                     .end_s = clock_.time_of(*marks.end)});
  }
  if (clock_.is_old()) clock_.compare();
}

}  // namespace barestep
