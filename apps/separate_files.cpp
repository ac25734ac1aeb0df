#include "separate_files.h"

#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/file_pattern.h"

namespace barestep {
namespace {

namespace fs = std::filesystem;

struct Use {
  std::string_view option;
  fs::path path;
};

/// The file that a name leads to, which need not be there, even if a link to it is.
fs::path target_of(fs::path path) {
  constexpr int kMostLinks = 40;  // as the kernel
  std::error_code ignored;
  for (int i = 0; i < kMostLinks && fs::is_symlink(path, ignored); ++i) {
    path = path.parent_path() / fs::read_symlink(path, ignored);
  }
  fs::path canonical = fs::weakly_canonical(fs::absolute(path), ignored);
  return canonical.empty() ? path : canonical;
}

bool are_one_file(const fs::path& a, const fs::path& b) {
  std::error_code ignored;
  if (fs::exists(a, ignored) && !fs::is_regular_file(a, ignored)) return false;
  return fs::equivalent(a, b, ignored) || target_of(a) == target_of(b);
}

[[noreturn]] void refuse(const Use& output, std::string why, std::string remedy) {
  fail(ExitCode::kConfiguration, {.what = std::string(output.option),
                                  .value = output.path.string(),
                                  .why = std::move(why),
                                  .remedy = std::move(remedy)});
}

std::vector<Use> inputs_of(const TrainConfig& config) {
  std::vector<Use> inputs = {{"--load", config.output.load}, {"--config", config.file}};
  for (const fs::path& pattern : {config.data.x, config.data.y}) {
    if (pattern.empty()) continue;
    for (fs::path& file : matching_files(pattern)) inputs.push_back({"--data", std::move(file)});
  }
  std::erase_if(inputs, [](const Use& use) { return use.path.empty(); });
  return inputs;
}

}  // namespace

void require_separate_files(const TrainConfig& config) {
  std::vector<Use> outputs = {{"--metrics", config.output.metrics},
                              {"--save", config.output.save},
                              {"--trace", config.output.trace},
                              {"--autotune", config.device.autotune}};
  std::erase_if(outputs, [](const Use& use) { return use.path.empty(); });
  if (outputs.empty()) return;
  const std::vector<Use> inputs = inputs_of(config);
  for (auto output = outputs.begin(); output != outputs.end(); ++output) {
    for (auto other = outputs.begin(); other != output; ++other) {
      if (!are_one_file(output->path, other->path)) continue;
      refuse(*output, fmt::format("{} writes to the same file", other->option), "give two files");
    }
    for (const Use& input : inputs) {
      if (output->option == "--save" && input.option == "--load") continue;
      if (!are_one_file(output->path, input.path)) continue;
      refuse(*output, fmt::format("{} reads this file, which would be lost", input.option),
             "write to another one");
    }
  }
}

}  // namespace barestep
