// Searches the best mesh for a number of ranks and the memory of each: every cut of the model into
// tensor ranks and stages, with every scheme, is planned, and simulated if it may be among the
// fastest.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lab/predict/asked_run.h"
#include "lab/predict/machine_card.h"
#include "lab/predict/simulator.h"
#include "lab/report/findings.h"

namespace barestep {

/// A way in which the ranks could share the model and its batches.
struct MeshCandidate {
  Run run{};
  std::int64_t bytes = 0;  // of the rank that needs most, by its plan
  SimulatedStep step{};    // of those that fit

  [[nodiscard]] const ParallelConfig& parallel() const { return run.config.parallel; }
  [[nodiscard]] std::int64_t per_copy() const { return parallel().tensor * parallel().pipeline; }
  [[nodiscard]] std::int64_t copies() const { return run.ranks / per_copy(); }
  /// "zero1, 2 copies on 2 stages of 2 tensor ranks, 1f1b with 8 micro-batches".
  [[nodiscard]] std::string text() const;
};

struct MeshSearch {
  /// Those that fit first, the fastest of them first; then the others, by what they need.
  std::vector<MeshCandidate> candidates{};
  /// Meshes that were not built: with more micro-batches than another one, whose stages without
  /// their waits for each other are slower than the fastest.
  std::int64_t passed_over = 0;
};

/// Of the meshes that the trainer accepts. `asked` states all but scheme and cut. A pipeline has 1,
/// 2, 4 or 8 times as many micro-batches as stages. Throws Error(kConfiguration) if the machine has
/// fewer devices, or no rate for the precision.
MeshSearch search_meshes(const Run& asked, const MachineCard& card, int ranks,
                         std::int64_t memory_bytes);

/// The best one and the reasons in sentences, and a table of the candidates. Throws also
/// Error(kMemory) if none fits, and Error(kConfiguration) for one rank and if there is none.
Findings best_mesh(const Run& asked, const MachineCard& card, int ranks, std::int64_t memory_bytes);

}  // namespace barestep
