// Records of GPUs from CUPTI's activities.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "profiler/gpu_records.h"

namespace barestep {

/// The library files that are tried, in their order: BARESTEP_CUPTI, or where CUDA keeps them.
std::vector<std::string> cupti_files();

/// Loads CUPTI and subscribes. Null, with the reason in `why`, where it cannot be had: it is absent
/// or too old, refuses, or another profiler has it, for it serves only one. `devices` are the
/// programs' GPUs, by index; `capacity` is the most activities that are kept. `sink` gets the
/// records when they are finished; it must outlive what is returned.
std::unique_ptr<GpuRecords> open_cupti(const std::vector<Device*>& devices, RecordSink& sink,
                                       std::int64_t capacity, const std::vector<std::string>& files,
                                       std::string& why);

}  // namespace barestep
