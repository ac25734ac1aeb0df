// What buckets of gradients cost. A step = what does not depend on buckets + latency of each bucket
// * buckets + bytes of the last bucket, which nothing hides, / bandwidth. With buckets of equal
// size, the best number of them is the square root of (gradients' bytes / bandwidth / latency).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "core/statistics.h"
#include "core/units.h"
#include "lab/experiments/findings_of.h"

namespace barestep {
namespace {

/// Of each case.
std::vector<std::int64_t> layers_of_buckets(const Setting& setting) {
  if (setting.quick) return {1, 2, 3, 6};
  return {1, 2, 4, 6, 12};
}

std::vector<Case> bucket_model_cases(const Setting& setting) {
  const std::vector<std::int64_t> all_layers = layers_of_buckets(setting);
  // Its model is deeper than others of --quick.
  const std::int64_t dim = setting.quick ? (setting.dim + 1) / 2 : setting.dim;
  const double layer_mib = 4.0 * static_cast<double>(dim * (dim + 1)) / (1 << 20);
  std::vector<CaseRow> rows;
  for (const std::int64_t layers : all_layers) {
    // Closes in the middle of the last layer.
    rows.push_back(
        {fmt::format("layers-{}", layers), "",
         fmt::format("--bucket-mib {}", (static_cast<double>(layers) - 0.5) * layer_mib)});
  }
  return cases_of(setting,
                  with(ddp_workload(setting, compared_with_one(setting)),
                       fmt::format("--update separate --dim {} --depth {}", dim,
                                   std::max(setting.depth, all_layers.back()))),
                  rows);
}

/// A case's buckets.
struct BucketSizes {
  double count = 0;
  double last_bytes = 0;
  double all_bytes = 0;
};

BucketSizes bucket_sizes(const Measurement& measured) {
  const std::vector<std::int64_t> all = bucket_bytes(measured.workload());
  return {.count = static_cast<double>(all.size()),
          .last_bytes = static_cast<double>(all.back()),
          .all_bytes = static_cast<double>(std::accumulate(all.begin(), all.end(), 0L))};
}

struct BucketCosts {
  double rest_s = 0;
  double latency_s = 0;   // of a bucket
  double s_per_byte = 0;  // of the last one

  [[nodiscard]] double step_s(const BucketSizes& sizes) const {
    return rest_s + latency_s * sizes.count + s_per_byte * sizes.last_bytes;
  }
};

/// The sum of the products of what differs from the means.
double covariance(std::span<const double> a, std::span<const double> b) {
  const double mean_a = mean_of(a), mean_b = mean_of(b);
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - mean_a) * (b[i] - mean_b);
  return sum;
}

/// Least squares over the cases.
BucketCosts fitted_costs(const std::vector<BucketSizes>& sizes, std::span<const double> steps_s) {
  std::vector<double> counts, bytes;
  for (const BucketSizes& each : sizes) {
    counts.push_back(each.count);
    bytes.push_back(each.last_bytes);
  }
  const double cc = covariance(counts, counts), bb = covariance(bytes, bytes),
               cb = covariance(counts, bytes), ct = covariance(counts, steps_s),
               bt = covariance(bytes, steps_s), determinant = cc * bb - cb * cb;
  BucketCosts costs{.latency_s = (ct * bb - bt * cb) / determinant,
                    .s_per_byte = (bt * cc - ct * cb) / determinant};
  costs.rest_s =
      mean_of(steps_s) - costs.latency_s * mean_of(counts) - costs.s_per_byte * mean_of(bytes);
  return costs;
}

/// The model's figures, each fitted round by round, in parts of the round's mean step: where a
/// whole round is slow, so are its costs. They are told for typical steps.
class BucketModel {
 public:
  explicit BucketModel(const Results& results) {
    for (const Measurement& measured : results.cases) {
      sizes_.push_back(bucket_sizes(measured));
      steps_s_.push_back(measured.mean_s_by_start());
      typical_s_ += measured.mean_s().median / static_cast<double>(results.cases.size());
    }
  }

  [[nodiscard]] const std::vector<BucketSizes>& sizes() const { return sizes_; }
  [[nodiscard]] double gradient_bytes() const { return sizes_.front().all_bytes; }

  template <class Figure>
  [[nodiscard]] Estimate figure(const Figure& of) const {
    const Estimate part = estimate_by_round(steps_s_, [&](std::span<const double> steps_s) {
      return of(fitted_costs(sizes_, steps_s)) / mean_of(steps_s);
    });
    return {part.median * typical_s_, part.low * typical_s_, part.high * typical_s_};
  }
  [[nodiscard]] Estimate latency_s() const {
    return figure([](const BucketCosts& costs) { return costs.latency_s; });
  }
  /// What all gradients in one bucket would cost after backward.
  [[nodiscard]] Estimate exposed_s() const {
    return figure([&](const BucketCosts& costs) { return costs.s_per_byte * gradient_bytes(); });
  }
  /// Both costs above 0.
  [[nodiscard]] bool has_best() const {
    return side_of(latency_s(), 0) == Word::kAbove && side_of(exposed_s(), 0) == Word::kAbove;
  }
  [[nodiscard]] double best_count() const {
    return std::sqrt(exposed_s().median / latency_s().median);
  }

 private:
  std::vector<BucketSizes> sizes_;
  std::vector<std::vector<double>> steps_s_;  // by case and start
  double typical_s_ = 0;                      // the mean step of all cases
};

std::string best_bucket_text(const BucketModel& model, const std::string& measured) {
  if (!model.has_best()) {
    return fmt::format("So the model names no best size; {}", measured);
  }
  const double count = model.best_count();
  return fmt::format(
      "By the model {} buckets of {} are best, the square root of the costs' ratio; {}",
      number_text(count), human_bytes(std::llround(model.gradient_bytes() / count)), measured);
}

/// Of the fastest case, if it is predicted.
void add_timeline(FindingsOf& all, const Results& results, std::size_t place,
                  const std::vector<std::string>& names) {
  if (place >= results.predictions.size() || !results.predictions[place]) return;
  const Measurement& each = results.cases[place];
  all.plot(timeline_plot(each.workload(), *results.predictions[place],
                         fmt::format("Simulated: a rank's step with {}; measured, it takes {}",
                                     names[place], time_text(each.mean_s().median))));
}

Findings bucket_model_findings(const Results& results) {
  const BucketModel model(results);
  const auto sizes_of = [&](const Measurement& measured) -> const BucketSizes& {
    return model.sizes()[static_cast<std::size_t>(&measured - results.cases.data())];
  };
  const auto buckets_of = [&](const Measurement& each) {
    return std::llround(sizes_of(each).count);
  };
  std::vector<std::string> names;
  for (const Measurement& each : results.cases)
    names.push_back(counted(buckets_of(each), "bucket"));
  const std::vector<std::string> keys = keys_of(results);
  const Fastest fastest = fastest_of(results.steps_of(keys), results.setting.margin);
  const Estimate each_s = model.latency_s(), all_s = model.exposed_s();
  FindingsOf all(results);
  all.judge("latency", each_s, 0,
            {"Each bucket costs time of its own", "More buckets shorten a step here",
             "Whether a bucket costs time of its own is unclear"},
            fmt::format("each changes a step by {} (fitted)", time_text(each_s)))
      .judge("last-bucket", all_s, 0,
             {"Nothing hides the last bucket", "A larger last bucket costs no time here",
              "Whether the size of the last bucket costs time is unclear"},
             fmt::format("{} in one would change a step by {} (fitted), {}",
                         human_bytes(std::llround(model.gradient_bytes())), time_text(all_s),
                         rate_text(model.gradient_bytes() / all_s.median, "B/s")))
      .timed("best", best_bucket_text(model, fastest_text(fastest, names, "fastest measured")))
      .untimed("model",
               "The model: step = rest + latency * buckets + bytes of the last bucket / bandwidth, "
               "by least squares; of equal buckets, the square root of (gradients' bytes / "
               "bandwidth / latency) are best.")
      .table(
          "Buckets, measured and by the fitted model",
          {"case",
           {"buckets", [&](const Measurement& each) { return std::to_string(buckets_of(each)); }},
           {"last bucket",
            [&](const Measurement& each) {
              return human_bytes(std::llround(sizes_of(each).last_bytes));
            }},
           "time",
           {"fitted",
            [&](const Measurement& each) {
              return time_text(model.figure(
                  [&](const BucketCosts& costs) { return costs.step_s(sizes_of(each)); }));
            }},
           "communication"})
      .plot({.title = "Step time against the number of buckets",
             .x_label = "buckets",
             .y_label = "ms",
             .log_x = true,
             .series = {points_of(
                 "measured", results, keys,
                 [&](const Measurement& each) { return sizes_of(each).count; }, mean_s_of, 1e3)}})
      .keep(fastest.others);
  add_timeline(all, results, fastest.place, names);
  return all;
}

}  // namespace

Experiment bucket_model_experiment() {
  return {"bucket-model",
          "What a bucket costs",
          "Latency of each bucket or bytes of the last one: which size is best?",
          bucket_model_cases,
          bucket_model_findings,
          "latency last-bucket best model table plot timeline-plot"};
}

}  // namespace barestep
