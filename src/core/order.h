// Deriving a program's waits from the order of its list.
#pragma once

#include "core/program.h"

namespace barestep {

/// Replaces all waits of the program. Afterwards any two nodes that touch the same bytes, one of
/// them writing, run in the order of the list, within a step and across steps, and every wait is
/// needed: without it some such pair is unordered. core/checker.h proves both independently.
void order(Program& program);

}  // namespace barestep
