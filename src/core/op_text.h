// An op as a formula people can read.
#pragma once

#include <string>

#include "core/program.h"

namespace barestep {

/// "out0[64x1024] = x[64x1024] * params@4096[1024x1024]^T + params[1x1024], relu". A tensor is its
/// buffer's name, "@" and its offset in bytes unless that is zero, and its shape; "1:" before it
/// names its device where that is not the node's.
std::string text_of(const Program& program, const Node& node);

}  // namespace barestep
