#include "parallel/factor.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/overloaded.h"
#include "parallel/rewriting.h"

namespace barestep {
namespace {

/// The losses of a step's rows, as if this rank's were part of a batch of `rows`.
void count_all_rows(Program& program, std::int64_t rows) {
  for (Node& node : program.nodes()) {
    auto* const op = std::get_if<DeviceOp>(&node.op);
    if (op == nullptr) continue;
    if (auto* mse = std::get_if<MseLoss>(op)) mse->count = rows * mse->output.cols;
    if (auto* entropy = std::get_if<CrossEntropy>(op)) entropy->count = rows;
  }
}

/// The same gradient from the rows from `first` on, of all rows; added to that of the rows before.
Node part_of_gradient(Node node, const Rows& rows) {
  const auto narrow = [&](Tensor& all) { all = all.row_slice(rows.first, rows.count); };
  auto& op = std::get<DeviceOp>(node.op);
  if (auto* product = std::get_if<Gemm>(&op)) {
    narrow(product->a);
    narrow(product->b);
    if (rows.first > 0) product->beta = 1;
  } else {
    auto& sum = std::get<SumRows>(op);
    narrow(sum.in);
    if (rows.first > 0) sum.beta = 1;
  }
  return node;
}

/// What the node of a gradient writes.
const Tensor& gradient_of(const Node& node) {
  const auto& op = std::get<DeviceOp>(node.op);
  if (const auto* product = std::get_if<Gemm>(&op)) return product->c;
  return std::get<SumRows>(op).out;
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

  /// The node's factors are from now on those of all rows; what makes a gradient has any.
  bool widen(DeviceOp& op) {
    return std::visit(Overloaded{[&](Gemm& o) {
                                   if (!o.transpose_a) return false;
                                   o.a = all_rows(o.a);
                                   o.b = all_rows(o.b);
                                   return true;
                                 },
                                 [&](SumRows& o) {
                                   o.in = all_rows(o.in);
                                   return true;
                                 },
                                 [&](LinearAdam& o) {
                                   o.grad_y = all_rows(o.grad_y);
                                   o.x = all_rows(o.x);
                                   return true;
                                 },
                                 [](auto&) { return false; }},
                      op);
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
    auto* const op = std::get_if<DeviceOp>(&node.op);
    const bool is_gradient = node.phase == Phase::kBackward || node.phase == Phase::kOptimizer;
    if (!is_gradient || op == nullptr || !gathering.widen(*op) || id >= optimizer) continue;
    moved.insert(id);
    const Tensor& gradient = gradient_of(node);
    if (made.emplace(gradient.buffer, gradient.offset_bytes).second) gradients.push_back(node);
  }
  const auto writers = last_writers(step.program, optimizer);
  for (const auto& [own, all] : gathering.gathered()) {
    const auto writer = writers.find(own.buffer);
    const NodeId complete = writer == writers.end() ? kNoNode : writer->second;
    insertions.emplace(complete, comm_node(AllGather{.tensors = {all}, .own = {own}}));
  }
  for (std::int64_t first = 0; first < step.rows; first += spec.batch_size) {
    const Rows rows{first, std::min(spec.batch_size, step.rows - first)};
    for (const Node& node : gradients) {
      insertions.emplace(optimizer - 1, part_of_gradient(node, rows));
    }
  }
  step.program = with_insertions(step.program, insertions, moved);
}

}  // namespace barestep
