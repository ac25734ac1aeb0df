#include "core/program.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/operands.h"
#include "core/units.h"

namespace barestep {

BufferId Buffers::get(std::string_view name, Category category, std::int64_t bytes, int device,
                      int slots, bool pinned) {
  BARESTEP_REQUIRE(slots == 1 || slots == 2, "a buffer has one or two slots");
  BARESTEP_REQUIRE(bytes >= 0 && device >= 0, "a buffer has a size and a device");
  const auto [found, is_new] = ids_.try_emplace({std::string(name), device}, size());
  const BufferId id = found->second;
  if (is_new) {
    all_.push_back({std::string(name), category, bytes, device, slots, pinned});
    return id;
  }
  Buffer& buffer = at(all_, id);
  BARESTEP_REQUIRE(
      buffer.category == category && buffer.slots == slots && buffer.pinned == pinned,
      "buffer " + buffer.name + " is asked for with another category, slot count or memory kind");
  buffer.bytes = std::max(buffer.bytes, bytes);
  return id;
}

Tensor Buffers::tensor(std::string_view name, Category category, std::int64_t rows,
                       std::int64_t cols, DType dtype, int device, int slots, bool pinned) {
  const std::int64_t bytes =
      checked_multiply(checked_multiply(rows, cols, name), bytes_of(dtype), name);
  return {get(name, category, bytes, device, slots, pinned), 0, rows, cols, dtype};
}

BufferId Buffers::find(std::string_view name, int device) const {
  const auto found = ids_.find({std::string(name), device});
  return found == ids_.end() ? kNoBuffer : found->second;
}

const Buffer& Buffers::operator[](BufferId id) const {
  BARESTEP_REQUIRE(id >= 0 && id < size(), "no such buffer");
  return at(all_, id);
}

int Buffers::max_slots() const {
  int max = 1;
  for (const Buffer& buffer : all_) max = std::max(max, buffer.slots);
  return max;
}

NodeId Program::add(Node node) {
  validate(node.op);
  for (const Operand& operand : operands_of(node.op)) {
    const Buffer& buffer = (*buffers_)[operand.tensor->buffer];
    BARESTEP_REQUIRE(operand.tensor->end_bytes() <= buffer.bytes,
                     "a tensor reaches beyond the end of buffer " + buffer.name);
  }
  if (std::holds_alternative<Collective>(node.op)) {
    auto lanes = lanes_of(*this, node);
    std::sort(lanes.begin(), lanes.end());
    BARESTEP_REQUIRE(std::adjacent_find(lanes.begin(), lanes.end()) == lanes.end(),
                     "two tensors of a collective lie on one device");
  }
  nodes_.push_back(std::move(node));
  return size() - 1;
}

std::vector<LaneId> lanes_of(const Program& program, const Node& node) {
  if (std::holds_alternative<DeviceOp>(node.op)) return {{node.device, node.lane}};
  std::vector<LaneId> lanes;
  for (const auto& part : parts_of(node.op)) {
    lanes.push_back({program.buffers()[part.front().tensor.buffer].device, node.lane});
  }
  return lanes;
}

Price price_of(const Program& program) {
  Price price;
  for (const Node& node : program.nodes()) {
    const Cost cost = cost_of(node.op);
    price.total += cost;
    price.by_phase[node.phase] += cost;
  }
  return price;
}

std::int64_t state_bytes_of(const Program& program) {
  std::int64_t bytes = 0;
  for (const Node& node : program.nodes()) {
    if (std::holds_alternative<Collective>(node.op)) continue;
    for (const Access& access : accesses_of(node.op)) {
      const Category category = program.buffers()[access.tensor.buffer].category;
      const bool counts = category == Category::kParameters || category == Category::kGradients ||
                          category == Category::kOptimizer;
      if (counts) bytes = checked_add(bytes, access.tensor.bytes(), "the bytes of a program");
    }
  }
  return bytes;
}

std::int64_t bytes_sent(const Program& program, const Mesh& mesh) {
  double sent = 0;
  for (const Node& node : program.nodes()) {
    const auto* const collective = std::get_if<Collective>(&node.op);
    if (collective == nullptr) continue;
    if (const auto* const exchange = std::get_if<SendReceive>(collective)) {
      sent += static_cast<double>(exchange->sent_bytes());
      continue;
    }
    const double times = std::holds_alternative<AllReduce>(*collective) ? 2 : 1;
    const int ranks = mesh.size_of(axis_of(*collective));
    sent += times * static_cast<double>(cost_of(node.op).message_bytes) * (ranks - 1) / ranks;
  }
  return std::llround(sent);
}

}  // namespace barestep
