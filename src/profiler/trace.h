// The trace of a run: what Perfetto draws, and what HolisticTraceAnalysis and TensorBoard compute
// with.
//
// A trace is of one rank and one device. The streams of a CPU device are shown as a GPU's: their
// work as kernels and copies, each tied to the host's call that queued it.
#pragma once

#include <cstdint>
#include <string>

#include "core/device.h"
#include "profiler/profile.h"
#include "profiler/trace_file.h"

namespace barestep {

struct TraceContext {
  std::string program;  // "mlp_single"
  std::string version;
  std::string trace_name;  // of the file
  int rank = 0;
  int world = 1;
  std::string backend;  // of communication: "nccl", "mpi"; empty for one rank
  int device = 0;       // its index
  std::string device_name;
  DeviceKind kind = DeviceKind::kCpu;
  std::int64_t device_bytes = 0;
  Multiprocessors multiprocessors{};
  std::int64_t pid = 0;      // of the host, unlike every device's index
  std::int64_t thread = 0;   // that queues
  double clock_error_s = 0;  // by how much its times may differ from those of other ranks
};

/// The host's row and a lane's of a trace.
TraceRow host_row(const TraceContext& context);
TraceRow lane_row(const TraceContext& context, Lane lane);

/// Adds the events of the context's device, and the names of all rows.
void add_profile(TraceEvents& events, const Profile& profile, const TraceContext& context);

/// The members of the file that describe the run, one to a line.
std::string trace_head(const TraceContext& context);

}  // namespace barestep
