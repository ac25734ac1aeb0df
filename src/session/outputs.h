// The files that a run writes: all can be written, and none is lost to another one of the same run.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/config.h"

namespace barestep {

/// A file that a program reads or writes, or a folder that it makes.
struct FileUse {
  std::string option;  // that names it or asks for it, as messages tell it: "--trace"
  std::filesystem::path path;
  bool is_folder = false;  // in which other outputs may lie
};

/// Throws Error(kConfiguration) where an output is an input or another output too, by whatever
/// names: links are followed; or where it is a file that would have to be the folder of another
/// output. --load and --save may share one, since weights are read before any are written. So may
/// several outputs what is no regular file, such as /dev/null. Uses without a path do not count.
void require_separate_files(std::vector<FileUse> outputs, std::vector<FileUse> inputs);

/// Throws Error(kCannotCreate) when a file that this process will write cannot be written. `traces`
/// are its own. `of_others` is what other processes of the run will write: those files are not
/// tried, but must be different ones. Throws what require_separate_files() throws, of all files
/// that the options name, patterns too, and of the measured peaks, which --profile writes; and
/// Error(kNoInput) for a pattern that fits no file.
void require_outputs(const TrainConfig& config, const std::vector<std::filesystem::path>& traces,
                     const std::vector<FileUse>& of_others = {});

/// The traces of a run of so many `what` ("rank", "device"), by number: "f.rank1.json.gz" of
/// "f.json.gz", and where there is one, the path itself. None of an empty path.
std::vector<std::filesystem::path> trace_files(const std::filesystem::path& path,
                                               std::string_view what, int count);

}  // namespace barestep
