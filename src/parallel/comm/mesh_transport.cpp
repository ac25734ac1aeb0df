#include "parallel/comm/mesh_transport.h"

#include <map>
#include <set>
#include <string>
#include <utility>
#include <variant>

#include "parallel/comm/nccl_transport.h"

namespace barestep {
namespace {

class MeshTransport final : public Transport {
 public:
  MeshTransport(Transport& all, const Mesh& mesh) : Transport(all.rank(), all.size()), all_(all) {
    // Also for axes with one rank: every rank must split in the same order.
    for (const Axis axis : kGroupedAxes) groups_[axis] = all.split(mesh.first_on(axis));
  }

  void prepare(const Collective& collective) override { group_of(collective).prepare(collective); }
  void run(const Collective& collective, const Addresses& addresses,
           std::span<Stream* const> streams, Tag tag) override {
    group_of(collective).run(collective, addresses, streams, tag);
  }

  [[nodiscard]] bool sends_records() const override { return all_.sends_records(); }
  void set_record_sink(RecordSink* sink) override {
    all_.set_record_sink(sink);
    for (const auto& [axis, group] : groups_) group->set_record_sink(sink);
  }

  [[nodiscard]] std::string poll_error() override {
    std::string error = all_.poll_error();
    for (const auto& [axis, group] : groups_) {
      if (error.empty()) error = group->poll_error();
    }
    return error;
  }

 private:
  [[nodiscard]] Transport& group_of(const Collective& collective) const {
    const Axis axis = axis_of(collective);
    return axis == Axis::kAll ? all_ : *groups_.at(axis);
  }

  Transport& all_;
  std::map<Axis, std::unique_ptr<Transport>> groups_;
};

}  // namespace

std::unique_ptr<Transport> join_mesh(Transport& all, const Mesh& mesh) {
  return std::make_unique<MeshTransport>(all, mesh);
}

std::int64_t nccl_bytes(const StepPrograms& programs) {
  std::set<Axis> groups;
  std::set<std::pair<Axis, int>> peers;
  for (const StepProgram* const step : programs.all()) {
    for (const Node& node : step->program.nodes()) {
      const auto* const collective = std::get_if<Collective>(&node.op);
      if (collective == nullptr) continue;
      if (const auto* const exchange = std::get_if<SendReceive>(collective)) {
        peers.emplace(exchange->axis, exchange->peer);
      } else {
        groups.insert(axis_of(*collective));
      }
    }
  }
  std::int64_t bytes = std::ssize(peers) * kNcclBytesOfPeer;
  for (const Axis axis : groups) bytes += nccl_bytes(programs.spec().mesh.size_of(axis));
  return bytes;
}

}  // namespace barestep
