// The monitor: a thread that samples the machine during a run.
//
// It reads sources: the host, a GPU. Each has gauges, quantities that it reports at every
// look. Lines, summary, metrics and counters of a trace are made of them below.
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

#include "core/index.h"
#include "profiler/trace.h"

namespace barestep {

/// The value of a gauge that a source cannot read now.
constexpr double kNotMeasured = std::numeric_limits<double>::quiet_NaN();

enum class GaugeKind {
  kLevel,
  kClock,    // MHz; a run in which it moves is marked
  kOthers,   // foreign users of the source; a run with any is marked
  kReasons,  // bits, each of which marks a run
  kPower,    // W
  kEnergy,   // J since any moment
};

/// One quantity.
struct Gauge {
  std::string name;    // in metrics and traces: "power_w"
  std::string column;  // in lines and the summary: "power W"; empty: in neither
  int decimals = 0;
  GaugeKind kind = GaugeKind::kLevel;
  std::span<const std::string_view> reasons{};  // of bit 0, 1, ...; an empty one marks nothing
  bool is_part = false;  // of a list: the parts of one name stand side by side
};

class MonitorSource {
 public:
  virtual ~MonitorSource() = default;

  /// "host", "cuda:0"
  [[nodiscard]] virtual const std::string& name() const = 0;
  [[nodiscard]] virtual std::span<const Gauge> gauges() const = 0;

  /// Sets a value for each gauge: of this moment, or of the time since the last reading.
  /// kNotMeasured where there is none. Never called by two threads at once.
  virtual void look(std::span<double> values) = 0;

  /// What went wrong so far, in words; empty where nothing did.
  [[nodiscard]] virtual std::string trouble() const = 0;
};

struct MonitorSample {
  int source = 0;   // its place in the monitor
  double at_s = 0;  // of the host's clock (core/clock.h)
  std::vector<double> values;
};

/// A gauge over the window.
struct GaugeSummary {
  std::int64_t count = 0;  // readings that had this gauge; at 0 the other members mean nothing
  double least = 0, most = 0, sum = 0, first = 0, last = 0;
  std::uint64_t bits = 0;  // of all readings; kReasons only

  void add(GaugeKind kind, double value);
  [[nodiscard]] double mean() const { return sum / static_cast<double>(count); }
};

/// A source over the window.
struct SourceSummary {
  std::string name;
  std::span<const Gauge> gauges;       // of the source
  std::vector<GaugeSummary> values{};  // one for each gauge
  std::int64_t readings = 0;
  double begin_s = 0, end_s = 0;
  std::string trouble{};

  /// Joules that it took, by its counter, or else by its mean power. Nothing where it tells
  /// neither.
  [[nodiscard]] std::optional<double> energy_j() const;
};

class Monitor {
 public:
  /// Looks at all sources now, which starts their counting, and then every `period_s`.
  Monitor(std::vector<std::unique_ptr<MonitorSource>> sources, double period_s);
  /// Ends the thread, after the reading that is under way.
  ~Monitor();
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

  /// The summary is about what comes from now on; until then, about everything. Blocks for a
  /// sample.
  void begin_window();
  /// Takes a last sample, then stops. Blocks for it.
  void stop();

  /// What came since the last call. The oldest are dropped if this is not called for long.
  [[nodiscard]] std::vector<MonitorSample> take_new();
  /// The last of all that came, about half an hour of one source.
  [[nodiscard]] std::vector<MonitorSample> kept() const;
  [[nodiscard]] std::vector<SourceSummary> summaries() const;

  [[nodiscard]] const MonitorSource& source(int index) const { return *at(sources_, index); }
  [[nodiscard]] double start_s() const { return start_s_; }
  [[nodiscard]] double period_s() const { return period_s_; }

 private:
  void run();
  /// Needs looking_.
  void look();
  void add(MonitorSample sample);

  std::vector<std::unique_ptr<MonitorSource>> sources_;
  double period_s_;
  double start_s_;

  mutable std::mutex looking_;  // held during a look: guards the sources
  mutable std::mutex mutex_;    // guards what follows; after looking_ where both are held
  std::condition_variable stops_;
  bool stopped_ = false;
  std::deque<MonitorSample> kept_;
  std::size_t new_ = 0;  // of kept_, at its end
  std::vector<SourceSummary> summaries_;

  std::thread thread_;
};

/// The host, from Linux's /proc and /sys.
///
/// How busy its cores are, in total and each, this process's part of that, the memory in which
/// this process resides, and the clock of the fastest core. `root` is where proc/ and sys/ lie.
/// What the system does not report stays kNotMeasured.
std::unique_ptr<MonitorSource> new_host_source(const std::filesystem::path& root = "/");

// What a monitor saw as text: lines while a run goes on, a summary, metrics, counters of a trace.

/// The titles of a source's columns, and below them its values in one sample, as nvidia-smi dmon
/// prints them; "-" for what it could not measure. Without a newline.
std::string monitor_titles(const MonitorSource& source);
std::string monitor_line(const MonitorSource& source, const MonitorSample& sample, double start_s);

/// Why to doubt the figures of a run: clocks that moved by more than 2 %, foreign
/// processes, throttling. One phrase each.
std::vector<std::string> monitor_marks(const SourceSummary& summary);

/// Mean, least and most of every gauge, energy in all and for each of `samples`, and the marks.
std::string monitor_summary(std::span<const SourceSummary> summaries, std::int64_t samples);

/// One line of JSON each: the values of one reading of a source, null where it had none; and what
/// its window came to.
std::string monitor_record(const MonitorSource& source, const MonitorSample& sample, int rank,
                           double start_s);
std::string monitor_summary_record(const SourceSummary& summary, std::int64_t samples, int rank);

/// Adds a counter for each gauge in the host's `row`, from `begin_s` to `end_s`.
void add_monitor(TraceEvents& events, const Monitor& monitor, TraceRow row, double begin_s,
                 double end_s);

}  // namespace barestep
