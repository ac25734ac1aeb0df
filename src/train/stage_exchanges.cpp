// The exchanges of a pipeline's stage with its neighbors.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "core/error.h"
#include "train/draft.h"

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

/// Adds a SendReceive to a draft wherever exchanges_of_stage() has an exchange. A send waits for
/// the receive that belongs to it, until that is about to be read.
class StageExchanges {
 public:
  StageExchanges(Draft& draft, const std::vector<PassSchedule>& of_stages)
      : draft_(draft), stages_(static_cast<int>(of_stages.size())) {
    for (const auto& between_passes : exchanges_of_stage(of_stages, draft.spec().mesh.stage())) {
      exchanges_.insert(exchanges_.end(), between_passes.begin(), between_passes.end());
    }
  }

  void send(const ScheduledPass& pass, const Tensor& result) {
    sent_ = result;
    const StageExchange& exchange = next(&StageExchange::sends, pass);
    if (!exchange.receives) add(exchange, {});
  }

  void receive(const ScheduledPass& pass, const Tensor& to) {
    add(next(&StageExchange::receives, pass), to);
  }

 private:
  /// The next exchange of the list, which sends or receives for this pass.
  [[nodiscard]] const StageExchange& next(std::optional<ScheduledPass> StageExchange::*part,
                                          const ScheduledPass& pass) const {
    BARESTEP_REQUIRE(next_ < exchanges_.size() && exchanges_[next_].*part == pass,
                     "a stage's results are exchanged in the order of its passes");
    return exchanges_[next_];
  }

  void add(const StageExchange& exchange, const std::optional<Tensor>& to) {
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

  Draft& draft_;
  int stages_;
  std::vector<StageExchange> exchanges_;
  std::size_t next_ = 0;          // of them
  std::optional<Tensor> sent_{};  // complete, and not sent yet
};

}  // namespace

StageHooks stage_exchanges(Draft& draft, const std::vector<PassSchedule>& of_stages) {
  const auto exchanges = std::make_shared<StageExchanges>(draft, of_stages);
  return {.send = [exchanges](const ScheduledPass& pass,
                              const Tensor& result) { exchanges->send(pass, result); },
          .receive = [exchanges](const ScheduledPass& pass,
                                 const Tensor& to) { exchanges->receive(pass, to); }};
}

}  // namespace barestep
