// Replaces CUPTI in builds without its headers.
#include "profiler/gpu_records.h"

namespace barestep {

std::vector<std::string> cupti_files() {
  return {};
}

std::string cupti_version(const std::vector<std::string>& /*files*/, std::string& why) {
  why = "this build has no CUPTI";
  return "";
}

std::unique_ptr<GpuRecords> open_cupti(const std::vector<Device*>& /*devices*/,
                                       std::int64_t /*capacity*/,
                                       const std::vector<std::string>& /*files*/,
                                       std::string& why) {
  why = "this build has no CUPTI";
  return nullptr;
}

}  // namespace barestep
