// The machine that a study runs on, and whether anybody else uses it meanwhile.
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

/// Measures what others take of the cores between two points: other programs, and the hosts of a
/// virtual machine (/proc/stat, proc(5)).
class CoreWatch {
 public:
  CoreWatch();

  /// Share of all cores' time since the construction that was spent neither idle nor, as `own_s`
  /// says, on this program and its children. 0 where the system does not tell.
  [[nodiscard]] double others_share(double own_s) const;

 private:
  struct Times {
    double busy_s = 0;
    double all_s = 0;
  };
  static Times now();

  Times begin_;
};

}  // namespace barestep
