// Traces of several ranks as one.
#pragma once

#include <filesystem>
#include <span>

namespace barestep {

/// Writes `out`: one trace with the events of all, on one axis of time, each rank with rows of its
/// own; for Perfetto. HolisticTraceAnalysis takes the files of the ranks themselves. Plain files or
/// .gz. Throws Error: kNoInput for a file that cannot be read, kBadData for one that is no trace or
/// whose rank another file has, kConfiguration where `out` is one of the files; and as
/// write_trace() does.
void merge_traces(const std::filesystem::path& out, std::span<const std::filesystem::path> paths);

}  // namespace barestep
