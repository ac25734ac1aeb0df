// Activities of a GPU as events of a trace.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "profiler/gpu_records.h"
#include "profiler/trace.h"

namespace barestep {

/// Kineto's members of a kernel, copy or fill, behind those that all work has.
std::string activity_args(const GpuActivity& activity, TraceSpan span,
                          const Multiprocessors& multiprocessors);

/// A piece of work and where it stands.
struct PlacedActivity {
  const GpuActivity* activity = nullptr;
  TraceRow row;
  TraceSpan span;
};

/// Work of one row may overlap, where a kernel begins before the one ahead of it has ended; readers
/// drop that. Cuts the first at the start of the second.
void cut_overlaps(std::vector<PlacedActivity>& work);

/// CUPTI's own time, in a row of its own.
void add_overhead(TraceEvents& events, const std::vector<GpuActivity>& activities,
                  const std::string& program);

}  // namespace barestep
