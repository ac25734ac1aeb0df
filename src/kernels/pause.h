// The processor's spin-wait hint.
#pragma once

namespace barestep {

/// Tells the core that this thread spins: saves power and yields to its hyper-thread. One source
/// file per kind of processor, chosen by CMake.
void pause_briefly();

}  // namespace barestep
