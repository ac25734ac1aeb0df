// The results that the programs' tests expect must not depend on a GPU, so the programs train on
// the CPU.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

namespace barestep {

/// The arguments, preceded by --device cpu unless they name a device.
inline std::vector<std::string> on_cpu(std::vector<std::string> arguments) {
  if (std::ranges::find(arguments, "--device") == arguments.end()) {
    arguments.insert(arguments.begin(), {"--device", "cpu"});
  }
  return arguments;
}

/// The test digits of MNIST, in the folder of the tests' data.
inline std::vector<std::string> mnist_in(const std::string& folder) {
  return {"--data", "idx:" + folder + "/mnist/t10k-images-idx3-ubyte.gz," + folder +
                        "/mnist/t10k-labels-idx1-ubyte.gz"};
}

}  // namespace barestep
