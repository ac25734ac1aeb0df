#include "profiler/nvml_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace barestep {
namespace {

template <class Function>
bool find(void* handle, NvmlCall<Function>& call) {
  call.function = reinterpret_cast<Function*>(::dlsym(handle, call.name));
  return call.function != nullptr;
}

}  // namespace

std::shared_ptr<const NvmlLibrary> NvmlLibrary::load(const std::string& file, std::string& why) {
  void* const handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const error = ::dlerror();
    why = error != nullptr ? error : file + " cannot be loaded";
    return nullptr;
  }
  const std::shared_ptr<NvmlLibrary> library(new NvmlLibrary(handle));
  const char* missing = nullptr;
  const auto need = [&](auto& call) {
    if (!find(handle, call) && missing == nullptr) missing = call.name;
  };
  need(library->init_);
  need(library->shutdown_);
  need(library->error_string_);
  need(library->device);
  if (missing != nullptr) {
    why = fmt::format("{} has no {}", file, missing);
    return nullptr;
  }
  find(handle, library->utilisation);
  find(handle, library->memory);
  find(handle, library->power);
  find(handle, library->energy);
  find(handle, library->temperature);
  find(handle, library->clock);
  find(handle, library->throttle_reasons);
  find(handle, library->compute_processes);
  const int status = library->init_.function();
  if (status != kNvmlSuccess) {
    why = fmt::format("{} failed: {}", library->init_.name, library->text_of(status));
    return nullptr;
  }
  library->initialised_ = true;
  return library;
}

NvmlLibrary::~NvmlLibrary() {
  // Nothing is left to be done where either fails.
  if (initialised_) static_cast<void>(shutdown_.function());
  static_cast<void>(::dlclose(handle_));
}

std::string NvmlLibrary::text_of(int status) const {
  const char* const text = error_string_.function(status);
  return fmt::format("{} ({})", text != nullptr ? text : "unknown", status);
}

}  // namespace barestep
