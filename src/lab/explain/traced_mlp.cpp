#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "core/index.h"
#include "core/lookup.h"
#include "core/units.h"
#include "lab/explain/explain_report.h"
#include "lab/predict/machine_card.h"
#include "lab/predict/prediction.h"
#include "lab/predict/simulator.h"
#include "lab/predict/workload.h"

namespace barestep {
namespace {

/// What a rank's steps train, as far as the trace tells.
struct TracedMlp {
  std::vector<std::int64_t> widths{};
  std::int64_t rows = 0;        // of a micro-batch
  std::int64_t accumulate = 1;  // micro-batches of a step
  bool is_shared = false;       // each layer, by all ranks: tensor parallelism
  Activation activation = Activation::kNone;
  bool last_activation = false;
  std::optional<LossKind> loss{};
};

/// A forward pass: the linear layers, and the other ops that tell what the model is.
struct TracedPass {
  std::vector<TraceFile::Linear> linears{};
  std::vector<Activation> activations{};
  std::size_t sums = 0;       // over ranks, each after a pair of layers
  bool has_other_op = false;  // after the newest layer
  bool has_loss = false;
  bool is_mlp = true;
};

constexpr std::pair<std::string_view, Activation> kTracedActivations[] = {
    {"aten::relu", Activation::kRelu},
    {"aten::relu_", Activation::kRelu},
    {"aten::gelu", Activation::kGelu},
    {"aten::silu", Activation::kSilu},
    {"aten::silu_", Activation::kSilu},
    {"aten::tanh", Activation::kTanh},
    {"aten::sigmoid", Activation::kSigmoid},
    {"aten::leaky_relu", Activation::kLeakyRelu},
    {"aten::leaky_relu_", Activation::kLeakyRelu}};

constexpr std::pair<std::string_view, LossKind> kTracedLosses[] = {
    {"aten::mse_loss", LossKind::kMse},
    {"aten::l1_loss", LossKind::kL1},
    {"aten::huber_loss", LossKind::kHuber},
    {"aten::cross_entropy_loss", LossKind::kCrossEntropy},
    {"aten::binary_cross_entropy_with_logits", LossKind::kBce}};

/// Whether an op of the forward pass belongs to a layer that a multi-layer perceptron lacks, or may
/// have one in it: compiled kernels do not tell.
bool is_foreign_layer(std::string_view op) {
  constexpr std::string_view kForeign[] = {"aten::conv",       "aten::embedding",
                                           "aten::layer_norm", "aten::batch_norm",
                                           "aten::lstm",       "aten::gru",
                                           "aten::bmm",        "aten::scaled_dot_product_attention",
                                           "aten::group_norm", "aten::rms_norm",
                                           "aten::softmax",    "aten::baddbmm",
                                           "fbgemm::",         "Torch-Compiled Region",
                                           "CompiledFunction"};
  return op == "aten::add" || std::ranges::any_of(kForeign, [&](std::string_view layer) {
           return op.starts_with(layer);
         });
}

/// Whether an op may stand between two layers of a multi-layer perceptron.
bool is_between_layers(std::string_view op) {
  constexpr std::string_view kPlain[] = {"aten::linear",    "aten::addmm",   "aten::t",
                                         "aten::transpose", "aten::dropout", "aten::view",
                                         "aten::reshape",   "aten::empty",   "aten::detach",
                                         "aten::to",        "aten::alias",   "aten::_to_copy"};
  return found_in(kTracedActivations, op) != nullptr ||
         std::ranges::find(kPlain, op) != std::end(kPlain) || op.find("c10d") != op.npos ||
         op.find("::") == op.npos;
}

/// Collects the forward passes of a trace and where optimizer steps end among them. A pass ends
/// when backward begins.
class PassReader {
 public:
  explicit PassReader(const TracedRank& rank) : file_(rank.file) {
    has_modules_ = std::ranges::any_of(file_.linears, &TraceFile::Linear::is_module);
    const std::int64_t begin_ns = rank.steps.front().begin_ns - rank.shift_ns;
    const std::int64_t end_ns = rank.steps.back().end_ns - rank.shift_ns;
    for (const TraceEvent& event : file_.events) {
      if (event.begin_ns >= begin_ns && event.begin_ns < end_ns) read(event);
    }
  }

  /// Nothing if the passes are not those of one multi-layer perceptron.
  [[nodiscard]] std::optional<TracedMlp> mlp() const {
    if (passes_.empty()) return std::nullopt;
    TracedMlp mlp{.loss = loss_};
    for (const TracedPass& pass : passes_) {
      const std::vector<std::int64_t> widths = widths_of(pass);
      if (widths.empty() || (!mlp.widths.empty() && mlp.widths != widths)) return std::nullopt;
      const bool is_shared = pass.sums > 0;
      if (is_shared && 2 * pass.sums != pass.linears.size()) return std::nullopt;
      mlp.is_shared = is_shared;
      mlp.widths = widths;
      mlp.rows = std::max(mlp.rows, pass.linears.front().rows);
    }
    const TracedPass& first = passes_.front();
    if (!first.activations.empty()) mlp.activation = first.activations.front();
    mlp.last_activation = first.activations.size() == first.linears.size();
    mlp.accumulate = static_cast<std::int64_t>(micro_batches());
    return mlp;
  }

 private:
  void read(const TraceEvent& event) {
    const std::string_view name = file_.names[event.name];
    if (event.kind == TraceEvent::Kind::kAnnotation && name.starts_with("Optimizer.step#")) {
      passes_at_step_.push_back(passes_.size());
    }
    if (event.kind != TraceEvent::Kind::kOp) return;
    if (event.is_backward) {
      if (!pass_.linears.empty()) passes_.push_back(std::exchange(pass_, {}));
      backward_until_ns_[event.row] = std::max(backward_until_ns_[event.row], event.end_ns);
    }
    if (event.begin_ns < backward_until_ns_[event.row]) return;  // recomputes, if it is a layer
    if (const auto* const loss = found_in(kTracedLosses, name)) {
      loss_ = *loss;
      pass_.has_loss = true;
    }
    if (const auto* const activation = found_in(kTracedActivations, name)) {
      pass_.activations.push_back(*activation);
    }
    if (is_foreign_layer(name)) pass_.is_mlp = false;
    const bool is_inside = event.begin_ns < outermost_until_ns_[event.row];
    if (!is_inside) outermost_until_ns_[event.row] = event.end_ns;
    if (!is_inside && !is_between_layers(name)) pass_.has_other_op = true;
    const bool sums = name == "_c10d_functional::all_reduce" || name == "c10d::allreduce_";
    if (sums && !pass_.linears.empty() && !pass_.has_loss) {
      ++pass_.sums;
      if (pass_.linears.size() != 2 * pass_.sums) pass_.is_mlp = false;
    }
    const TraceFile::Linear* const linear = file_.linear_of(event);
    if (linear == nullptr || linear->is_module != has_modules_) return;
    // Behind another op it is no next layer.
    if (!pass_.linears.empty() && pass_.has_other_op) pass_.is_mlp = false;
    pass_.has_other_op = false;
    pass_.linears.push_back(*linear);
  }

  /// Each layer takes what the one before it gives, and one activation follows all, perhaps but
  /// for the last.
  [[nodiscard]] static std::vector<std::int64_t> widths_of(const TracedPass& pass) {
    constexpr std::size_t kMaxLayers = 10'000;
    const std::size_t count = pass.activations.size(), layers = pass.linears.size();
    const bool fits = count == 0 || count == layers || count + 1 == layers;
    const bool same = std::ranges::all_of(
        pass.activations, [&](Activation kind) { return kind == pass.activations.front(); });
    if (!pass.is_mlp || !fits || !same || layers > kMaxLayers) return {};
    std::vector<std::int64_t> widths = {pass.linears.front().inputs};
    for (const TraceFile::Linear& layer : pass.linears) {
      const bool follows = layer.inputs == widths.back() && layer.rows == pass.linears.front().rows;
      if (!follows || layer.rows < 1 || layer.inputs < 1 || layer.outputs < 1) return {};
      widths.push_back(layer.outputs);
    }
    return widths;
  }

  /// Between the first optimizer step and the next one; if there is only one, before it.
  [[nodiscard]] std::size_t micro_batches() const {
    const std::vector<std::size_t>& at = passes_at_step_;
    const std::size_t passes = at.empty() ? 1 : at.size() == 1 ? at[0] : at[1] - at[0];
    return std::max<std::size_t>(1, passes);
  }

  const TraceFile& file_;
  bool has_modules_ = false;
  TracedPass pass_;
  std::vector<TracedPass> passes_;
  std::vector<std::size_t> passes_at_step_;  // how many there were at each optimizer step
  std::map<TraceIndex, std::int64_t> backward_until_ns_, outermost_until_ns_;  // by thread
  std::optional<LossKind> loss_;
};

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

/// The optimizer whose step the trace names: "Optimizer.step#Adam.step".
std::optional<OptimizerKind> optimizer_in(const TraceFile& file) {
  for (const std::string& name : file.names) {
    constexpr std::string_view kStep = "Optimizer.step#";
    if (!name.starts_with(kStep)) continue;
    return value_named<OptimizerKind>(
        lower(name.substr(kStep.size(), name.find('.', kStep.size()) - kStep.size())));
  }
  return std::nullopt;
}

/// Whether updates are of several optimizers, of one that is none of ours, or have passes in them.
bool has_other_updates(const TraceFile& file) {
  const auto optimizers = std::ranges::count_if(
      file.names, [](std::string_view name) { return name.starts_with("Optimizer.step#"); });
  return optimizers > 1 || (optimizers == 1 && !optimizer_in(file)) || has_passes_in_update(file);
}

/// The card whose name begins with the GPU's model: "h100-nvlink" for "NVIDIA H100 80GB HBM3".
std::string card_for(std::string_view gpu) {
  const std::string model = lower(std::string(gpu));
  for (const std::string& name : card_names()) {
    if (model.find(name.substr(0, name.find('-'))) != std::string::npos) return name;
  }
  return "";
}

/// How many ranks the run had: as many as there are files, or as a file or its collectives tell.
int ranks_of(const TracedRun& run) {
  const TraceFile& first = run.ranks.front().file;
  auto ranks = static_cast<int>(std::max<std::int64_t>(std::ssize(run.ranks), first.world_size));
  for (const TracedCollective& collective : first.collectives) {
    ranks = std::max(ranks, collective.ranks);
  }
  return ranks;
}

/// Whether PyTorch's FSDP shards the model, by either of its interfaces.
bool is_fully_sharded(const TraceFile& file) {
  return std::ranges::any_of(file.names, [](std::string_view name) {
    return name.starts_with("FSDP::") || name.starts_with("FullyShardedDataParallel.");
  });
}

Workload workload_for(const TracedRun& run, const TracedMlp& mlp, bool on_gpu) {
  const int ranks = ranks_of(run);
  Workload workload{{.ranks = ranks, .on_gpu = on_gpu, .gpus = ranks}};
  TrainConfig& config = workload.config;
  config.model.layers = mlp.widths;
  config.model.activation = mlp.activation;
  config.model.last_relu = mlp.last_activation || mlp.activation == Activation::kNone;
  config.data.batch_size = mlp.is_shared ? mlp.rows : mlp.rows * ranks;
  if (mlp.is_shared) {
    config.parallel.tensor = ranks;
    for (std::size_t i = 1; i < config.model.layers.size(); i += 2) config.model.layers[i] *= ranks;
  }
  config.parallel.scheme = ranks == 1                            ? SchemeKind::kSingle
                           : is_fully_sharded(run.ranks[0].file) ? SchemeKind::kZero3
                                                                 : SchemeKind::kDdp;
  config.training.accumulate = mlp.accumulate;
  config.model.loss = mlp.loss.value_or(LossKind::kMse);
  if (takes_labels(config.model.loss)) {
    config.data.kind = DataKind::kSafetensors;
    config.data.x = "FILE";
    workload.data_rows = workload.step_samples();
  }
  if (const auto kind = optimizer_in(run.ranks[0].file)) config.optimizer.kind = *kind;
  return workload;
}

FindingTable prediction_table(const TracedRun& run, const RankSum& measured,
                              const SimulatedStep& step, const std::string& card) {
  FindingTable table{.title = fmt::format("A step in the traces, and predicted for {}", card),
                     .columns = {"part", "in the traces", "predicted (simulated)"}};
  std::vector parts = {Part::kForward, Part::kLoss, Part::kBackward, Part::kOptimizer};
  if (run.ranks.size() > 1) parts.push_back(Part::kExposedCommunication);
  for (const Part part : parts) {
    table.rows.push_back({std::string(name_of(part)),
                          time_text(measured.step_s(measured.part_ns[part])),
                          time_text(step.account[part])});
  }
  table.rows.push_back(
      {"wall time", time_text(measured.step_s(measured.wall_ns)), time_text(step.step_s)});
  return table;
}

}  // namespace

Findings mlp_findings(const TracedRun& run, const RunAccount& account, const std::string& machine) {
  const TracedRank& first = run.ranks.front();
  if (first.file.is_ours || account.accounts.empty()) return {};
  // A stage of a pipeline has some of the layers.
  const bool is_stage = std::ranges::any_of(first.file.collectives, &TracedCollective::is_message);
  const std::optional<TracedMlp> mlp = PassReader(first).mlp();
  if (!mlp || is_stage || has_other_updates(first.file)) return {};
  const std::string name = machine.empty() ? card_for(first.file.gpu) : machine;
  std::optional<MachineCard> card;
  if (!name.empty()) card = load_card(name);
  const Workload workload = workload_for(run, *mlp, card ? card->on_gpu : !first.on_host);
  Findings findings{
      .timed = {fmt::format(
          "The model is a multi-layer perceptron of widths {} with {} a rank{}. The same here: {}, "
          "and what a trace does not tell: --lr, dropout, the precision",
          fmt::join(workload.config.model.layers, ", "), counted(mlp->rows, "row"),
          mlp->accumulate == 1 ? "" : fmt::format(" in each of {} micro-batches", mlp->accumulate),
          command_line_of(workload))}};
  if (!card) {
    findings.timed.emplace_back(
        "No prediction beside it: state the card of a machine with --machine.");
  } else if (workload.ranks > card->max_ranks()) {
    findings.timed.push_back(fmt::format("No prediction beside it: the card of {} has {}.",
                                         card->name, counted(card->max_ranks(), "device")));
  } else if (const std::string why = why_no_prediction(workload, *card); !why.empty()) {
    findings.timed.push_back(fmt::format("No prediction beside it: {}.", why));
  } else {
    findings.tables.push_back(
        prediction_table(run, rank_sum(account), predicted_run(workload, *card), card->name));
    findings.timed.emplace_back(error_note(*card));
  }
  return findings;
}

}  // namespace barestep
