#include "data/checkpoint_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/index.h"
#include "core/units.h"

namespace barestep {
namespace {

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kSuffix = ".safetensors";

/// Nothing if `name` is not a checkpoint's name.
std::optional<std::int64_t> step_in_name(std::string_view name) {
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  std::int64_t step = 0;
  const auto parsed = std::from_chars(name.data(), name.data() + name.size(), step);
  if (parsed.ec != std::errc() || step < 0 ||
      name_of_checkpoint(step).substr(kPrefix.size()) != name) {
    return std::nullopt;
  }
  return step;
}

/// Whether this is the DraftFile of a checkpoint, left over from a killed program.
bool is_left_over(std::string_view name) {
  return name.starts_with(fmt::format(".{}", kPrefix)) && name.ends_with(".tmp") &&
         name.find(kSuffix) != std::string_view::npos;
}

[[noreturn]] void fail_checkpoint(const std::filesystem::path& path, const std::string& why,
                                  const char* remedy = "free space or choose another disk") {
  fail(ExitCode::kInputOutput, {"checkpoint", path.string(), why, remedy});
}

/// Appends the steps of a folder's checkpoints, in order. Returns 0 or a negated errno.
int list_steps(FileSystem& files, const std::filesystem::path& folder,
               std::vector<std::int64_t>& steps) {
  std::vector<std::string> names;
  const int result = files.list(folder, names);
  for (const std::string& name : names) {
    if (const auto step = step_in_name(name)) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return result;
}

/// In the order of the file.
std::vector<FilePart> parts_of_file(const CheckpointPlace& place,
                                    std::span<const TensorPiece> pieces) {
  std::vector<FilePart> parts;
  for (const TensorPiece& piece : pieces) {
    if (piece.bytes.empty()) continue;
    parts.push_back({at(place.offsets, piece.tensor) + piece.first_byte, piece.bytes});
  }
  std::ranges::sort(parts, {}, &FilePart::offset);
  return parts;
}

/// Called before locking: the folder must exist to be locked.
const std::filesystem::path& made_folder(const std::filesystem::path& folder, FileSystem& files) {
  make_folder(folder, files);
  require_writable_folder(folder);
  return folder;
}

}  // namespace

std::string name_of_checkpoint(std::int64_t step) {
  return fmt::format("{}{:09}{}", kPrefix, step, kSuffix);
}

std::vector<std::int64_t> checkpoint_steps(const std::filesystem::path& folder) {
  std::vector<std::int64_t> steps;
  const int result = list_steps(real_files(), folder, steps);
  if (result < 0 && result != -ENOENT) {
    fail(ExitCode::kNoInput,
         {"folder of checkpoints", folder.string(), std::strerror(-result), "check the path"});
  }
  return steps;
}

std::optional<FoundCheckpoint> newest_whole_checkpoint(
    const std::filesystem::path& folder,
    const std::function<void(const std::string& why_skipped)>& skipped) {
  const std::vector<std::int64_t> steps = checkpoint_steps(folder);
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    const std::filesystem::path path = folder / name_of_checkpoint(*step);
    try {
      FoundCheckpoint found{.file = path, .image = read_checkpoint(path)};
      if (found.image.step == *step) return found;
      skipped(fmt::format("checkpoint '{}': is of step {}; give it its own name again",
                          path.string(), found.image.step));
    } catch (const Error& error) {
      if (error.code() == ExitCode::kMemory) throw;
      skipped(error.what());
    }
  }
  if (steps.empty()) return std::nullopt;
  fail(ExitCode::kBadData,
       {"folder of checkpoints", folder.string(),
        "has " + counted(std::ssize(steps), "checkpoint") + ", none of which is complete",
        "remove them to start from the beginning, or name another folder"});
}

CheckpointFolder::CheckpointFolder(std::filesystem::path folder, int keep, FileSystem& files)
    : folder_(std::move(folder)),
      keep_(keep),
      files_(files),
      lock_(made_folder(folder_, files_), "--checkpoint") {
  BARESTEP_REQUIRE(keep_ >= 1, "the newest checkpoint is always kept");
  std::vector<std::string> names;
  files_.list(folder_, names);
  for (const std::string& name : names) {
    if (is_left_over(name)) files_.unlink(folder_ / name);  // a leftover does no harm
  }
}

CheckpointDraft CheckpointFolder::begin(const CheckpointForm& form,
                                        std::vector<PieceChecksum> checksums) {
  const SafetensorsParts parts = checkpoint_parts(form, std::move(checksums));
  CheckpointDraft draft;
  draft.step_ = form.step;
  draft.file_bytes_ = parts.file_bytes;
  draft.place_.file = folder_ / name_of_checkpoint(form.step);
  draft.place_.offsets = parts.offsets;
  draft.file_ = std::make_unique<DraftFile>(files_, draft.place_.file);
  draft.place_.draft = draft.file_->path();
  if (const int error = draft.file_->error(); error != 0) {
    fail_checkpoint(draft.place_.file, fmt::format("cannot be created: {}", std::strerror(error)));
  }
  const FilePart head{0, std::as_bytes(std::span(parts.head))};
  const int result = draft.file_->write(std::span(&head, 1));
  if (result < 0) fail_writing(draft.place_, result);
  return draft;
}

void CheckpointDraft::share() {
  const int result = file_->resize(file_bytes_);
  if (result < 0) CheckpointFolder::fail_writing(place_, result);
}

int CheckpointDraft::write_pieces(std::span<const TensorPiece> pieces) {
  const int result = file_->write(parts_of_file(place_, pieces));
  return result < 0 ? result : file_->finish();
}

int write_pieces(const CheckpointPlace& place, std::span<const TensorPiece> pieces,
                 FileSystem& files) {
  return write_into(files, place.draft, parts_of_file(place, pieces));
}

void CheckpointFolder::fail_writing(const CheckpointPlace& place, int failure,
                                    const std::string& writer) {
  fail_checkpoint(place.file, fmt::format("{}writing failed: {}", writer, std::strerror(-failure)));
}

void CheckpointFolder::finish(CheckpointDraft& draft) {
  try {
    CheckpointReader(draft.place_.draft).require_whole();
  } catch (const Error& error) {
    fail_checkpoint(draft.place_.file,
                    fmt::format("what was written does not read back: {}", error.what()),
                    "check the disk");
  }
  if (const int result = draft.file_->publish(); result < 0) fail_writing(draft.place_, result);
  remove_all_but_newest(draft.step_);
}

void CheckpointFolder::remove_all_but_newest(std::int64_t newest) {
  std::vector<std::int64_t> steps;
  const int listed = list_steps(files_, folder_, steps);
  if (listed < 0) {
    fail_checkpoint(folder_, fmt::format("cannot be listed: {}", std::strerror(-listed)),
                    "remove old checkpoints by hand");
  }
  const auto later = std::upper_bound(steps.begin(), steps.end(), newest);
  const auto first_kept = later - std::min<std::ptrdiff_t>(keep_, later - steps.begin());
  steps.erase(first_kept, later);
  int first_failure = 0;
  std::filesystem::path failed;
  for (const std::int64_t step : steps) {
    const std::filesystem::path path = folder_ / name_of_checkpoint(step);
    const int result = files_.unlink(path);
    if (result == 0 || result == -ENOENT || first_failure != 0) continue;
    first_failure = -result;
    failed = path;
  }
  // If a loss of power restores a removed file, the next write removes it again.
  if (!steps.empty()) files_.sync_folder(folder_);
  if (first_failure != 0) {
    fail_checkpoint(failed, fmt::format("cannot be removed: {}", std::strerror(first_failure)),
                    "remove it by hand");
  }
}

}  // namespace barestep
