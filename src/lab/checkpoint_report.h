// What a checkpoint's file holds, in words, for people who wonder which run it is of.
#pragma once

#include <filesystem>
#include <string>

namespace barestep {

struct CheckpointReport {
  std::string text;     // tables of the run, of what decides its numbers, and of the tensors
  std::string damaged;  // the first tensor that is not what was written; empty for none
};

/// Reads the whole file and checks every tensor. Throws Error: kNoInput when it cannot be opened,
/// kBadData when it is no checkpoint of a training run, kInputOutput when reading fails. Blocks.
CheckpointReport report_on_checkpoint(const std::filesystem::path& path);

}  // namespace barestep
