// How fast the products of a layer are, by batch, precision and threads, beside what this machine
// reaches at most.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/units.h"
#include "lab/experiments/findings_of.h"

namespace barestep {
namespace {

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
  std::vector<Case> cases;
  for (const int threads : product_threads(setting)) {
    for (const std::int64_t rows : product_rows(setting)) {
      for (const Precision precision : product_precisions(setting)) {
        Workload run = with(base_workload(setting),
                            fmt::format("--depth 2 --recompute 1 --update separate --batch-size {} "
                                        "--precision {}",
                                        rows, name_of(precision)));
        if (!takes_all_cores(setting, threads)) run.config.device.threads = threads;
        cases.push_back(new_case(setting, product_key(setting, rows, precision, threads), run));
        cases.back().record_ops = true;
      }
    }
  }
  return cases;
}

/// Seconds of all products of a phase, by start.
std::vector<double> product_seconds(const Measurement& measured, std::string_view phase) {
  return op_seconds(measured,
                    [&](const OpTime& op) { return op.name == "gemm" && op.phase == phase; });
}

Series forward_products(const Results& results, const std::string& key) {
  return {key, product_seconds(results.at(key), "forward")};
}

/// Flops per second of all products of a phase.
Estimate phase_rate(const Measurement& measured, std::string_view phase) {
  double flops = 0;
  const WorkloadPrograms programs(measured.workload());
  for (const Node& node : programs.step().nodes()) {
    if (label_of(node.op) == "gemm" && name_of(node.phase) == phase) {
      flops += static_cast<double>(cost_of(node.op).flops);
    }
  }
  return reciprocal(estimate_of(product_seconds(measured, phase)), flops);
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
  card.flops_per_s = fastest_product(*load);
  for (const OpRate& rate : load->rates) {
    if (rate.op == "copy") card.memory_bytes_per_s = rate.rate;
  }
  return card;
}

/// 0 on a GPU.
int threads_of(const Results& results, const Measurement& measured) {
  return results.setting.on_gpu
             ? 0
             : measured.workload().config.device.threads.value_or(results.setting.units);
}

/// The mean share of the roof that products reach; the card's rates are those of fp32.
std::string product_roof_share(const Results& results, const Measurement& measured) {
  if (!results.card || measured.workload().config.device.precision != Precision::kFp32) return "";
  double share = 0;
  int products = 0;
  for (const RooflinePoint& point :
       roofline_points(measured, card_of_threads(*results.card, threads_of(results, measured)))) {
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
void compare_products(FindingsOf& all, const Results& results) {
  const Setting& setting = results.setting;
  const std::vector<int> threads = product_threads(setting);
  for (const std::int64_t rows : product_rows(setting)) {
    const auto key = [&](Precision precision, int count) {
      return product_key(setting, rows, precision, count);
    };
    const auto add = [&](const std::string& a, const std::string& b, const std::string& words_b,
                         const std::string& words_a, const std::string& name) {
      const Series before = forward_products(results, a), after = forward_products(results, b);
      if (std::ranges::min(before.seconds) <= 0 || std::ranges::min(after.seconds) <= 0) return;
      const Comparison one = compare(before, after, setting.margin);
      const std::string noun = fmt::format("forward product of {}", counted(rows, "row"));
      all.timed(name, text_of(one, words_b, words_a, noun), one.word).keep({&one, 1});
    };
    for (const Precision precision : product_precisions(setting)) {
      if (precision == Precision::kFp32) continue;
      const std::string b = key(precision, threads.back());
      add(key(Precision::kFp32, threads.back()), b,
          fmt::format("in {}{}", name_of(precision), thread_words(threads.back())), "in fp32", b);
    }
    if (threads.size() == 1) continue;
    const std::string b = key(Precision::kFp32, threads.back());
    add(key(Precision::kFp32, threads.front()), b,
        fmt::format("with {} in fp32", counted(threads.back(), "thread")), "with one",
        b + "-of-one-thread");
  }
}

Findings matmul_findings(const Results& results) {
  const Setting& setting = results.setting;
  const auto forward_rate = [](const Measurement& measured) {
    return phase_rate(measured, "forward");
  };
  const auto known_rate = [&](const Measurement& measured) {
    const double median = forward_rate(measured).median;
    return std::isfinite(median) ? median : 0;  // 0: not recorded
  };
  const Measurement& best = *std::ranges::max_element(results.cases, {}, known_rate);
  const Estimate longer =
      compare(forward_products(results, "fp32-1"),
              forward_products(results, fmt::format("fp32-{}", setting.batch_size)))
          .ratio;
  Plot plot{.title = "Forward products by the rows of a batch",
            .x_label = "rows",
            .y_label = "GFLOP/s",
            .log_x = true,
            .log_y = true};
  for (const int threads : product_threads(setting)) {
    for (const Precision precision : product_precisions(setting)) {
      std::vector<std::string> keys;
      for (const std::int64_t rows : product_rows(setting)) {
        keys.push_back(product_key(setting, rows, precision, threads));
      }
      plot.series.push_back(
          points_of(fmt::format("{}{}", name_of(precision), thread_words(threads)), results, keys,
                    batch_of, forward_rate, 1e-9));
    }
  }
  const auto rate_of = [](const char* phase) {
    return
        [=](const Measurement& measured) { return phase_rate_text(phase_rate(measured, phase)); };
  };
  FindingsOf all(results);
  compare_products(all, results);
  return all
      .judge("rows", longer, 0.9 * static_cast<double>(setting.batch_size),
             {"The time of a product grows in proportion to its rows, within a tenth",
              "The time of a product grows by less than in proportion to its rows",
              "Whether the time of a product grows in proportion to its rows is unclear"},
             fmt::format("{} rows take {} as long as one", setting.batch_size, factor_text(longer)))
      .timed("highest", fmt::format("Highest rate of forward products: {}, {}.", best.what().key,
                                    phase_rate_text(forward_rate(best))))
      .untimed("method",
               "Products run in a training step of two layers, backward without the first layer's "
               "gradient of its input; a forward product includes bias and activation. The roof is "
               "the machine card's: the best product or the memory, whichever bounds the shape.")
      .table(fmt::format("Products of layers {} wide", setting.dim),
             {{"batch", "rows"},
              "precision",
              {"threads",
               [&](const Measurement& measured) {
                 return setting.on_gpu ? "" : std::to_string(threads_of(results, measured));
               }},
              {"forward", rate_of("forward")},
              {"backward", rate_of("backward")},
              {"of the roof in fp32",
               [&](const Measurement& measured) { return product_roof_share(results, measured); }}})
      .plot(std::move(plot));
}

}  // namespace

Experiment matmul_experiment() {
  return {"matmul",
          "Products by shape, precision and threads",
          "How many flops a second do a layer's products reach, and how near the roof?",
          matmul_cases,
          matmul_findings,
          "*-of-one-thread rows highest method table plot",
          false};
}

}  // namespace barestep
