// Traces of several ranks as one.
#pragma once

#include <filesystem>
#include <span>
#include <string>

namespace barestep {

/// One trace with the events of all, on one axis of time, each rank with rows of its own; for
/// Perfetto. HolisticTraceAnalysis takes the files of the ranks themselves. Plain files or .gz.
/// Throws Error: kNoInput for a file that cannot be read, kBadData for one that is no trace or
/// whose rank another file has.
std::string merge_traces(std::span<const std::filesystem::path> paths, const std::string& name);

}  // namespace barestep
