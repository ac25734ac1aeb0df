// Describes a checkpoint file in words, for people who want to know which run it belongs to.
#pragma once

#include <filesystem>
#include <string>

namespace barestep {

struct CheckpointReport {
  std::string text;     // tables of the run, the settings that decide its numbers, and the tensors
  std::string damaged;  // the first tensor that differs from what was written; empty if none does
};

/// Reads the whole file and checks every tensor. Throws Error: kNoInput if it cannot be opened,
/// kBadData if it is not a checkpoint of a training run, kInputOutput if reading fails. Blocks.
CheckpointReport report_on_checkpoint(const std::filesystem::path& path);

}  // namespace barestep
