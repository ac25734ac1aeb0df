// The machine that a study runs on, and its measured card.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lab/predict/machine_card.h"
#include "lab/study/rank_bench.h"

namespace barestep {

struct Machine {
  std::string processor{};
  int cores = 1;  // available to this process
  std::int64_t memory_bytes = 0;
  std::string gpu{};  // empty if there is none
  int gpus = 0;
  std::string system{};  // kernel name and version

  friend bool operator==(const Machine&, const Machine&) = default;
};

/// Opens the first GPU, if there is one.
Machine this_machine();

/// Names and values for reports.
std::vector<std::pair<std::string, std::string>> facts_of(const Machine& machine);

struct CardRequest {
  Machine machine{};
  bool on_gpu = false;
  bool quick = false;                // fewer sizes, to take less time
  std::filesystem::path programs{};  // folder of mlp_lab and the trainers
  std::filesystem::path scratch{};   // created and removed
  std::function<void(const std::string& what)> on_progress = [](const std::string&) {};
};

/// Measures one device with all its threads, and 1, 2, 4, ... ranks at once, up to the number of
/// cores or GPUs and at most 16; without mpirun, only one. Each rank is an `mlp_lab measure-rank`,
/// see write_rank_rates(). The host's cost of a launch and of a step comes from steps of the
/// trainers on a model that is one number wide. A load is measured again, up to twice, if other
/// programs disturb it or the hypervisor moves the cores meanwhile. Blocks for about a minute.
/// Throws Error as run_workload() does.
MachineCard measure_once(const CardRequest& request);

/// How often a machine is measured. A virtual one shares its memory with others: for tens of
/// seconds an update may take half as long again.
constexpr int passes_of(bool quick, bool on_gpu) {
  return quick ? 1 : on_gpu ? 3 : 5;
}

/// The card with the medians of these passes of measure_once(), one or more: of those that nothing
/// disturbed, or the one that was disturbed least. A load has rates for each arrangement of the
/// cores that the passes met, that of most passes first.
MachineCard median_card(std::vector<MachineCard> passes);

/// All passes, one after the other. A study spreads them over its time.
MachineCard measure_card(const CardRequest& request);

/// The card for cores that are so far apart (core/host.h): of loads with the same ranks and
/// threads, those that were measured so, if there are any. A hypervisor may move cores at any time.
MachineCard in_arrangement(MachineCard card, double core_distance_s);

/// What each rank runs for measure_once(): measures the rates of ops and the times of exchanges, on
/// all ranks at once; rank 0 writes them to `file`. Takes some tens of milliseconds
/// per size, and 128 MiB of memory, on a GPU 4 GiB, which it frees. Throws Error(kMemory),
/// and as replace_file() does. Blocks.
void write_rank_rates(const MeasuringRank& rank, bool quick, const std::filesystem::path& file);

}  // namespace barestep
