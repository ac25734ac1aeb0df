#include "lab/study/core_users.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "core/clock.h"
#include "core/host.h"

namespace barestep {
namespace {

struct RunningProgram {
  std::string name{};
  double ran_s = 0;
};

/// By the number of the process, as workers of the kernel change their names. Empty without /proc.
std::map<std::string, RunningProgram> running_programs() {
  std::map<std::string, RunningProgram> programs;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string pid = entry.path().filename();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream file(entry.path() / "stat");
    std::string line;
    std::getline(file, line);
    // "pid (name) state", 10 numbers, then user and system time, in ticks (proc(5)).
    const std::size_t begin = line.find('('), end = line.rfind(')');
    if (begin == std::string::npos || end == std::string::npos) continue;
    std::istringstream rest(line.substr(end + 1));
    std::string skipped;
    for (int i = 0; i < 11; ++i) rest >> skipped;
    double user = 0, system = 0;
    rest >> user >> system;
    const std::string name = line.substr(begin + 1, end - begin - 1);
    programs[pid] = {name.substr(0, name.find('/')),
                     (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK))};
  }
  return programs;
}

}  // namespace

bool CoreUsers::disturb() const {
  constexpr double kBusyShare = 0.1;
  return busy_cores > kBusyShare * cores;
}

std::string CoreUsers::text() const {
  return fmt::format("{:.1f} of {} cores{}", busy_cores, cores,
                     busiest.empty() ? "" : fmt::format(" ({})", busiest));
}

CoreUsers watch_core_users(std::chrono::milliseconds time) {
  constexpr std::size_t kNamed = 3;
  constexpr double kNamedCores = 0.05;
  const CoreWatch watch;
  std::map<std::string, RunningProgram> before = running_programs();
  const double begin_s = now_s();
  std::this_thread::sleep_for(time);
  const std::map<std::string, RunningProgram> after = running_programs();
  const double seconds = now_s() - begin_s;
  std::map<std::string, double> ran_s;  // by name
  for (const auto& [pid, program] : after) {
    ran_s[program.name] += program.ran_s - before[pid].ran_s;
  }
  std::vector<std::pair<double, std::string>> cores;
  for (const auto& [name, program_s] : ran_s) {
    if (program_s / seconds >= kNamedCores) cores.emplace_back(program_s / seconds, name);
  }
  std::ranges::sort(cores, std::ranges::greater{});
  std::vector<std::string> named;
  for (std::size_t i = 0; i < std::min(kNamed, cores.size()); ++i) {
    named.push_back(fmt::format("{} {:.1f}", cores[i].second, cores[i].first));
  }
  CoreUsers found{.cores = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)),
                  .busiest = fmt::format("{}", fmt::join(named, ", "))};
  found.busy_cores = found.cores * watch.others_share(0);
  return found;
}

}  // namespace barestep
