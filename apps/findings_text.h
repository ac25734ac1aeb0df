// What mlp_lab found, as a terminal shows it.
#pragma once

#include <string>
#include <vector>

#include "lab/findings.h"
#include "lab/published.h"

namespace barestep {

/// The sentences, then each table.
std::string text_of(const Findings& findings);

/// A table of published numbers beside ours.
std::string text_of(const std::vector<PublishedNumber>& numbers);

}  // namespace barestep
