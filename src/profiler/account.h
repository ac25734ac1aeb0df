// The account of a step from its records: every stretch of its wall time has one cause.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "profiler/peaks.h"
#include "profiler/profile.h"

namespace barestep {

/// What the wall time of a step went to, as seen from the compute lane of device 0.
enum class Part {
  kDataWait,              // the lane waits for input that is not being copied
  kHostToDevice,          // the lane waits for input on its way
  kInjected,              // a delay that was asked for
  kForward,               // work of the phase
  kLoss,                  //
  kBackward,              //
  kExposedCommunication,  // the lane waits for other ranks
  kOptimizer,             //
  kLaunchGaps,            // the lane waits for the host, or for the next op to begin
  kIdle,                  // all work is done, and the host has yet to notice
};
constexpr int kParts = 10;

std::string_view name_of(Part part);

struct StepAccount {
  std::int64_t number = 0;  // of the training step
  double wall_s = 0;        // as the host measured it
  std::array<double, kParts> part_s{};
  double hidden_communication_s = 0;  // behind work of the compute lane; in none of the parts

  [[nodiscard]] double& operator[](Part part) { return part_s[static_cast<std::size_t>(part)]; }
  [[nodiscard]] double operator[](Part part) const {
    return part_s[static_cast<std::size_t>(part)];
  }
  /// The wall time that no part explains.
  [[nodiscard]] double residue_s() const;
};

/// One for each step of the profile.
std::vector<StepAccount> accounts_of(const Profile& profile);

/// The mean of the steps as a table. Empty where there is none.
std::string account_table(const std::vector<StepAccount>& accounts);

/// One sentence that names the largest part of a step and its largest cause. Empty without steps.
std::string bottleneck(const Profile& profile, const std::vector<StepAccount>& accounts,
                       const Peaks& peaks);

}  // namespace barestep
