// What int8 gains in an evaluation, and how many answers it changes.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "core/units.h"
#include "lab/experiments/figures.h"
#include "lab/report/findings.h"

namespace barestep {
namespace {

constexpr std::array<std::int64_t, 4> kEvaluatedBatches = {1, 8, 64, 512};

std::string int8_key(Precision precision, std::int64_t batch) {
  return fmt::format("{}-{}", name_of(precision), batch);
}

/// A classifier of the data set, trained once beforehand on all of its samples.
std::vector<Case> int8_cases(const Setting& setting) {
  std::vector<Case> cases;
  for (const std::int64_t batch : kEvaluatedBatches) {
    for (const Precision precision : {Precision::kFp32, Precision::kInt8}) {
      Workload workload = base_workload(setting);
      TrainConfig& config = workload.config;
      read_classes(config.data, setting.data);
      config.model.loss = LossKind::kCrossEntropy;
      config.model.last_relu = false;
      config.data.batch_size = batch;
      config.training.steps.reset();
      config.training.evaluate_only = true;
      config.device.precision = precision;
      config.output.load =
          setting.data / fmt::format("classifier-{}x{}.safetensors", setting.dim, setting.depth);
      cases.push_back(new_case(setting, int8_key(precision, batch), workload));
    }
  }
  return cases;
}

/// Nothing if no start reported it.
std::optional<Evaluated> evaluated_in(const Results& results, std::int64_t batch,
                                      Precision precision) {
  const Measurement& both = results.at(int8_key(Precision::kInt8, batch));
  for (const Evaluated& each : both.starts().front().evaluated) {
    if (each.precision == name_of(precision)) return each;
  }
  return std::nullopt;
}

FindingTable int8_table(const Results& results, const std::vector<Comparison>& against_fp32) {
  FindingTable table{
      .title = "Batches in fp32 and in int8",
      .columns = {"batch", "precision", "mean latency", "p95", "samples/s", "speed against fp32",
                  "accuracy", "answers changed", "bytes of weights"}};
  std::size_t place = 0;
  for (const std::int64_t batch : kEvaluatedBatches) {
    const Comparison& one = against_fp32[place++];
    for (const Precision precision : {Precision::kFp32, Precision::kInt8}) {
      const bool is_int8 = precision == Precision::kInt8;
      const Measurement& each = results.at(int8_key(precision, batch));
      const auto found = evaluated_in(results, batch, precision);
      table.rows.push_back({std::to_string(batch), std::string(name_of(precision)),
                            time_text(each.mean_s()), time_text(each.p95_s()),
                            number_text(each.samples_per_s().median),
                            is_int8 ? factor_text(one.speed()) : "",
                            found ? fmt::format("{:.2f} %", 100 * found->accuracy) : "not reported",
                            found && is_int8 ? grouped(found->changed) : "",
                            found ? grouped(found->weight_bytes) : "not reported"});
    }
  }
  return table;
}

/// Published by others, not measured here.
FindingTable published_int8(const std::string& smaller, const std::string& faster) {
  constexpr const char* kBlog =
      "pytorch.org/blog/introduction-to-quantization-on-pytorch/ (2020-03-26)";
  constexpr const char* kBert = "github.com/percent4/dynamic_quantization_on_bert";
  return {.title = "Published figures (cited)",
          .name = "published-table",
          .columns = {"what", "published", "here", "address"},
          .rows = {{"size, dynamic int8", "4x smaller (cited)", smaller, kBlog},
                   {"speed, dynamic int8", "2x to 3x (cited)", faster, kBlog},
                   {"a long text, BERT-base, batch 1, 1 thread of an i5-10210U",
                    "1066 ms, in int8 686 ms (cited)", "another model", kBert},
                   {"a shorter text, the same", "335.8 ms, in int8 200.5 ms (cited)",
                    "another model", kBert},
                   {"mean of its texts", "1.52x (cited)", faster, kBert}}};
}

std::string answers_fact(const Results& results) {
  const std::int64_t batch = kEvaluatedBatches.back();
  const auto fp32 = evaluated_in(results, batch, Precision::kFp32);
  const auto int8 = evaluated_in(results, batch, Precision::kInt8);
  if (!fp32 || !int8) return "The effect of int8 on the answers was not reported.";
  return fmt::format(
      "In int8 {} of {} {} {}; the accuracy is {:.2f} % instead of {:.2f} %, on samples that it "
      "was trained with. A batch reads {} of weights instead of {}.",
      grouped(int8->changed), grouped(int8->samples), noun_for(int8->samples, "answer"),
      int8->changed == 1 ? "changes" : "change", 100 * int8->accuracy, 100 * fp32->accuracy,
      human_bytes(int8->weight_bytes), human_bytes(fp32->weight_bytes));
}

Findings conclude_int8(const Results& results) {
  std::vector<Comparison> all;
  for (const std::int64_t batch : kEvaluatedBatches) {
    all.push_back(
        results.compare(int8_key(Precision::kFp32, batch), int8_key(Precision::kInt8, batch)));
  }
  adjust_together(all);
  Findings findings{.facts = {{"answers", answers_fact(results)}},
                    .comparisons = all,
                    .tables = {int8_table(results, all)}};
  PlotSeries speeds{.name = "as fast as fp32"};
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::int64_t batch = kEvaluatedBatches.at(i);
    findings.sentences.push_back(
        {all[i].b, sentence_of(all[i], "in int8", "in fp32", fmt::format("batch of {}", batch)),
         all[i].word});
    speeds.points.push_back(plot_point(static_cast<double>(batch), all[i].speed()));
  }
  const auto fp32 = evaluated_in(results, kEvaluatedBatches.back(), Precision::kFp32);
  const auto int8 = evaluated_in(results, kEvaluatedBatches.back(), Precision::kInt8);
  findings.tables.push_back(published_int8(
      fp32 && int8 ? factor_text(times_the_bytes(fp32->weight_bytes, int8->weight_bytes))
                   : "not reported",
      fmt::format("{} at batch {}", factor_text(all.front().speed()), kEvaluatedBatches.front())));
  findings.plots.push_back({.title = "How many times as fast a batch is in int8",
                            .x_label = "samples in a batch",
                            .y_label = "times as fast as in fp32",
                            .log_x = true,
                            .series = {speeds}});
  return findings;
}

}  // namespace

Experiment int8_experiment() {
  return {
      .name = "int8",
      .title = "Evaluation in int8",
      .question = "How much faster is an evaluation in int8, and how many answers does it change?",
      .cases = int8_cases,
      .conclude = conclude_int8,
      .names = "answers table published-table plot",
      .reads_data = true};
}

}  // namespace barestep
