// The checklist for benchmarks: what times depend on besides the program. Whoever reports times
// says which items hold.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/index.h"

namespace barestep {

/// The governor that does not change the frequency of a CPU with its load.
constexpr std::string_view kSteadyGovernor = "performance";

/// A start that lost more of its time than this to other programs is disturbed. On a shared host,
/// the limit finds 91 % of the starts that are more than 10 % slow, and rejects 11 % of the good
/// ones (measured on one host, with one thread and 160 starts).
constexpr double kDisturbingShare = 0.25;

/// How times were measured: by one run, by the starts of an experiment, or by someone who left a
/// trace. Nothing: unknown.
struct Conditions {
  std::string_view source = "system";     // what would say it, "system" or "trace"
  std::optional<std::string> governor{};  // frequency_governor()
  std::optional<double> lost_share{};     // the largest of all starts (core/host.h)
  std::optional<std::uint64_t> seed{};
  std::optional<std::int64_t> warmup_steps{};  // left out of the times
  std::int64_t steps = 0;                      // of a start, after warm-up
  std::int64_t starts = 1;
};

enum class Holds { kYes, kNo, kUnknown };
template <>
inline constexpr std::string_view kNamesOf<Holds>[] = {"yes", "no", "unknown"};

struct CheckedItem {
  std::string name{};  // "warm-up"
  std::string is{};    // "5 steps left out"
  Holds holds = Holds::kUnknown;
};

std::vector<CheckedItem> checklist(const Conditions& conditions);

/// "Checklist: [x] seed: 0; [ ] repeats: 1 start of 5 steps; [?] no frequency scaling: the system
/// does not say"
std::string checklist_line(const std::vector<CheckedItem>& items);

}  // namespace barestep
