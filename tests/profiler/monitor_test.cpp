#include "profiler/monitor.h"

#include <nlohmann/json.hpp>
#include <unistd.h>

#include <ctime>
#include <new>

#include "support/temp_dir.h"
#include "support/testing.h"

namespace barestep {
namespace {

constexpr std::string_view kReasons[] = {"", "power cap", "heat"};
const std::vector<Gauge> kGauges = {
    {.name = "load_percent", .column = "load %", .decimals = 1},
    {.name = "clock_mhz", .column = "MHz", .kind = GaugeKind::kClock},
    {.name = "reasons", .column = "why", .kind = GaugeKind::kReasons, .reasons = kReasons},
    {.name = "others", .column = "others", .kind = GaugeKind::kOthers},
    {.name = "power_w", .column = "power W", .kind = GaugeKind::kPower},
    {.name = "energy_j", .column = "", .kind = GaugeKind::kEnergy}};

/// A source with scripted values; its energy counter gains a joule with every reading.
class Scripted final : public MonitorSource {
 public:
  explicit Scripted(std::vector<double> values)
      : MonitorSource("gpu", kGauges), values_(std::move(values)) {}

  void sample(std::span<double> values) override {
    if (throws_) throw std::bad_alloc();
    values_[5] += 1;
    std::ranges::copy(values_, values.begin());
    ++readings_;
  }
  [[nodiscard]] std::string trouble() const override { return "it is hot"; }

  std::atomic<int> readings_{0};
  std::atomic<bool> throws_{false};

 private:
  std::vector<double> values_;
};

const std::vector<double> kValues = {97.5, 1980, 0, 0, 300, 10};

/// The summary of a source with these values, one per reading, over two seconds.
SourceSummary summary_of(const std::vector<std::vector<double>>& readings) {
  static const Scripted source({});
  SourceSummary summary{.source = &source};
  summary.values.resize(kGauges.size());
  summary.readings = static_cast<std::int64_t>(readings.size());
  summary.begin_s = 10;
  summary.end_s = 12;
  for (const auto& values : readings) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      summary.values[i].add(kGauges[i].kind, values[i]);
    }
  }
  return summary;
}

TEST(Monitor, LooksAgainAndAgainUntilItIsStopped) {
  auto owned = std::make_unique<Scripted>(kValues);
  const Scripted& source = *owned;
  std::vector<std::unique_ptr<MonitorSource>> sources;
  sources.push_back(std::move(owned));
  Monitor monitor(std::move(sources), 1e-3);
  while (source.readings_ < 20) std::this_thread::yield();
  monitor.stop();
  const int readings = source.readings_;
  monitor.stop();
  EXPECT_EQ(source.readings_, readings);
  // The first reading only starts the counters.
  const auto samples = monitor.take_new();
  ASSERT_EQ(samples.size(), static_cast<std::size_t>(readings) - 1);
  EXPECT_THAT(monitor.take_new(), IsEmpty());
  EXPECT_EQ(monitor.kept().size(), samples.size());
  EXPECT_EQ(samples.front().values[0], 97.5);
  EXPECT_EQ(monitor.summaries()[0].readings, readings - 1);
  EXPECT_EQ(monitor.summaries()[0].trouble, "it is hot");
}

TEST(Monitor, CountsEnergyFromTheBeginningOfTheWindow) {
  std::vector<std::unique_ptr<MonitorSource>> sources;
  sources.push_back(std::make_unique<Scripted>(kValues));
  Monitor monitor(std::move(sources), 1000);
  monitor.begin_window();
  monitor.stop();
  const SourceSummary summary = monitor.summaries()[0];
  EXPECT_EQ(summary.readings, 1);
  EXPECT_EQ(summary.values[0].count, 1);
  EXPECT_EQ(summary.energy_j(), 1);
  EXPECT_GE(summary.end_s, summary.begin_s);
}

TEST(Monitor, SurvivesALookThatFails) {
  auto owned = std::make_unique<Scripted>(kValues);
  Scripted& source = *owned;
  std::vector<std::unique_ptr<MonitorSource>> sources;
  sources.push_back(std::move(owned));
  Monitor monitor(std::move(sources), 1000);
  source.throws_ = true;
  monitor.begin_window();
  source.throws_ = false;
  monitor.stop();
  EXPECT_EQ(monitor.summaries()[0].values[0].count, 1);
}

// The history stays bounded, as the header promises, even if nobody takes the readings.
TEST(Monitor, ForgetsTheOldestLooks) {
  std::vector<std::unique_ptr<MonitorSource>> sources;
  sources.push_back(std::make_unique<Scripted>(kValues));
  Monitor monitor(std::move(sources), 1000);
  constexpr std::size_t kMany = 17'000;
  for (std::size_t i = 0; i < kMany; ++i) monitor.begin_window();
  monitor.stop();
  EXPECT_EQ(monitor.kept().size(), 16'384U);
  EXPECT_EQ(monitor.kept().back().values[5], 10 + 1 + kMany + 1);
  EXPECT_EQ(monitor.take_new().size(), 16'384U);
}

TEST(MonitorReport, LinesHaveTitlesAboveTheirColumns) {
  const Scripted source(kValues);
  const std::string titles = monitor_titles(source);
  const MonitorSample sample{
      .source = &source, .at_s = 12.34, .values = {9.25, 1980, 3, kNotMeasured, 300, 1}};
  const std::string line = monitor_line(sample, 10);
  EXPECT_EQ(titles, "# monitor  seconds  load %     MHz     why  others  power W");
  EXPECT_EQ(line, "  gpu          2.3     9.2    1980     0x3       -      300");
}

TEST(MonitorReport, MarksWhatMakesFiguresDoubtful) {
  EXPECT_THAT(summary_of({kValues, kValues}).marks(), IsEmpty());
  EXPECT_THAT(summary_of({{0, 1980}, {0, 1950}}).marks(), IsEmpty());
  EXPECT_THAT(
      summary_of({{0, 1980, 2, 0}, {0, 1410, 4, 2}, {0, 1980, 1, 1}}).marks(),
      ElementsAre("a clock of gpu changed: MHz from 1410 to 1980",
                  "gpu was throttled: power cap, heat", "other processes used gpu too: up to 2"));
}

TEST(MonitorReport, TakesEnergyFromTheCounterOrElseFromPower) {
  EXPECT_EQ(summary_of({{0, 0, 0, 0, 300, 10}, {0, 0, 0, 0, 500, 25}}).energy_j(), 15);
  EXPECT_EQ(
      summary_of({{0, 0, 0, 0, 300, kNotMeasured}, {0, 0, 0, 0, 500, kNotMeasured}}).energy_j(),
      800);
  EXPECT_EQ(summary_of({{0, 0, 0, 0, 300, 25}, {0, 0, 0, 0, 500, 10}}).energy_j(), 800);
  EXPECT_EQ(summary_of({{0, 0, 0, 0, kNotMeasured, kNotMeasured}}).energy_j(), std::nullopt);
}

TEST(MonitorReport, SummaryHasMeansEnergyMarksAndTrouble) {
  SourceSummary summary = summary_of({{90, 1980, 2, 0, 300, 10}, {80, 1980, 0, 0, 500, 22}});
  summary.trouble = "it is hot";
  const std::string text = monitor_summary(std::span(&summary, 1), 64);
  EXPECT_EQ(text,
            "Monitor, 2 readings in 2.0 s after warm-up\n"
            "                mean  least  most\n"
            "  gpu  load %   85.0   80.0  90.0\n"
            "  gpu  MHz      1980   1980  1980\n"
            "  gpu  others      0      0     0\n"
            "  gpu  power W   400    300   500\n"
            "  gpu took 12.000 J in 2.000 s, 0.1875 J a sample\n"
            "  MARKED: gpu was throttled: power cap\n"
            "  Note: gpu: it is hot\n");
  const std::vector<SourceSummary> two = {summary, summary};
  EXPECT_THAT(monitor_summary(two, 64), HasSubstr("  Together 24.000 J, 0.375 J a sample\n"));
  EXPECT_EQ(monitor_summary({}, 64), "");
}

TEST(MonitorReport, RecordsAreJson) {
  const Scripted source(kValues);
  const MonitorSample sample{
      .source = &source, .at_s = 12.5, .values = {97.5, 1980, 0, 0, 300, kNotMeasured}};
  EXPECT_EQ(monitor_record(sample, 3, 10),
            R"({"monitor":"gpu","rank":3,"seconds":2.5,"load_percent":97.5,)"
            R"("clock_mhz":1980,"reasons":0,"others":0,"power_w":300,"energy_j":null})");
  EXPECT_EQ(monitor_summary_record(summary_of({{0, 1980, 2}}), 64, 0),
            R"({"monitor_summary":"gpu","rank":0,"readings":1,"seconds":2.0,)"
            R"("gauges":{"load_percent":[0.0,0.0,0.0],"clock_mhz":[1980.0,1980.0,1980.0],)"
            R"("reasons":[2.0,2.0,2.0]},)"
            R"("energy_j":null,"energy_j_per_sample":null,)"
            R"("marks":["gpu was throttled: power cap"]})");
}

TEST(MonitorReport, CountersOfATraceAreThoseOfItsTime) {
  std::vector<std::unique_ptr<MonitorSource>> sources;
  sources.push_back(std::make_unique<Scripted>(kValues));
  Monitor monitor(std::move(sources), 1000);
  monitor.begin_window();
  monitor.stop();
  const auto samples = monitor.kept();
  TraceEvents events(ClockOrigin{.host_s = samples[1].at_s, .unix_ns = 0});
  add_monitor(events, monitor, {.pid = 7, .tid = 8}, samples[1].at_s, samples[1].at_s + 1);
  const std::string text = events.file({}, "t");
  EXPECT_THAT(text, HasSubstr(R"({"ph":"C","name":"gpu load_percent","pid":7,"tid":8,"ts":0.0,)"
                              R"("args":{"0":97.5}})"));
  EXPECT_THAT(text, Not(HasSubstr(R"("ts":-)")));
}

double value_of(const MonitorSource& source, const std::vector<double>& values,
                const std::string& name) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (source.gauges[i].name == name) return values[i];
  }
  ADD_FAILURE() << "no gauge " << name;
  return 0;
}

std::vector<double> values_of(MonitorSource& source) {
  std::vector<double> values(source.gauges.size());
  source.sample(values);
  return values;
}

class HostSource : public TempDirTest {
 protected:
  void put(const std::string& name, std::string_view text) {
    std::filesystem::create_directories((folder() / name).parent_path());
    file(name, text);
  }
};

// Ticks: user nice system idle iowait irq softirq steal.
TEST_F(HostSource, TellsHowBusyEachCoreWasSinceTheLookBefore) {
  put("proc/stat",
      "cpu 0 0 0 0 0 0 0 0 0 0\ncpu0 100 0 0 900 0 0 0 0 0 0\ncpu1 5 5 5 5 5 5 5 5 5 5\nintr 1\n");
  const auto host = new_host_source(folder());
  // Core 0: 90 of 100 ticks busy. Core 1: 10 of 100, and 20 in which it waited for a disk.
  put("proc/stat",
      "cpu 0 0 0 0 0 0 0 0 0 0\ncpu0 170 5 5 910 0 5 0 5 0 0\ncpu1 15 5 5 75 25 5 5 5 5 5\nintr "
      "1\n");
  const auto values = values_of(*host);
  EXPECT_DOUBLE_EQ(value_of(*host, values, "busy_percent"), 50);
  EXPECT_DOUBLE_EQ(value_of(*host, values, "least_core_percent"), 10);
  EXPECT_DOUBLE_EQ(value_of(*host, values, "most_core_percent"), 90);
  EXPECT_TRUE(std::isnan(value_of(*host, values_of(*host), "busy_percent"))) << "no tick since";
}

TEST_F(HostSource, TellsMemoryAndTheClockOfTheFastestCore) {
  put("proc/stat", "cpu0 1 1 1 1 1 1 1 1 1 1\ncpu1 1 1 1 1 1 1 1 1 1 1\n");
  put("proc/self/statm", fmt::format("99999 {} 7 1 0 1 0\n", (50 << 20) / ::sysconf(_SC_PAGESIZE)));
  put("proc/cpuinfo", "cpu MHz\t\t: 2100.000\nmodel name : x\ncpu MHz\t\t: 2450.500\n");
  const auto host = new_host_source(folder());
  auto values = values_of(*host);
  EXPECT_EQ(value_of(*host, values, "resident_mib"), 50);
  EXPECT_EQ(value_of(*host, values, "clock_mhz"), 2450.5);
  put("sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", "3600000\n");
  put("sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq", "1200000\n");
  values = values_of(*host);
  EXPECT_EQ(value_of(*host, values, "clock_mhz"), 3600);
}

TEST_F(HostSource, LeavesUntoldWhatTheSystemDoesNotTell) {
  const auto host = new_host_source(folder());
  for (const double value : values_of(*host)) EXPECT_TRUE(std::isnan(value));
  EXPECT_EQ(host->trouble(), "/proc/stat names no cores");
}

TEST_F(HostSource, SaysSoWhenCoresGo) {
  put("proc/stat", "cpu0 1 1 1 1 1 1 1 1 1 1\ncpu1 1 1 1 1 1 1 1 1 1 1\n");
  const auto host = new_host_source(folder());
  put("proc/stat", "cpu0 2 2 2 2 2 2 2 2 2 2\n");
  EXPECT_TRUE(std::isnan(value_of(*host, values_of(*host), "busy_percent")));
  EXPECT_EQ(host->trouble(), "the set of cores changed");
}

TEST_F(HostSource, ReadsNonsenseWithoutHarm) {
  put("proc/stat", "cpu0 x y\ncpu1\ncpu-1 -5 1e400 nan\n");
  put("proc/self/statm", "1\n");
  put("proc/cpuinfo", "cpu MHz\ncpu MHz : fast\n");
  const auto host = new_host_source(folder());
  for (const char* const name :
       {"busy_percent", "least_core_percent", "most_core_percent", "resident_mib", "clock_mhz"}) {
    EXPECT_TRUE(std::isnan(value_of(*host, values_of(*host), name))) << name;
  }
}

// This machine's own figures after a tenth of a second of work, which is ten ticks.
TEST_F(HostSource, SeesThisProcessWork) {
  const auto host = new_host_source();
  values_of(*host);
  const std::clock_t start = std::clock();
  while (std::clock() - start < CLOCKS_PER_SEC / 10) {
  }
  const auto values = values_of(*host);
  EXPECT_GT(value_of(*host, values, "own_percent"), 0);
  EXPECT_LE(value_of(*host, values, "own_percent"), 100);
  EXPECT_GT(value_of(*host, values, "most_core_percent"), 0);
  EXPECT_GT(value_of(*host, values, "resident_mib"), 1);
}

}  // namespace
}  // namespace barestep
