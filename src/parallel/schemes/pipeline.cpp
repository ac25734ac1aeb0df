#include <algorithm>
#include <utility>
#include <vector>

#include "core/error.h"
#include "parallel/schemes/other_schemes.h"

namespace barestep {
namespace {

/// The copies between the stages of one process. A result is copied when it is read, so that a
/// device's communication lane brings what its stage needs in the order in which it needs it.
class StageCopies {
 public:
  explicit StageCopies(Draft& draft) : draft_(draft) {}

  [[nodiscard]] StageHooks hooks() {
    return {.send = [this](const ScheduledPass& pass,
                           const Tensor& result) { results_.emplace_back(pass, result); },
            .receive = [this](const ScheduledPass& pass, const Tensor& to) { receive(pass, to); }};
  }

 private:
  void receive(const ScheduledPass& pass, const Tensor& to) {
    const auto source = source_of(pass, draft_.spec().pipeline.stages);
    const auto found = std::ranges::find(results_, source, &Result::first);
    BARESTEP_REQUIRE(found != results_.end(), "a stage reads what another one has computed");
    draft_.copy_between(to, found->second);
    draft_.give_back(found->first, found->second);
    results_.erase(found);
  }

  using Result = std::pair<ScheduledPass, Tensor>;

  Draft& draft_;
  std::vector<Result> results_;  // not read yet
};

}  // namespace

void Pipeline::build(Draft& draft) const {
  draft.require_gradients();
  draft.input();
  PipelineSpec pipeline = draft.spec().pipeline;
  pipeline.micro_batches = static_cast<int>(draft.micro_steps().size());
  StageCopies copies(draft);
  draft.passes(by_time_slots(schedules_of_stages(pipeline)), {.stage = copies.hooks()});
  draft.update();
}

void Pipeline::evaluate(Draft& draft) const {
  draft.input();
  StageCopies copies(draft);
  draft.evaluate(draft.evaluation_output(copies.hooks()));
}

}  // namespace barestep
