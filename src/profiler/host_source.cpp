#include "profiler/host_source.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <numeric>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "core/clock.h"

namespace barestep {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

/// The clock ticks of a core since the system started.
struct CoreTicks {
  double busy = 0;
  double all = 0;
};

/// The places of the gauges; cores follow.
enum { kBusy, kLeastCore, kMostCore, kOwn, kResident, kClock, kFirstCore };

class HostSource final : public MonitorSource {
 public:
  explicit HostSource(std::filesystem::path root) : root_(std::move(root)) {
    cores_ = read_cores();
    gauges_ = {{.name = "busy_percent", .column = "busy %", .decimals = 1},
               {.name = "least_core_percent", .column = "least core %", .decimals = 1},
               {.name = "most_core_percent", .column = "most core %", .decimals = 1},
               {.name = "own_percent", .column = "own %", .decimals = 1},
               {.name = "resident_mib", .column = "resident MiB", .decimals = 1},
               {.name = "clock_mhz", .column = "MHz", .kind = GaugeKind::kClock}};
    for (std::size_t i = 0; i < cores_.size(); ++i) {
      gauges_.push_back({.name = "core_percent", .column = "", .decimals = 1, .is_part = true});
    }
  }

  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::span<const Gauge> gauges() const override { return gauges_; }
  void look(std::span<double> values) override;
  [[nodiscard]] std::string trouble() const override { return trouble_; }

 private:
  [[nodiscard]] std::vector<CoreTicks> read_cores() const;
  [[nodiscard]] double own_ticks() const;
  [[nodiscard]] double resident_mib() const;
  [[nodiscard]] double clock_mhz() const;
  void look_at_cores(std::span<double> values);

  std::filesystem::path root_;
  std::string name_ = "host";
  std::vector<Gauge> gauges_;
  std::vector<CoreTicks> cores_;
  double own_ticks_ = kUnknown;
  double at_s_ = 0;
  std::string trouble_;
};

/// proc(5): "cpu0 user nice system idle iowait irq softirq steal guest guest_nice"; guests' time is
/// in user and nice already.
std::vector<CoreTicks> HostSource::read_cores() const {
  std::ifstream lines(root_ / "proc/stat");
  std::vector<CoreTicks> cores;
  for (std::string line; std::getline(lines, line) && line.starts_with("cpu");) {
    std::istringstream numbers(line);
    std::string core;
    numbers >> core;
    if (core == "cpu") continue;
    double ticks[8] = {};
    for (double& tick : ticks) numbers >> tick;
    const double all = std::accumulate(std::begin(ticks), std::end(ticks), 0.0);
    cores.push_back({.busy = all - ticks[3] - ticks[4], .all = all});
  }
  return cores;
}

/// proc(5): fields 14 and 15 are user and system time; the second may hold blanks, in parentheses.
double HostSource::own_ticks() const {
  std::ifstream file(root_ / "proc/self/stat");
  std::string line;
  std::getline(file, line);
  const std::size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return kUnknown;
  std::istringstream fields(line.substr(name_end + 1));
  std::string skipped;
  for (int field = 3; field < 14; ++field) fields >> skipped;
  double user = 0;
  double system = 0;
  return fields >> user >> system ? user + system : kUnknown;
}

double HostSource::resident_mib() const {
  std::ifstream lines(root_ / "proc/self/status");
  for (std::string line; std::getline(lines, line);) {
    constexpr std::string_view kKey = "VmRSS:";
    if (!line.starts_with(kKey)) continue;
    double kib = 0;
    return std::istringstream(line.substr(kKey.size())) >> kib ? kib / 1024 : kUnknown;
  }
  return kUnknown;
}

double HostSource::clock_mhz() const {
  double most_khz = 0;
  for (std::size_t core = 0; core < cores_.size(); ++core) {
    double khz = 0;
    std::ifstream file(root_ /
                       fmt::format("sys/devices/system/cpu/cpu{}/cpufreq/scaling_cur_freq", core));
    if (!(file >> khz)) break;
    most_khz = std::max(most_khz, khz);
  }
  if (most_khz > 0) return most_khz / 1000;
  double most_mhz = 0;
  std::ifstream lines(root_ / "proc/cpuinfo");
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("cpu MHz")) continue;
    double mhz = 0;
    std::istringstream number(line.substr(std::min(line.size(), line.find(':') + 1)));
    if (number >> mhz) most_mhz = std::max(most_mhz, mhz);
  }
  return most_mhz > 0 ? most_mhz : kUnknown;
}

void HostSource::look_at_cores(std::span<double> values) {
  const std::vector<CoreTicks> now = read_cores();
  if (now.size() != cores_.size() || now.empty()) {
    trouble_ = now.empty() ? "/proc/stat names no cores" : "cores came or went";
    return;
  }
  CoreTicks total;
  std::pair<double, double> range{kUnknown, kUnknown};
  for (std::size_t i = 0; i < now.size(); ++i) {
    const double all = now[i].all - cores_[i].all;
    if (all <= 0) continue;  // no tick since, or a guest of a host that moved it
    const double percent = std::clamp(100 * (now[i].busy - cores_[i].busy) / all, 0.0, 100.0);
    values[kFirstCore + i] = percent;
    range = {std::fmin(range.first, percent), std::fmax(range.second, percent)};
    total.busy += percent * all;
    total.all += all;
  }
  cores_ = now;
  if (total.all <= 0) return;
  values[kBusy] = total.busy / total.all;
  values[kLeastCore] = range.first;
  values[kMostCore] = range.second;
}

void HostSource::look(std::span<double> values) {
  std::ranges::fill(values, kUnknown);
  look_at_cores(values);
  const double now = now_s();
  const double own = own_ticks();
  static const auto ticks_per_s = static_cast<double>(::sysconf(_SC_CLK_TCK));
  const double possible = (now - at_s_) * ticks_per_s * static_cast<double>(cores_.size());
  // Ticks are coarse: a short look may see one more than there was time for.
  if (possible > 0) values[kOwn] = std::min(100.0, 100 * (own - own_ticks_) / possible);
  if (std::isnan(own) || std::isnan(own_ticks_)) values[kOwn] = kUnknown;
  own_ticks_ = own;
  at_s_ = now;
  values[kResident] = resident_mib();
  values[kClock] = clock_mhz();
}

}  // namespace

std::unique_ptr<MonitorSource> new_host_source(const std::filesystem::path& root) {
  return std::make_unique<HostSource>(root);
}

}  // namespace barestep
