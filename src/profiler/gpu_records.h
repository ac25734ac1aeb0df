// What GPUs did, by a tool that sees each kernel: CUPTI. Other times of GPUs are those of events
// (train/step_marks.h).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/device.h"
#include "core/record.h"

namespace barestep {

/// What CUPTI reports about a piece of work, or of a call that queued it. Names last as long as
/// their source.
struct GpuActivity {
  enum class Kind { kKernel, kCopy, kSet, kCall, kOverhead };
  /// True of what runs on the GPU.
  [[nodiscard]] bool is_work() const { return kind != Kind::kCall && kind != Kind::kOverhead; }

  Kind kind = Kind::kKernel;
  std::string_view name;
  Tag tag{.node = kPartOfNode};  // of the node it belongs to, if it belongs to one
  int device = 0;                // of the program
  std::int64_t correlation = 0;  // joins work and the call that queued it; 0 for none
  double start_s = 0;            // of the host's clock
  double end_s = 0;
  std::int64_t stream = 0;
  std::int64_t bytes = 0;  // of copies and fills
  std::int64_t graph_node = 0;
  int registers = 0;  // per thread, of kernels
  std::int64_t shared_bytes = 0;
  std::array<std::int64_t, 3> grid{}, block{};
  int call_id = 0;  // CUPTI's, of calls
};

/// Tells of what GPUs do, piece by piece, while it is on. One thread calls it, the one that queues.
class GpuRecords {
 public:
  virtual ~GpuRecords() = default;

  /// How it knows: "CUPTI 13.0.1".
  [[nodiscard]] virtual std::string source() const = 0;

  /// Between two steps. Off at first. Where nothing is to be kept, it costs the same and is
  /// forgotten.
  virtual void turn(bool on, bool keeps) = 0;
  /// From now on work is noted instead of done; until it is off again.
  virtual void capture(bool on) = 0;

  /// Around the queueing of a node's work; of a graph's launch the tag carries the step.
  virtual void begin(const Tag& tag, std::string_view label, int device) = 0;
  virtual void end() = 0;

  /// Between two steps: makes room.
  virtual void collect() = 0;
  /// Once nothing runs any more: reads what is left. Blocks.
  virtual void finish() = 0;

  /// Once finished: all that was seen, in the order in which it began, and when the host queued the
  /// nodes that it belongs to.
  [[nodiscard]] virtual std::span<const GpuActivity> activities() const = 0;
  [[nodiscard]] virtual std::span<const Record> queued() const = 0;
  /// What was lost for want of room.
  [[nodiscard]] virtual std::int64_t dropped() const = 0;
};

/// The library files of CUPTI that are tried, in their order: BARESTEP_CUPTI, or where CUDA keeps
/// them.
std::vector<std::string> cupti_files();

/// Loads CUPTI and subscribes. Null, with the reason in `why`, where it cannot be had: it is absent
/// or too old, refuses, or another profiler has it, for it serves only one. `devices` are the
/// programs' GPUs, by index; `capacity` is the most activities that are kept.
std::unique_ptr<GpuRecords> open_cupti(const std::vector<Device*>& devices, std::int64_t capacity,
                                       const std::vector<std::string>& files, std::string& why);

}  // namespace barestep
