// Where cuBLASLt comes from.
#pragma once

#include <span>
#include <string>

namespace barestep {

/// Loads the first of these shared libraries that can be, for the rest of the process. Fails with
/// kNoDevice, and why the first cannot be.
void* load_cublas_lt(std::span<const std::string> files);

/// A function of the library. Fails with kNoDevice where it has none of this name.
void* function_of_cublas_lt(void* library, const char* name);

}  // namespace barestep
