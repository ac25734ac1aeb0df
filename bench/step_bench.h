// The table behind the benchmark of the whole step.
#pragma once

#include <string>

namespace barestep::bench {

/// For each whole step that was measured, what its ops took. Empty if none was.
std::string op_tables();

}  // namespace barestep::bench
