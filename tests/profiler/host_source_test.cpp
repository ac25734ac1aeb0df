#include "profiler/host_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <ctime>
#include <filesystem>

#include "support/temp_dir.h"

namespace barestep {
namespace {

double value_of(const MonitorSource& source, const std::vector<double>& values,
                const std::string& name, int part = 0) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (source.gauges()[i].name == name && part-- == 0) return values[i];
  }
  ADD_FAILURE() << "no gauge " << name;
  return 0;
}

std::vector<double> values_of(MonitorSource& source) {
  std::vector<double> values(source.gauges().size());
  source.look(values);
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
  // Core 0: 90 of 100 ticks busy; of core 1 10 of 100, with 20 in which it waited for a disk.
  put("proc/stat",
      "cpu 0 0 0 0 0 0 0 0 0 0\ncpu0 170 5 5 910 0 5 0 5 0 0\ncpu1 15 5 5 75 25 5 5 5 5 5\nintr "
      "1\n");
  const auto values = values_of(*host);
  EXPECT_DOUBLE_EQ(value_of(*host, values, "core_percent", 0), 90);
  EXPECT_DOUBLE_EQ(value_of(*host, values, "core_percent", 1), 10);
  EXPECT_DOUBLE_EQ(value_of(*host, values, "busy_percent"), 50);
  EXPECT_DOUBLE_EQ(value_of(*host, values, "least_core_percent"), 10);
  EXPECT_DOUBLE_EQ(value_of(*host, values, "most_core_percent"), 90);
  EXPECT_TRUE(std::isnan(value_of(*host, values_of(*host), "busy_percent"))) << "no tick since";
}

TEST_F(HostSource, TellsMemoryAndTheClockOfTheFastestCore) {
  put("proc/stat", "cpu0 1 1 1 1 1 1 1 1 1 1\ncpu1 1 1 1 1 1 1 1 1 1 1\n");
  put("proc/self/status", "Name:\ta VmRSS: 5 kB\nVmHWM:\t  9 kB\nVmRSS:\t   51200 kB\n");
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
  EXPECT_EQ(host->trouble(), "cores came or went");
}

TEST_F(HostSource, ReadsNonsenseWithoutHarm) {
  put("proc/stat", "cpu0 x y\ncpu1\ncpu-1 -5 1e400 nan\n");
  put("proc/self/stat", "1 (a) b (c) S 1");
  put("proc/self/status", "VmRSS:\n");
  put("proc/cpuinfo", "cpu MHz\ncpu MHz : fast\n");
  const auto host = new_host_source(folder());
  values_of(*host);
  for (const double value : values_of(*host)) EXPECT_TRUE(std::isnan(value)) << value;
}

// This machine's own figures, behind a tenth of a second of work: ten of the system's ticks.
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
