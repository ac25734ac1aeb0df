// The names in sheets that no experiment finds: the machine, the sizes, the checklist, and what
// follows from the card of the GPUs alone.
#include <fmt/format.h>

#include <algorithm>

#include "core/units.h"
#include "lab/experiments/calculations.h"
#include "lab/predict/asked_run.h"
#include "lab/sheets/sheet_names.h"

namespace barestep {
namespace {

std::string machine_note(const SheetRuns& runs) {
  std::string text;
  for (const auto& [name, value] : runs.report().environment) {
    text += fmt::format("- {}: {}\n", name, value);
  }
  for (const ReportSection& section : runs.report().sections) {
    if (section.trouble.empty()) continue;
    text += fmt::format("- {}: {}\n", section.experiment->name, trouble_line(section));
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

/// Empty if nothing was measured.
std::string checklist_note(const SheetRuns& runs) {
  std::vector<const Results*> all;
  for (const ReportSection& section : runs.report().sections) all.push_back(&section.results);
  return checklist_line(checklist_of(all));
}

std::string size_note(const SheetRuns& runs) {
  const Setting setting = runs.setting(), course = new_setting(false, true, 1);
  const bool is_course = setting.dim == course.dim && setting.depth == course.depth;
  std::string text =
      fmt::format("Where a task names no other model, it is {} (width x layers){}; measured on {}.",
                  model_text(setting.dim, setting.depth),
                  is_course ? ", the course's"
                            : " in place of the course's " + model_text(course.dim, course.depth),
                  setting.on_gpu ? "GPUs" : "the CPU: its ranks and devices are cores, not GPUs");
  if (setting.batch_size != course.batch_size) {
    text += fmt::format(" Tasks that do not vary the batch take {} in place of {}.",
                        setting.batch_size, course.batch_size);
  }
  text += fmt::format(
      " A speed-up is against the same work with the same options on one rank or device: measured "
      "against measured, simulated against simulated. Columns headed \"Simulated\" are the "
      "course's size on {}: calculated by mlp_lab's simulator, not measured. {}",
      runs.gpus().name, error_note(runs.gpus()));
  std::vector<std::string> unknown;
  for (const Precision precision : {Precision::kTf32, Precision::kBf16, Precision::kFp16}) {
    if (!has_rate(runs.gpus(), precision)) unknown.emplace_back(name_of(precision));
  }
  if (unknown.empty()) return text;
  return text +
         fmt::format(" The card of {} has no rate of products in {}, so such figures are \"-\".",
                     runs.gpus().name, list_text(unknown));
}

/// Seconds of the three products of a layer on one device: output, gradients of input and weight.
double products_of_layer_s(const MachineCard& card, std::int64_t width, std::int64_t rows) {
  const Tensor activations{.rows = rows, .cols = width}, weight{.rows = width, .cols = width};
  const auto seconds = [&](const Gemm& gemm) {
    return device_op_s(gemm, card, {.mesh = Mesh::of_data(0, 2)});
  };
  return seconds({.c = activations, .a = activations, .b = weight, .transpose_b = true}) +
         seconds({.c = activations, .a = activations, .b = weight}) +
         seconds({.c = weight, .a = activations, .b = activations, .transpose_a = true});
}

/// The least batch of two devices with which the products of a layer take longer than the
/// all-reduce of its gradients.
std::int64_t computing_from(const MachineCard& card, std::int64_t width) {
  const double reduce_s = all_reduce_s(card, 4 * static_cast<double>(width * width), 2);
  const auto is_too_few = [&](std::int64_t rows) {
    return products_of_layer_s(card, width, rows) <= reduce_s;
  };
  return 2 * first_that_fails(1, 1 << 20, is_too_few);
}

std::string bottleneck_note(const SheetRuns& runs) {
  const MachineCard& card = runs.gpus();
  if (card.max_ranks() < 2) {
    return fmt::format("Not on {}, which has one device.", card.name);
  }
  return fmt::format(
      "Simulated, for two GPUs of {}: up to a batch of about {} at width 8192 and {} at width "
      "1024.",
      card.name, computing_from(card, 8192), computing_from(card, 1024));
}

std::string bottleneck_reason(const SheetRuns& runs) {
  constexpr std::int64_t kWidth = 8192, kBatch = 64;
  const MachineCard& card = runs.gpus();
  if (card.max_ranks() < 2) return "One device has no gradients to sum with others.";
  const double bytes = 4.0 * kWidth * kWidth;
  const double reduce_s = all_reduce_s(card, bytes, 2);
  const double products_s = products_of_layer_s(card, kWidth, kBatch / 2);
  return fmt::format(
      "A layer of width {} has {} of gradients, which two GPUs sum in {}; its products at batch {} "
      "take two GPUs {}. Both grow with the square of the width, so width matters only where "
      "messages and products are small. The sheet expects the large model to be bound by "
      "computing; at batch {} it is{}.",
      kWidth, human_bytes(static_cast<std::int64_t>(bytes)), time_text(reduce_s), kBatch,
      time_text(products_s), kBatch, products_s > reduce_s ? "" : " not");
}

}  // namespace

const std::vector<SheetName>& sheet_notes() {
  static const std::vector<SheetName> all = {
      {.name = "machine",
       .about = "the machine, and which experiments are INVALID, and why",
       .text = machine_note},
      {.name = "size", .about = "the model measured, and what is simulated", .text = size_note},
      {.name = std::string(kChecklistName),
       .about = "the checklist for benchmarks; a sheet without it has it at its foot",
       .text = checklist_note},
      {.name = "communication.bottleneck",
       .about = "the batch up to which communication is longer",
       .text = bottleneck_note},
      {.name = "communication.bottleneck-why",
       .about = "bytes and flops of a layer",
       .text = bottleneck_reason}};
  return all;
}

}  // namespace barestep
