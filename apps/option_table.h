// The parts of the table of options, and what they share.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <vector>

#include "options.h"

namespace barestep {

inline constexpr std::string_view kModelGroup = "Model";
inline constexpr std::string_view kDataGroup = "Data";
inline constexpr std::string_view kTrainingGroup = "Training";
inline constexpr std::string_view kDeviceGroup = "Device";
inline constexpr std::string_view kParallelGroup = "Parallel";
inline constexpr std::string_view kInjectedGroup = "Injected";
inline constexpr std::string_view kObservingGroup = "Observing";
inline constexpr std::string_view kFilesGroup = "Files";

/// `help`, and the range on a line of its own.
template <typename AnyRange>
std::string with_range(std::string_view help, const AnyRange& range) {
  return fmt::format("{};\n{}", help, text_of(range));
}

std::vector<Option> profiling_options();
std::vector<Option> monitor_options();

/// Those of programs that have a watchdog.
std::vector<Option> watchdog_options();

/// Those of mlp_dp alone.
std::vector<Option> spread_options();

/// Those of programs that run on many ranks.
std::vector<Option> rank_data_options();
std::vector<Option> parallel_options();
std::vector<Option> update_options();
std::vector<Option> rank_injected_options();

}  // namespace barestep
