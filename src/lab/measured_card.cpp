#include "lab/measured_card.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "core/error.h"
#include "core/host_cpus.h"
#include "core/json_document.h"
#include "core/output_file.h"
#include "core/units.h"
#include "lab/child_process.h"
#include "lab/cost_model.h"
#include "lab/measurement.h"
#include "lab/rank_rates.h"
#include "lab/run_workload.h"
#include "lab/step_programs.h"
#include "lab/words.h"

namespace barestep {
namespace {

using nlohmann::json;

constexpr int kMostMeasuredRanks = 16;
constexpr int kMostTries = 3;
constexpr std::int64_t kMostRatesBytes = std::int64_t{16} << 20;

/// One device with all cores, and ranks with one each; on GPUs ranks alone.
std::vector<MachineLoad> loads_of(const CardRequest& request) {
  const int units = request.on_gpu ? request.machine.gpus : request.machine.cores;
  std::vector<MachineLoad> loads;
  if (!request.on_gpu && units > 1) loads.push_back({.ranks = 1, .threads = units});
  const bool has_mpirun = !find_on_path("mpirun").empty();
  // Two ranks on a single core are measured too: there is no other way to know the link.
  const int most = request.on_gpu ? units : std::max(units, 2);
  for (int ranks = 1; ranks <= std::min(most, kMostMeasuredRanks); ranks *= 2) {
    if (ranks == 1 || has_mpirun) {
      loads.push_back({.ranks = ranks, .threads = request.on_gpu ? 0 : 1});
    }
  }
  return loads;
}

std::string text_of(const MachineLoad& load) {
  return fmt::format("rates of {}{}", counted(load.ranks, "rank"),
                     load.threads > 1 ? fmt::format(" with {} threads", load.threads) : "");
}

/// Fills in what the ranks measure. Returns what others took of the cores meanwhile.
double measure_rates(const CardRequest& request, MachineLoad& load) {
  const std::filesystem::path file = request.scratch / "rank-rates.json";
  std::vector<std::string> command;
  const bool is_alone = load.ranks == 1;
  if (!is_alone) command = {find_on_path("mpirun"), "-np", std::to_string(load.ranks)};
  command.insert(command.end(),
                 {(request.programs / "mlp_lab").string(), "measure-rank", "--output",
                  file.string(), "--device", request.on_gpu ? "cuda" : "cpu"});
  if (load.threads > 0) {
    command.insert(command.end(), {"--threads", std::to_string(load.threads)});
  }
  if (request.quick) command.emplace_back("--quick");
  if (is_alone) command.emplace_back("--alone");
  const CoreWatch watch;
  const ChildResult child = run_child(command, mpi_environment());
  const double others_share = watch.others_share(child.cpu_s);
  if (child.exit_code != 0) {
    fail(ExitCode::kTryAgain,
         {.what = "rates of this machine",
          .value = counted(load.ranks, "rank"),
          .why = fmt::format("measuring ended with code {}: {}", child.exit_code,
                             child.err.substr(0, child.err.find('\n'))),
          .remedy = "run the same command again"});
  }
  const JsonDocument measured(file, kMostRatesBytes, "rates of this machine",
                              "run the same command again");
  read_measured(measured.root(), load);
  return others_share;
}

/// A model of nearly no work: what is left is launches and the host.
Workload tiny_workload(const CardRequest& request, const MachineLoad& load, std::int64_t depth) {
  const bool is_single = load.ranks == 1 && (load.threads != 1 || find_on_path("mpirun").empty());
  Workload workload{.trainer = is_single ? TrainerKind::kSingle : TrainerKind::kDdp,
                    .ranks = load.ranks,
                    .on_gpu = request.on_gpu};
  TrainConfig& config = workload.config;
  config.model.dim = 1;
  config.model.depth = depth;
  config.data.batch_size = load.ranks;
  config.training.steps = request.quick ? 100 : 400;
  config.device.device = request.on_gpu ? "cuda" : "cpu";
  if (load.threads > 0) config.device.threads = load.threads;
  return workload;
}

void measure_host(const CardRequest& request, MachineCard& card, MachineLoad& load) {
  const auto step_s = [&](std::int64_t depth) {
    const Case what{.key = "tiny", .workload = tiny_workload(request, load, depth)};
    return Measurement(what, {run_workload(what, request.programs, request.scratch)})
        .step_s()
        .median;
  };
  const auto nodes = [&](std::int64_t depth) {
    return WorkloadPrograms(tiny_workload(request, load, depth)).step().size();
  };
  constexpr std::int64_t kShallow = 2, kDeep = 22;
  const double shallow_s = step_s(kShallow);
  load.launch_s = std::max(0.0, step_s(kDeep) - shallow_s) / (nodes(kDeep) - nodes(kShallow));
  MachineCard only = card;
  only.loads = {load};
  only.loads.front().host_s = 0;
  const double rest_s = predicted_run(tiny_workload(request, load, kShallow), only).step_s;
  load.host_s = std::max(0.0, shallow_s - rest_s);
}

/// What cards without loads have too: of large products and copies, of the load with most threads.
void summarise(MachineCard& card) {
  const MachineLoad& first = card.loads.front();
  for (const OpRate& each : first.rates) {
    double* best = each.op.starts_with("gemm") ? &card.flops_per_s : nullptr;
    if (best != nullptr) *best = std::max(*best, each.rate);
    // The largest copy, which no cache holds.
    if (each.op == "copy") card.memory_bytes_per_s = each.rate;
  }
  card.launch_s = first.launch_s;
  card.host_s = first.host_s;
  const MachineLoad& last = card.loads.back();
  if (last.all_reduce.empty()) return;
  card.node.table = {last.ranks, last.all_reduce};
  card.node.latency_s = last.all_reduce.front().second;
}

}  // namespace

MachineCard measure_card(const CardRequest& request) {
  const Machine& machine = request.machine;
  const int units = request.on_gpu ? machine.gpus : machine.cores;
  MachineCard card{.name = fmt::format("this machine, {} {}",
                                       request.on_gpu ? machine.gpu : machine.processor,
                                       request.on_gpu ? fmt::format("x {}", units)
                                                      : "with " + counted(units, "core"))};
  card.on_gpu = request.on_gpu;
  card.node_ranks = units;
  std::filesystem::create_directories(request.scratch);
  for (MachineLoad& load : loads_of(request)) {
    request.on_progress(text_of(load));
    MachineLoad tried = load;
    double least = 2;
    for (int i = 0; i < (request.quick ? 1 : kMostTries) && least > kDisturbingShare; ++i) {
      const double others_share = measure_rates(request, tried);
      if (others_share < least) load = tried;
      least = std::min(least, others_share);
    }
    card.others_share = std::max(card.others_share, least);
    measure_host(request, card, load);
    card.loads.push_back(load);
  }
  std::filesystem::remove_all(request.scratch);
  summarise(card);
  return card;
}

void write_rank_rates(Communicator& ranks, Communicator& transport, Device& device, bool quick,
                      const std::filesystem::path& file) {
  const RankRates measured = measure_rank(ranks, transport, device, quick);
  if (ranks.rank() != 0) return;
  json rates = json::array();
  for (const OpRate& each : measured.rates) {
    rates.push_back({each.op, each.rows, each.width, each.rate});
  }
  json all = {{"rates", std::move(rates)}, {"contention", measured.contention}};
  if (!measured.all_reduce.empty()) all["all_reduce"] = measured.all_reduce;
  const std::string text = all.dump() + "\n";
  const std::array parts = {std::as_bytes(std::span(text))};
  replace_file(file, parts);
}

}  // namespace barestep
