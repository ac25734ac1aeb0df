// How fast the products of a layer are, by batch, precision and threads, beside what this machine
// reaches at most.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/units.h"
#include "lab/experiments/figures.h"
#include "lab/predict/plots.h"
#include "lab/predict/workload.h"
#include "lab/report/findings.h"
#include "lab/study/roofline.h"

namespace barestep {
namespace {

/// The products of a phase of a step with two layers.
constexpr std::array<std::string_view, 2> kProductPhases = {"forward", "backward"};

std::vector<std::int64_t> product_rows(const Setting& setting) {
  return {1, setting.batch_size, (setting.quick ? 4 : 16) * setting.batch_size};
}

std::vector<Precision> product_precisions(const Setting& setting) {
  if (setting.on_gpu) return {Precision::kFp32, Precision::kTf32, Precision::kBf16};
  if (setting.quick) return {Precision::kFp32, Precision::kBf16};
  return {Precision::kFp32, Precision::kBf16, Precision::kFp16};
}

/// One, and as many as there are cores; 0 on a GPU.
std::vector<int> product_threads(const Setting& setting) {
  if (setting.on_gpu) return {0};
  return setting.units == 1 ? std::vector{1} : std::vector{1, setting.units};
}

/// The whole device has the short key, on GPUs too.
bool takes_all_cores(const Setting& setting, int threads) {
  return threads == 0 || threads == setting.units;
}

std::string product_key(const Setting& setting, std::int64_t rows, Precision precision,
                        int threads) {
  std::string key = fmt::format("{}-{}", name_of(precision), rows);
  return takes_all_cores(setting, threads) ? key : fmt::format("{}-threads-{}", key, threads);
}

std::vector<Case> matmul_cases(const Setting& setting) {
  constexpr std::int64_t kLayers = 2;
  std::vector<Case> cases;
  for (const int threads : product_threads(setting)) {
    for (const std::int64_t rows : product_rows(setting)) {
      for (const Precision precision : product_precisions(setting)) {
        Workload workload = base_workload(setting);
        TrainConfig& config = workload.config;
        config.model.depth = kLayers;
        config.training.recompute = 1;
        config.training.update = Update::kSeparate;
        config.data.batch_size = rows;
        config.device.precision = precision;
        if (!takes_all_cores(setting, threads)) config.device.threads = threads;
        Case what = new_case(setting, product_key(setting, rows, precision, threads), workload);
        what.record_ops = true;
        cases.push_back(std::move(what));
      }
    }
  }
  return cases;
}

/// Seconds of all products of a phase, by start.
std::vector<double> product_seconds(const Measurement& each, std::string_view phase) {
  return op_seconds(each, [&](const OpTime& op) { return op.name == "gemm" && op.phase == phase; });
}

Series forward_products(const Results& results, const std::string& key) {
  return {key, product_seconds(results.at(key), "forward")};
}

/// Flops per second of all products of a phase.
Estimate phase_rate(const Measurement& each, std::string_view phase) {
  double flops = 0;
  const WorkloadPrograms programs(each.workload());
  for (const Node& node : programs.step().nodes()) {
    if (label_of(node.op) == "gemm" && name_of(node.phase) == phase) {
      flops += static_cast<double>(cost_of(node.op).flops);
    }
  }
  return reciprocal(estimate_of(product_seconds(each, phase)), flops);
}

std::string phase_rate_text(const Estimate& rate) {
  if (!std::isfinite(rate.median)) return "not recorded";
  std::string median = rate_text(rate.median, "FLOP/s");
  if (!rate.has_interval()) return median;
  return fmt::format("{} ({} to {})", median, rate_text(rate.low, "FLOP/s"),
                     rate_text(rate.high, "FLOP/s"));
}

/// The machine as a run with so many threads finds it.
MachineCard card_of_threads(MachineCard card, int threads) {
  const MachineLoad* const load = card.load_of(1, threads);
  if (load == nullptr || load->threads != threads) return card;
  card.flops_per_s = 0;
  for (const OpRate& each : load->rates) {
    if (each.op.starts_with("gemm")) card.flops_per_s = std::max(card.flops_per_s, each.rate);
    if (each.op == "copy") card.memory_bytes_per_s = each.rate;
  }
  return card;
}

/// The mean share of the roof that products reach; the card's rates are those of fp32.
std::string product_roof_share(const Results& results, const Measurement& each, int threads) {
  if (!results.card || each.workload().config.device.precision != Precision::kFp32) return "";
  double share = 0;
  int products = 0;
  for (const RooflinePoint& point :
       roofline_points(each, card_of_threads(*results.card, threads))) {
    if (point.op != "gemm") continue;
    share += point.share_of_roof;
    ++products;
  }
  return products == 0 ? "" : percent_text(share / products);
}

std::string thread_words(int threads) {
  return threads == 0 ? "" : fmt::format(" with {}", counted(threads, "thread"));
}

/// 16 bits against fp32, and all threads against one, for each batch.
std::vector<std::pair<Comparison, std::string>> product_comparisons(const Results& results) {
  const Setting& setting = results.setting;
  const std::vector<int> threads = product_threads(setting);
  std::vector<std::pair<Comparison, std::string>> all;
  const auto add = [&](const std::string& a, const std::string& b, const std::string& words_b,
                       const std::string& words_a, std::int64_t rows) {
    const Series before = forward_products(results, a), after = forward_products(results, b);
    const auto is_recorded = [](const Series& each) { return std::ranges::min(each.seconds) > 0; };
    if (!is_recorded(before) || !is_recorded(after)) return;
    Comparison one = compare(before, after, setting.margin);
    std::string sentence = sentence_of(one, words_b, words_a,
                                       fmt::format("forward product of {}", counted(rows, "row")));
    all.emplace_back(std::move(one), std::move(sentence));
  };
  for (const std::int64_t rows : product_rows(setting)) {
    const auto key = [&](Precision precision, int count) {
      return product_key(setting, rows, precision, count);
    };
    const std::string with = thread_words(threads.back());
    for (const Precision precision : product_precisions(setting)) {
      if (precision == Precision::kFp32) continue;
      add(key(Precision::kFp32, threads.back()), key(precision, threads.back()),
          fmt::format("in {}{}", name_of(precision), with), "in fp32", rows);
    }
    if (threads.size() == 1) continue;
    add(key(Precision::kFp32, threads.front()), key(Precision::kFp32, threads.back()),
        fmt::format("with {} in fp32", counted(threads.back(), "thread")), "with one", rows);
  }
  return all;
}

/// Whether products take as many times longer as they have rows.
std::string rows_sentence(const Results& results) {
  const std::int64_t rows = results.setting.batch_size;
  const Estimate ratio = compare(forward_products(results, "fp32-1"),
                                 forward_products(results, fmt::format("fp32-{}", rows)))
                             .ratio;
  return fmt::format(
      "{}: {} rows take {} as long as one.",
      by_side(side_of(ratio, 0.9 * static_cast<double>(rows)),
              "The time of a product grows in proportion to its rows, within a tenth",
              "The time of a product grows by less than in proportion to its rows",
              "Whether the time of a product grows in proportion to its rows is unclear"),
      rows, factor_text(ratio));
}

std::string highest_rate_sentence(const Results& results) {
  const auto rate = [](const Measurement& each) {
    const double median = phase_rate(each, "forward").median;
    return std::isfinite(median) ? median : 0;  // 0: not recorded
  };
  const Measurement& best = *std::ranges::max_element(results.cases, {}, rate);
  return fmt::format("Highest rate of forward products: {}, {}.", best.what().key,
                     phase_rate_text(phase_rate(best, "forward")));
}

Findings conclude_matmul(const Results& results) {
  const Setting& setting = results.setting;
  FindingTable table{
      .title = fmt::format("Products of layers {} wide", setting.dim),
      .columns = {"rows", "precision", "threads", "forward", "backward", "of the roof in fp32"}};
  Plot plot{.title = "Forward products by the rows of a batch",
            .x_label = "rows",
            .y_label = "GFLOP/s",
            .log_x = true,
            .log_y = true};
  for (const int threads : product_threads(setting)) {
    for (const Precision precision : product_precisions(setting)) {
      PlotSeries series{.name = fmt::format("{}{}", name_of(precision), thread_words(threads))};
      for (const std::int64_t rows : product_rows(setting)) {
        const Measurement& each = results.at(product_key(setting, rows, precision, threads));
        std::vector<std::string> row = {std::to_string(rows), std::string(name_of(precision)),
                                        threads == 0 ? "" : std::to_string(threads)};
        for (const std::string_view phase : kProductPhases) {
          row.push_back(phase_rate_text(phase_rate(each, phase)));
        }
        row.push_back(product_roof_share(results, each, threads));
        table.rows.push_back(std::move(row));
        series.points.push_back(
            plot_point(static_cast<double>(rows), phase_rate(each, "forward"), 1e-9));
      }
      plot.series.push_back(std::move(series));
    }
  }
  Findings findings{.tables = {std::move(table)}, .plots = {std::move(plot)}};
  for (auto& [comparison, sentence] : product_comparisons(results)) {
    // A case is compared with that of fp32, and that of all threads with that of one.
    const bool is_of_threads = comparison.a.find("-threads-") != std::string::npos;
    findings.sentences.push_back({comparison.b + (is_of_threads ? "-of-one-thread" : ""),
                                  std::move(sentence), comparison.word});
    findings.comparisons.push_back(std::move(comparison));
  }
  findings.sentences.push_back({"rows", rows_sentence(results)});
  findings.sentences.push_back({"highest", highest_rate_sentence(results)});
  findings.facts.push_back(
      {"method",
       "Products run in a training step of two layers, backward without the first layer's "
       "gradient of its input; a forward product includes bias and activation. The roof is the "
       "machine card's: the best product or the memory, whichever bounds the shape."});
  return findings;
}

}  // namespace

Experiment matmul_experiment() {
  return {.name = "matmul",
          .title = "Products by shape, precision and threads",
          .question = "How many flops a second do a layer's products reach, and how near the roof?",
          .cases = matmul_cases,
          .conclude = conclude_matmul,
          .names = "*-of-one-thread rows highest method table plot",
          .chooses = false};
}

}  // namespace barestep
