#include "profiler/checklist.h"

#include <fmt/format.h>

#include "core/units.h"

namespace barestep {
namespace {

/// With fewer starts there is no 95 % interval of their median.
constexpr std::int64_t kEnoughStarts = 6;

/// What is known about an item.
struct Known {
  std::string is{};
  bool holds = false;
};

CheckedItem item_of(const char* name, const std::optional<Known>& known, std::string_view source) {
  if (!known) return {.name = name, .is = fmt::format("the {} does not say", source)};
  return {.name = name, .is = known->is, .holds = known->holds ? Holds::kYes : Holds::kNo};
}

}  // namespace

std::vector<CheckedItem> checklist(const Conditions& conditions) {
  const auto& [source, governor, lost_share, seed, warmup_steps, steps, starts] = conditions;
  std::optional<Known> frequency, others, fixed_seed, warmup;
  if (governor) frequency = Known{"governor " + *governor, *governor == kSteadyGovernor};
  if (lost_share) {
    others = Known{fmt::format("they took {:.1f} % of the time", 100 * *lost_share),
                   *lost_share <= kDisturbingShare};
  }
  if (seed) fixed_seed = Known{fmt::format("{}", *seed), true};
  if (warmup_steps) {
    warmup = Known{counted(*warmup_steps, "step") + " left out", *warmup_steps > 0};
  }
  const Known repeats{fmt::format("{} of {}", counted(starts, "start"), counted(steps, "step")),
                      starts >= kEnoughStarts};
  return {item_of("no frequency scaling", frequency, source),
          item_of("no other programs", others, source), item_of("seed", fixed_seed, source),
          item_of("warm-up", warmup, source), item_of("repeats", repeats, source)};
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
