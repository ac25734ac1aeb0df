// The machine that a study runs on.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace barestep {

struct Machine {
  std::string processor{};
  int cores = 1;  // that this process may use
  std::int64_t memory_bytes = 0;
  std::string gpu{};  // empty: none
  int gpus = 0;
  std::string system{};  // kernel and its version

  friend bool operator==(const Machine&, const Machine&) = default;
};

/// Opens the first GPU, if there is one.
Machine this_machine();

/// Names and values, for reports.
std::vector<std::pair<std::string, std::string>> facts_of(const Machine& machine);

}  // namespace barestep
