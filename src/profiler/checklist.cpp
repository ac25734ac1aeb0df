#include "profiler/checklist.h"

#include <fmt/format.h>

#include "core/units.h"

namespace barestep {
namespace {

/// With fewer starts there is no 95 % interval of their median.
constexpr std::int64_t kEnoughStarts = 6;

Holds holds_if(bool condition) {
  return condition ? Holds::kYes : Holds::kNo;
}

CheckedItem of_frequency(const std::optional<std::string>& governor) {
  CheckedItem item{.name = "no frequency scaling", .is = "the system does not say"};
  if (!governor) return item;
  item.is = "governor " + *governor;
  item.holds = holds_if(*governor == kSteadyGovernor);
  return item;
}

CheckedItem of_others(const std::optional<double>& lost_share) {
  CheckedItem item{.name = "no other programs", .is = "not measured"};
  if (!lost_share) return item;
  item.is = fmt::format("they took {:.1f} % of the time", 100 * *lost_share);
  item.holds = holds_if(*lost_share <= kDisturbingShare);
  return item;
}

}  // namespace

std::vector<CheckedItem> checklist(const Conditions& conditions) {
  const std::int64_t starts = conditions.starts;
  return {of_frequency(conditions.governor),
          of_others(conditions.lost_share),
          {"seed", fmt::format("{}", conditions.seed), Holds::kYes},
          {"warm-up", counted(conditions.warmup_steps, "step") + " left out",
           holds_if(conditions.warmup_steps > 0)},
          {"repeats",
           fmt::format("{} of {}", counted(starts, "start"), counted(conditions.steps, "step")),
           holds_if(starts >= kEnoughStarts)}};
}

std::string checklist_line(const std::vector<CheckedItem>& items) {
  std::string line;
  for (const CheckedItem& item : items) {
    const char mark = item.holds == Holds::kYes ? 'x' : item.holds == Holds::kNo ? ' ' : '?';
    line +=
        fmt::format("{}[{}] {}: {}", line.empty() ? "Checklist: " : "; ", mark, item.name, item.is);
  }
  return line;
}

}  // namespace barestep
