// An NVML without a GPU. Tests load it as a library and set its answers.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace barestep {

struct FakeNvml {
  std::map<std::string, int> status;                // by function; 0, success, if absent
  std::map<std::string, unsigned long long> value;  // its readings; for a clock: name + kind
  std::vector<std::string> gpus;                    // bus ids of its GPUs
  int open = 0;                                     // initialized and not yet shut down
};

}  // namespace barestep

/// The state of the library; tests look it up by this name.
using FakeNvmlState = barestep::FakeNvml*();
constexpr const char* kFakeNvmlState = "fake_nvml_state";
