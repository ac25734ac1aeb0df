// What one communication lane for all axes of a mesh costs, against two: simulated
// for 8 GPUs of a card. Prints a table; bench/results/calculated/communication_lanes.txt keeps it.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "core/program.h"
#include "core/rank_checker.h"
#include "core/units.h"
#include "lab/predict/machine_card.h"
#include "lab/predict/mesh_search.h"
#include "lab/predict/prediction.h"
#include "lab/predict/simulator.h"
#include "lab/predict/workload.h"

namespace barestep {
namespace {

constexpr int kRanks = 8;

/// The second lane is that of the input, which the simulator leaves empty. Tensor ranks have it, or
/// copies of the model if there are none; of three axes, the other two share the first.
Lane lane_of(Axis axis, const Mesh& mesh) {
  const Axis apart = mesh.tensor > 1 ? Axis::kTensor : Axis::kData;
  return axis == apart ? Lane::kCopy : Lane::kComm;
}

Program with_lanes(const Program& program, const Mesh& mesh) {
  Program lanes(program.name(), program.buffers());
  for (Node node : program.nodes()) {
    node.waits.clear();
    if (const auto* const collective = std::get_if<Collective>(&node.op)) {
      node.lane = lane_of(axis_of(*collective), mesh);
    }
    lanes.add(std::move(node));
  }
  order(lanes);
  return lanes;
}

using Change = Program (*)(const Program& program, const Mesh& mesh);

/// Seconds of a step with changed programs.
double simulated_s(const Run& workload, const MachineCard& card, Change change) {
  const NodeSetting run = setting_of(workload, card);
  std::vector<std::unique_ptr<WorkloadPrograms>> programs;
  std::vector<Program> changed;
  for (int stage = 0; stage < run.mesh.pipeline; ++stage) {
    programs.push_back(
        std::make_unique<WorkloadPrograms>(workload, stage * run.mesh.data * run.mesh.tensor));
    changed.push_back(change(programs.back()->step(), run.mesh));
  }
  std::vector<RankProgram> ranks;
  for (std::size_t stage = 0; stage < programs.size(); ++stage) {
    const int rank = static_cast<int>(stage) * run.mesh.data * run.mesh.tensor;
    ranks.push_back({changed[stage], run.mesh.with_rank(rank)});
  }
  const auto seconds = [&](const Program& program, const Node& node) {
    return node_s(program, node, card, run);
  };
  return simulate(ranks, seconds, {.kernel_slowdown = card.links_of(kRanks).kernel_slowdown})
      .front()
      .step_s;
}

void print_rows(const MachineCard& card, const Run& asked) {
  for (const MeshCandidate& each : mesh_candidates(asked, card, kRanks, 0)) {
    const auto& [scheme, tensor, pipeline] =
        std::tie(each.parallel().scheme, each.parallel().tensor, each.parallel().pipeline);
    const int axes = (each.copies() > 1) + (tensor > 1) + (pipeline > 1);
    if (axes < 2 || scheme != SchemeKind::kDdp) continue;
    const double one_s =
        simulated_s(each.run, card, [](const Program& program, const Mesh&) { return program; });
    const double two_s = simulated_s(each.run, card, with_lanes);
    fmt::print("| {} x {}, batch {} | {} | {} | {} | {:+.1f} % |\n", each.run.dim(),
               each.run.depth(), each.run.batch_size(), each.text(), time_text(one_s),
               time_text(two_s), 100 * (two_s / one_s - 1));
  }
}

}  // namespace
}  // namespace barestep

int main(int argc, char** argv) {
  using namespace barestep;
  const MachineCard card = load_card(argc > 1 ? argv[1] : "h200-nvlink");
  fmt::print("Simulated, not measured: a step on {} of {}\n\n", kRanks, card.name);
  fmt::print("| model | mesh | one lane | two lanes | change |\n|---|---|---|---|---|\n");
  for (const std::int64_t depth : {6, 24}) {
    for (const std::int64_t batch : {64, 1024, 16384}) {
      Run asked;
      asked.config.model.depth = depth;
      asked.config.data.batch_size = batch;
      print_rows(card, asked);
    }
  }
}
