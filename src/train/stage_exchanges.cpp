#include "train/stage_exchanges.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/error.h"

namespace barestep {
namespace {

/// "activations 2 of stage 0": what a pass leaves for another stage. Both ranks give it that name.
std::string name_of_result(const ScheduledPass& pass) {
  const bool is_forward = pass.direction == ScheduledPass::Direction::kForward;
  return fmt::format("{} {} of stage {}", is_forward ? "activations" : "gradients",
                     pass.micro_step + 1, pass.stage);
}

/// The results that travel, those of the lower stage first.
std::string name_of_exchange(const StageExchange& exchange, int stages) {
  std::vector<ScheduledPass> results;
  if (exchange.sends) results.push_back(*exchange.sends);
  if (exchange.receives) results.push_back(*source_of(*exchange.receives, stages));
  std::ranges::sort(results, {}, &ScheduledPass::stage);
  std::vector<std::string> names;
  for (const ScheduledPass& pass : results) names.push_back(name_of_result(pass));
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

StageExchanges::StageExchanges(Draft& draft, const std::vector<PassSchedule>& of_stages)
    : draft_(draft), stages_(static_cast<int>(of_stages.size())) {
  for (const auto& between_passes : exchanges_of_stage(of_stages, draft.spec().mesh.stage())) {
    exchanges_.insert(exchanges_.end(), between_passes.begin(), between_passes.end());
  }
}

StageHooks StageExchanges::hooks() {
  return {.send = [this](const ScheduledPass& pass, const Tensor& result) { send(pass, result); },
          .receive = [this](const ScheduledPass& pass, const Tensor& to) { receive(pass, to); }};
}

const StageExchange& StageExchanges::next(std::optional<ScheduledPass> StageExchange::*part,
                                          const ScheduledPass& pass) const {
  BARESTEP_REQUIRE(next_ < exchanges_.size() && exchanges_[next_].*part == pass,
                   "a stage's results are exchanged in the order of its passes");
  return exchanges_[next_];
}

void StageExchanges::send(const ScheduledPass& pass, const Tensor& result) {
  sent_ = result;
  const StageExchange& exchange = next(&StageExchange::sends, pass);
  if (!exchange.receives) add(exchange, {});
}

void StageExchanges::receive(const ScheduledPass& pass, const Tensor& to) {
  add(next(&StageExchange::receives, pass), to);
}

void StageExchanges::add(const StageExchange& exchange, const std::optional<Tensor>& to) {
  SendReceive op{
      .receives = to, .peer = exchange.peer, .name = name_of_exchange(exchange, stages_)};
  if (exchange.sends) {
    BARESTEP_REQUIRE(sent_.has_value(), "what is sent is complete");
    op.sends = sent_;
  }
  ++next_;
  draft_.exchange(std::move(op));
  if (!exchange.sends) return;
  draft_.give_back(*exchange.sends, *sent_);
  sent_.reset();
}

}  // namespace barestep
