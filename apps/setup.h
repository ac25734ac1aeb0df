// What the trainers do alike before a run: outputs, data, a look at the step.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/config.h"
#include "core/device.h"
#include "data/dataset.h"
#include "separate_files.h"
#include "train/step.h"

namespace barestep {

/// Throws Error(kCannotCreate) when a file that this process will write cannot be written. `traces`
/// are its own. `of_others` is what other processes of the run will write: those files are not
/// tried, but must be others. Throws what require_writable() and require_separate_files() throw.
void require_outputs(const TrainConfig& config, const std::vector<std::filesystem::path>& traces,
                     const std::vector<FileUse>& of_others = {});

/// The files of --data, if there are any. Throws what load_dataset() throws.
std::optional<Dataset> open_data(const TrainConfig& config, DeviceKind kind);

/// What --plan and --explain print; needs no device. `names` are those of the devices, where they
/// have any.
std::string preview(const TrainConfig& config, const StepPrograms& programs,
                    const std::vector<std::string>& names = {});

/// A build for GPUs that trains on the CPU says so on stderr.
void note_missing_gpu(std::string_view program);

}  // namespace barestep
