// The JSON header of a safetensors file; used by safetensors.cpp only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/safetensors.h"

namespace barestep {

/// A broken header; `why` becomes part of an Error's message.
struct HeaderProblem {
  std::string why;
};

/// The entries of `header`, sorted by their byte ranges. Shape, dtype and range of each agree, and
/// the ranges follow each other from byte 0 on. Throws HeaderProblem.
std::vector<SafetensorsEntry> parse_safetensors_header(std::string_view header);

}  // namespace barestep
