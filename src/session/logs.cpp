#include "session/logs.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>
#include <span>
#include <type_traits>
#include <utility>

#include "core/clock.h"
#include "options/options.h"

namespace barestep {
namespace {

/// The share of a step's wall time in which the compute lane was busy, 0 to 1.
double utilization(const StepAccount& account) {
  double work_s = 0;
  for (const Part part : kValuesOf<Part>) {
    if (traits_of(part).computes) work_s += account[part];
  }
  return work_s / account.wall_s;
}

/// The size of a --metrics file up to the first record of step `end` or a later one; 0 if the file
/// does not exist.
std::int64_t bytes_of_records(const std::filesystem::path& path, std::int64_t end) {
  std::ifstream file(path, std::ios::binary);
  std::int64_t bytes = 0;
  for (std::string line; std::getline(file, line) && !file.eof();) {
    // A line cut off by the end of a program is not JSON.
    const auto record = nlohmann::json::parse(line, nullptr, false);
    if (!record.is_object()) break;
    if (bytes == 0 && !record.contains("configuration")) return 0;
    const auto step = record.find("step");
    if (step != record.end() && step->is_number_integer() && *step >= end) break;
    bytes += std::ssize(line) + 1;
  }
  return bytes;
}

}  // namespace

MetricsLog::MetricsLog(const TrainConfig& config, Group* ranks, const Mesh& mesh, std::int64_t done)
    : ranks_(ranks), mesh_(mesh) {
  if (ranks_ != nullptr && ranks_->rank() != 0) return;
  const std::int64_t kept_bytes = done == 0 ? 0 : bytes_of_records(config.output.metrics, done);
  const std::string_view program = program_name(config);
  file_.emplace(program, config.output.metrics, kept_bytes);
  if (kept_bytes == 0) write(configuration_record(config));
  const std::string lost = options_without_json(config);
  if (lost.empty()) return;
  print_note(program, fmt::format("--config cannot repeat this run from '{}': the file names of {} "
                                  "are not UTF-8, which JSON needs",
                                  config.output.metrics.string(), lost));
}

MetricsLog::~MetricsLog() {
  if (!file_) return;
  for (const StepFigures& step : std::exchange(kept_, {})) write(metrics_record(step, 0, mesh_));
  for (const std::string& record : others_) write(record);
}

void MetricsLog::on_pause() {
  gather_kept();
  if (file_) file_->write([](OutputFile& file) { file.flush(); });
}

void MetricsLog::on_step(const StepFigures& step) {
  if (step.report.warmup || !watch_) watch_.emplace();
  kept_.push_back(step);
  if (std::ssize(kept_) >= due_) gather_kept();
}

/// All ranks compute the same `due_`.
void MetricsLog::gather_kept() {
  static_assert(std::is_trivially_copyable_v<StepFigures>);
  constexpr double kSeconds = 1;
  constexpr double kMaxSteps = 256;
  if (kept_.empty()) return;
  const std::size_t steps = kept_.size();
  std::vector<StepFigures> all(
      ranks_ == nullptr ? 0 : static_cast<std::size_t>(ranks_->size()) * steps);
  if (ranks_ == nullptr) {
    all = kept_;
  } else {
    ranks_->all_gather(std::as_bytes(std::span(kept_)), std::as_writable_bytes(std::span(all)));
    double first_s = 0;
    for (std::size_t step = 0; step < steps; ++step) first_s += all[step].report.wall_s;
    const double steps_of_a_second =
        kSeconds * static_cast<double>(steps) / std::max(first_s, 1e-9);
    due_ = static_cast<std::ptrdiff_t>(std::clamp(steps_of_a_second, 1.0, kMaxSteps));
  }
  kept_.clear();
  if (!file_) return;
  for (std::size_t step = 0; step < steps; ++step) {
    for (std::size_t rank = 0; rank * steps < all.size(); ++rank) {
      write(metrics_record(all[rank * steps + step], static_cast<int>(rank), mesh_));
    }
  }
  for (const std::string& record : std::exchange(others_, {})) write(record);
}

void MetricsLog::write(const std::string& record) {
  if (!kept_.empty()) return others_.push_back(record);
  file_->write([&](OutputFile& file) { file.write(record + "\n"); });
}

void MetricsLog::close() {
  gather_kept();
  if (watch_) write_lost_time();
  if (file_) file_->close();
}

void MetricsLog::write_lost_time() {
  const LostTime own = watch_->lost();
  const std::vector<LostTime> all =
      ranks_ == nullptr ? std::vector{own} : gather_values(*ranks_, own);
  if (!file_) return;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    write(lost_time_record(all[rank], static_cast<int>(rank)));
  }
}

TensorBoardLog::TensorBoardLog(std::string_view program, const std::filesystem::path& folder,
                               std::optional<std::int64_t> done)
    : file_(program, folder), last_step_(std::max<std::int64_t>(done.value_or(0) - 1, 0)) {
  if (done) file_.write([&](EventFile& file) { file.restart(*done); });
}

void TensorBoardLog::on_step(const StepFigures& step) {
  const StepReport& report = step.report;
  last_step_ = report.step;
  const double now_s = unix_now_s();
  const double seconds = report.wall_s;
  file_.write([&](EventFile& file) {
    for (const Scalar& scalar : {Scalar{"loss", report.loss},
                                 {"step_time_s", seconds},
                                 {"samples_per_s", static_cast<double>(report.samples) / seconds},
                                 {"learning_rate", report.lr},
                                 {"utilization", utilization(step.account)}}) {
      file.add(report.step, now_s, scalar);
    }
    if (report.scaling) file.add(report.step, now_s, {"loss_scale", report.scaling->used});
  });
}

void TensorBoardLog::on_evaluation(const EvaluationReport& report) {
  const double now_s = unix_now_s();
  file_.write([&](EventFile& file) {
    file.add(last_step_, now_s, {"test_loss", report.loss});
    if (report.accuracy) file.add(last_step_, now_s, {"test_accuracy", *report.accuracy});
    if (report.r2) file.add(last_step_, now_s, {"test_r2", *report.r2});
    if (report.mean_absolute_error) {
      file.add(last_step_, now_s, {"test_mean_absolute_error", *report.mean_absolute_error});
    }
  });
}

}  // namespace barestep
