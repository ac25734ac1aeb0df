#include "parallel/schemes/factor.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/operands.h"
#include "parallel/schemes/rewriting.h"

namespace barestep {
namespace {

/// The losses of a step's rows, as if this rank's were part of a batch of `rows`.
void count_all_rows(Program& program, std::int64_t rows) {
  for (Node& node : program.nodes()) {
    if (auto* const op = std::get_if<DeviceOp>(&node.op)) set_loss_rows(*op, rows);
  }
}

/// What the node of a gradient writes.
Tensor gradient_of(const Node& node) {
  const std::vector<Access> accesses = accesses_of(node.op);
  return std::ranges::find_if(accesses, &Access::writes)->tensor;
}

/// By buffer, the last node before `end` that writes it. Not by bytes: a rank without rows writes
/// none of them, at the same place of the program as the other ranks.
std::map<BufferId, NodeId> last_writers(const Program& program, NodeId end) {
  std::map<BufferId, NodeId> last;
  for (NodeId id = 0; id < end; ++id) {
    for (const Access& access : accesses_of(program.nodes()[static_cast<std::size_t>(id)].op)) {
      if (access.writes) last[access.tensor.buffer] = id;
    }
  }
  return last;
}

/// Turns one rank's nodes into those of all rows.
class Gathering {
 public:
  Gathering(StepProgram& step, Buffers& buffers, const StepSpec& spec)
      : step_(step),
        buffers_(buffers),
        draws_all_(spec.data == DataKind::kRandn && !spec.own_data) {}

  /// The op's factors are from now on those of all rows.
  void widen(Op& op) {
    op = with_tensors(op, [&](const Operand& operand) {
      return operand.rows == 'r' ? all_rows(*operand.tensor) : *operand.tensor;
    });
  }

  /// Own rows and what all ranks' become, in the order in which they were asked for.
  [[nodiscard]] const std::vector<std::pair<Tensor, Tensor>>& gathered() const { return gathered_; }

 private:
  /// `part` are rows of a micro-step.
  Tensor all_rows(const Tensor& part) {
    const Tensor& x = step_.tensors.x;
    const bool is_input = part.buffer == x.buffer;
    if (draws_all_ && is_input) return {x.buffer, 0, step_.rows, x.cols, x.dtype};
    const Tensor own = is_input ? x : Tensor{part.buffer, 0, x.rows, part.cols, part.dtype};
    const std::string name = "all_" + buffers_[own.buffer].name;
    const Tensor all =
        buffers_.tensor(name, Category::kCommunication, step_.rows, own.cols, own.dtype);
    if (known_.insert(all.buffer).second) gathered_.emplace_back(own, all);
    return all;
  }

  StepProgram& step_;
  Buffers& buffers_;
  bool draws_all_;
  std::vector<std::pair<Tensor, Tensor>> gathered_;
  std::set<BufferId> known_;  // of `gathered_`, where all rows go
};

}  // namespace

void Factor::apply(StepProgram& step, Buffers& buffers, const StepSpec& spec,
                   bool /*is_first_step*/) const {
  if (spec.clip_norm && !spec.model.stores_gradients) {
    fail(ExitCode::kConfiguration, {.what = "--clip-norm",
                                    .value = fmt::format("{}", *spec.clip_norm),
                                    .why = "--scheme factor clips stored gradients only",
                                    .remedy = "use --update separate"});
  }
  const std::int64_t own_rows = spec.own_rows(step.rows).count;
  count_all_rows(step.program, step.rows);
  step.tensors.own_loss_scale =
      own_rows == 0 ? 0 : static_cast<double>(step.rows) / static_cast<double>(own_rows);
  Insertions insertions;
  share_loss(step, buffers, 1, insertions);

  // Gradients are made behind all of backward, so that what they wait for can arrive meanwhile.
  const NodeId optimizer = optimizer_node(step.program);
  Gathering gathering(step, buffers, spec);
  std::vector<Node> gradients;                       // each once, of all rows
  std::set<std::pair<BufferId, std::int64_t>> made;  // where they begin
  std::set<NodeId> moved;
  for (NodeId id = 0; id < step.program.size(); ++id) {
    Node& node = step.program.nodes()[static_cast<std::size_t>(id)];
    // What makes a gradient, or a step straight from its factors, sums over the rows of the batch.
    const bool is_gradient = node.phase == Phase::kBackward || node.phase == Phase::kOptimizer;
    if (!is_gradient || !sums_over(node.op, 'r')) continue;
    gathering.widen(node.op);
    if (id >= optimizer) continue;
    moved.insert(id);
    const Tensor gradient = gradient_of(node);
    if (made.emplace(gradient.buffer, gradient.offset_bytes).second) gradients.push_back(node);
  }
  const auto writers = last_writers(step.program, optimizer);
  for (const auto& [own, all] : gathering.gathered()) {
    const auto writer = writers.find(own.buffer);
    const NodeId complete = writer == writers.end() ? kNoNode : writer->second;
    insertions.emplace(complete, comm_node(AllGather{.tensors = {all}, .own = {own}}));
  }
  for (std::int64_t first = 0; first < step.rows; first += spec.batch_size) {
    const std::int64_t count = std::min(spec.batch_size, step.rows - first);
    for (Node node : gradients) {
      node.op = slice(node.op, 'r', first, count);
      insertions.emplace(optimizer - 1, std::move(node));
    }
  }
  step.program = with_insertions(step.program, insertions, moved);
}

}  // namespace barestep
