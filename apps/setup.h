// What the trainers do alike before a run: outputs, data, a look at the step.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/config.h"
#include "core/device.h"
#include "train/dataset.h"
#include "train/step.h"

namespace barestep {

/// Throws Error(kCannotCreate) when a file that the run will write cannot be written; of a run on
/// several devices each has a trace. Throws what require_separate_files() throws.
void require_outputs(const TrainConfig& config, int devices = 1);
/// The same for --trace alone.
void require_trace(const TrainConfig& config, int devices = 1);

/// The files of --data, if there are any. Throws what load_dataset() throws.
std::optional<Dataset> open_data(const TrainConfig& config, DeviceKind kind);

/// What --plan and --explain print; needs no device. `names` are those of the devices, where they
/// have any.
std::string preview(const TrainConfig& config, const StepPrograms& programs,
                    const std::vector<std::string>& names = {});

/// A build for GPUs that trains on the CPU says so on stderr.
void note_missing_gpu(std::string_view program);

}  // namespace barestep
