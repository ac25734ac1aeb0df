#include <algorithm>

#include "core/error.h"
#include "core/index.h"
#include "parallel/schemes/other_schemes.h"

namespace barestep {
namespace {

/// Gathers the factors of this rank's samples, in the last micro-step.
class Gathering {
 public:
  explicit Gathering(Draft& draft) : draft_(draft) {}

  void gather_x() {
    if (rounds() || draft_.spec().draws_all()) return;
    gather(draft_.spec().model.as_rows(draft_.tensors().x));
  }

  [[nodiscard]] PassHooks hooks() {
    return {.linear = [this](const Pass& pass, const Linear& linear, LinearEvent event) {
      const std::vector<Linear*>& linears = draft_.model().linears();
      const auto number = static_cast<int>(
          std::ranges::find(linears, linear.weight(), &Linear::weight) - linears.begin());
      const bool is_input = event == LinearEvent::kInput;
      // With 16-bit types, x is gathered after rounding.
      if (!pass.is_last || (is_input && number == 0 && !rounds())) return;
      gather(is_input ? draft_.factors(number).x : draft_.factors(number).grad_y);
    }};
  }

  /// The factors of all ranks' samples.
  [[nodiscard]] Factors factors(int linear) {
    const auto [grad_y, x] = draft_.factors(linear);
    return {of_all_ranks(grad_y), of_all_ranks(x)};
  }

  /// Computes the gradients as a single rank would, micro-step by micro-step.
  void add_gradients() {
    const StepSpec& spec = draft_.spec();
    const PassHooks none;
    Pass pass = draft_.pass(Phase::kBackward, none);
    const std::vector<Linear*>& linears = draft_.model().linears();
    const std::int64_t batch = spec.batch_size * spec.model.rows_per_sample;
    for (std::int64_t first = 0; first < all_rows(); first += batch) {
      const std::int64_t count = std::min(batch, all_rows() - first);
      pass.beta = first > 0 || !spec.update.zero_grad ? 1 : 0;
      for (int linear = static_cast<int>(linears.size()) - 1; linear >= 0; --linear) {
        const auto [grad_y, x] = factors(linear);
        const Factors part{grad_y.row_slice(first, count), x.row_slice(first, count)};
        at(linears, linear)->add_gradients(pass, part);
      }
    }
  }

 private:
  /// Of blocks' tensors, all ranks together.
  [[nodiscard]] std::int64_t all_rows() const {
    return draft_.rows() * draft_.spec().model.rows_per_sample;
  }
  [[nodiscard]] bool rounds() const { return draft_.spec().model.numbers != DType::kF32; }

  [[nodiscard]] Tensor of_all_ranks(const Tensor& own) {
    if (own.buffer == draft_.tensors().x.buffer && draft_.spec().draws_all()) {
      return {own.buffer, 0, all_rows(), own.cols};
    }
    return draft_.buffers().tensor("all_" + draft_.buffers()[own.buffer].name,
                                   Category::kCommunication, all_rows(), own.cols, own.dtype);
  }
  void gather(const Tensor& own) {
    draft_.exchange(AllGather{.tensors = {of_all_ranks(own)},
                              .own = {own},
                              .name = draft_.buffers()[own.buffer].name + ", gathered"});
  }

  Draft& draft_;
};

}  // namespace

void Factor::build(Draft& draft) const {
  BARESTEP_REQUIRE(!draft.spec().update.clip_norm || draft.spec().model.stores_gradients,
                   "--scheme factor clips stored gradients only");
  const Draft::Ready share = draft.share_loss(1);
  draft.leave_factors("--scheme", "factor");
  draft.keep_all_rows();
  Gathering gathering(draft);
  draft.input([&] { gathering.gather_x(); });
  draft.passes({.pass = gathering.hooks(), .loss_ready = share});
  // After all of backward, so that their inputs can arrive in the meantime.
  if (draft.spec().model.stores_gradients) gathering.add_gradients();
  draft.update({.factors = [&](int linear) { return gathering.factors(linear); }});
}

}  // namespace barestep
