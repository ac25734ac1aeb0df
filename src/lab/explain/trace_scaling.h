// How efficient runs on several numbers of ranks are, as a product of factors, from their traces.
//
// The factors are those of the POP Centre of Excellence (https://co-design.pop-coe.eu/metrics/), of
// a training step. In the account of a rank's steps, computation is what no exchange with other
// ranks holds: the host's time, waits for data and idle gaps, too. With its mean C(r) on rank r,
// the longest mean step T of a rank, and the longest T' if bytes moved in no time,
//
//   load balance             = mean of C(r) / longest C(r)
//   serialization            = longest C(r) / T'      ranks wait for each other in turns
//   transfer                 = T' / T                 bytes move
//   communication efficiency = serialization x transfer
//   parallel efficiency      = load balance x communication efficiency
//   computation scaling      = sum of C(r) for as much work on the fewest ranks / here
//   global efficiency        = parallel efficiency x computation scaling
//
// so global efficiency, over that on the fewest ranks, is the speed-up over the ratio of ranks. For
// T' the steps are replayed (trace_fixes.cpp): an exchange ends for a rank when the last one
// enters.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lab/explain/explain_report.h"

namespace barestep {

enum class ScalingFactor {
  kGlobal,
  kParallel,
  kLoadBalance,
  kCommunication,
  kSerialization,
  kTransfer,
  kComputation
};
template <>
inline constexpr std::string_view kNamesOf<ScalingFactor>[] = {
    "global efficiency",        "parallel efficiency", "load balance",
    "communication efficiency", "serialization",       "transfer",
    "computation scaling"};

/// What is the same on all numbers of ranks: the whole batch, that of a rank, or neither.
enum class ScalingProblem { kStrong, kWeak, kOther };
template <>
inline constexpr std::string_view kNamesOf<ScalingProblem>[] = {"strong", "weak", "other"};

/// The mean step of a run; lengths as above.
struct ScalingRun {
  std::filesystem::path path{};
  int ranks = 1;
  std::string shared_host{};                       // on whose CPU all ranks run, if several do
  std::int64_t steps = 0;                          // of a rank, with an account
  double step_s = 0, ideal_s = 0;                  // T, T'
  double mean_s = 0, longest_s = 0;                // of C(r)
  double flops = 0;                                // of all linear layers, forward; 0: not recorded
  std::set<std::int64_t> weights{};                // numbers of a linear layer's
  EnumArray<Part, double> part_s{};                // mean of ranks
  EnumArray<Part, std::string> named{};            // cause_text() of the rank with most of it
  EnumArray<ScalingFactor, std::string> causes{};  // of losses
  // Beside other runs:
  EnumArray<ScalingFactor, double> factors{};
  double work = 1, speed_up = 1;  // multiples of those on the fewest ranks; for as much work
};

/// Of all its ranks' traces. Throws Error(kBadData) if a rank has none, or no complete step.
ScalingRun scaling_run_of(std::filesystem::path path, const TracedRun& run);

/// Its figures are by "2 ranks" and the names of factors. The knee is where speed-up times
/// efficiency is largest: more ranks cost more efficiency than they gain speed (Eager, Zahorjan and
/// Lazowska, Speedup versus efficiency in parallel systems, 1989). Throws Error: kUsage if there is
/// only one run; kBadData if two have as many ranks, or other models.
ExplainAnswer scaling_answer(std::vector<ScalingRun> runs, std::optional<ScalingProblem> stated);

}  // namespace barestep
