// The monitor: a thread that samples the machine during a run, and what it saw as text.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "profiler/trace.h"

namespace barestep {

/// The value of a gauge that a source cannot currently read.
constexpr double kNotMeasured = std::numeric_limits<double>::quiet_NaN();

enum class GaugeKind {
  kLevel,
  kClock,    // MHz; a run is marked if it varies
  kOthers,   // other users of the source; a run is marked if there are any
  kReasons,  // bits; any set bit marks the run
  kPower,    // W
  kEnergy,   // J since an arbitrary time
};

/// A quantity that a source measures.
struct Gauge {
  std::string name;    // in metrics and traces: "power_w"
  std::string column;  // in lines and the summary: "power W"; empty: not shown
  int decimals = 0;
  GaugeKind kind = GaugeKind::kLevel;
  std::span<const std::string_view> reasons{};  // by bit; an empty one marks nothing
};

class MonitorSource {
 public:
  MonitorSource(std::string source, std::span<const Gauge> all)
      : name(std::move(source)), gauges(all) {}
  virtual ~MonitorSource() = default;

  /// Sets a value for each gauge: the current one, or one for the time since the last sample;
  /// kNotMeasured if there is none. Called by one thread.
  virtual void sample(std::span<double> values) = 0;

  /// A description of the errors so far; empty if there were none.
  [[nodiscard]] virtual std::string trouble() const = 0;

  const std::string name;  // "host", "cuda:0"
  const std::span<const Gauge> gauges;
};

struct MonitorSample {
  const MonitorSource* source;
  double at_s = 0;  // on the host's clock (core/clock.h)
  std::vector<double> values{};
};

/// The values of a gauge over the window.
struct GaugeSummary {
  std::int64_t count = 0;  // samples with this gauge; if 0, the rest is undefined
  double min = 0, max = 0, sum = 0, first = 0, last = 0;
  std::uint64_t bits = 0;  // combined over all samples; kReasons only

  void add(GaugeKind kind, double value);
  [[nodiscard]] double mean() const { return sum / static_cast<double>(count); }
};

/// The values of a source over the window.
struct SourceSummary {
  const MonitorSource* source;
  std::vector<GaugeSummary> values{};  // one for each gauge
  std::int64_t readings = 0;
  double begin_s = 0, end_s = 0;
  std::string trouble{};

  /// The energy used, in joules: from its counter, or else from its mean power. Nothing if it
  /// reports neither.
  [[nodiscard]] std::optional<double> energy_j() const;
  /// Reasons to doubt a run's figures: clocks that varied by more than 2 %, other processes,
  /// throttling. One phrase each.
  [[nodiscard]] std::vector<std::string> marks() const;
};

class Monitor {
 public:
  /// Samples all sources now, which starts their counters, and then every `period_s`.
  Monitor(std::vector<std::unique_ptr<MonitorSource>> sources, double period_s);

  /// From now on, the summary covers only later samples; until then it covers all. Blocks for a
  /// sample.
  void begin_window();
  /// Takes a last sample, then stops. Blocks until that is done.
  void stop();

  /// The samples since the last call. The oldest are dropped if this is not called for long.
  [[nodiscard]] std::vector<MonitorSample> take_new();
  /// The latest of all samples, about half an hour of one source.
  [[nodiscard]] std::vector<MonitorSample> kept() const;
  [[nodiscard]] std::vector<SourceSummary> summaries() const;

  [[nodiscard]] double start_s() const { return start_s_; }

 private:
  void run(const std::stop_token& stop);
  void add(MonitorSample sample, SourceSummary& summary);
  /// Forgets what the summaries have.
  void open_window();

  std::vector<std::unique_ptr<MonitorSource>> sources_;  // used by the thread alone
  double period_s_;
  double start_s_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable_any wakes_;
  bool opens_window_ = false;
  std::deque<MonitorSample> kept_;
  std::size_t new_ = 0;  // how many at the end of kept_ are new
  std::vector<SourceSummary> summaries_;

  std::jthread thread_;
};

/// The host, from Linux's /proc and /sys: how busy its cores are, in total, the least and the most
/// busy one; this process's share of that; its resident memory; and the clock of the fastest core.
/// `root` is the folder with proc/ and sys/. Values that the system does not report stay
/// kNotMeasured.
std::unique_ptr<MonitorSource> new_host_source(const std::filesystem::path& root = "/");

struct GpuPlace {
  std::string name;        // "cuda:0"
  std::string pci_bus_id;  // "00000000:17:00.0": NVML and CUDA number GPUs differently
};

struct GpuSources {
  std::vector<std::unique_ptr<MonitorSource>> sources;
  std::vector<std::string> notes;  // one per GPU that cannot be monitored, or one for all
};

/// The file of NVIDIA's management library, which is part of the driver and is loaded on demand:
/// the value of BARESTEP_NVML, or libnvidia-ml.so.1.
std::string nvml_library();

/// One source for each distinct bus id. Never throws because of the driver.
GpuSources open_gpu_sources(std::span<const GpuPlace> gpus, const std::string& library);

/// The titles of a source's columns, and the values of one sample for these columns, in the style
/// of nvidia-smi dmon; "-" for values that were not measured. Without a newline.
std::string monitor_titles(const MonitorSource& source);
std::string monitor_line(const MonitorSample& sample, double start_s);

/// Mean, minimum and maximum of every gauge, energy in total and for each of `samples`, and the
/// marks.
std::string monitor_summary(std::span<const SourceSummary> summaries, std::int64_t samples);

/// One line of JSON each: the values of one sample of a source, null for those not measured; and
/// the summary of its window, with mean, minimum and maximum of each gauge.
std::string monitor_record(const MonitorSample& sample, int rank, double start_s);
std::string monitor_summary_record(const SourceSummary& summary, std::int64_t samples, int rank);

/// Adds a counter for each gauge to the host's `row`, from `begin_s` to `end_s`.
void add_monitor(TraceEvents& events, const Monitor& monitor, TraceRow row, double begin_s,
                 double end_s);

}  // namespace barestep
