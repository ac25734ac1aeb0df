#include "core/shared_library.h"

#include <dlfcn.h>

namespace barestep {

void* load_library(std::span<const std::string> files, std::string& why) {
  why.clear();
  for (const std::string& file : files) {
    void* const library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) return library;
    const char* const error = ::dlerror();
    if (why.empty()) why = error != nullptr ? error : file + " cannot be loaded";
  }
  return nullptr;
}

void* function_of(void* library, const char* name) {
  return ::dlsym(library, name);
}

}  // namespace barestep
