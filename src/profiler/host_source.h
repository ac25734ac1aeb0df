// The host as the monitor sees it, from Linux's /proc and /sys.
#pragma once

#include <filesystem>
#include <memory>

#include "profiler/monitor.h"

namespace barestep {

/// How busy its cores are, all together and each, this process's part of that, the memory in which
/// this process resides, and the clock of the fastest core. `root` is where proc/ and sys/ lie.
/// What the system does not tell stays untold.
std::unique_ptr<MonitorSource> new_host_source(const std::filesystem::path& root = "/");

}  // namespace barestep
