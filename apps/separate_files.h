// No file of a run is lost to another one of the same run.
#pragma once

#include "core/config.h"

namespace barestep {

/// Throws Error(kConfiguration) where an option writes a file that another option reads or writes,
/// by whatever names: patterns and links are followed. --load and --save may share one, since
/// weights are read before any are written. So may several outputs what is no regular file, such as
/// /dev/null. Throws Error(kNoInput) for a pattern that fits no file.
void require_separate_files(const TrainConfig& config);

}  // namespace barestep
