// An NVML without a GPU. Tests load it as a library and set what it answers.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace barestep {

struct FakeNvml {
  std::map<std::string, int> status;                // by function; 0, success, where there is none
  std::map<std::string, unsigned long long> value;  // what it tells; of a clock: name + kind
  std::vector<std::string> gpus;                    // bus ids that it knows
  int open = 0;                                     // initialised and not shut down
};

}  // namespace barestep

/// The state of the library; to be found in it by this name.
using FakeNvmlState = barestep::FakeNvml*();
constexpr const char* kFakeNvmlState = "fake_nvml_state";
