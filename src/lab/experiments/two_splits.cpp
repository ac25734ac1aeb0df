// A small model of two layers on two devices: the batch in two halves, or the layers.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/units.h"
#include "lab/experiments/findings_of.h"

namespace barestep {
namespace {

std::vector<Case> two_splits_cases(const Setting& setting) {
  std::vector<Case> cases;
  for (const int batch : {64, 32}) {
    for (const auto& [key, options] :
         {std::pair{"whole", ""},
          {"batch", ""},
          {"layers", " --pipeline 2 --schedule naive --micro-batches 1"}}) {
      Workload run =
          key == std::string_view("whole") ? base_workload(setting) : dp_workload(setting, 2);
      run.config.model.dim.reset();
      run.config.model.depth.reset();
      if (!setting.on_gpu) run.config.device.threads = 1;
      run = with(run, fmt::format("--layers 1000,2000,1000 --no-last-relu --batch-size {} --update "
                                  "separate --recompute 1{}",
                                  batch, options));
      cases.push_back(new_case(setting, fmt::format("{}-{}", key, batch), run));
      cases.back().record_ops = true;
    }
  }
  return cases;
}

std::string shares_sentence(const Results& results, const std::string& what, int batch) {
  const Measurement& each = results.at(fmt::format("{}-{}", what, batch));
  return fmt::format(
      "With the {} in two, at {} rows, device 0 computes during {} of a step, device 1 during {}.",
      what, batch, percent_text(computing_share(each, 0)), percent_text(computing_share(each, 1)));
}

Findings two_splits_findings(const Results& results) {
  const auto text = [&](const char* figure, const char* key) {
    return figure_named(figure)->text({results, results.at(key)});
  };
  const auto furthest = [&](std::size_t first) {
    const auto of_batch = std::span(results.cases).subspan(first, 3);
    return last_loss_difference(of_batch, of_batch.front());
  };
  return FindingsOf(results)
      .compare({{"whole-64", "batch-64", "with the batch in two", "on one device"},
                {"whole-64", "layers-64", "with the layers in two", "on one device"},
                {"batch-64", "layers-64", "with the layers in two", "with the batch in two",
                 "layers-against-batch"},
                {"whole-32", "layers-32", "with the layers in two", "on one device", "",
                 "step of 32 rows"}},
               {.as_family = false})
      .timed("batch-64-computing", shares_sentence(results, "batch", 64))
      .timed("layers-64-computing", shares_sentence(results, "layers", 64))
      .timed("layers-32-computing", shares_sentence(results, "layers", 32))
      .fact("moved", fmt::format("In a step of 64 rows devices exchange {} with the batch in two, "
                                 "parameters and gradients besides the rows, and {} with the "
                                 "layers in two, outputs and their gradients (counted in the "
                                 "program).",
                                 text("moved", "batch-64"), text("moved", "layers-64")))
      .fact("losses", fmt::format("The last losses differ from those of one device by a share of "
                                  "{} at most.",
                                  share_text(std::max(furthest(0), furthest(3)))))
      .table("1000 - 2000 - 1000 on one device and on two",
             {"case",
              {"batch", "rows"},
              "time",
              {"speed-up", "speed against one device"},
              "computes-each",
              "moved",
              "memory"})
      .phases();
}

}  // namespace

Experiment two_splits_experiment() {
  return {"two-splits",
          "A small model in two: its batch or its layers",
          "What is gained, moved and idle if two devices share the rows, or the layers?",
          two_splits_cases,
          two_splits_findings,
          "layers-against-batch *-computing moved losses table phases-plot",
          false};
}

}  // namespace barestep
