#include "session/monitoring.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "session/console.h"
#include "session/logs.h"

namespace barestep {
namespace {

constexpr double kPeriodSeconds = 0.1;
constexpr double kLineSeconds = 1;
constexpr int kLinesBelowTitles = 20;

std::vector<std::unique_ptr<MonitorSource>> sources_of(const MonitorScope& scope,
                                                       std::vector<std::string>& notes) {
  std::vector<std::unique_ptr<MonitorSource>> sources;
  if (scope.host) sources.push_back(new_host_source());
  std::vector<GpuPlace> gpus;
  for (const Device* device : scope.devices) {
    if (device->kind() != DeviceKind::kCuda) continue;
    gpus.push_back({std::string(device->name()), device->info().pci_bus_id});
  }
  GpuSources opened = open_gpu_sources(gpus, nvml_library());
  for (auto& source : opened.sources) sources.push_back(std::move(source));
  notes = std::move(opened.notes);
  return sources;
}

}  // namespace

Monitoring::Monitoring(const MonitorScope& scope, std::int64_t first_counted, Console* console,
                       MetricsLog* metrics)
    : console_(console),
      metrics_(metrics),
      rank_(scope.rank),
      first_counted_(first_counted),
      monitor_(sources_of(scope, notes_), kPeriodSeconds) {}

void Monitoring::on_step(const StepFigures& step) {
  const StepReport& report = step.report;
  if (report.step + 1 == first_counted_) monitor_.begin_window();
  if (report.step >= first_counted_) samples_ += report.samples;
  if (report.step + 1 == report.steps) monitor_.stop();
  show_new();
}

void Monitoring::show_new() {
  if (console_ == nullptr) return;
  for (const MonitorSample& sample : monitor_.take_new()) {
    if (metrics_ != nullptr) {
      metrics_->write(monitor_record(sample, rank_, monitor_.start_s()));
    }
    double& next_s = next_line_s_[sample.source];
    if (sample.at_s < next_s) continue;
    next_s = sample.at_s + kLineSeconds;
    // Several sources have different columns, so each line gets its titles.
    const bool titles = next_line_s_.size() > 1 || lines_ % kLinesBelowTitles == 0;
    if (titles) console_->print_line(monitor_titles(*sample.source));
    console_->print_line(monitor_line(sample, monitor_.start_s()));
    ++lines_;
  }
}

void Monitoring::close() {
  monitor_.stop();
  show_new();
  if (console_ != nullptr && metrics_ != nullptr) {
    for (const SourceSummary& summary : monitor_.summaries()) {
      metrics_->write(monitor_summary_record(summary, samples_, rank_));
    }
  }
  text_ = monitor_summary(monitor_.summaries(), samples_);
  for (const std::string& note : notes_) text_ += fmt::format("  Note: {}\n", note);
}

void Monitoring::gather(Group& ranks) {
  const std::vector<std::string> texts = gather_lists(ranks, text_);
  if (ranks.rank() != 0 || texts.size() == 1) return;
  std::vector<std::string> parts;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    if (!texts[rank].empty()) parts.push_back(fmt::format("Rank {}\n{}", rank, texts[rank]));
  }
  text_ = fmt::format("{}", fmt::join(parts, "\n"));
}

}  // namespace barestep
