#include "lab/sheets.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "core/error.h"
#include "core/units.h"
#include "lab/comparison.h"
#include "lab/experiments/all.h"
#include "lab/findings.h"
#include "lab/machine_card.h"
#include "lab/prediction.h"
#include "parallel/schemes/data_parallel.h"

namespace barestep {

const ReportSection& SheetRuns::section(std::string_view experiment) const {
  const auto found = std::ranges::find_if(report_.sections, [&](const ReportSection& each) {
    return experiment == each.experiment->name;
  });
  BARESTEP_REQUIRE(found != report_.sections.end(),
                   "a sheet asks for an experiment that it does not list");
  return *found;
}

const Results& SheetRuns::of(std::string_view experiment) const {
  return section(experiment).results;
}

const Findings& SheetRuns::findings(std::string_view experiment) const {
  return section(experiment).findings;
}

std::string SheetRuns::sentence(std::string_view experiment, std::size_t place) const {
  const ReportSection& found = section(experiment);
  if (!found.verdict.empty()) return invalid_line(found);
  const auto& sentences = found.findings.sentences;
  return place < sentences.size() ? sentences[place] : "This was not measured.";
}

std::string SheetRuns::concluded(
    std::string_view experiment,
    const std::function<std::string(const Results& results)>& conclude) const {
  const ReportSection& found = section(experiment);
  return found.verdict.empty() ? conclude(found.results) : invalid_line(found);
}

std::string SheetRuns::fact(std::string_view experiment, std::size_t place) const {
  return findings(experiment).facts.at(place);
}

namespace {

constexpr const char* kCard = "h200-nvlink";

/// An answer that is one sentence of an experiment.
std::function<std::string(const SheetRuns&)> says(const char* experiment, std::size_t place) {
  return [=](const SheetRuns& runs) { return runs.sentence(experiment, place); };
}
std::function<std::string(const SheetRuns&)> states(const char* experiment, std::size_t place) {
  return [=](const SheetRuns& runs) { return runs.fact(experiment, place); };
}
/// An answer that needs no measurement.
std::function<std::string(const SheetRuns&)> reasons(const char* text) {
  return [=](const SheetRuns&) { return std::string(text); };
}

std::string total_text(const Measurement& each) {
  return time_text(estimate_of(each.total_s_by_start()));
}

SheetTable table(std::string title, std::vector<std::string> columns, std::size_t given = 1) {
  return {.table = {.title = std::move(title), .columns = std::move(columns)}, .given = given};
}

/// Simulates the course's model on hardware that is not here, by number of ranks or devices.
SheetTable simulated_scaling(const PredictedModel& model, const std::string& what) {
  const MachineCard card = load_card(kCard);
  SheetTable rows = table(fmt::format("Simulated: {} of {} x {}, batch {}, on {}", what, model.dim,
                                      model.depth, model.batch_size, card.name),
                          {"GPUs", "Time/step", "Speed-up", "Efficiency"});
  const double one_s = predicted_step(model, card, 1).step_s;
  for (const int ranks : {1, 2, 4}) {
    const double step_s = predicted_step(model, card, ranks).step_s;
    rows.table.rows.push_back({std::to_string(ranks), time_text(step_s),
                               factor_text(one_s / step_s), percent_text(one_s / step_s / ranks)});
  }
  return rows;
}

// Practical 3: profiling and bottlenecks.

std::vector<SheetTable> baseline_tables(const SheetRuns& runs) {
  SheetTable rows = table("Baseline", {"Run", "Time/step", "Throughput", "Total time"});
  const Measurement& each = runs.of("batch-sweep").at("batch-64");
  rows.table.rows.push_back({"batch 64", time_text(each.step_s()),
                             number_text(each.samples_per_s().median) + " samples/s",
                             total_text(each)});
  return {rows};
}

std::vector<SheetTable> batch_tables(const SheetRuns& runs) {
  SheetTable rows = table("Batch size", {"Batch size", "Step time (s)", "Throughput (samples/s)"});
  for (const int batch : {32, 64, 128}) {
    const Measurement& each = runs.of("batch-sweep").at(fmt::format("batch-{}", batch));
    rows.table.rows.push_back({std::to_string(each.workload().batch_size()),
                               seconds_text(each.step_s().median),
                               number_text(each.samples_per_s().median)});
  }
  return {rows};
}

std::vector<SheetTable> disk_tables(const SheetRuns& runs) {
  SheetTable rows = table("A disk that takes 10 ms for each batch",
                          {"Run", "Time/step", "Throughput (samples/s)"});
  for (const char* const key : {"no-delay", "workers-0"}) {
    const Measurement& each = runs.of("io-delay").at(key);
    rows.table.rows.push_back(
        {key, time_text(each.step_s()), number_text(each.samples_per_s().median)});
  }
  return {rows};
}

std::string disk_throughput(const SheetRuns& runs) {
  return runs.concluded("io-delay", [](const Results& results) {
    return sentence_of(results.compare("no-delay", "workers-0"), "with the disk", "without it");
  });
}

std::string disk_utilisation(const SheetRuns& runs) {
  return runs.concluded("io-delay", [](const Results& results) {
    const Estimate computing =
        estimate_of(results.at("workers-0").share_by_start(computing_phases()));
    return fmt::format("It computes during {} of a step, and waits for the rest.",
                       percent_text(computing));
  });
}

std::vector<SheetTable> first_table_of(const SheetRuns& runs, const char* experiment) {
  return {{.table = runs.findings(experiment).tables.front(), .given = 1}};
}

std::string time_per_sample(const SheetRuns& runs) {
  return runs.concluded("batch-sweep", [](const Results& sweep) {
    const Comparison gain =
        compare(sweep.samples_of("batch-32"), sweep.samples_of("batch-128"), sweep.setting.margin);
    return sentence_of(gain, "at batch 128", "at batch 32", "sample");
  });
}

Sheet practical3() {
  return {
      .name = "practical3",
      .title = "Practical 3: profiling and bottlenecks",
      .experiments = {"batch-sweep", "io-delay", "profile", "monitor"},
      .tasks = {
          {"1. Baseline",
           "Train on one device: time of a step, samples/s, and the total time.",
           baseline_tables,
           {{"Is a loss near 1 right?", "mean((0 - y)^2) = Var(y) = 1",
             reasons("Yes: x and y are unrelated noise of variance 1, so nothing can be learned, "
                     "and the best answer is 0."),
             "The data are noise; only the time is studied here."}}},
          {"2. Batch 32, 64, 128",
           "Change the batch size only.",
           batch_tables,
           {{"Does throughput grow linearly?", "throughput = batch size / step time",
             says("batch-sweep", 1),
             "Linear while the device is not full: the step hardly takes longer. Saturated once "
             "the step grows in proportion to the batch."},
            {"When does utilisation improve?", "busy time / all time", says("monitor", 0),
             "Larger products keep more of the device busy; the other costs of a step stay the "
             "same."},
            {"What happens to efficiency?", "time per sample = step time / batch size",
             time_per_sample, "Time per sample falls until throughput saturates."}}},
          {"3. Sleep 10 ms before forward",
           "A slow disk, inside the step.",
           disk_tables,
           {{"What happens to throughput?", "batch size / (step + 10 ms)", disk_throughput,
             "It falls: each step takes 10 ms longer, which matters more for shorter steps."},
            {"Is the device fully used?", "1 - 10 ms / step time", disk_utilisation,
             "It idles while it waits for the disk."},
            {"Which part is the bottleneck?", "the largest share of a step", says("io-delay", 0),
             "The wait, where it is more than half of the step."}}},
          {"4. Amdahl's law",
           "Suppose 30 % of the time is I/O and 70 % is computing.",
           nullptr,
           {{"How fast is it at most, with computing infinitely fast?", "S_max = 1 / (1 - P)",
             [](const SheetRuns&) {
               return fmt::format("Calculated: P = 0.7, so at most {}.", factor_text(1 / 0.3));
             },
             "3.33: the part that is not sped up limits the whole."},
            {"Does this match task 3?", "S_max = step / wait for the disk", says("io-delay", 2),
             "The share of I/O differs here; the law is the same."}}},
          {"5. Profiler",
           "Profile forward, loss and backward of a step.",
           [](const SheetRuns& runs) { return first_table_of(runs, "profile"); },
           {{"Which operation takes most of the device's time?", "the longest row",
             says("profile", 0), "Products: addmm forward, mm backward."},
            {"Is backward more expensive than forward?", "2 products a layer against 1",
             says("profile", 1), "About twice: gradients of the weights and of the inputs."},
            {"Which layer dominates?", "time by layer", says("profile", 2),
             "None: all are equally wide. Only the first needs no gradient of its input."}}},
          {"6. Monitor",
           "Watch utilisation, memory and power while it trains.",
           [](const SheetRuns& runs) { return first_table_of(runs, "monitor"); },
           {{"What does a larger batch change?", "memory = parameters' + activations'",
             states("monitor", 0), "Activations grow with the batch; the rest does not."}}},
      }};
}

// Practical 5: nn.DataParallel.

std::vector<SheetTable> setup_tables(const SheetRuns& runs) {
  SheetTable rows = table("Setups", {"Setup", "Step time (s)", "Total time (s)"});
  const Results& both = runs.of("data-parallel");
  rows.table.rows = {{"Single device", seconds_text(both.at("devices-1").step_s().median),
                      total_text(both.at("devices-1"))},
                     {"DataParallel, 2", seconds_text(both.at("devices-2").step_s().median),
                      total_text(both.at("devices-2"))}};
  SheetTable memory = {.table = runs.findings("data-parallel").tables.front(), .given = 1};
  return {rows, memory, simulated_scaling({.data_parallel = true}, "DataParallel")};
}

std::vector<SheetTable> split_tables(const SheetRuns&) {
  SheetTable rows = table("Splits", {"GPUs", "Batch size", "Split per GPU"}, 2);
  for (const int devices : {2, 3, 5}) {
    std::string split;
    for (const Rows& piece : chunk(64, devices)) {
      split += fmt::format("{}{}", split.empty() ? "" : "/", piece.count);
    }
    rows.table.rows.push_back({std::to_string(devices), "64", split});
  }
  return {rows};
}

Sheet practical5() {
  return {
      .name = "practical5",
      .title = "Practical 5: nn.DataParallel",
      .experiments = {"data-parallel", "splits", "gpu0-bottleneck", "dp-vs-ddp"},
      .tasks = {
          {"1 to 3. One device and DataParallel",
           "Step time, total time, memory of each device.",
           setup_tables,
           {{"Is DataParallel faster, and in proportion to the devices?",
             "speed-up = step of one / step of n", says("data-parallel", 0),
             "Not in proportion: parameters and gradients are moved in every step."},
            {"What does moving cost?", "exposed communication / step", says("data-parallel", 1),
             "It grows with the model, not with the batch."},
            {"What differs in memory?", "device 0 keeps the optimizer and all outputs",
             states("data-parallel", 0), "Device 0 needs more than the others."}}},
          {"4. Splitting",
           "Print device and shape inside the model, on 2, 3 and 5 devices.",
           split_tables,
           {{"Is the batch split by hand?", "torch.chunk along the batch",
             reasons("No: DataParallel scatters the batch before forward and gathers the outputs "
                     "after it."),
             "The code hands over one batch."},
            {"When is the split even?", "ceil(batch / devices) rows each", states("splits", 0),
             "Where the number of devices divides the batch; else the last gets fewer, and some "
             "may get none."}}},
          {"5. Bottleneck",
           "Watch the devices while they train.",
           [](const SheetRuns& runs) { return first_table_of(runs, "gpu0-bottleneck"); },
           {{"Is device 0 more loaded?", "loss + update + exchange through device 0",
             says("gpu0-bottleneck", 0),
             "Device 0 gathers outputs, computes the loss, sums gradients and updates."}}},
          {"6. Discussion",
           "",
           nullptr,
           {{"What is the main advantage?", "one line of code",
             reasons("A model is wrapped in one line, in one process; nothing is launched."), ""},
            {"What limits it?", "2 (n - 1) P bytes through device 0", states("dp-vs-ddp", 1),
             "Device 0's links and its serial work."},
            {"Why might it not scale?", "Amdahl's law with device 0's work as the serial share",
             says("gpu0-bottleneck", 0), "The others wait while device 0 works alone."}}},
      }};
}

// Homework 1: DDP.

std::vector<SheetTable> strong_tables(const SheetRuns& runs) {
  SheetTable rows =
      table("Strong scaling, global batch 64", {"GPUs", "Time/step", "Speed-up", "Efficiency"});
  const Results& scaling = runs.of("strong-scaling");
  for (const Measurement& each : scaling.cases) {
    const Estimate gain =
        scaling.compare(scaling.cases.front().what().key, each.what().key).speed();
    const int ranks = each.workload().ranks;
    rows.table.rows.push_back(
        {fmt::format("{}{}", ranks, each.what().beyond_cores ? " (beyond the cores)" : ""),
         time_text(each.step_s()), factor_text(gain), percent_text(gain.median / ranks)});
  }
  return {rows, simulated_scaling({}, "DDP")};
}

std::vector<SheetTable> model_tables(const SheetRuns& runs) {
  SheetTable rows = table("Small and large", {"Case", "GPUs", "Time/step", "Speed-up"}, 2);
  const Results& models = runs.of("comm-vs-compute");
  for (const Measurement& each : models.cases) {
    const bool is_large = each.what().key.starts_with("large");
    const Comparison gain = models.compare(is_large ? "large-1" : "small-1", each.what().key);
    rows.table.rows.push_back({fmt::format("{} ({} x {})", is_large ? "Large" : "Small",
                                           each.workload().dim(), each.workload().depth()),
                               fmt::format("{}{}", each.workload().ranks,
                                           each.what().beyond_cores ? " (beyond the cores)" : ""),
                               time_text(each.step_s()), factor_text(gain.speed())});
  }
  return {rows, simulated_scaling({.dim = 1024, .depth = 2}, "DDP"),
          simulated_scaling({.dim = 8192, .depth = 8}, "DDP")};
}

/// The batch from which a layer's products take longer than its gradients' all-reduce: 6 B D^2
/// flops against 4 D^2 bytes, all of which pass through a ring of two.
std::string compute_bound(const SheetRuns&) {
  const MachineCard card = load_card(kCard);
  const double bytes = 4.0 * 8192 * 8192;
  const double reduce_s = all_reduce_s(card, bytes, 2);
  const double batch = reduce_s * card.flops_per_s / (6.0 * 8192 * 8192) * 2;
  return fmt::format(
      "Calculated, on {}: a layer of width 8192 has {} of gradients, which two GPUs sum in {}; its "
      "products are 6 x 64 x 8192^2 flops, on two GPUs {}. So communication is longer at batch 64, "
      "and computing from a batch of about {:.0f} on, at any width: both grow with the square of "
      "the width.",
      card.name, human_bytes(static_cast<std::int64_t>(bytes)), time_text(reduce_s),
      time_text(6.0 * 64 * 8192 * 8192 / 2 / card.flops_per_s), batch);
}

/// Tasks 1 to 4.
std::vector<SheetTask> homework1_tasks() {
  return {
      {"1. A benchmark that can be repeated",
       "Fixed seeds; the time of a step on rank 0, at least 30 steps, 5 of them warm-up.",
       [](const SheetRuns& runs) { return first_table_of(runs, "warmup"); },
       {{"Why is warm-up needed?", "first step / steady step", says("warmup", 0),
         "Memory is allocated, libraries are loaded and choose algorithms, clocks rise."},
        {"Why must randomness be controlled?", "same seed, same losses",
         states("reproducibility", 0),
         "Only equal computations can be compared, and an error can be reproduced."}}},
      {"2. Strong scaling",
       "A global batch of 64 on 1, 2 and 4 ranks.",
       strong_tables,
       {{"Is the speed-up linear?", "speed-up = T1 / Tn; efficiency = speed-up / n",
         says("strong-scaling", 0),
         "No: the gradients to sum stay the same while the work of each rank shrinks."},
        {"Which number of ranks is fastest?", "samples/s", says("strong-scaling", 1), ""}}},
      {"3. Communication against computing",
       "A small and a large model on 1, 2 and 4 ranks.",
       model_tables,
       {{"In which case is DDP more efficient?", "speed-up of the two models",
         says("comm-vs-compute", 0), "The one with more flops per byte of gradients."},
        {"Why?", "4 D^2 bytes against 6 B D^2 flops a layer", says("comm-vs-compute", 1),
         "Width cancels out; the batch decides."},
        {"When is communication the bottleneck?", "t_reduce > t_products", compute_bound,
         "The sheet expects the large model to be bound by computing; at batch 64 it is "
         "not."}}},
      {"4. DataParallel against DDP",
       "On the same two devices.",
       [](const SheetRuns& runs) { return first_table_of(runs, "dp-vs-ddp"); },
       {{"Which is faster?", "step times, round by round", says("dp-vs-ddp", 0), ""},
        {"How are the devices used?", "computing / step", says("dp-vs-ddp", 1),
         "Device 0 of DataParallel also gathers, computes the loss and updates."},
        {"Which has the steadier step times?", "95th percentile above the median",
         says("dp-vs-ddp", 2), ""},
        {"How much memory do they need?", "the plan of each device", states("dp-vs-ddp", 0), ""},
        {"Why does DDP scale better?",
         "2 (n - 1) P bytes through device 0, 2 (n - 1) / n P "
         "through each rank",
         states("dp-vs-ddp", 1),
         "All ranks have equal roles, and communication overlaps backward."},
        {"When is DataParallel acceptable?", "few devices, little to move",
         reasons("For a quick trial on two devices of one machine, if a step takes much longer "
                 "than moving the parameters."),
         ""}}},
  };
}

/// Task 5 with its parts.
std::vector<SheetTask> homework1_task5() {
  return {
      {"5A. 10 ms before backward",
       "On 1 and 2 ranks.",
       [](const SheetRuns& runs) { return first_table_of(runs, "delay"); },
       {{"How does it change scaling?", "(T1 + d) / (Tn + d)", says("delay", 0),
         "The delay is serial: Amdahl's law."},
        {"Is the loss linear?", "(T1 + d) / (Tn + d)", says("delay", 1),
         "Nearly, while d is small compared with the step; then it flattens towards 1."}}},
      {"5B. The batch at a fixed number of ranks",
       "Batch 32, 64, 128, 256.",
       [](const SheetRuns& runs) { return first_table_of(runs, "batch-scaling"); },
       {{"Does a larger batch improve scaling?", "exposed communication / step",
         says("batch-scaling", 1), "The bytes to reduce stay the same; the work grows."},
        {"When do ranks pay off?", "T1 / Tn > 1", says("batch-scaling", 0), ""}}},
      {"5C. Rank 0 sleeps 20 ms",
       "On two ranks.",
       [](const SheetRuns& runs) { return first_table_of(runs, "imbalance"); },
       {{"What does it cost?", "step of the slowest rank", says("imbalance", 1),
         "Every rank waits for the slowest."},
        {"What does it show about synchronisation?", "who waits in communication",
         says("imbalance", 0), "An all-reduce is a barrier."}}},
  };
}

Sheet homework1() {
  Sheet sheet{
      .name = "homework1",
      .title = "Homework 1: DistributedDataParallel",
      .experiments = {"warmup", "reproducibility", "strong-scaling", "comm-vs-compute", "dp-vs-ddp",
                      "delay", "batch-scaling", "imbalance"},
      .tasks = homework1_tasks(),
  };
  std::ranges::move(homework1_task5(), std::back_inserter(sheet.tasks));
  return sheet;
}

}  // namespace

std::span<const Sheet> sheets() {
  static const std::vector<Sheet> all = {practical3(), practical5(), homework1()};
  return all;
}

const Sheet& sheet_of(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Sheet& each : sheets()) {
    if (name == each.name) return each;
    names.emplace_back(each.name);
  }
  const std::string near(nearest(name, names));
  fail(ExitCode::kUsage, {.what = "sheet",
                          .value = std::string(name),
                          .why = "no sheet has this name",
                          .remedy = (near.empty() ? "" : "did you mean '" + near + "'? ") +
                                    "there are practical3, practical5 and homework1"});
}

namespace {

std::string markdown_rows(const SheetTable& sheet_table, bool is_blank) {
  FindingTable shown = sheet_table.table;
  if (is_blank) {
    for (auto& row : shown.rows) {
      for (std::size_t i = sheet_table.given; i < row.size(); ++i) row[i].clear();
    }
  }
  return markdown_table(shown);
}

std::string markdown_question(const SheetQuestion& each, const SheetRuns& runs, SheetCopy copy) {
  std::string text = fmt::format("**{}**\n\n", each.question);
  if (copy == SheetCopy::kBlank) return text + "\\_\\_\\_\\_\\_\\_\\_\\_\n\n";
  text += fmt::format("{}\n\n*By: {}*\n\n", each.answer(runs), each.formula);
  if (copy == SheetCopy::kKey && *each.key != '\0') {
    text += fmt::format("> Look for: {}\n\n", each.key);
  }
  return text;
}

}  // namespace

std::string markdown_of(const Sheet& sheet, const Report& report, SheetCopy copy) {
  const SheetRuns runs(report);
  const bool is_blank = copy == SheetCopy::kBlank;
  std::string text =
      fmt::format("# {}{}\n\n", sheet.title, copy == SheetCopy::kKey ? ", the teacher's key" : "");
  if (!is_blank) {
    for (const auto& [name, value] : report.environment) {
      text += fmt::format("- {}: {}\n", name, value);
    }
    text += "\nTables whose title begins with \"Simulated\" were not measured here.\n\n";
  }
  for (const SheetTask& task : sheet.tasks) {
    text += fmt::format("## {}\n\n", task.title);
    if (*task.what != '\0') text += fmt::format("{}\n\n", task.what);
    if (task.tables) {
      for (const SheetTable& each : task.tables(runs)) {
        const bool is_simulated = each.table.title.starts_with("Simulated");
        if (is_blank && is_simulated) continue;
        text += markdown_rows(each, is_blank);
      }
    }
    for (const SheetQuestion& each : task.questions) text += markdown_question(each, runs, copy);
  }
  return text;
}

}  // namespace barestep
