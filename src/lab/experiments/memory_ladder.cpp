// The ways to need less memory that a lecture of the course (docs/sheets.md) lists, each added to
// the ones before: what each saves and what it costs, for an MLP and for a transformer. And
// attention that stores the scores of every pair of rows, beside attention that computes them in
// tiles: time and memory by the length of sequences.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/attention.h"
#include "core/units.h"
#include "lab/experiments/calculations.h"
#include "lab/experiments/findings_of.h"
#include "lab/predict/prediction.h"

namespace barestep {
namespace {

/// Each rung adds to the options of those before it.
std::vector<CaseRow> added_up(std::vector<CaseRow> rungs) {
  for (std::size_t i = 1; i < rungs.size(); ++i) {
    rungs[i].options = rungs[i - 1].options + " " + rungs[i].options;
  }
  return rungs;
}

std::int64_t activations_of(const Measurement& measured) {
  return memory_of(measured).by_category[Category::kActivations];
}

/// Adds what each of these cases saves by its plan, and what it costs in time, compared with the
/// one before it.
void add_ladder(FindingsOf& all, const Results& results, std::span<const CaseRow> rungs) {
  std::vector<Compared> pairs;
  std::vector<std::string> keys;
  std::vector<NamedMemory> devices;
  for (const CaseRow& rung : rungs) {
    keys.push_back(rung.key);
    devices.emplace_back(rung.key, memory_of(results.at(rung.key)));
    if (keys.size() == 1) continue;
    pairs.push_back({(&rung - 1)->key, rung.key, "with " + rung.words, "without", "", "sample"});
    const std::int64_t before = (devices.end() - 2)->second.bytes,
                       after = devices.back().second.bytes;
    all.untimed(
        rung.key + "-memory",
        fmt::format("With {} a device needs {} {} (from the plan).", rung.words, human_bytes(after),
                    after == before ? "as before" : "instead of " + human_bytes(before)));
  }
  all.compare(pairs, {.by_sample = true, .within_cores = true});
  const auto place_of = [&](const Measurement& measured) {
    return static_cast<std::size_t>(&measured - &results.at(keys.front()));
  };
  const auto bytes = [](Category category) -> Column {
    return {std::string(name_of(category)), [=](const Measurement& measured) {
              return human_bytes(memory_of(measured).by_category[category]);
            }};
  };
  all.table("Each row adds to the rows above",
            {{"with", [&](const Measurement& measured) { return rungs[place_of(measured)].words; }},
             {"memory", "memory of a device (plan)"},
             {"against the baseline",
              [&](const Measurement& measured) {
                return factor_text(
                    times_the_bytes(memory_of(measured).bytes, devices.front().second.bytes));
              }},
             bytes(Category::kParameters),
             bytes(Category::kGradients),
             bytes(Category::kOptimizer),
             bytes(Category::kActivations),
             "time",
             {"time of a sample against the row above",
              [&](const Measurement& measured) -> std::string {
                const std::size_t place = place_of(measured);
                if (place == 0) return "";
                return factor_text(compare(results.samples_of(keys[place - 1]),
                                           results.samples_of(keys[place]), results.setting.margin)
                                       .ratio);
              }}},
            keys, "ladder-table")
      .plot(
          memory_plot("Memory of a device, with ways to save it added one by one (plan)", devices));
}

// An MLP.

std::vector<CaseRow> memory_rungs(std::int64_t layers) {
  return added_up(
      {{"baseline", "nothing", "--update separate"},
       {"precision", "16-bit numbers", "--precision bf16"},
       {"accumulation", "4 micro-steps", "--accumulate 4"},
       {"recompute", "recomputation",
        fmt::format("--recompute {}", std::lround(std::sqrt(static_cast<double>(layers))))},
       {"sharding", "an optimizer sharded over two ranks", "--scheme zero1"}});
}

/// Each device gets a batch of the same size, also if there are several devices. The program's
/// --batch-size is the size of a micro-step.
std::vector<Case> memory_cases(const Setting& setting) {
  constexpr std::int64_t kMinLayers = 8;
  const std::int64_t layers = std::max(setting.depth, kMinLayers);
  const std::int64_t batch = std::max(setting.batch_size, setting.quick ? 256L : 1024L);
  std::vector<Case> cases;
  for (const CaseRow& rung : memory_rungs(layers)) {
    const int ranks = rung.key == "sharding" ? 2 : 1;
    Workload run = with(ranks == 1 ? base_workload(setting) : ddp_workload(setting, ranks),
                        fmt::format("--depth {} {}", layers, rung.options));
    run.config.data.batch_size = ranks * batch / run.config.training.accumulate;
    cases.push_back(new_case(setting, rung.key, run));
  }
  return cases;
}

Findings memory_findings(const Results& results) {
  constexpr double kClaimed = 1.3;
  const Estimate longer = compare(results.samples_of("accumulation"),
                                  results.samples_of("recompute"), results.setting.margin)
                              .ratio;
  FindingsOf all(results);
  add_ladder(all, results, memory_rungs(results.at("baseline").workload().depth()));
  return all.judge("claim", longer, kClaimed,
                   {"Recomputation costs more than the claimed 30 %",
                    "Recomputation costs less than the claimed 30 %",
                    "Whether recomputation costs more or less than the claimed 30 % is unclear"},
                   factor_text(longer) + " the time");
}

// A transformer.

constexpr std::string_view kTransformer = "--block transformer --update separate --recompute 1";

std::vector<CaseRow> transformer_rungs() {
  return added_up({{"baseline", "nothing", "--attention standard --batch-size 4"},
                   {"precision", "16-bit numbers", "--precision bf16"},
                   {"recompute", "recomputation", "--recompute 8"},
                   {"accumulation", "4 micro-steps", "--accumulate 4 --batch-size 1"},
                   {"flash", "flash attention", "--attention flash"}});
}

std::string form_key(AttentionForm form, std::int64_t length) {
  return fmt::format("{}-{}", name_of(form), length);
}

/// From the shortest.
std::vector<std::int64_t> lengths_of(const Setting& setting) {
  if (setting.quick) return {128, 512, 1024};
  return {128, 512, 2048, 8192};
}

std::vector<std::string> keys_of_form(const Setting& setting, AttentionForm form) {
  std::vector<std::string> keys;
  for (const std::int64_t length : lengths_of(setting)) keys.push_back(form_key(form, length));
  return keys;
}

/// One block and as many rows at every length, so only attention takes longer for longer sequences.
/// Fewer steps where each takes long.
std::vector<Case> attention_cases(const Setting& setting) {
  constexpr std::int64_t kLong = 2048;
  const std::vector<std::int64_t> lengths = lengths_of(setting);
  std::vector<CaseRow> rows;
  for (const std::int64_t length : lengths) {
    for (const AttentionForm form : kValuesOf<AttentionForm>) {
      rows.push_back({form_key(form, length), "",
                      fmt::format("{} --dim 128 --depth 1 --length {} --attention {} --batch-size "
                                  "{} --steps {}",
                                  kTransformer, length, name_of(form), lengths.back() / length,
                                  length < kLong ? setting.steps
                                                 : std::max<std::int64_t>(setting.steps / 3, 2))});
    }
  }
  for (const CaseRow& rung : transformer_rungs()) {
    rows.push_back({rung.key, "",
                    fmt::format("{} --dim 256 --depth 8 --length {} {}", kTransformer,
                                setting.quick ? 128 : 512, rung.options)});
  }
  return cases_of(setting, base_workload(setting), rows);
}

std::string length_words(std::int64_t length) {
  return "at a length of " + grouped(length);
}

/// A model as large as the smallest GPT-2.
constexpr std::int64_t kLongDim = 768;
constexpr std::int64_t kLongBlocks = 12;
constexpr std::int64_t kLongMemory = std::int64_t{16} << 30;

/// The longest sequence with which a step of one sample fits into kLongMemory, by the plan.
std::int64_t largest_length(AttentionForm form) {
  const auto fits = [&](std::int64_t length) {
    const Workload run =
        with({}, fmt::format("{} --dim {} --depth {} --length {} --attention {} --batch-size 1",
                             kTransformer, kLongDim, kLongBlocks, length, name_of(form)));
    return planned_memory(run).front().bytes <= kLongMemory;
  };
  return first_that_fails(1, limits::kLengths.last + 1, fits) - 1;
}

std::string largest_length_text() {
  static const std::int64_t flash = largest_length(AttentionForm::kFlash);
  static const std::int64_t standard = largest_length(AttentionForm::kStandard);
  return fmt::format(
      "A step of {} blocks {} wide fits into {} with a sequence of at most {} rows with standard "
      "attention and {} with flash attention, {} as many (from the plan).",
      kLongBlocks, kLongDim, human_bytes(kLongMemory), grouped(standard), grouped(flash),
      factor_text(static_cast<double>(flash) / static_cast<double>(standard)));
}

Findings attention_findings(const Results& results) {
  constexpr double kClaimedFlashSpeed = 2;
  const std::vector<std::int64_t> lengths = lengths_of(results.setting);
  const auto growth = [&](AttentionForm form) {
    return factor_text(
        times_the_bytes(activations_of(results.at(form_key(form, lengths.back()))),
                        activations_of(results.at(form_key(form, lengths.front())))));
  };
  std::vector<Compared> pairs;
  std::vector<std::string> keys;
  for (const std::int64_t length : lengths) {
    const std::string standard = form_key(AttentionForm::kStandard, length);
    keys.insert(keys.end(), {standard, form_key(AttentionForm::kFlash, length)});
    pairs.push_back({standard, keys.back(), "with flash attention " + length_words(length),
                     "with standard attention"});
  }
  const auto length_of = [](const Measurement& measured) {
    return *measured.workload().config.model.length;
  };
  Plot plot{.title = "Step time by the length of sequences",
            .x_label = "length of a sequence",
            .y_label = "ms",
            .log_x = true,
            .log_y = true};
  for (const AttentionForm form : kValuesOf<AttentionForm>) {
    plot.series.push_back(points_of(
        std::string(name_of(form)), results, keys_of_form(results.setting, form),
        [=](const Measurement& measured) { return static_cast<double>(length_of(measured)); },
        mean_s_of, 1e3));
  }
  FindingsOf all(results);
  const Comparison fastest = fastest_gain(all.compare(pairs).comparisons());
  all.timed("claim",
            claim_text(all.comparisons(), kClaimedFlashSpeed, "The claimed factor of 2 to 4",
                       fmt::format("flash attention {}, {} as fast",
                                   length_words(length_of(results.at(fastest.b))),
                                   factor_text(fastest.speed()))))
      .untimed(
          "growth",
          fmt::format("With as many rows in a step, sequences of {} rows instead of {} take {} "
                      "the memory of activations with standard attention and {} with flash "
                      "attention (from the plan).",
                      grouped(lengths.back()), lengths.front(), growth(AttentionForm::kStandard),
                      growth(AttentionForm::kFlash)))
      .untimed("longest", largest_length_text())
      .table(fmt::format("A step of {} rows by the length of their sequences",
                         grouped(lengths.back())),
             {"case",
              {"length", [=](const Measurement& measured) { return grouped(length_of(measured)); }},
              "time",
              "activations"},
             keys)
      .plot(std::move(plot));
  add_ladder(all, results, transformer_rungs());
  return all.simulated({1}, {"case", {"time", "step"}, "memory"}, false);
}

}  // namespace

Experiment memory_experiment() {
  return {"memory",
          "Ways to save memory, added one by one",
          "How much memory does each way to save memory save, and what does it cost in time?",
          memory_cases,
          memory_findings,
          "claim *-memory ladder-table memory-plot"};
}

Experiment attention_experiment() {
  return {"attention",
          "Attention in tiles, and a transformer's memory",
          "What does flash attention save in time and memory, by the length of "
          "sequences, and what do the other ways to save memory add?",
          attention_cases,
          attention_findings,
          "claim growth longest *-memory table ladder-table simulated-table plot memory-plot"};
}

}  // namespace barestep
