// A profile in which every figure is known: two steps of one layer.
#pragma once

#include "core/program.h"
#include "profiler/profile.h"
#include "support/testing.h"

namespace barestep {

/// A step whose nodes ran as `span_of` returns, part by part. `plan` is indexed by node and must
/// outlive it.
template <class SpanOf>
ProfiledStep profiled_step(const RunPlan& plan, std::int64_t number, const HostTimes& host,
                           const SpanOf& span_of) {
  ProfiledStep step{
      .number = number,
      .reported_s = host.end_s,
      .timeline = {.plan = {std::shared_ptr<void>(), &plan}, .step = number, .host = host}};
  for (const NodeRun& run : plan.runs()) step.timeline.spans.push_back(span_of(run.first));
  return step;
}

/// A step of 8 ms from the start of its clock, in milliseconds:
///
///   host     queue 0 to 0.1 (each op takes 10 us), wait to 8, report to 9; the next begins at 10
///   copy     x arrives from pinned memory, 0.2 to 0.7
///   compute  forward 1 to 3, loss 3 to 3.5, backward 3.5 to 6.5, Adam 6.6 to 7.6
///
/// The forward product waits for x.
class SampleProfile {
 public:
  enum Id : NodeId { kCopyX, kForward, kLoss, kBackward, kAdam, kNodes };

  SampleProfile() {
    const auto take = [&](const char* name, std::int64_t rows, std::int64_t cols,
                          bool pinned = false) {
      return buffers_->tensor(name, Category::kData, rows, cols, DType::kF32, 0, pinned ? 2 : 1,
                              pinned);
    };
    const Tensor x = take("x", 8, 4);
    const Tensor w = take("w", 4, 4);
    const Tensor out = take("out", 8, 4);
    const Tensor grad = take("grad", 8, 4);
    const Tensor grad_w = take("grad_w", 4, 4);
    add({.op = DeviceOp{Copy{.to = x, .from = take("x_host", 8, 4, true)}},
         .lane = Lane::kCopy,
         .phase = Phase::kData});
    add({.op = DeviceOp{Gemm{.c = out, .a = x, .b = w}},
         .phase = Phase::kForward,
         .block = "net.0"});
    add({.op = DeviceOp{PointwiseLoss{.loss = take("loss", 1, 1),
                                      .grad = grad,
                                      .output = out,
                                      .target = take("y", 8, 4),
                                      .count = 32}},
         .phase = Phase::kLoss});
    add({.op = DeviceOp{Gemm{.c = grad_w, .a = x, .b = grad, .transpose_a = true}},
         .phase = Phase::kBackward,
         .block = "net.0"});
    add({.op = DeviceOp{OptimizerUpdate{.weights = flat(w),
                                        .grads = flat(grad_w),
                                        .state = {take("m", 1, 16), take("v", 1, 16)},
                                        .scalars = take("scalars", 1, 2)}},
         .phase = Phase::kOptimizer});
    order(*program_);
    plan_ = std::make_unique<RunPlan>(*program_, RunDetail::kNodes);
    for (const std::int64_t step : {0, 1}) add_step(step);
  }

  [[nodiscard]] const Program& program() const { return *program_; }
  [[nodiscard]] const std::vector<ProfiledStep>& steps() const { return steps_; }
  [[nodiscard]] Profile profile() const { return profile_of(steps_, 0, {}); }

  /// The flops of the model in a step; its input has none.
  [[nodiscard]] std::int64_t flops_of_step() const {
    std::int64_t flops = 0;
    for (const Node& node : program_->nodes()) flops += cost_of(node.op).flops;
    return flops;
  }

 private:
  static Tensor flat(const Tensor& tensor) {
    return {tensor.buffer, tensor.offset_bytes, 1, tensor.size()};
  }
  void add(Node node) { program_->add(std::move(node)); }

  void add_step(std::int64_t step) {
    const double start_s = 100 + 0.010 * static_cast<double>(step);
    const auto at = [&](double ms) { return start_s + ms / 1e3; };
    constexpr double kBegin[] = {0.2, 1, 3, 3.5, 6.6};
    constexpr double kEnd[] = {0.7, 3, 3.5, 6.5, 7.6};
    steps_.push_back(profiled_step(*plan_, step,
                                   {.begin_s = start_s,
                                    .start_s = start_s,
                                    .queued_s = at(0.1),
                                    .fetch_begin_s = at(0.1),
                                    .fetched_s = at(0.1),
                                    .end_s = at(8)},
                                   [&](NodeId node) -> Span {
                                     return {.queued_s = at(0.02 * node),
                                             .queued_until_s = at(0.02 * node + 0.01),
                                             .begin_s = at(kBegin[node]),
                                             .end_s = at(kEnd[node])};
                                   }));
    steps_.back().reported_s = at(9);
    steps_.back().between_s = step == 0 ? 0 : 0.002;
  }

  std::unique_ptr<Buffers> buffers_ = std::make_unique<Buffers>();
  std::unique_ptr<Program> program_ = std::make_unique<Program>("sample", *buffers_);
  std::unique_ptr<RunPlan> plan_;
  std::vector<ProfiledStep> steps_;
};

}  // namespace barestep
