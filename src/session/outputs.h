// The outputs of a run: a line that other programs read, and files, with checks that each can be
// written and that none overwrites another.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/config.h"

namespace barestep {

/// What a run prints in front of the hash of its weights at the end.
constexpr std::string_view kWeightsLine = "Weights: xxh3-128 ";

/// A file that a program reads or writes, or a folder that it creates.
struct FileUse {
  std::string option;  // the option as messages show it: "--trace"
  std::filesystem::path path;
  bool is_folder = false;  // may contain other outputs
};

/// Throws Error(kConfiguration) if an output is also an input or another output, under any names,
/// since links are followed; or if it is a file where another output needs a folder. --load and
/// --save may share a file, since weights are read before any are written. Several outputs may
/// share something that is not a regular file, such as /dev/null. Uses without a path are ignored.
void require_separate_files(std::vector<FileUse> outputs, std::vector<FileUse> inputs);

/// Throws Error(kCannotCreate) if a file that this process will write cannot be written. `traces`
/// are this process's own. `of_others` are the files that other processes of the run will write;
/// they are not tried, but must differ from all others. Throws what require_separate_files() throws
/// for all files that the options name, including patterns, and for the measured peaks that
/// --profile writes. Throws Error(kNoInput) for a pattern that matches no file.
void require_outputs(const TrainConfig& config, const std::vector<std::filesystem::path>& traces,
                     const std::vector<FileUse>& of_others = {});

/// The traces of a run with several `what` ("rank", "device"), by number: "f.rank1.json.gz" for
/// "f.json.gz". With only one, the path itself. None for an empty path.
std::vector<std::filesystem::path> trace_files(const std::filesystem::path& path,
                                               std::string_view what, int count);

}  // namespace barestep
