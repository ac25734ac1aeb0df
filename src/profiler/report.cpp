#include "profiler/report.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <numeric>

#include "core/program.h"
#include "core/text_table.h"
#include "core/units.h"

namespace barestep {
namespace {

using OrderedJson = nlohmann::ordered_json;

/// "cpu: AMD EPYC, 2 threads"
std::string device_text(const Device& device) {
  const DeviceInfo info = device.info();
  std::string text = fmt::format("{}: {}", device.name(), info.model);
  if (info.threads > 0) {
    text += ", " + counted(info.threads, "thread");
  }
  return text;
}

}  // namespace

std::string run_header(const StepPrograms& programs, const Device& device,
                       const std::string& division, const std::string& more) {
  const StepSpec& spec = programs.spec();
  std::string text = fmt::format("{}, {} parameters, batch {}", spec.model.text(),
                                 grouped(programs.whole_list().size()), grouped(spec.step_rows()));
  if (spec.chunk_rows > 0) {
    text += fmt::format(" in {} of {}", counted(spec.chunks_of(spec.step_rows()), "chunk"),
                        grouped(spec.chunk_rows));
  } else if (spec.accumulate > 1) {
    text += fmt::format(" in {} micro-steps of {}", spec.accumulate, grouped(spec.batch_size));
  }
  if (spec.mesh.ranks() > 1) text += fmt::format(" over {} ranks", spec.mesh.ranks());
  if (spec.input.train_rows > 0) {
    text += fmt::format(", {} training and {} test {}", grouped(spec.input.train_rows),
                        grouped(spec.input.test_rows), noun_for(spec.input.test_rows, "sample"));
  }
  if (!division.empty()) text += ", " + division;
  return text + fmt::format("\n{}, products by {}\n{}", device_text(device),
                            device.info().product_library, more);
}

std::string step_line(const StepReport& report) {
  const auto last = std::to_string(std::max<std::int64_t>(report.steps - 1, 0));
  const auto width = std::max<std::size_t>(2, last.size());
  const double seconds = report.wall_s;
  std::string skipped;
  if (report.scaling && report.scaling->skipped) {
    skipped = fmt::format(" | skipped, scale {}", report.scaling->next);
  }
  return fmt::format(
      "Step {:0{}} | Step time: {}s | Throughput: {:.2f} samples/sec | Loss: {:.6f}{}{}",
      report.step, width, seconds_text(seconds), static_cast<double>(report.samples) / seconds,
      report.loss, skipped, report.warmup ? " | warm-up" : "");
}

std::string evaluation_line(const EvaluationReport& report) {
  std::string line = fmt::format("Epoch {}", report.epoch + 1);
  if (report.epochs > 0) line += fmt::format("/{}", report.epochs);
  line += fmt::format(" | Test loss: {:.6f}", report.loss);
  if (report.accuracy) line += fmt::format(" | Test accuracy: {:.2f}%", 100 * *report.accuracy);
  if (report.r2) line += fmt::format(" | Test R2: {:.4f}", *report.r2);
  if (report.mean_absolute_error) {
    line += fmt::format(" | Test mean absolute error: {:.6f}", *report.mean_absolute_error);
  }
  return line + fmt::format(" | {} in {}s", counted(report.samples, "sample"),
                            seconds_text(report.seconds));
}

StepFigures::StepFigures(const StepReport& step)
    : report(step), account(account_of(*step.timeline, kMainLane)) {
  const HostTimes& host = step.timeline->at(0)->host;
  queued_s = host.queued_s - host.start_s;
  account.checkpoint_s = step.checkpoint_s;
  account.between_s = std::max(0.0, account.between_s - step.checkpoint_s);
}

std::string metrics_record(const StepFigures& step, int rank, const Mesh& mesh) {
  const StepReport& report = step.report;
  // Losses are float32. Widened to double, their shortest text is what Python prints for
  // loss.item().
  OrderedJson record = {{"step", report.step}, {"rank", rank}};
  if (mesh.cuts_model()) {
    Mesh place = mesh;
    place.rank = rank;
    record["place"] = {
        {"data", place.data_rank()}, {"tensor", place.tensor_rank()}, {"stage", place.stage()}};
  }
  record["loss"] = static_cast<double>(report.loss);
  record["samples"] = report.samples;
  record["step_time_s"] = report.wall_s;
  record["samples_per_s"] = static_cast<double>(report.samples) / report.wall_s;
  if (report.own_loss) record["own_loss"] = static_cast<double>(*report.own_loss);
  record["queued_s"] = step.queued_s;
  record["lr"] = report.lr;
  if (report.scaling) {
    record["scale"] = report.scaling->used;
    record["skipped"] = report.scaling->skipped;
  }
  record["between_s"] = step.account.between_s;
  if (step.account.checkpoint_s > 0) record["checkpoint_s"] = step.account.checkpoint_s;
  record["warmup"] = report.warmup;
  if (report.update) record["update"] = name_of(*report.update);
  OrderedJson& phases = record["phases_s"] = OrderedJson::object();
  for (const Part part : kValuesOf<Part>) {
    const std::string key(traits_of(part).key);
    if (key.empty()) continue;
    phases[key] = phases.value(key, 0.0) + step.account[part];
  }
  return record.dump();
}

std::string lost_time_record(const LostTime& lost, int rank) {
  const OrderedJson record = {{"lost_time",
                               {{"wall_s", lost.wall_s},
                                {"waited_s", lost.waited_s},
                                {"ready_s", lost.ready_s},
                                {"own_ran_s", lost.own_ran_s},
                                {"all_ran_s", lost.all_ran_s},
                                {"stolen_s", lost.stolen_s},
                                {"busy_threads", lost.busy_threads}}},
                              {"rank", rank}};
  return record.dump();
}

RunSummary::RunSummary(std::int64_t steps) {
  constexpr std::int64_t kMaxReserved = 1 << 20;
  wall_s_.reserve(static_cast<std::size_t>(std::min(steps, kMaxReserved)));
}

void RunSummary::add(const StepFigures& step) {
  if (step.report.warmup) {
    ++warmup_steps_;
    return;
  }
  wall_s_.push_back(step.report.wall_s);
  account_.add(step.account);
  samples_ += step.report.samples;
  flops_ += step.report.flops;
}

double RunSummary::total_s() const {
  return std::accumulate(wall_s_.begin(), wall_s_.end(), 0.0);
}

std::string update_text(const StepPrograms& programs) {
  const double bytes = static_cast<double>(state_bytes_of(programs.train().program)) /
                       static_cast<double>(programs.whole_list().size());
  return fmt::format("{}, {:.1f} bytes a parameter in a step",
                     programs.spec().model.stores_gradients ? "separate" : "fused", bytes);
}

std::string RunSummary::text(const Device& device, const std::string& update,
                             std::optional<double> floor_s) const {
  if (wall_s_.empty()) return "";
  const Statistics time = step_time_s();
  const double total_s = this->total_s();

  std::string text = fmt::format("Summary of {} after {} of warm-up, {}, products by {}\n",
                                 counted(std::ssize(wall_s_), "step"), warmup_steps_,
                                 device_text(device), device.info().product_library);
  text += fmt::format("  Step time    mean {}s, std {}s, p50 {}s, p95 {}s, p99 {}s\n",
                      seconds_text(time.mean), seconds_text(time.stddev), seconds_text(time.p50),
                      seconds_text(time.p95), seconds_text(time.p99));
  text += fmt::format("  Throughput   {:.2f} samples/sec\n", samples_per_s());
  text +=
      fmt::format("  Rate         {:.2f} GFLOP/s\n", static_cast<double>(flops_) / total_s / 1e9);
  text += fmt::format("  Update       {}\n", update);
  if (floor_s) {
    text += fmt::format("  Floor        {}s at the rates measured here, {} of the mean{}\n",
                        seconds_text(*floor_s), percent_text(*floor_s / time.mean),
                        *floor_s > time.mean ? ": data that fit in caches are faster, or the "
                                               "machine was slower when the rates were measured"
                                             : "");
  }

  return text + "\nAccount of a step, mean\n" + account_table(account_.mean());
}

std::string sweep_table(std::span<const SweepRow> rows) {
  TextTable table({">Batch size", ">Step time, median (s)", ">p5", ">p95", ">mean",
                   ">Throughput (samples/sec)"});
  for (const SweepRow& row : rows) {
    const Statistics& time = row.step_time_s;
    table.add_row({std::to_string(row.batch_size), seconds_text(time.p50), seconds_text(time.p5),
                   seconds_text(time.p95), seconds_text(time.mean),
                   fmt::format("{:.2f}", row.samples_per_s)});
  }
  return table.text();
}

std::string evaluation_record(std::int64_t batch_size, const EvaluatedBatch& batch,
                              Precision precision) {
  return OrderedJson({{"batch_size", batch_size},
                      {"batch", batch.number},
                      {"samples", batch.samples},
                      {"latency_s", batch.latency_s},
                      {"rank", batch.rank},
                      {"precision", name_of(precision)}})
      .dump();
}

std::string evaluation_summary_record(const Evaluation& run) {
  OrderedJson found = {{"precision", name_of(run.precision)},
                       {"batch_size", run.batch_size},
                       {"samples", run.total.samples},
                       {"loss", run.total.loss},
                       {"weight_bytes", run.weight_bytes}};
  if (run.total.accuracy) found["accuracy"] = *run.total.accuracy;
  if (run.total.r2) found["r2"] = *run.total.r2;
  if (run.total.mean_absolute_error) {
    found["mean_absolute_error"] = *run.total.mean_absolute_error;
  }
  if (run.changed) found["changed"] = *run.changed;
  return OrderedJson({{"evaluation", found}}).dump();
}

std::string evaluation_table(std::span<const Evaluation> runs) {
  const EvaluationReport first = runs.empty() ? EvaluationReport{} : runs.front().total;
  const bool compares = std::ranges::any_of(
      runs, [&](const Evaluation& run) { return run.precision != runs.front().precision; });
  const bool classifies = compares && runs.front().classes > 0;
  std::vector<std::string> titles = {">Batch size", ">Loss"};
  if (compares) titles.insert(titles.begin(), "Precision");
  if (first.accuracy) titles.emplace_back(">Accuracy");
  if (first.r2) titles.emplace_back(">R2");
  if (first.mean_absolute_error) titles.emplace_back(">Mean absolute error");
  titles.insert(titles.end(), {">Latency p50 (s)", ">p95", ">p99", ">Throughput (samples/sec)"});
  if (classifies) titles.emplace_back(">Answers changed");
  if (compares) titles.emplace_back(">Weights (bytes)");
  TextTable table(std::move(titles));
  for (const Evaluation& run : runs) {
    std::vector<std::string> row = {std::to_string(run.batch_size),
                                    fmt::format("{:.6f}", run.total.loss)};
    if (compares) row.insert(row.begin(), std::string(name_of(run.precision)));
    const EvaluationReport& total = run.total;
    if (total.accuracy) row.push_back(fmt::format("{:.2f}%", 100 * *total.accuracy));
    if (total.r2) row.push_back(fmt::format("{:.4f}", *total.r2));
    if (total.mean_absolute_error) row.push_back(fmt::format("{:.6f}", *total.mean_absolute_error));
    for (const double seconds : {run.latency_s.p50, run.latency_s.p95, run.latency_s.p99}) {
      row.push_back(seconds_text(seconds));
    }
    row.push_back(fmt::format("{:.2f}", run.samples_per_s));
    if (classifies) row.push_back(run.changed ? grouped(*run.changed) : "-");
    if (compares) row.push_back(grouped(run.weight_bytes));
    table.add_row(row);
  }
  return table.text();
}

std::string confusion_table(const Evaluation& run) {
  if (run.classes == 0) return "";
  if (run.classes > kMaxClassesInTable) {
    return fmt::format(
        "\nThe table of classes is not shown: there are {}, and it shows at most {}.\n",
        run.classes, kMaxClassesInTable);
  }
  std::vector<std::string> titles = {">Class"};
  for (std::int64_t c = 0; c < run.classes; ++c) titles.push_back(fmt::format(">predicted {}", c));
  titles.emplace_back(">Right");
  TextTable table(std::move(titles));
  for (std::int64_t label = 0; label < run.classes; ++label) {
    std::vector<std::string> row = {std::to_string(label)};
    const auto counts = std::span(run.confusion)
                            .subspan(static_cast<std::size_t>(label * run.classes),
                                     static_cast<std::size_t>(run.classes));
    for (const std::int64_t count : counts) row.push_back(grouped(count));
    const std::int64_t samples = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    row.push_back(samples == 0
                      ? "-"
                      : fmt::format("{:.2f}%", 100.0 * static_cast<double>(at(counts, label)) /
                                                   static_cast<double>(samples)));
    table.add_row(row);
  }
  return "\n" + table.text();
}

}  // namespace barestep
