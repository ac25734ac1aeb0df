// No file of a run is lost to another one of the same run.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "core/config.h"

namespace barestep {

/// A file that a program reads or writes, or a folder that it makes.
struct FileUse {
  std::string option;  // that names it or asks for it, as messages tell it: "--trace"
  std::filesystem::path path;
};

/// Throws Error(kConfiguration) where an output is an input or another output too, by whatever
/// names: links are followed; or where it is a file that would have to be the folder of another
/// output. --load and --save may share one, since weights are read before any are written. So may
/// several outputs what is no regular file, such as /dev/null. Uses without a path do not count.
void require_separate_files(std::vector<FileUse> outputs, std::vector<FileUse> inputs);

/// The same for a run: of all files that its options name, patterns too, and of the measured peaks,
/// which --profile writes. `traces` are those of all its devices and ranks; `more` is what it
/// writes beside that. Throws Error(kNoInput) for a pattern that fits no file.
void require_separate_files(const TrainConfig& config,
                            std::span<const std::filesystem::path> traces,
                            std::span<const FileUse> more = {});

}  // namespace barestep
