#include "profiler/monitor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <exception>
#include <fstream>
#include <numeric>
#include <sstream>
#include <utility>

#include "core/clock.h"
#include "core/text_table.h"
#include "core/units.h"

namespace barestep {

void GaugeSummary::add(GaugeKind kind, double value) {
  if (!std::isfinite(value)) return;
  min = count == 0 ? value : std::min(min, value);
  max = count == 0 ? value : std::max(max, value);
  if (count == 0) first = value;
  last = value;
  sum += value;
  if (kind == GaugeKind::kReasons) bits |= static_cast<std::uint64_t>(value);
  ++count;
}

std::optional<double> SourceSummary::energy_j() const {
  std::optional<double> by_power;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const GaugeKind kind = source->gauges[i].kind;
    const GaugeSummary& value = values[i];
    // A counter that decreased was reset by another program.
    if (kind == GaugeKind::kEnergy && value.count >= 2 && value.last >= value.first) {
      return value.last - value.first;
    }
    if (kind == GaugeKind::kPower && value.count >= 1) by_power = value.mean() * (end_s - begin_s);
  }
  return by_power;
}

Monitor::Monitor(std::vector<std::unique_ptr<MonitorSource>> sources, double period_s)
    : sources_(std::move(sources)), period_s_(period_s), start_s_(now_s()) {
  for (const auto& source : sources_) {
    std::vector<double> values(source->gauges.size());
    source->sample(values);  // so that values over the time since the last sample start here
    summaries_.push_back({.source = source.get(),
                          .values = std::vector<GaugeSummary>(values.size()),
                          .begin_s = start_s_,
                          .end_s = start_s_});
  }
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

void Monitor::run(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  for (bool is_last = false; !is_last;) {
    wakes_.wait_for(lock, stop, std::chrono::duration<double>(period_s_),
                    [this] { return opens_window_; });
    is_last = stop.stop_requested();
    for (SourceSummary& summary : summaries_) {
      MonitorSource& source = *sources_[static_cast<std::size_t>(&summary - summaries_.data())];
      MonitorSample sample{.source = &source};
      sample.values.assign(source.gauges.size(), kNotMeasured);
      lock.unlock();
      try {
        source.sample(sample.values);
      } catch (const std::exception&) {
        // E.g. out of memory: a failed sample must not end a training run.
        std::ranges::fill(sample.values, kNotMeasured);
      }
      sample.at_s = now_s();
      lock.lock();
      add(std::move(sample), summary);
    }
    if (opens_window_) open_window();
  }
}

void Monitor::add(MonitorSample sample, SourceSummary& summary) {
  constexpr std::size_t kMaxKept = 1 << 14;
  for (std::size_t i = 0; i < sample.values.size(); ++i) {
    summary.values[i].add(sample.source->gauges[i].kind, sample.values[i]);
  }
  ++summary.readings;
  summary.end_s = sample.at_s;
  summary.trouble = sample.source->trouble();
  kept_.push_back(std::move(sample));
  if (kept_.size() > kMaxKept) kept_.pop_front();
  new_ = std::min(new_ + 1, kMaxKept);
}

void Monitor::open_window() {
  for (SourceSummary& summary : summaries_) {
    for (std::size_t i = 0; i < summary.values.size(); ++i) {
      const GaugeSummary before = std::exchange(summary.values[i], {});
      // Counters start here; the other values of this sample cover the time before it.
      const GaugeKind kind = summary.source->gauges[i].kind;
      if (kind == GaugeKind::kEnergy && before.count > 0) summary.values[i].add(kind, before.last);
    }
    summary.readings = 0;
    summary.begin_s = summary.end_s;
  }
  opens_window_ = false;
  wakes_.notify_all();
}

void Monitor::begin_window() {
  std::unique_lock lock(mutex_);
  opens_window_ = true;
  wakes_.notify_all();
  wakes_.wait(lock, [this] { return !opens_window_; });
}

void Monitor::stop() {
  thread_.request_stop();
  if (thread_.joinable()) thread_.join();
}

std::vector<MonitorSample> Monitor::take_new() {
  const std::lock_guard lock(mutex_);
  const auto count = static_cast<std::ptrdiff_t>(std::exchange(new_, 0));
  return {kept_.end() - count, kept_.end()};
}

std::vector<MonitorSample> Monitor::kept() const {
  const std::lock_guard lock(mutex_);
  return {kept_.begin(), kept_.end()};
}

std::vector<SourceSummary> Monitor::summaries() const {
  const std::lock_guard lock(mutex_);
  return summaries_;
}

namespace {

/// The clock ticks of a core since the system's start.
struct CoreTicks {
  double busy = 0;
  double all = 0;
};

/// The indices of the gauges.
enum { kBusy, kMinCore, kMaxCore, kOwn, kResident, kClock };

std::span<const Gauge> host_gauges() {
  static const std::vector<Gauge> gauges = {
      {.name = "busy_percent", .column = "busy %", .decimals = 1},
      {.name = "least_core_percent", .column = "least core %", .decimals = 1},
      {.name = "most_core_percent", .column = "most core %", .decimals = 1},
      {.name = "own_percent", .column = "own %", .decimals = 1},
      {.name = "resident_mib", .column = "resident MiB", .decimals = 1},
      {.name = "clock_mhz", .column = "MHz", .kind = GaugeKind::kClock}};
  return gauges;
}

class HostSource final : public MonitorSource {
 public:
  explicit HostSource(std::filesystem::path root)
      : MonitorSource("host", host_gauges()), root_(std::move(root)), cores_(read_cores()) {}

  void sample(std::span<double> values) override {
    std::ranges::fill(values, kNotMeasured);
    sample_cores(values);
    const double now = now_s(), own = static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
    const double possible_s = (now - at_s_) * static_cast<double>(cores_.size());
    // The two clocks are not read at one time.
    if (possible_s > 0) values[kOwn] = std::min(100.0, 100 * (own - own_s_) / possible_s);
    own_s_ = own;
    at_s_ = now;
    double all_pages = 0, pages = 0;
    if (std::ifstream(root_ / "proc/self/statm") >> all_pages >> pages) {
      values[kResident] = pages * static_cast<double>(::sysconf(_SC_PAGESIZE)) / (1 << 20);
    }
    values[kClock] = clock_mhz();
  }

  [[nodiscard]] std::string trouble() const override { return trouble_; }

 private:
  /// proc(5): "cpu0 user nice system idle iowait irq softirq steal guest guest_nice"; guests' time
  /// is already in user and nice.
  [[nodiscard]] std::vector<CoreTicks> read_cores() const {
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

  [[nodiscard]] double clock_mhz() const {
    double max_mhz = 0, number = 0;
    for (std::size_t core = 0; core < cores_.size(); ++core) {
      std::ifstream file(
          root_ / fmt::format("sys/devices/system/cpu/cpu{}/cpufreq/scaling_cur_freq", core));
      if (file >> number) max_mhz = std::max(max_mhz, number / 1000);
    }
    if (max_mhz > 0) return max_mhz;
    std::ifstream lines(root_ / "proc/cpuinfo");
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("cpu MHz")) continue;
      std::istringstream text(line.substr(std::min(line.size(), line.find(':') + 1)));
      if (text >> number) max_mhz = std::max(max_mhz, number);
    }
    return max_mhz > 0 ? max_mhz : kNotMeasured;
  }

  void sample_cores(std::span<double> values) {
    const std::vector<CoreTicks> now = read_cores();
    if (now.size() != cores_.size() || now.empty()) {
      trouble_ = now.empty() ? "/proc/stat names no cores" : "the set of cores changed";
      return;
    }
    CoreTicks total;
    for (std::size_t i = 0; i < now.size(); ++i) {
      const double all = now[i].all - cores_[i].all;
      if (all <= 0) continue;  // no tick since, or a virtual machine that was migrated
      const double percent = std::clamp(100 * (now[i].busy - cores_[i].busy) / all, 0.0, 100.0);
      values[kMinCore] = std::fmin(values[kMinCore], percent);
      values[kMaxCore] = std::fmax(values[kMaxCore], percent);
      total.busy += percent * all;
      total.all += all;
    }
    cores_ = now;
    if (total.all > 0) values[kBusy] = total.busy / total.all;
  }

  std::filesystem::path root_;
  std::vector<CoreTicks> cores_;
  double own_s_ = 0, at_s_ = 0;
  std::string trouble_;
};

std::string number(const Gauge& gauge, double value) {
  if (!std::isfinite(value)) return "-";
  if (gauge.kind == GaugeKind::kReasons) {
    return fmt::format("{:#x}", static_cast<std::uint64_t>(value));
  }
  return fmt::format("{:.{}f}", value, gauge.decimals);
}

/// Null if not measured.
TraceJson json_number(double value) {
  constexpr double kMaxExact = 1LL << 53;
  if (!std::isfinite(value)) return {};
  const bool is_whole = std::trunc(value) == value && std::abs(value) < kMaxExact;
  return is_whole ? TraceJson(static_cast<std::int64_t>(value)) : TraceJson(value);
}

std::string line_of(const TraceJson& record) {
  return record.dump(-1, ' ', false, TraceJson::error_handler_t::replace);
}

std::string reasons_of(const Gauge& gauge, std::uint64_t bits) {
  std::vector<std::string_view> reasons;
  for (std::size_t bit = 0; bit < gauge.reasons.size(); ++bit) {
    const bool is_set = (bits >> bit & 1U) != 0;
    if (is_set && !gauge.reasons[bit].empty()) reasons.push_back(gauge.reasons[bit]);
  }
  return fmt::format("{}", fmt::join(reasons, ", "));
}

/// A line with a text for each column.
template <class TextOf>
std::string line_of(std::string_view first, std::string_view seconds, std::span<const Gauge> gauges,
                    const TextOf& text_of) {
  const auto cell = [](std::string_view title, std::string_view text) {
    return fmt::format("  {:>{}}", text, std::max<std::size_t>(6, title.size()));
  };
  std::string line = fmt::format("{:<9}{}", first, cell("seconds", seconds));
  for (const Gauge& gauge : gauges) {
    if (!gauge.column.empty()) line += cell(gauge.column, text_of(gauge));
  }
  return line;
}

}  // namespace

std::unique_ptr<MonitorSource> new_host_source(const std::filesystem::path& root) {
  return std::make_unique<HostSource>(root);
}

std::string monitor_titles(const MonitorSource& source) {
  return line_of("# monitor", "seconds", source.gauges,
                 [](const Gauge& gauge) { return gauge.column; });
}

std::string monitor_line(const MonitorSample& sample, double start_s) {
  const std::span<const Gauge> gauges = sample.source->gauges;
  return line_of("  " + sample.source->name, fmt::format("{:.1f}", sample.at_s - start_s), gauges,
                 [&](const Gauge& gauge) {
                   return number(gauge,
                                 sample.values[static_cast<std::size_t>(&gauge - &gauges[0])]);
                 });
}

std::vector<std::string> SourceSummary::marks() const {
  constexpr double kSteadyClock = 1.02;
  std::vector<std::string> marks;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Gauge& gauge = source->gauges[i];
    const GaugeSummary& value = values[i];
    if (value.count == 0) continue;
    if (gauge.kind == GaugeKind::kClock && value.max > kSteadyClock * value.min) {
      marks.push_back(fmt::format("a clock of {} changed: {} from {} to {}", source->name,
                                  gauge.column, number(gauge, value.min),
                                  number(gauge, value.max)));
    } else if (gauge.kind == GaugeKind::kOthers && value.max > 0) {
      marks.push_back(fmt::format("other processes used {} too: up to {}", source->name,
                                  number(gauge, value.max)));
    } else if (const std::string reasons = reasons_of(gauge, value.bits); !reasons.empty()) {
      marks.push_back(fmt::format("{} was throttled: {}", source->name, reasons));
    }
  }
  return marks;
}

std::string monitor_summary(std::span<const SourceSummary> summaries, std::int64_t samples) {
  if (summaries.empty()) return "";
  TextTable table({"", "", ">mean", ">least", ">most"});
  std::string lines;
  double all_joules = 0;
  int with_energy = 0;
  for (const SourceSummary& summary : summaries) {
    const std::string& name = summary.source->name;
    for (std::size_t i = 0; i < summary.values.size(); ++i) {
      const Gauge& gauge = summary.source->gauges[i];
      const GaugeSummary& value = summary.values[i];
      const bool is_shown = !gauge.column.empty() && gauge.kind != GaugeKind::kReasons;
      if (!is_shown || value.count == 0) continue;
      table.add_row({name, gauge.column, number(gauge, value.mean()), number(gauge, value.min),
                     number(gauge, value.max)});
    }
    if (const auto joules = summary.energy_j(); joules && samples > 0) {
      lines += fmt::format("  {} took {:.3f} J in {:.3f} s, {:.4g} J a sample\n", name, *joules,
                           summary.end_s - summary.begin_s, *joules / static_cast<double>(samples));
      all_joules += *joules;
      ++with_energy;
    }
    for (const std::string& mark : summary.marks()) lines += fmt::format("  MARKED: {}\n", mark);
    if (!summary.trouble.empty()) lines += fmt::format("  Note: {}: {}\n", name, summary.trouble);
  }
  if (with_energy > 1) {
    lines += fmt::format("  Together {:.3f} J, {:.4g} J a sample\n", all_joules,
                         all_joules / static_cast<double>(samples));
  }
  const SourceSummary& first = summaries.front();
  return fmt::format("Monitor, {} in {:.1f} s after warm-up\n{}{}",
                     counted(first.readings, "reading"), first.end_s - first.begin_s, table.text(2),
                     lines);
}

std::string monitor_record(const MonitorSample& sample, int rank, double start_s) {
  TraceJson record = {
      {"monitor", sample.source->name}, {"rank", rank}, {"seconds", sample.at_s - start_s}};
  for (std::size_t i = 0; i < sample.values.size(); ++i) {
    record[sample.source->gauges[i].name] = json_number(sample.values[i]);
  }
  return line_of(record);
}

std::string monitor_summary_record(const SourceSummary& summary, std::int64_t samples, int rank) {
  const double joules = samples > 0 ? summary.energy_j().value_or(kNotMeasured) : kNotMeasured;
  TraceJson gauges = TraceJson::object();
  for (std::size_t i = 0; i < summary.values.size(); ++i) {
    const GaugeSummary& value = summary.values[i];
    if (value.count > 0) {
      gauges[summary.source->gauges[i].name] = {value.mean(), value.min, value.max};
    }
  }
  return line_of({{"monitor_summary", summary.source->name},
                  {"rank", rank},
                  {"readings", summary.readings},
                  {"seconds", summary.end_s - summary.begin_s},
                  {"gauges", std::move(gauges)},
                  {"energy_j", json_number(joules)},
                  {"energy_j_per_sample", json_number(joules / static_cast<double>(samples))},
                  {"marks", summary.marks()}});
}

void add_monitor(TraceEvents& events, const Monitor& monitor, TraceRow row, double begin_s,
                 double end_s) {
  for (const MonitorSample& sample : monitor.kept()) {
    if (sample.at_s < begin_s || sample.at_s > end_s) continue;
    for (std::size_t i = 0; i < sample.values.size(); ++i) {
      if (!std::isfinite(sample.values[i])) continue;
      events.counter(fmt::format("{} {}", sample.source->name, sample.source->gauges[i].name), row,
                     events.ns(sample.at_s), {{"0", json_number(sample.values[i])}});
    }
  }
}

}  // namespace barestep
