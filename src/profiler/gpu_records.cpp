#include "profiler/gpu_records.h"

#include <string>

#include "profiler/cupti_source.h"
#include "profiler/gpu_event_records.h"

namespace barestep {

std::unique_ptr<GpuRecords> open_gpu_records(const std::vector<Device*>& devices, RecordSink& sink,
                                             std::int64_t capacity) {
  std::string why;
  if (auto cupti = open_cupti(devices, sink, capacity, cupti_files(), why)) return cupti;
  return std::make_unique<GpuEventRecords>(devices, sink, "CUPTI cannot be used: " + why);
}

}  // namespace barestep
