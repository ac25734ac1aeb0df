// The folder of a run's checkpoints: DIR/step-000000400.safetensors and nothing else. Each file is
// complete whenever it is visible, even after a loss of power.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/file_system.h"
#include "core/output_file.h"
#include "data/checkpoint_file.h"

namespace barestep {

struct FoundCheckpoint {
  std::filesystem::path file;
  CheckpointImage image;
};

/// The complete checkpoint of the latest step; nothing if the folder has none or does not exist.
/// Calls `skipped` with one line for each later file that is incomplete. Throws Error(kBadData) if
/// there are files but none is complete, kNoInput if the folder cannot be read and kMemory if a
/// checkpoint does not fit.
std::optional<FoundCheckpoint> newest_whole_checkpoint(
    const std::filesystem::path& folder,
    const std::function<void(const std::string& why_skipped)>& skipped);

/// "step-000000400.safetensors".
std::string name_of_checkpoint(std::int64_t step);

/// The steps of the checkpoints in a folder, complete or not, in order; empty if it does not exist.
/// Throws Error(kNoInput) if it cannot be read.
std::vector<std::int64_t> checkpoint_steps(const std::filesystem::path& folder);

/// The location of a checkpoint file, for all who write to it.
struct CheckpointPlace {
  std::filesystem::path file, draft;  // final and temporary path
  std::vector<std::int64_t> offsets;  // of the tensors, in the file
};

/// Writes pieces into a checkpoint that another process has created, and syncs them to disk.
/// Returns 0 or a negated errno. Blocks.
int write_pieces(const CheckpointPlace& place, std::span<const TensorPiece> pieces,
                 FileSystem& files = real_files());

/// A checkpoint being written. The destructor deletes it unless it was finished.
class CheckpointDraft {
 public:
  [[nodiscard]] const CheckpointPlace& place() const { return place_; }

  /// Extends the file for tensors that other processes write. Throws Error(kInputOutput).
  void share();

  /// As the function write_pieces().
  int write_pieces(std::span<const TensorPiece> pieces);

 private:
  friend class CheckpointFolder;

  std::int64_t step_ = 0;
  CheckpointPlace place_;
  std::int64_t file_bytes_ = 0;
  std::unique_ptr<DraftFile> file_;
};

/// Writes the checkpoints of one run. Only one thread may use it at a time.
class CheckpointFolder {
 public:
  /// Creates the folder if it does not exist, locks it until destruction, and removes the temporary
  /// files of killed programs. `files` must outlive this. Throws Error: kCannotCreate if the path
  /// is not a folder, cannot be created or accepts no files; kTryAgain if another program has
  /// locked it.
  CheckpointFolder(std::filesystem::path folder, int keep, FileSystem& files = real_files());

  [[nodiscard]] const std::filesystem::path& path() const { return folder_; }

  /// Starts a checkpoint and writes the part before its tensors. `checksums` are those of all
  /// pieces. Throws Error(kInputOutput) with the file's path. Blocks.
  CheckpointDraft begin(const CheckpointForm& form, std::vector<PieceChecksum> checksums);

  /// Call when all pieces are on disk. On return, the checkpoint is in the folder and survives a
  /// loss of power. The latest `keep` - 1 earlier ones remain. Those of later steps are removed:
  /// they belong to a run that has since been resumed from an earlier step. Nothing is removed
  /// before the new file has been read back. Throws Error(kInputOutput) with the file's path if
  /// writing fails; then nothing was removed, and the next checkpoint can be written. Needs the
  /// space of `keep` + 1 files. Blocks.
  void finish(CheckpointDraft& draft);

  /// Throws Error(kInputOutput) for a piece that was not written; `failure` is the result of
  /// write_pieces(). `writer` is the writer that failed, "rank 2: ", or empty.
  [[noreturn]] static void fail_writing(const CheckpointPlace& place, int failure,
                                        const std::string& writer = "");

 private:
  void remove_all_but_newest(std::int64_t newest);

  std::filesystem::path folder_;
  int keep_;
  FileSystem& files_;
  FolderLock lock_;
};

}  // namespace barestep
