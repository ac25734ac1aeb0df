// Attention that stores the scores of every pair of rows, and attention that computes them in
// tiles: time and memory by the length of sequences. And what a lecture of the course
// (docs/lab.md) lists to save memory, for a transformer, added one by one.
#include "core/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/units.h"
#include "lab/experiments/figures.h"
#include "lab/predict/prediction.h"
#include "lab/predict/workload.h"
#include "lab/report/findings.h"

namespace barestep {
namespace {

constexpr std::array<std::int64_t, 4> kLengths = {128, 512, 2048, 8192};
constexpr std::array<std::int64_t, 3> kQuickLengths = {128, 512, 1024};
constexpr double kClaimedFlashSpeed = 2;  // "2 to 4 times as fast"

std::string form_key(AttentionForm form, std::int64_t length) {
  return fmt::format("{}-{}", name_of(form), length);
}

/// From the shortest.
std::span<const std::int64_t> lengths_of(const Setting& setting) {
  if (setting.quick) return kQuickLengths;
  return kLengths;
}

void set_transformer(TrainConfig& config, const ModelConfig& model, std::int64_t batch) {
  config.model = model;
  config.model.block = BlockKind::kTransformer;
  config.data.batch_size = batch;
  config.training.update = Update::kSeparate;
  config.training.recompute = 1;
}

/// One block and as many rows at every length, so only attention takes longer for longer sequences.
/// Fewer steps where each takes long.
void add_lengths(const Setting& setting, std::vector<Case>& cases) {
  constexpr std::int64_t kLong = 2048;
  const std::span<const std::int64_t> lengths = lengths_of(setting);
  for (const std::int64_t length : lengths) {
    for (const AttentionForm form : kValuesOf<AttentionForm>) {
      Workload workload = base_workload(setting);
      set_transformer(workload.config,
                      {.dim = 128, .depth = 1, .length = length, .attention = form},
                      lengths.back() / length);
      if (length >= kLong) {
        workload.config.training.steps = std::max<std::int64_t>(setting.steps / 3, 2);
      }
      cases.push_back(new_case(setting, form_key(form, length), workload));
    }
  }
}

constexpr std::array<MemoryRung, 5> kTransformerRungs = {{{"baseline", "nothing"},
                                                          {"precision", "16-bit numbers"},
                                                          {"recompute", "recomputation"},
                                                          {"accumulation", "4 micro-steps"},
                                                          {"flash", "flash attention"}}};

void add_rungs(const Setting& setting, std::vector<Case>& cases) {
  constexpr std::int64_t kBlocks = 8, kSequences = 4;
  Workload workload = base_workload(setting);
  TrainConfig& config = workload.config;
  set_transformer(config,
                  {.dim = 256,
                   .depth = kBlocks,
                   .length = setting.quick ? 128 : 512,
                   .attention = AttentionForm::kStandard},
                  kSequences);
  for (const MemoryRung& rung : kTransformerRungs) {
    if (rung.key == "precision") config.device.precision = Precision::kBf16;
    if (rung.key == "recompute") config.training.recompute = kBlocks;
    if (rung.key == "accumulation") {
      config.training.accumulate = kSequences;
      config.data.batch_size = 1;
    }
    if (rung.key == "flash") config.model.attention = AttentionForm::kFlash;
    cases.push_back(new_case(setting, std::string(rung.key), workload));
  }
}

std::vector<Case> attention_cases(const Setting& setting) {
  std::vector<Case> cases;
  add_lengths(setting, cases);
  add_rungs(setting, cases);
  return cases;
}

std::string length_words(std::int64_t length) {
  return "at a length of " + grouped(length);
}

/// Whether the claimed speed-up of 2 to 4 holds at any length.
std::string flash_claim(const std::vector<Comparison>& all, std::span<const std::int64_t> lengths) {
  const auto fastest =
      std::ranges::max_element(all, {}, [](const Comparison& each) { return each.speed().median; });
  const std::string figures =
      fmt::format("{} as fast {}", factor_text(fastest->speed()),
                  length_words(lengths[static_cast<std::size_t>(fastest - all.begin())]));
  if (side_of(fastest->speed(), kClaimedFlashSpeed) == Side::kAbove) {
    return fmt::format(
        "The claimed factor of 2 to 4 is reached here: flash attention makes a "
        "step {}.",
        figures);
  }
  const bool is_below = std::ranges::all_of(all, [](const Comparison& each) {
    return side_of(each.speed(), kClaimedFlashSpeed) == Side::kBelow;
  });
  return is_below ? fmt::format(
                        "The claimed factor of 2 to 4 is not reached here: flash attention "
                        "makes a step at most {}.",
                        figures)
                  : fmt::format(
                        "Whether the claimed factor of 2 to 4 is reached here is unclear: "
                        "with flash attention a step is {}.",
                        figures);
}

std::int64_t activations_of(const Results& results, AttentionForm form, std::int64_t length) {
  return memory_of(results.at(form_key(form, length))).by_category[Category::kActivations];
}

std::string growth_fact(const Results& results, std::span<const std::int64_t> lengths) {
  const auto growth = [&](AttentionForm form) {
    return factor_text(times_the_bytes(activations_of(results, form, lengths.back()),
                                       activations_of(results, form, lengths.front())));
  };
  return fmt::format(
      "With as many rows in a step, sequences of {} rows instead of {} take {} the memory of "
      "activations with standard attention and {} with flash attention (from the plan).",
      grouped(lengths.back()), lengths.front(), growth(AttentionForm::kStandard),
      growth(AttentionForm::kFlash));
}

/// A model as large as the smallest GPT-2.
constexpr std::int64_t kLongDim = 768;
constexpr std::int64_t kLongBlocks = 12;
constexpr std::int64_t kLongMemory = std::int64_t{16} << 30;

/// The longest sequence with which a step of one sample fits into kLongMemory, by the plan.
std::int64_t largest_length(AttentionForm form) {
  const auto fits = [&](std::int64_t length) {
    Workload workload;
    set_transformer(workload.config,
                    {.dim = kLongDim, .depth = kLongBlocks, .length = length, .attention = form},
                    1);
    return planned_memory(workload).front().bytes <= kLongMemory;
  };
  std::int64_t low = 1, high = limits::kLengths.last;
  if (fits(high)) return high;
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

std::string largest_length_fact() {
  static const std::int64_t flash = largest_length(AttentionForm::kFlash);
  static const std::int64_t standard = largest_length(AttentionForm::kStandard);
  return fmt::format(
      "A step of {} blocks {} wide fits into {} with a sequence of at most {} rows with standard "
      "attention and {} with flash attention, {} as many (from the plan).",
      kLongBlocks, kLongDim, human_bytes(kLongMemory), grouped(standard), grouped(flash),
      factor_text(static_cast<double>(flash) / static_cast<double>(standard)));
}

FindingTable lengths_table(const Results& results, std::span<const std::int64_t> lengths,
                           const std::vector<Comparison>& gains) {
  FindingTable table{
      .title = fmt::format("A step of {} rows by the length of their sequences",
                           grouped(lengths.back())),
      .columns = {"length", "standard, mean step", "flash, mean step", "speed of flash",
                  "standard, activations (plan)", "flash, activations (plan)"}};
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const auto time = [&](AttentionForm form) {
      return time_text(results.at(form_key(form, lengths[i])).mean_s());
    };
    const auto bytes = [&](AttentionForm form) {
      return human_bytes(activations_of(results, form, lengths[i]));
    };
    table.rows.push_back({grouped(lengths[i]), time(AttentionForm::kStandard),
                          time(AttentionForm::kFlash), factor_text(gains[i].speed()),
                          bytes(AttentionForm::kStandard), bytes(AttentionForm::kFlash)});
  }
  return table;
}

/// Lines over the length, one for each form.
template <class Point>
Plot plot_by_length(std::string title, std::string name, std::string y_label,
                    std::span<const std::int64_t> lengths, const Point& point) {
  Plot plot{.title = std::move(title),
            .name = std::move(name),
            .x_label = "length of a sequence",
            .y_label = std::move(y_label),
            .log_x = true,
            .log_y = true};
  for (const AttentionForm form : kValuesOf<AttentionForm>) {
    PlotSeries& series = plot.series.emplace_back(PlotSeries{.name = std::string(name_of(form))});
    for (const std::int64_t length : lengths) series.points.push_back(point(form, length));
  }
  return plot;
}

/// On a machine whose products are fast in comparison with its memory.
void add_simulated_forms(Findings& findings) {
  const MachineCard card = load_card("h200-nvlink");
  FindingTable table{
      .title = fmt::format(
          "Simulated: a step of 16,384 rows, 1024 x 4 blocks, bf16 but for the products of "
          "attention, in fp32, on {}",
          card.name),
      .name = "simulated-table",
      .columns = {"length", "standard", "flash", "speed of flash"}};
  for (const std::int64_t length : {512, 2048, 8192}) {
    std::map<AttentionForm, double> step_s;
    for (const AttentionForm form : kValuesOf<AttentionForm>) {
      Run asked;
      asked.config.model = {.dim = 1024,
                            .depth = 4,
                            .block = BlockKind::kTransformer,
                            .length = length,
                            .attention = form};
      asked.config.data.batch_size = 16'384 / length;
      asked.config.device.precision = Precision::kBf16;
      step_s[form] = predicted_step(asked, card, 1).step_s;
    }
    table.rows.push_back(
        {grouped(length), time_text(step_s[AttentionForm::kStandard]),
         time_text(step_s[AttentionForm::kFlash]),
         factor_text(step_s[AttentionForm::kStandard] / step_s[AttentionForm::kFlash])});
  }
  findings.tables.push_back(std::move(table));
}

Findings conclude_attention(const Results& results) {
  const std::span<const std::int64_t> lengths = lengths_of(results.setting);
  std::vector<Comparison> gains;
  for (const std::int64_t length : lengths) {
    gains.push_back(results.compare(form_key(AttentionForm::kStandard, length),
                                    form_key(AttentionForm::kFlash, length)));
  }
  adjust_together(gains);
  Findings findings{
      .facts = {{"growth", growth_fact(results, lengths)}, {"longest", largest_length_fact()}},
      .comparisons = gains,
      .tables = {lengths_table(results, lengths, gains)},
      .plots = {plot_by_length("Memory of activations by the length of sequences (plan)",
                               "activations-plot", "MiB", lengths,
                               [&](AttentionForm form, std::int64_t length) {
                                 const auto bytes =
                                     static_cast<double>(activations_of(results, form, length));
                                 return plot_point(static_cast<double>(length), bytes / (1 << 20));
                               }),
                plot_by_length("Step time by the length of sequences", "plot", "ms", lengths,
                               [&](AttentionForm form, std::int64_t length) {
                                 const Measurement& each = results.at(form_key(form, length));
                                 return plot_point(static_cast<double>(length), each.mean_s(), 1e3);
                               })}};
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const std::string where = length_words(lengths[i]);
    findings.sentences.push_back(
        {gains[i].b,
         sentence_of(gains[i], "with flash attention " + where, "with standard attention"),
         gains[i].word});
  }
  findings.sentences.push_back({"claim", flash_claim(gains, lengths)});
  add_ladder(findings, results, kTransformerRungs);
  add_simulated_forms(findings);
  return findings;
}

}  // namespace

Experiment attention_experiment() {
  return {.name = "attention",
          .title = "Attention in tiles, and a transformer's memory",
          .question =
              "What does flash attention save in time and memory, by the length of "
              "sequences, and what do the other ways to save memory add?",
          .cases = attention_cases,
          .conclude = conclude_attention,
          .names =
              "claim growth longest *-memory table ladder-table "
              "simulated-table plot activations-plot memory-plot"};
}

}  // namespace barestep
