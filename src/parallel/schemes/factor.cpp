#include "parallel/schemes/factor.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "core/error.h"
#include "core/operands.h"

namespace barestep {
namespace {

void require_clipping(const StepSpec& spec) {
  if (!spec.clip_norm || spec.model.stores_gradients) return;
  fail(ExitCode::kConfiguration, {.what = "--clip-norm",
                                  .value = fmt::format("{}", *spec.clip_norm),
                                  .why = "--scheme factor clips stored gradients only",
                                  .remedy = "use --update separate"});
}

/// The factors of this rank's rows, and the buffers where the factors of all ranks' rows are
/// gathered.
class Gathering {
 public:
  explicit Gathering(Draft& draft)
      : draft_(draft), model_(draft.buffers(), draft.spec().model, own_rows()) {}

  void gather_x() {
    if (!rounds() && !draft_.spec().draws_all()) gather(draft_.tensors().x);
  }
  /// With 16-bit types, x is gathered after rounding.
  void gather_rounded_x() {
    if (rounds()) gather_input_of(0);
  }
  void gather_input_of(int layer) { gather(own(layer).x); }
  void gather_grad_output_of(int layer) { gather(own(layer).grad_y); }

  /// The factors of all rows.
  [[nodiscard]] Factors factors(int layer) {
    const Factors part = own(layer);
    return {all_rows(part.grad_y), all_rows(part.x)};
  }

  /// Computes the gradients as a single rank would, micro-step by micro-step.
  void add_gradients() {
    const StepSpec& spec = draft_.spec();
    for (std::int64_t first = 0; first < draft_.rows(); first += spec.batch_size) {
      const std::int64_t count = std::min(spec.batch_size, draft_.rows() - first);
      const float beta = first > 0 || !spec.zero_grad ? 1 : 0;
      for (int layer = spec.model.layout.layers() - 1; layer >= 0; --layer) {
        const auto [grad_y, x] = factors(layer);
        const Factors part{grad_y.row_slice(first, count), x.row_slice(first, count)};
        model_.add_gradient_of_bias(draft_.program(), layer, part, beta);
        model_.add_gradient_of_weight(draft_.program(), layer, part, beta);
      }
    }
  }

 private:
  [[nodiscard]] bool rounds() const { return draft_.spec().model.numbers != DType::kF32; }
  [[nodiscard]] std::int64_t own_rows() const {
    return draft_.spec().own_rows(draft_.rows()).count;
  }
  [[nodiscard]] Factors own(int layer) { return model_.factors(layer, draft_.tensors().x); }

  [[nodiscard]] Tensor all_rows(const Tensor& own) {
    if (own.buffer == draft_.tensors().x.buffer && draft_.spec().draws_all()) {
      return {own.buffer, 0, draft_.rows(), own.cols};
    }
    return draft_.buffers().tensor("all_" + draft_.buffers()[own.buffer].name,
                                   Category::kCommunication, draft_.rows(), own.cols, own.dtype);
  }
  void gather(const Tensor& own) {
    draft_.exchange(AllGather{.tensors = {all_rows(own)}, .own = {own}});
  }

  Draft& draft_;
  Mlp model_;  // with the activations of all of this rank's rows
};

}  // namespace

void Factor::build(Draft& draft) const {
  const MlpSpec& model = draft.spec().model;
  require_clipping(draft.spec());
  const Draft::Ready share = draft.share_loss(1);
  draft.leave_factors();
  Gathering gathering(draft);
  const int last = model.layout.layers() - 1;

  draft.input([&] { gathering.gather_x(); });
  for (const MicroStep& part : draft.micro_steps()) {
    draft.forward(part, [&](int layer) {
      if (layer == -1) gathering.gather_rounded_x();
      if (layer >= 0 && layer < last) gathering.gather_input_of(layer + 1);
    });
    draft.loss(part, share);
    draft.backward(part, [&](int layer, BackwardResult made) {
      if (made == BackwardResult::kGradOutput) gathering.gather_grad_output_of(layer);
    });
  }
  // After all of backward, so that their inputs can arrive in the meantime.
  if (model.stores_gradients) gathering.add_gradients();
  draft.update({.factors = [&](int layer) { return gathering.factors(layer); }});
}

std::string Factor::exchange_text(const StepSpec& /*spec*/, std::string_view transport) const {
  return fmt::format("factors of the gradients gathered by {}", transport);
}

}  // namespace barestep
