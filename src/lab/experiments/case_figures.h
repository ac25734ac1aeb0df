// The figures of a case, by name: what tables of experiments and sheets show of it, measured or
// simulated.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lab/study/experiment.h"

namespace barestep {

/// A case as figures see it, measured or simulated. Times of a simulated one have no interval.
class CaseData {
 public:
  CaseData(const Results& results, const Measurement& measured)
      : results_(&results), measured_(&measured) {}
  /// `alone` is the same work on one rank or device; null if there is none.
  CaseData(const Case& what, const SimulatedStep& step, const SimulatedStep* alone)
      : what_(&what), simulated_(&step), alone_(alone) {}

  [[nodiscard]] const Case& what() const {
    return measured_ != nullptr ? measured_->what() : *what_;
  }
  [[nodiscard]] const Workload& workload() const { return what().workload; }
  /// Null for a simulated case.
  [[nodiscard]] const Measurement* measured() const { return measured_; }
  [[nodiscard]] const Results* results() const { return results_; }
  [[nodiscard]] Estimate step_s() const;
  [[nodiscard]] double phase_s(std::string_view phase) const;
  /// Of a step.
  [[nodiscard]] Estimate share_of(std::span<const std::string_view> phases) const;
  /// The mean of all ranks or stages.
  [[nodiscard]] Estimate waiting_share() const;
  /// Against the same work on one rank or device; nothing if that was not run.
  [[nodiscard]] std::optional<Estimate> speed_up() const;

 private:
  const Results* results_ = nullptr;
  const Measurement* measured_ = nullptr;
  const Case* what_ = nullptr;
  const SimulatedStep* simulated_ = nullptr;
  const SimulatedStep* alone_ = nullptr;
};

/// The cases of experiments on GPUs that are not here. Each is simulated once.
class Simulations {
 public:
  explicit Simulations(MachineCard card) : card_(std::move(card)) {}

  [[nodiscard]] const MachineCard& card() const { return card_; }
  /// The text of a figure of a case of one of these lists, compared with cases of the same list;
  /// kNotSimulated if there is no such step.
  [[nodiscard]] std::string text(
      const std::vector<Case>& cases, const Case& what,
      const std::function<std::string(const CaseData& of)>& figure) const;
  /// Why there is no such step: the machine has too few GPUs for it, or no rate; else empty.
  [[nodiscard]] std::string why_none(const Workload& workload) const;
  /// Null if there is none.
  [[nodiscard]] const SimulatedStep* step_of(const Workload& workload) const;

 private:
  MachineCard card_;
  mutable std::map<std::string, SimulatedStep> steps_;  // by command line
};

/// The same work with the same options on one device.
Workload on_one(Workload run);

struct Figure {
  std::string name;
  std::string title;  // of its column
  std::string about;
  std::function<std::string(const CaseData& of)> text;
  bool is_timed = true;      // so other programs may disturb it
  bool is_simulated = true;  // else it is of measured cases only
  bool is_of_parts = false;  // of steps, of plans or places, which log lines do not have
};

const std::vector<Figure>& figures();

/// Null if there is none.
const Figure* figure_named(std::string_view name);

/// The text of a figure whose case was not run, or that these GPUs do not have.
constexpr std::string_view kNotRun = "not run", kNotSimulated = "-";

}  // namespace barestep
