#include "profiler/monitor.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <limits>
#include <utility>

#include "core/clock.h"

namespace barestep {
namespace {

constexpr std::size_t kMostKept = 1 << 14;

}  // namespace

void GaugeSummary::add(GaugeKind kind, double value) {
  if (!std::isfinite(value)) return;
  least = count == 0 ? value : std::min(least, value);
  most = count == 0 ? value : std::max(most, value);
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
    // A counter that went back was reset by somebody else.
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
    source->look(values);  // what is told of the time since the last look begins here
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
    const std::lock_guard lock(looking_);
    look();
  }
}

void Monitor::look() {
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    MonitorSample sample{.source = static_cast<int>(i), .at_s = 0, .values = {}};
    sample.values.assign(sources_[i]->gauges().size(), std::numeric_limits<double>::quiet_NaN());
    try {
      sources_[i]->look(sample.values);
    } catch (const std::exception&) {
      // Out of memory, say: a look is not worth a training run.
      std::ranges::fill(sample.values, std::numeric_limits<double>::quiet_NaN());
    }
    sample.at_s = now_s();
    add(std::move(sample));
  }
}

void Monitor::add(MonitorSample sample) {
  const std::lock_guard lock(mutex_);
  SourceSummary& summary = summaries_[static_cast<std::size_t>(sample.source)];
  for (std::size_t i = 0; i < sample.values.size(); ++i) {
    summary.values[i].add(summary.gauges[i].kind, sample.values[i]);
  }
  ++summary.looks;
  summary.end_s = sample.at_s;
  kept_.push_back(std::move(sample));
  if (kept_.size() > kMostKept) kept_.pop_front();
  new_ = std::min(new_ + 1, kMostKept);
}

void Monitor::begin_window() {
  const std::lock_guard looking(looking_);
  look();
  const std::lock_guard lock(mutex_);
  for (SourceSummary& summary : summaries_) {
    for (std::size_t i = 0; i < summary.values.size(); ++i) {
      const GaugeSummary before = std::exchange(summary.values[i], {});
      // Counting begins here; other figures of this look are about the time before it.
      const bool counts = summary.gauges[i].kind == GaugeKind::kEnergy && before.count > 0;
      if (counts) summary.values[i].add(GaugeKind::kEnergy, before.last);
    }
    summary.looks = 0;
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
  const std::lock_guard lock(looking_);
  look();
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
  const std::lock_guard looking(looking_);
  const std::lock_guard lock(mutex_);
  std::vector<SourceSummary> all = summaries_;
  for (std::size_t i = 0; i < all.size(); ++i) all[i].trouble = sources_[i]->trouble();
  return all;
}

}  // namespace barestep
