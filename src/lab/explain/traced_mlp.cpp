#include "lab/explain/traced_mlp.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "core/units.h"
#include "lab/machine_card.h"
#include "lab/prediction.h"
#include "lab/simulator.h"
#include "lab/workload.h"

namespace barestep {
namespace {

struct TracedMlp {
  std::vector<std::int64_t> widths{};
  std::int64_t rows = 0;
};

/// The chain of a step's linear layers: each takes what the one before it gives.
std::optional<TracedMlp> mlp_in(const TracedRank& rank, const RankStep& step) {
  TracedMlp mlp;
  const bool has_modules = std::ranges::any_of(rank.file.linears, &TraceFile::Linear::is_module);
  for (const TraceFile::Linear& each : rank.file.linears) {
    const std::int64_t at_ns = each.at_ns + rank.shift_ns;
    if (at_ns < step.begin_ns || at_ns >= step.end_ns || each.is_module != has_modules) continue;
    if (mlp.widths.empty()) {
      mlp = {{each.inputs}, each.rows};
    } else if (mlp.widths.back() != each.inputs || mlp.rows != each.rows) {
      return std::nullopt;
    }
    mlp.widths.push_back(each.outputs);
  }
  constexpr std::size_t kMaxWidths = 10'001;
  if (mlp.widths.empty() || mlp.widths.size() > kMaxWidths || mlp.rows < 1) return std::nullopt;
  return mlp;
}

/// The optimizer whose step the trace names: "Optimizer.step#Adam.step".
std::optional<OptimizerKind> optimizer_in(const TraceFile& file) {
  for (const std::string& name : file.names) {
    constexpr std::string_view kStep = "Optimizer.step#";
    if (!name.starts_with(kStep)) continue;
    std::string called = name.substr(kStep.size(), name.find('.', kStep.size()) - kStep.size());
    std::ranges::transform(called, called.begin(), [](unsigned char each) {
      return static_cast<char>(std::tolower(each));
    });
    const auto found = std::ranges::find(kNamesOf<OptimizerKind>, called);
    if (found == std::end(kNamesOf<OptimizerKind>)) return std::nullopt;
    return static_cast<OptimizerKind>(found - std::begin(kNamesOf<OptimizerKind>));
  }
  return std::nullopt;
}

/// The card whose name begins with the GPU's model: "h100-nvlink" for "NVIDIA H100 80GB HBM3".
std::string card_for(std::string_view gpu) {
  std::string lower(gpu);
  std::ranges::transform(lower, lower.begin(),
                         [](unsigned char each) { return static_cast<char>(std::tolower(each)); });
  for (const std::string& name : card_names()) {
    if (lower.find(name.substr(0, name.find('-'))) != std::string::npos) return name;
  }
  return "";
}

Workload workload_for(const TracedRun& run, const TracedMlp& mlp, bool on_gpu) {
  const auto ranks = static_cast<int>(run.ranks.size());
  Workload workload{.trainer = ranks == 1 ? TrainerKind::kSingle : TrainerKind::kDdp,
                    .ranks = ranks,
                    .on_gpu = on_gpu,
                    .gpus = ranks};
  TrainConfig& config = workload.config;
  config.model.layers = mlp.widths;
  config.data.batch_size = mlp.rows * ranks;
  if (const auto kind = optimizer_in(run.ranks[0].file)) config.optimizer.kind = *kind;
  return workload;
}

FindingTable prediction_table(const TracedRun& run, const RunAccount& account,
                              const SimulatedStep& step, const std::string& card) {
  FindingTable table{.title = fmt::format("A step in the traces, and predicted for {}", card),
                     .columns = {"part", "in the traces", "predicted (simulated)"}};
  const auto steps = static_cast<double>(account.accounts.size());
  const auto measured_s = [&](auto ns) {
    double sum_ns = 0;
    for (const TracedAccount& each : account.accounts) sum_ns += static_cast<double>(ns(each));
    return 1e-9 * sum_ns / steps;
  };
  for (const Phase phase : {Phase::kForward, Phase::kLoss, Phase::kBackward, Phase::kOptimizer}) {
    const Part part = part_for(phase);
    table.rows.push_back(
        {std::string(name_of(part)),
         time_text(measured_s([&](const TracedAccount& each) { return each.part_ns[part]; })),
         time_text(step.phase_s[phase])});
  }
  if (run.ranks.size() > 1) {
    const Part part = Part::kExposedCommunication;
    table.rows.push_back(
        {std::string(name_of(part)),
         time_text(measured_s([&](const TracedAccount& each) { return each.part_ns[part]; })),
         time_text(step.phase_s[Phase::kCommunication])});
  }
  table.rows.push_back(
      {"wall time", time_text(measured_s([](const TracedAccount& each) { return each.wall_ns; })),
       time_text(step.step_s)});
  return table;
}

}  // namespace

Findings mlp_findings(const TracedRun& run, const RunAccount& account, const std::string& machine) {
  const TracedRank& first = run.ranks.front();
  if (first.file.is_ours || account.accounts.empty()) return {};
  const std::optional<TracedMlp> mlp = mlp_in(first, first.steps.front());
  if (!mlp) return {};
  const std::string name = machine.empty() ? card_for(first.file.gpu) : machine;
  std::optional<MachineCard> card;
  if (!name.empty()) card = load_card(name);
  const Workload workload = workload_for(run, *mlp, card ? card->on_gpu : !first.on_host);
  Findings findings{
      .sentences = {fmt::format(
          "The linear layers are a multi-layer perceptron of widths {} with {} a "
          "rank. The same here: {}",
          fmt::join(mlp->widths, ", "), counted(mlp->rows, "row"), command_line_of(workload))}};
  if (!card) {
    findings.sentences.emplace_back(
        "No prediction beside it: state the card of a machine with --machine.");
  } else if (!can_predict(workload, *card) || workload.ranks > card->max_ranks()) {
    findings.sentences.push_back(
        fmt::format("No prediction beside it: the card of {} has no rates for it.", card->name));
  } else {
    findings.tables.push_back(
        prediction_table(run, account, predicted_run(workload, *card), card->name));
  }
  return findings;
}

}  // namespace barestep
