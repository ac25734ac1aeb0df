// The card of the machine that it runs on, from measurements.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "core/communicator.h"
#include "core/device.h"
#include "lab/machine.h"
#include "lab/machine_card.h"

namespace barestep {

struct CardRequest {
  Machine machine{};
  bool on_gpu = false;
  bool quick = false;                // fewer sizes, for less long
  std::filesystem::path programs{};  // folder of mlp_lab and the trainers
  std::filesystem::path scratch{};   // is made and removed
  std::function<void(const std::string& what)> on_progress = [](const std::string&) {};
};

/// Measures one device with all its threads, and 1, 2, 4, ... ranks at once, as many as there are
/// cores or GPUs, at most 16; only one where there is no mpirun. Each rank is an
/// `mlp_lab measure-rank`, see write_rank_rates(); what a launch and a step cost the host comes
/// from steps of the trainers on a model that is one number wide. A load during which others
/// disturbed the machine is measured again, up to twice, unless quick. Blocks for about half a
/// minute. Throws Error as run_workload() does.
MachineCard measure_card(const CardRequest& request);

/// What measure_card() has each rank do: measure_rank(), of which rank 0 writes the result to
/// `file`. Throws Error as measure_rank() and replace_file() do.
void write_rank_rates(Communicator& ranks, Communicator& transport, Device& device, bool quick,
                      const std::filesystem::path& file);

}  // namespace barestep
