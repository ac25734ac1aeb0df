#include "profiler/monitor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <fstream>
#include <limits>
#include <numeric>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "core/clock.h"
#include "core/index.h"
#include "core/text_table.h"
#include "core/units.h"

namespace barestep {

namespace {

constexpr std::size_t kMaxKept = 1 << 14;

}  // namespace

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
  for (std::size_t i = 0; i < gauges.size(); ++i) {
    const GaugeSummary& value = values[i];
    // A counter that decreased was reset by another program.
    if (gauges[i].kind == GaugeKind::kEnergy && value.count >= 2 && value.last >= value.first) {
      return value.last - value.first;
    }
    if (gauges[i].kind == GaugeKind::kPower && value.count >= 1) {
      by_power = value.mean() * (end_s - begin_s);
    }
  }
  return by_power;
}

Monitor::Monitor(std::vector<std::unique_ptr<MonitorSource>> sources, double period_s)
    : sources_(std::move(sources)), period_s_(period_s), start_s_(now_s()) {
  std::vector<double> values;
  for (const auto& source : sources_) {
    values.assign(source->gauges().size(), 0);
    source->sample(values);  // so that values over the time since the last sample start here
    SourceSummary& summary = summaries_.emplace_back();
    summary.name = source->name();
    summary.gauges = source->gauges();
    summary.values.resize(source->gauges().size());
    summary.begin_s = summary.end_s = start_s_;
  }
  thread_ = std::thread([this] { run(); });
}

Monitor::~Monitor() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  stops_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Monitor::run() {
  const auto period = std::chrono::duration<double>(period_s_);
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      if (stops_.wait_for(lock, period, [this] { return stopped_; })) return;
    }
    const std::lock_guard lock(sampling_);
    take_sample();
  }
}

void Monitor::take_sample() {
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    MonitorSample sample{.source = static_cast<int>(i), .at_s = 0, .values = {}};
    sample.values.assign(sources_[i]->gauges().size(), kNotMeasured);
    try {
      sources_[i]->sample(sample.values);
    } catch (const std::exception&) {
      // E.g. out of memory: a failed sample must not end a training run.
      std::ranges::fill(sample.values, kNotMeasured);
    }
    sample.at_s = now_s();
    add(std::move(sample));
  }
}

void Monitor::add(MonitorSample sample) {
  const std::lock_guard lock(mutex_);
  SourceSummary& summary = at(summaries_, sample.source);
  for (std::size_t i = 0; i < sample.values.size(); ++i) {
    summary.values[i].add(summary.gauges[i].kind, sample.values[i]);
  }
  ++summary.readings;
  summary.end_s = sample.at_s;
  kept_.push_back(std::move(sample));
  if (kept_.size() > kMaxKept) kept_.pop_front();
  new_ = std::min(new_ + 1, kMaxKept);
}

void Monitor::begin_window() {
  const std::lock_guard sampling(sampling_);
  take_sample();
  const std::lock_guard lock(mutex_);
  for (SourceSummary& summary : summaries_) {
    for (std::size_t i = 0; i < summary.values.size(); ++i) {
      const GaugeSummary before = std::exchange(summary.values[i], {});
      // Counters start here; the other values of this sample cover the time before it.
      const bool counts = summary.gauges[i].kind == GaugeKind::kEnergy && before.count > 0;
      if (counts) summary.values[i].add(GaugeKind::kEnergy, before.last);
    }
    summary.readings = 0;
    summary.begin_s = summary.end_s;
  }
}

void Monitor::stop() {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(stopped_, true)) return;
  }
  stops_.notify_all();
  thread_.join();
  const std::lock_guard lock(sampling_);
  take_sample();
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
  const std::lock_guard sampling(sampling_);
  const std::lock_guard lock(mutex_);
  std::vector<SourceSummary> all = summaries_;
  for (std::size_t i = 0; i < all.size(); ++i) all[i].trouble = sources_[i]->trouble();
  return all;
}

namespace {

/// The clock ticks of a core since the system's start.
struct CoreTicks {
  double busy = 0;
  double all = 0;
};

/// The indices of the gauges.
enum { kBusy, kMinCore, kMaxCore, kOwn, kResident, kClock };

const std::vector<Gauge>& host_gauges() {
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
  explicit HostSource(std::filesystem::path root) : root_(std::move(root)), cores_(read_cores()) {}

  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::span<const Gauge> gauges() const override { return host_gauges(); }
  void sample(std::span<double> values) override;
  [[nodiscard]] std::string trouble() const override { return trouble_; }

 private:
  [[nodiscard]] std::vector<CoreTicks> read_cores() const;
  [[nodiscard]] double own_ticks() const;
  [[nodiscard]] double resident_mib() const;
  [[nodiscard]] double clock_mhz() const;
  void sample_cores(std::span<double> values);

  std::filesystem::path root_;
  std::string name_ = "host";
  std::vector<CoreTicks> cores_;
  double own_ticks_ = kNotMeasured;
  double at_s_ = 0;
  std::string trouble_;
};

/// proc(5): "cpu0 user nice system idle iowait irq softirq steal guest guest_nice"; guests' time is
/// already in user and nice.
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

/// proc(5): fields 14 and 15 are user and system time; field 2, in parentheses, may contain blanks.
double HostSource::own_ticks() const {
  std::ifstream file(root_ / "proc/self/stat");
  std::string line;
  std::getline(file, line);
  const std::size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return kNotMeasured;
  std::istringstream fields(line.substr(name_end + 1));
  std::string skipped;
  for (int field = 3; field < 14; ++field) fields >> skipped;
  double user = 0;
  double system = 0;
  return fields >> user >> system ? user + system : kNotMeasured;
}

double HostSource::resident_mib() const {
  std::ifstream lines(root_ / "proc/self/status");
  for (std::string line; std::getline(lines, line);) {
    constexpr std::string_view kKey = "VmRSS:";
    if (!line.starts_with(kKey)) continue;
    double kib = 0;
    return std::istringstream(line.substr(kKey.size())) >> kib ? kib / 1024 : kNotMeasured;
  }
  return kNotMeasured;
}

double HostSource::clock_mhz() const {
  double max_khz = 0;
  for (std::size_t core = 0; core < cores_.size(); ++core) {
    double khz = 0;
    std::ifstream file(root_ /
                       fmt::format("sys/devices/system/cpu/cpu{}/cpufreq/scaling_cur_freq", core));
    if (!(file >> khz)) break;
    max_khz = std::max(max_khz, khz);
  }
  if (max_khz > 0) return max_khz / 1000;
  double max_mhz = 0;
  std::ifstream lines(root_ / "proc/cpuinfo");
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("cpu MHz")) continue;
    double mhz = 0;
    std::istringstream number(line.substr(std::min(line.size(), line.find(':') + 1)));
    if (number >> mhz) max_mhz = std::max(max_mhz, mhz);
  }
  return max_mhz > 0 ? max_mhz : kNotMeasured;
}

void HostSource::sample_cores(std::span<double> values) {
  const std::vector<CoreTicks> now = read_cores();
  if (now.size() != cores_.size() || now.empty()) {
    trouble_ = now.empty() ? "/proc/stat names no cores" : "the set of cores changed";
    return;
  }
  CoreTicks total;
  std::pair<double, double> range{kNotMeasured, kNotMeasured};
  for (std::size_t i = 0; i < now.size(); ++i) {
    const double all = now[i].all - cores_[i].all;
    if (all <= 0) continue;  // no tick since, or a virtual machine that was migrated
    const double percent = std::clamp(100 * (now[i].busy - cores_[i].busy) / all, 0.0, 100.0);
    range = {std::fmin(range.first, percent), std::fmax(range.second, percent)};
    total.busy += percent * all;
    total.all += all;
  }
  cores_ = now;
  if (total.all <= 0) return;
  values[kBusy] = total.busy / total.all;
  values[kMinCore] = range.first;
  values[kMaxCore] = range.second;
}

void HostSource::sample(std::span<double> values) {
  std::ranges::fill(values, kNotMeasured);
  sample_cores(values);
  const double now = now_s();
  const double own = own_ticks();
  static const auto ticks_per_s = static_cast<double>(::sysconf(_SC_CLK_TCK));
  const double possible = (now - at_s_) * ticks_per_s * static_cast<double>(cores_.size());
  // Ticks are coarse: a short period may show one more tick than it had time for.
  if (possible > 0) values[kOwn] = std::min(100.0, 100 * (own - own_ticks_) / possible);
  if (std::isnan(own) || std::isnan(own_ticks_)) values[kOwn] = kNotMeasured;
  own_ticks_ = own;
  at_s_ = now;
  values[kResident] = resident_mib();
  values[kClock] = clock_mhz();
}

}  // namespace

std::unique_ptr<MonitorSource> new_host_source(const std::filesystem::path& root) {
  return std::make_unique<HostSource>(root);
}

namespace {

constexpr double kSteadyClock = 1.02;

std::string number(const Gauge& gauge, double value) {
  if (!std::isfinite(value)) return "-";
  if (gauge.kind == GaugeKind::kReasons) {
    return fmt::format("{:#x}", static_cast<std::uint64_t>(value));
  }
  return fmt::format("{:.{}f}", value, gauge.decimals);
}

std::string cell(std::string_view title, std::string_view text) {
  return fmt::format("  {:>{}}", text, std::max<std::size_t>(6, title.size()));
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

std::string energy_text(const SourceSummary& summary, std::int64_t samples) {
  const std::optional<double> joules = summary.energy_j();
  if (!joules || samples <= 0) return "";
  return fmt::format("  {} took {:.3f} J in {:.3f} s, {:.4g} J a sample\n", summary.name, *joules,
                     summary.end_s - summary.begin_s, *joules / static_cast<double>(samples));
}

}  // namespace

std::string monitor_titles(const MonitorSource& source) {
  std::string line = fmt::format("# {:<7}{}", "monitor", cell("seconds", "seconds"));
  for (const Gauge& gauge : source.gauges()) {
    if (!gauge.column.empty()) line += cell(gauge.column, gauge.column);
  }
  return line;
}

std::string monitor_line(const MonitorSource& source, const MonitorSample& sample, double start_s) {
  std::string line = fmt::format("  {:<7}{}", source.name(),
                                 cell("seconds", fmt::format("{:.1f}", sample.at_s - start_s)));
  for (std::size_t i = 0; i < sample.values.size(); ++i) {
    const Gauge& gauge = source.gauges()[i];
    if (!gauge.column.empty()) line += cell(gauge.column, number(gauge, sample.values[i]));
  }
  return line;
}

std::vector<std::string> monitor_marks(const SourceSummary& summary) {
  std::vector<std::string> marks;
  for (std::size_t i = 0; i < summary.gauges.size(); ++i) {
    const Gauge& gauge = summary.gauges[i];
    const GaugeSummary& value = summary.values[i];
    if (value.count == 0) continue;
    if (gauge.kind == GaugeKind::kClock && value.max > kSteadyClock * value.min) {
      marks.push_back(fmt::format("a clock of {} changed: {} from {} to {}", summary.name,
                                  gauge.column, number(gauge, value.min),
                                  number(gauge, value.max)));
    } else if (gauge.kind == GaugeKind::kOthers && value.max > 0) {
      marks.push_back(fmt::format("other processes used {} too: up to {}", summary.name,
                                  number(gauge, value.max)));
    } else if (gauge.kind == GaugeKind::kReasons) {
      const std::string reasons = reasons_of(gauge, value.bits);
      if (!reasons.empty())
        marks.push_back(fmt::format("{} was throttled: {}", summary.name, reasons));
    }
  }
  return marks;
}

std::string monitor_summary(std::span<const SourceSummary> summaries, std::int64_t samples) {
  if (summaries.empty()) return "";
  TextTable table({{"", Align::kLeft},
                   {"", Align::kLeft},
                   {"mean", Align::kRight},
                   {"least", Align::kRight},
                   {"most", Align::kRight}});
  std::string lines;
  double joules = 0;
  int with_energy = 0;
  for (const SourceSummary& summary : summaries) {
    for (std::size_t i = 0; i < summary.gauges.size(); ++i) {
      const Gauge& gauge = summary.gauges[i];
      const GaugeSummary& value = summary.values[i];
      const bool counts = !gauge.column.empty() && gauge.kind != GaugeKind::kReasons;
      if (!counts || value.count == 0) continue;
      table.add_row({summary.name, gauge.column, number(gauge, value.mean()),
                     number(gauge, value.min), number(gauge, value.max)});
    }
    lines += energy_text(summary, samples);
    for (const std::string& mark : monitor_marks(summary)) {
      lines += fmt::format("  MARKED: {}\n", mark);
    }
    if (!summary.trouble.empty()) {
      lines += fmt::format("  Note: {}: {}\n", summary.name, summary.trouble);
    }
    if (summary.energy_j()) ++with_energy;
    joules += summary.energy_j().value_or(0);
  }
  if (with_energy > 1 && samples > 0) {
    lines += fmt::format("  Together {:.3f} J, {:.4g} J a sample\n", joules,
                         joules / static_cast<double>(samples));
  }
  const SourceSummary& first = summaries.front();
  return fmt::format("Monitor, {} in {:.1f} s after warm-up\n{}{}",
                     counted(first.readings, "reading"), first.end_s - first.begin_s, table.text(2),
                     lines);
}

std::string monitor_record(const MonitorSource& source, const MonitorSample& sample, int rank,
                           double start_s) {
  TraceJson record = {
      {"monitor", source.name()}, {"rank", rank}, {"seconds", sample.at_s - start_s}};
  for (std::size_t i = 0; i < sample.values.size(); ++i) {
    record[source.gauges()[i].name] = json_number(sample.values[i]);
  }
  return line_of(record);
}

std::string monitor_summary_record(const SourceSummary& summary, std::int64_t samples, int rank) {
  const double joules = summary.energy_j().value_or(std::numeric_limits<double>::quiet_NaN());
  const double of_a_sample = samples > 0 ? joules / static_cast<double>(samples)
                                         : std::numeric_limits<double>::quiet_NaN();
  return line_of({{"monitor_summary", summary.name},
                  {"rank", rank},
                  {"readings", summary.readings},
                  {"seconds", summary.end_s - summary.begin_s},
                  {"energy_j", samples > 0 ? json_number(joules) : TraceJson()},
                  {"energy_j_per_sample", json_number(of_a_sample)},
                  {"marks", monitor_marks(summary)}});
}

void add_monitor(TraceEvents& events, const Monitor& monitor, TraceRow row, double begin_s,
                 double end_s) {
  for (const MonitorSample& sample : monitor.kept()) {
    if (sample.at_s < begin_s || sample.at_s > end_s) continue;
    const MonitorSource& source = monitor.source(sample.source);
    for (std::size_t i = 0; i < sample.values.size(); ++i) {
      if (!std::isfinite(sample.values[i])) continue;
      events.counter(fmt::format("{} {}", source.name(), source.gauges()[i].name), row,
                     events.ns(sample.at_s), {{"0", json_number(sample.values[i])}});
    }
  }
}

}  // namespace barestep
