// GPU activity as recorded by CUPTI, which sees each kernel. All other GPU times come from events
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

/// CUPTI's report on a piece of work or on the call that queued it. Names live as long as their
/// source.
struct GpuActivity {
  enum class Kind { kKernel, kCopy, kSet, kCall, kOverhead };
  /// True for activities on the GPU itself.
  [[nodiscard]] bool is_work() const { return kind != Kind::kCall && kind != Kind::kOverhead; }

  Kind kind = Kind::kKernel;
  std::string_view name;
  Tag tag{.node = kPartOfNode};  // the node that it belongs to, if any
  int device = 0;                // the program's index
  std::int64_t correlation = 0;  // links work to the call that queued it; 0: none
  double start_s = 0;            // on the host's clock
  double end_s = 0;
  std::int64_t stream = 0;
  std::int64_t bytes = 0;  // copies and fills
  std::int64_t graph_node = 0;
  int registers = 0;  // kernels: per thread
  std::int64_t shared_bytes = 0;
  std::array<std::int64_t, 3> grid{}, block{};
  int call_id = 0;  // calls: CUPTI's id
};

/// Records each piece of GPU work while turned on. Only the thread that queues calls it.
class GpuRecords {
 public:
  virtual ~GpuRecords() = default;

  /// Its source: "CUPTI 13.0.1".
  [[nodiscard]] virtual std::string source() const = 0;

  /// Call between two steps. Initially off; may be turned on once. Without `keeps`, recording costs
  /// the same, but the records are dropped. Returns why nothing can be recorded; empty if it can.
  virtual std::string turn(bool on, bool keeps) = 0;
  /// From now on work is captured instead of run, or run again if not `on`.
  virtual void capture(bool on) = 0;

  /// Called before and after a node's work is queued; for a graph's launch, the tag carries the
  /// step.
  virtual void begin(const Tag& tag, std::string_view label, int device) = 0;
  virtual void end() = 0;

  /// Call between two steps: makes room.
  virtual void collect() = 0;
  /// Call when nothing runs any more: reads the remaining records. Blocks.
  virtual void finish() = 0;

  /// After finish(): all recorded activities, in order of their start; and the times at which the
  /// host queued the nodes they belong to.
  [[nodiscard]] virtual std::span<const GpuActivity> activities() const = 0;
  [[nodiscard]] virtual std::span<const Record> queued() const = 0;
  /// How many activities were lost for lack of room.
  [[nodiscard]] virtual std::int64_t dropped() const = 0;
};

/// The CUPTI library files to try, in order: BARESTEP_CUPTI, or CUDA's usual locations.
std::vector<std::string> cupti_files();

/// Loads CUPTI. Its version, or nothing if it cannot be used, with the reason in `why`.
std::string cupti_version(const std::vector<std::string>& files, std::string& why);

/// Loads CUPTI and subscribes. Null if that fails, with the reason in `why`: CUPTI is absent, too
/// old or broken, or serves another profiler already, since it has only one subscriber. `devices`
/// are the programs' GPUs, by index; `capacity` is the largest number of activities stored.
std::unique_ptr<GpuRecords> open_cupti(const std::vector<Device*>& devices, std::int64_t capacity,
                                       const std::vector<std::string>& files, std::string& why);

}  // namespace barestep
