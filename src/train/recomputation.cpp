#include "train/recomputation.h"

#include <fmt/format.h>

#include <algorithm>
#include <compare>
#include <numeric>
#include <vector>

#include "core/index.h"
#include "core/plan.h"
#include "core/units.h"

namespace barestep {
namespace {

/// The size of all layers' outputs for one sample.
std::int64_t output_bytes_of_a_sample(const ModelSpec& spec) {
  std::int64_t numbers = 0;
  const Model model(spec);
  for (const Linear* linear : model.linears()) numbers += linear->outputs();
  return numbers * bytes_of(spec.numbers) * spec.rows_per_sample;
}

std::int64_t state_bytes_of(const MemoryPlan& plan) {
  return plan.category_bytes(0, Category::kParameters) +
         plan.category_bytes(0, Category::kGradients) +
         plan.category_bytes(0, Category::kOptimizer);
}

/// A candidate for the number of segments.
struct Trial {
  std::int64_t weights = 0;  // of the recomputed layers; product cost per row is proportional
  int segments = 1;
  std::int64_t outputs = 0;  // numbers per row that are in memory

  friend auto operator<=>(const Trial&, const Trial&) = default;
};

Trial trial_of(const ModelSpec& spec) {
  Trial trial{.segments = spec.segments};
  std::vector<std::int64_t> shared;  // by position in a segment
  const Model model(spec);
  for (int layer = 0; layer < spec.layers(); ++layer) {
    const Linear& linear = *at(model.linears(), layer);
    const Segment segment = spec.segment_of(layer);
    const auto place = static_cast<std::size_t>(layer - segment.first);
    if (!spec.recomputes() || layer == segment.last) {
      trial.outputs += linear.outputs();
      continue;
    }
    shared.resize(std::max(shared.size(), place + 1));
    shared[place] = std::max(shared[place], linear.outputs());
    if (segment.is_recomputed) trial.weights += linear.inputs() * linear.outputs();
  }
  trial.outputs = std::accumulate(shared.begin(), shared.end(), trial.outputs);
  return trial;
}

/// The candidates worth trying: each has more flops and needs less memory than the one before.
std::vector<Trial> trials_of(ModelSpec spec) {
  spec.segments = 1;
  std::vector<Trial> all = {trial_of(spec)};
  for (spec.segments = 2; spec.recomputes(); ++spec.segments) all.push_back(trial_of(spec));
  std::ranges::sort(all);
  std::vector<Trial> trials;
  for (const Trial& trial : all) {
    if (trials.empty() || trial.outputs < trials.back().outputs) trials.push_back(trial);
  }
  return trials;
}

}  // namespace

Recomputation recomputation_of(const StepPrograms& programs) {
  StepSpec spec = programs.spec();
  spec.model.segments = 1;
  const StepPrograms without(spec, programs.scheme());
  const MemoryPlan plan(programs.buffers()), plan_without(without.buffers());
  const std::int64_t sample_bytes = output_bytes_of_a_sample(spec.model);
  const std::int64_t samples = (state_bytes_of(plan_without) + sample_bytes - 1) / sample_bytes;
  return {.segments = programs.spec().model.segments,
          .activation_bytes = plan.category_bytes(0, Category::kActivations),
          .activation_bytes_without = plan_without.category_bytes(0, Category::kActivations),
          .flops = price_of(programs.train().program).total.flops,
          .flops_without = price_of(without.train().program).total.flops,
          .batch_size = spec.batch_size,
          .paying_batch_size = samples * spec.mesh.data * plan.devices()};
}

std::string recomputation_text(const Recomputation& r) {
  std::string text =
      fmt::format("Recomputation in {} (calculated)\n", counted(r.segments, "segment"));
  const std::int64_t more_flops = r.flops - r.flops_without;
  if (more_flops == 0) {
    return text + "  saves nothing and costs nothing: a segment of one layer keeps its output\n";
  }
  const std::int64_t saved = r.activation_bytes_without - r.activation_bytes;
  const auto share = [](std::int64_t part, std::int64_t whole) {
    return percent_text(static_cast<double>(part) / static_cast<double>(whole));
  };
  text += fmt::format("  saves {} of activations ({}): {} instead of {}\n", human_bytes(saved),
                      share(saved, r.activation_bytes_without), human_bytes(r.activation_bytes),
                      human_bytes(r.activation_bytes_without));
  text += fmt::format("  costs {} flops more in a step ({})\n", grouped(more_flops),
                      share(more_flops, r.flops_without));
  text += fmt::format(
      "  pays off from a batch size of {} on, where the outputs of all layers take as much as\n"
      "  parameters, gradients and optimizer together; this one is {}\n",
      grouped(r.paying_batch_size), grouped(r.batch_size));
  return text;
}

int cheapest_segments(const StepSpec& spec, const Scheme* scheme,
                      const std::function<bool(const StepPrograms&)>& fits) {
  const std::vector<Trial> trials = trials_of(spec.model);
  const auto found = std::ranges::partition_point(trials, [&](const Trial& trial) {
    StepSpec tried = spec;
    tried.model.segments = trial.segments;
    return !fits(StepPrograms(tried, scheme));
  });
  return found == trials.end() ? trials.back().segments : found->segments;
}

}  // namespace barestep
