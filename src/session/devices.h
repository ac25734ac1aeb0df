// Several devices of this process that share a step, and the job of such a process.
#pragma once

#include <memory>

#include "core/config.h"
#include "session/job.h"
#include "session/place.h"

namespace barestep {

/// --devices, or all that --device allows; joined by what --transport asks for.
std::unique_ptr<Place> several_devices();

/// This process alone, under a watchdog: a device that hangs would keep it for ever. It ends it
/// with one line of `program` and code 75 when a step lasts longer than --timeout.
std::unique_ptr<Job> watched_job(const char* program, const TrainConfig& config);

}  // namespace barestep
