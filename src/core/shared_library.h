// Shared libraries that are loaded when they are first needed, so that programs start without them.
#pragma once

#include <span>
#include <string>

namespace barestep {

/// Loads the first of these files that can be loaded, for the rest of the process; its names stay
/// its own. Null if none can: then `why` is what dlopen(3) says of the first, which is the expected
/// one.
void* load_library(std::span<const std::string> files, std::string& why);

/// A function of a loaded library; null if it has none of that name.
void* function_of(void* library, const char* name);

}  // namespace barestep
