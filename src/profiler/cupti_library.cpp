#include "profiler/cupti_library.h"

#include <fmt/format.h>

#include "core/shared_library.h"

namespace barestep {
namespace {

/// CUDA 12.0's version: it introduced the records read here, which have since grown only at their
/// ends.
constexpr std::uint32_t kMinVersion = 18;
/// From CUDA 12.6 on, a version combines major, minor and patch in one number.
constexpr std::uint32_t kFirstLongVersion = 120'000;
/// CUDA 13.0 as first released: disabling records of kernels may block forever, flushing and graphs
/// may crash.
constexpr std::uint32_t kBrokenVersion = 130'000;

std::string text_of_version(std::uint32_t version) {
  if (version < kFirstLongVersion) return fmt::format("API {}", version);
  return fmt::format("{}.{}.{}", version / 10'000, version / 100 % 100, version % 100);
}

/// The meaning of a return code for a user, if its name does not express it.
const char* meaning_of(CUptiResult status) {
  switch (status) {
    case CUPTI_ERROR_NOT_INITIALIZED:
      return ", CUDA cannot be used here";
    case CUPTI_ERROR_INSUFFICIENT_PRIVILEGES:
    case CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES:
      return ", the driver lets only administrators profile";
    case CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED:
      return ", another profiler or debugger is attached";
    default:
      return "";
  }
}

}  // namespace

std::unique_ptr<const CuptiLibrary> CuptiLibrary::load(const std::vector<std::string>& files,
                                                       std::string& why) {
  why.clear();
  for (const std::string& file : files) {
    std::string why_not_this;
    void* const handle = load_library({&file, 1}, why_not_this);
    std::unique_ptr<CuptiLibrary> library(new CuptiLibrary);
    if (handle != nullptr && library->find_all(handle, file, why)) return library;
    if (why.empty()) why = why_not_this;  // of the first, which is the expected one
  }
  return nullptr;
}

bool CuptiLibrary::find_all(void* handle, const std::string& file, std::string& why) {
  const char* missing = nullptr;
  const auto need = [&](auto& call) {
    using Function = std::remove_pointer_t<decltype(call.function)>;
    call.function = reinterpret_cast<Function*>(function_of(handle, call.name));
    if (call.function == nullptr && missing == nullptr) missing = call.name;
  };
  const auto need_all = [&](auto&... calls) { (need(calls), ...); };
  need_all(get_version_, result_string_, subscribe, unsubscribe, enable_callback, callback_name,
           graph_node_id, register_buffers, timestamp, enable, disable, flush, next_record,
           dropped_records, push, pop);
  if (missing != nullptr) {
    why = fmt::format("{} has no {}", file, missing);
    return false;
  }
  std::uint32_t version = 0;
  if (const CUptiResult status = get_version_.function(&version); status != CUPTI_SUCCESS) {
    why = failure(get_version_.name, status);
    return false;
  }
  version_ = text_of_version(version);
  if (version < kMinVersion) {
    why = fmt::format("{} is of {}, which is older than CUDA 12", file, version_);
    return false;
  }
  if (version == kBrokenVersion) {
    why = fmt::format("{} is {}, which hangs and crashes; 13.0.1 does not", file, version_);
    return false;
  }
  return true;
}

std::string CuptiLibrary::failure(const char* call, CUptiResult status) const {
  const char* name = nullptr;
  const bool known = result_string_.function(status, &name) == CUPTI_SUCCESS && name != nullptr;
  return fmt::format("{} failed: {} ({}){}", call, known ? name : "unknown",
                     static_cast<int>(status), meaning_of(status));
}

}  // namespace barestep
