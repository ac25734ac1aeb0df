#include "command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <span>
#include <utility>

#include "argument_parser.h"
#include "config_file.h"
#include "options/options.h"

namespace barestep {
namespace {

/// What --help says besides the options.
struct About {
  TrainerKind trainer;
  std::string_view description;
  std::string_view examples;
};

constexpr About kAbout[] = {
    {TrainerKind::kSingle,
     "Trains a multi-layer perceptron on one device, and accounts for every step.",
     R"(Examples:
  mlp_single --dim 1024 --depth 6 --steps 50
  mlp_single --data idx:images.gz,labels.gz --layers 784,512,512,10 --no-last-relu \
      --loss cross-entropy --epochs 5 --test-split 0.2
  mlp_single --plan --dim 8192 --depth 6 --memory 16GiB)"},
    {TrainerKind::kDataParallel,
     "Trains a multi-layer perceptron on several devices of one process, as DataParallel does, "
     "and\n"
     "accounts for every step and device.",
     R"(Examples:
  mlp_dp --devices cuda:0,cuda:1 --batch-size 256
  mlp_dp --devices cpu,cpu,cpu --dim 1024 --depth 2 --show-split
  mlp_dp --devices cuda:0,cuda:1,cuda:2,cuda:3 --plan --memory 16GiB)"},
    {TrainerKind::kDdp,
     "Trains a multi-layer perceptron on many ranks, as DistributedDataParallel does, and "
     "accounts\n"
     "for every step. Started by mpirun or srun, each process is a rank; alone it is one rank.",
     R"(Examples:
  mpirun -np 4 mlp_ddp --dim 1024 --depth 2
  mpirun -np 2 mlp_ddp --global-batch-size 128 --bucket-mib 4 --no-overlap
  srun -n 8 --mpi=pmix mlp_ddp --batch-size 32 --slow-rank 1:20)"},
};

/// Applies the file's options, less those that the command line replaces, then the command line's.
CommandLine merge(std::span<const Option> options, const std::map<std::string_view, Given>& typed,
                  std::map<std::string_view, Given> in_file) {
  std::vector<std::string_view> overridden;
  const auto drop = [&](std::string_view name) {
    if (in_file.erase(name) > 0) overridden.push_back(name);
  };
  for (const Option& option : options) {
    if (!typed.contains(option.name)) continue;
    drop(option.name);
    for (const std::string_view other : option.replaces) drop(other);
  }
  CommandLine result;
  for (const auto& given : {typed, in_file}) {
    for (const Option& option : options) {
      const auto found = given.find(option.name);
      if (found != given.end()) option.value.read(found->second, result.config);
    }
  }
  if (!overridden.empty()) {
    result.note =
        fmt::format("the command line wins over the config file: {}", fmt::join(overridden, ", "));
  }
  return result;
}

}  // namespace

CommandLine parse_command_line(TrainerKind trainer, const std::vector<std::string>& arguments) {
  const About& about = *std::ranges::find(kAbout, trainer, &About::trainer);
  ArgumentParser parser(name_of(trainer), BARESTEP_VERSION, about.description, about.examples);
  std::map<std::string_view, Given> typed;
  for (const Option& option : options_of(trainer)) {
    const auto keep = [&typed, &option](const Given& given) { typed.emplace(option.name, given); };
    parser.program().add({.name = fmt::format("--{}", option.name),
                          .type = is_flag(option) ? "" : std::string(option.value.argument),
                          .help = help_of(option),
                          .group = std::string(option.group),
                          .read = keep});
  }
  std::filesystem::path config;
  parser.program().add({.name = "--config",
                        .type = "FILE",
                        .help = "JSON object of these options; the command line wins over it",
                        .group = "Files",
                        .read = [&config](const Given& given) { config = file_path(given); }});
  if (std::string answer = parser.parse(arguments); !answer.empty()) {
    return {.config = {}, .answer = std::move(answer), .note = {}};
  }
  std::map<std::string_view, Given> in_file;
  if (!config.empty()) in_file = read_config_file(trainer, config);
  CommandLine line = merge(options_of(trainer), typed, std::move(in_file));
  line.config.file = config;
  return line;
}

}  // namespace barestep
