// What the programs' tests expect does not depend on whether there is a GPU: they train on the CPU.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

namespace barestep {

/// The arguments, after --device cpu unless they name a device.
inline std::vector<std::string> on_cpu(std::vector<std::string> arguments) {
  if (std::ranges::find(arguments, "--device") == arguments.end()) {
    arguments.insert(arguments.begin(), {"--device", "cpu"});
  }
  return arguments;
}

}  // namespace barestep
