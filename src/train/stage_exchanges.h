// The exchanges of a pipeline's stage with its neighbors, where stages are ranks.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "train/draft.h"

namespace barestep {

/// Adds a SendReceive to a draft wherever exchanges_of_stage() has an exchange. A send waits for
/// the receive that belongs to it, until that is about to be read.
class StageExchanges {
 public:
  /// `of_stages` are the passes of all stages. The draft must outlive the hooks.
  StageExchanges(Draft& draft, const std::vector<PassSchedule>& of_stages);

  [[nodiscard]] StageHooks hooks();

 private:
  /// The next exchange of the list, which sends or receives for this pass.
  [[nodiscard]] const StageExchange& next(std::optional<ScheduledPass> StageExchange::*part,
                                          const ScheduledPass& pass) const;
  void send(const ScheduledPass& pass, const Tensor& result);
  void receive(const ScheduledPass& pass, const Tensor& to);
  void add(const StageExchange& exchange, const std::optional<Tensor>& to);

  Draft& draft_;
  int stages_;
  std::vector<StageExchange> exchanges_;
  std::size_t next_ = 0;          // of them
  std::optional<Tensor> sent_{};  // complete, and not sent yet
};

}  // namespace barestep
