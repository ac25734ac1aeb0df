// The exchanges of a pipeline's stage with its neighbors, where stages are ranks.
#pragma once

#include <vector>

#include "train/draft.h"

namespace barestep {

/// Hooks that add a SendReceive wherever exchanges_of_stage() has an exchange. `of_stages` are the
/// passes of all stages. The draft must outlive the hooks.
StageHooks stage_exchanges(Draft& draft, const std::vector<PassSchedule>& of_stages);

}  // namespace barestep
