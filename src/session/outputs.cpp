#include "session/outputs.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "core/input_file.h"
#include "core/output_file.h"
#include "profiler/peaks.h"

namespace barestep {
namespace {

namespace fs = std::filesystem;

/// The file that a path resolves to. It need not exist, even if a link to it does.
fs::path target_of(fs::path path) {
  constexpr int kMaxLinks = 40;  // as in the kernel
  std::error_code ignored;
  for (int i = 0; i < kMaxLinks && fs::is_symlink(path, ignored); ++i) {
    path = path.parent_path() / fs::read_symlink(path, ignored);
  }
  fs::path canonical = fs::weakly_canonical(fs::absolute(path), ignored);
  return canonical.empty() ? path : canonical;
}

/// Identifies a file: the path it resolves to, and its inode if it exists.
struct NamedFile {
  FileUse use;
  std::string target;  // empty if the file may be shared
  std::pair<dev_t, ino_t> inode{};
};

NamedFile named_file(FileUse use) {
  struct stat status {};
  const bool exists = ::stat(use.path.c_str(), &status) == 0;
  NamedFile file{.use = std::move(use), .target = {}};
  if (exists && !S_ISREG(status.st_mode)) return file;
  file.target = target_of(file.use.path).string();
  if (exists) file.inode = {status.st_dev, status.st_ino};
  return file;
}

std::vector<NamedFile> named_files(std::vector<FileUse> uses) {
  std::vector<NamedFile> files;
  for (FileUse& use : uses) {
    if (!use.path.empty()) files.push_back(named_file(std::move(use)));
  }
  return files;
}

bool are_one_file(const NamedFile& a, const NamedFile& b) {
  if (a.target.empty() || b.target.empty()) return false;
  return a.target == b.target || (a.inode == b.inode && a.inode != std::pair<dev_t, ino_t>());
}

bool is_below(const NamedFile& file, const NamedFile& folder) {
  return !folder.target.empty() && file.target.starts_with(folder.target + "/");
}

[[noreturn]] void refuse(const FileUse& output, std::string why, std::string remedy) {
  fail(ExitCode::kConfiguration,
       {output.option, output.path.string(), std::move(why), std::move(remedy)});
}

void require_two_outputs(const NamedFile& a, const NamedFile& b) {
  if (are_one_file(a, b)) {
    refuse(a.use, fmt::format("{} writes to the same file", b.use.option), "give two files");
  }
  for (const auto& [file, folder] : {std::pair(&a, &b), std::pair(&b, &a)}) {
    if (folder->use.is_folder || !is_below(*file, *folder)) continue;
    refuse(file->use,
           fmt::format("{} writes the file '{}', which would have to be a folder",
                       folder->use.option, folder->use.path.string()),
           "give two names");
  }
}

std::vector<FileUse> inputs_of(const TrainConfig& config) {
  std::vector<FileUse> inputs = {{"--load", config.output.load},
                                 {"--resume-from", config.checkpoint.resume_from},
                                 {"--config", config.file}};
  for (const fs::path& pattern : {config.data.x, config.data.y}) {
    if (pattern.empty()) continue;
    for (fs::path& file : matching_files(pattern)) inputs.push_back({"--data", std::move(file)});
  }
  return inputs;
}

fs::path numbered_trace(const fs::path& path, std::string_view what, int number) {
  std::string name = path.filename().string();
  std::size_t at = std::string::npos;
  // TensorBoard recognizes its files by the whole first ending.
  for (const char* ending : {".pt.trace.json", ".json"}) {
    if (at == std::string::npos) at = name.rfind(ending);
  }
  name.insert(std::min(at, name.size()), fmt::format(".{}{}", what, number));
  return path.parent_path() / name;
}

}  // namespace

void require_separate_files(std::vector<FileUse> outputs, std::vector<FileUse> inputs) {
  const std::vector<NamedFile> written = named_files(std::move(outputs));
  const std::vector<NamedFile> read = named_files(std::move(inputs));
  for (auto output = written.begin(); output != written.end(); ++output) {
    for (auto other = written.begin(); other != output; ++other) {
      require_two_outputs(*output, *other);
    }
    for (const NamedFile& input : read) {
      if (output->use.option == "--save" && input.use.option == "--load") continue;
      if (!are_one_file(*output, input)) continue;
      refuse(output->use, fmt::format("{} reads this file, which would be lost", input.use.option),
             "write to another one");
    }
  }
}

void require_outputs(const TrainConfig& config, const std::vector<fs::path>& traces,
                     const std::vector<FileUse>& of_others) {
  for (const auto& path : {config.output.save, config.output.metrics, config.device.autotune}) {
    if (!path.empty()) require_writable(path);
  }
  for (const auto& folder : {config.output.tensorboard, config.checkpoint.folder}) {
    if (!folder.empty()) require_writable_folder(folder);
  }
  for (const auto& path : traces) require_writable(path);

  std::vector<FileUse> outputs = {{"--metrics", config.output.metrics},
                                  {"--save", config.output.save}};
  for (const fs::path& trace : traces) outputs.push_back({"--trace", trace});
  outputs.push_back({"--autotune", config.device.autotune});
  outputs.push_back({"--tensorboard", config.output.tensorboard});
  outputs.push_back(
      {.option = "--checkpoint", .path = config.checkpoint.folder, .is_folder = true});
  if (config.output.profile) outputs.push_back({"--profile", peaks_file().value_or("")});
  outputs.insert(outputs.end(), of_others.begin(), of_others.end());
  require_separate_files(std::move(outputs), inputs_of(config));
}

std::vector<fs::path> trace_files(const fs::path& path, std::string_view what, int count) {
  if (path.empty()) return {};
  if (count == 1) return {path};
  std::vector<fs::path> all;
  for (int number = 0; number < count; ++number) all.push_back(numbered_trace(path, what, number));
  return all;
}

}  // namespace barestep
