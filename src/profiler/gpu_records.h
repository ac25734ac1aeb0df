// Where the records of GPUs come from: they do not send any by themselves.
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

/// What CUPTI tells of a piece of work, or of a call that queued it. Names last as long as their
/// source.
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

/// Makes records of what GPUs do between begin() and end(). One thread calls it, the one that
/// queues.
class GpuRecords {
 public:
  virtual ~GpuRecords() = default;

  /// How it knows: "CUPTI 13.0.1", "CUDA events".
  [[nodiscard]] virtual std::string source() const = 0;
  /// False where the work of a graph cannot be told apart.
  [[nodiscard]] virtual bool knows_graphs() const = 0;

  /// Between two steps. Off at first. Where nothing is to be kept, it costs the same and is
  /// forgotten.
  virtual void turn(bool on, bool keeps) = 0;
  /// From now on work is noted instead of done; until it is off again.
  virtual void capture(bool on) = 0;

  /// Around the queueing of a node's work; of a graph's launch the tag carries the step.
  virtual void begin(const Tag& tag, std::string_view label, int device, Stream& stream) = 0;
  virtual void end(int device, Stream& stream) = 0;

  /// Between two steps: makes room.
  virtual void collect() = 0;
  /// Once nothing runs any more: sends what is left, and what can be sent only now. Blocks.
  virtual void finish() = 0;

  /// All that was seen, in the order in which it began, once finished; empty where only the times
  /// of nodes are known.
  [[nodiscard]] virtual std::span<const GpuActivity> activities() const { return {}; }
  /// What was lost for want of room.
  [[nodiscard]] virtual std::int64_t dropped() const { return 0; }
};

/// By CUPTI where it can be had, else by events; source() says which, and why. Sends records to
/// `sink`. `devices` are the programs' GPUs, by index; `capacity` is the most activities that are
/// kept.
std::unique_ptr<GpuRecords> open_gpu_records(const std::vector<Device*>& devices, RecordSink& sink,
                                             std::int64_t capacity);

}  // namespace barestep
