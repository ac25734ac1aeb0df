// Records of GPUs from events around the work of each node: what every GPU can do, without tools.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "profiler/gpu_records.h"

namespace barestep {

/// An event's time is that of its stream: a record begins when the work before it is done. Their
/// resolution is about a microsecond, and each costs the stream about as much.
class GpuEventRecords final : public GpuRecords {
 public:
  /// Allocates all events. `devices` are those of the programs, by index. `why` tells why there is
  /// nothing better; it becomes part of source(). All must outlive it.
  GpuEventRecords(std::vector<Device*> devices, RecordSink& sink, const std::string& why);
  ~GpuEventRecords() override;

  [[nodiscard]] std::string source() const override { return source_; }
  [[nodiscard]] bool knows_graphs() const override { return false; }
  /// Its sink knows what to keep.
  void turn(bool on, bool keeps) override;
  void capture(bool on) override { capturing_ = on; }
  void begin(const Tag& tag, std::string_view label, int device, Stream& stream) override;
  void end(int device, Stream& stream) override;
  void collect() override;
  void finish() override;

 private:
  class OfDevice;

  std::string source_;
  std::vector<std::unique_ptr<OfDevice>> devices_;
  bool capturing_ = false;
};

}  // namespace barestep
