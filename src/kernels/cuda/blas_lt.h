// Loading cuBLASLt.
#pragma once

#include <span>
#include <string>

namespace barestep {

/// Loads the first of these shared libraries that can be loaded, for the rest of the process. If
/// none can, throws Error(kNoDevice) with the reason why the first one cannot.
void* load_cublas_lt(std::span<const std::string> files);

/// A function of the library. Throws Error(kNoDevice) if the library does not contain it.
void* function_of_cublas_lt(void* library, const char* name);

}  // namespace barestep
