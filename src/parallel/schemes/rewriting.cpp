#include "parallel/schemes/rewriting.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace barestep {
namespace {

Node copy_node(const Tensor& to, const Tensor& from, Lane lane, Phase phase) {
  return {.op = DeviceOp{Copy{.to = to, .from = from}}, .lane = lane, .phase = phase};
}

Tensor take_row(Buffers& buffers, const char* name, Category category, std::int64_t numbers,
                bool pinned) {
  return buffers.tensor(name, category, 1, numbers, DType::kF32, 0, 2, pinned);
}

/// Brings the wish to stop to `to`, as input.
void bring_stop(StepProgram& step, Buffers& buffers, const Tensor& to, Insertions& insertions) {
  const Tensor host = take_row(buffers, "stop_host", Category::kData, 1, true);
  step.tensors.stop_host = host;
  insertions.emplace(-1, copy_node(to, host, Lane::kCopy, Phase::kData));
}

}  // namespace

Program with_insertions(const Program& program, const Insertions& insertions,
                        const std::set<NodeId>& left_out) {
  Program result(program.name(), program.buffers());
  for (NodeId id = -1; id < program.size(); ++id) {
    if (id >= 0 && !left_out.contains(id))
      result.add(program.nodes()[static_cast<std::size_t>(id)]);
    const auto [begin, end] = insertions.equal_range(id);
    for (auto node = begin; node != end; ++node) result.add(node->second);
  }
  return result;
}

TouchedBytes touched_before(const Program& program, NodeId end) {
  TouchedBytes touched(program);
  for (NodeId id = 0; id < end; ++id) touched.enter(id);
  return touched;
}

NodeId last_use(const TouchedBytes& touched, const Tensor& tensor, bool writes_only) {
  NodeId last = kNoNode;
  for (const auto& piece : touched.pieces_of(tensor)) {
    for (const Touch& touch : piece) {
      last = std::max(last, writes_only ? touch.writer : std::max(touch.writer, touch.reader));
    }
  }
  return last;
}

NodeId optimizer_node(const Program& program) {
  const auto& nodes = program.nodes();
  const auto found = std::find_if(nodes.begin(), nodes.end(),
                                  [](const Node& node) { return node.phase == Phase::kOptimizer; });
  BARESTEP_REQUIRE(found != nodes.end(), "a training step has an optimizer node");
  return static_cast<NodeId>(found - nodes.begin());
}

float share_of_step(const StepProgram& step, const StepSpec& spec) {
  const auto own_rows = static_cast<double>(spec.own_rows(step.rows).count);
  return static_cast<float>(own_rows / static_cast<double>(step.rows));
}

Node comm_node(Collective collective) {
  return {.op = std::move(collective), .lane = Lane::kComm, .phase = Phase::kReduce};
}

void share_loss(StepProgram& step, Buffers& buffers, float scale, Insertions& insertions) {
  const Tensor global = take_row(buffers, "global_loss", Category::kCommunication, 2, false);
  const Tensor host = take_row(buffers, "global_loss_host", Category::kData, 2, true);
  bring_stop(step, buffers, global.flat_slice(1, 1), insertions);

  const Program& program = step.program;
  const NodeId loss =
      last_use(touched_before(program, optimizer_node(program)), step.tensors.loss, true);
  Node keep_own = program.nodes()[static_cast<std::size_t>(loss)];
  keep_own.op = DeviceOp{Copy{.to = global.flat_slice(0, 1), .from = step.tensors.loss}};
  insertions.emplace(loss, std::move(keep_own));
  insertions.emplace(loss, comm_node(AllReduce{.tensors = {global}, .scale = scale}));
  insertions.emplace(loss, copy_node(host, global, Lane::kComm, Phase::kReduce));
  step.tensors.loss_host = host.flat_slice(0, 1);
  step.tensors.stops_host = host.flat_slice(1, 1);
}

}  // namespace barestep
