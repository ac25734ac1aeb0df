// The folder of a run's checkpoints: DIR/step-000000400.safetensors and nothing else. Each file is
// whole at any moment that anybody can see it, also after a loss of power.
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

/// The checkpoint of the latest step that is whole; nothing where the folder has none or is not
/// there. Calls `skipped` with one line for each later file that is not whole. Throws
/// Error(kBadData) where there are files, but none is whole, kNoInput where the folder cannot be
/// read and kMemory where a checkpoint does not fit.
std::optional<FoundCheckpoint> newest_whole_checkpoint(
    const std::filesystem::path& folder,
    const std::function<void(const std::string& why_skipped)>& skipped);

/// "step-000000400.safetensors".
std::string name_of_checkpoint(std::int64_t step);

/// The steps of the checkpoints in a folder, whole or not, in order; empty where it is not there.
/// Throws Error(kNoInput) where it cannot be read.
std::vector<std::int64_t> checkpoint_steps(const std::filesystem::path& folder);

/// What writers of one checkpoint know about its file.
struct CheckpointPlace {
  std::filesystem::path file, draft;  // its name, and the one it has while it is written
  std::vector<std::int64_t> offsets;  // of the tensors
};

/// Writes pieces into a checkpoint that another process has begun, and brings them to the disk.
/// Returns 0, or a negated errno. Blocks.
int write_pieces(const CheckpointPlace& place, std::span<const CheckpointPiece> pieces,
                 FileSystem& files = real_files());

/// A checkpoint that is being written. It vanishes with this object unless it was finished.
class CheckpointDraft {
 public:
  [[nodiscard]] const CheckpointPlace& place() const { return place_; }

  /// Makes room for the tensors, of which other processes write some. Throws Error(kInputOutput).
  void share();

  /// Like the function of that name.
  int write_pieces(std::span<const CheckpointPiece> pieces);

 private:
  friend class CheckpointFolder;

  std::int64_t step_ = 0;
  CheckpointPlace place_;
  std::int64_t file_bytes_ = 0;
  std::unique_ptr<DraftFile> file_;
};

/// Writes the checkpoints of one run. One thread uses it at a time.
class CheckpointFolder {
 public:
  using Found = FoundCheckpoint;

  /// Makes the folder where it is not there, locks it as long as this lives, and removes the
  /// temporary files of a program that was killed. `files` outlives this. Throws Error:
  /// kCannotCreate for what is no folder, cannot be made or takes no file, kTryAgain where another
  /// program has locked it.
  CheckpointFolder(std::filesystem::path folder, int keep, FileSystem& files = real_files());

  [[nodiscard]] const std::filesystem::path& path() const { return folder_; }

  /// Begins a checkpoint: what precedes its tensors. `checksums` are those of all pieces. Throws
  /// Error(kInputOutput) with the file's path. Blocks.
  CheckpointDraft begin(const CheckpointForm& form, std::vector<PieceChecksum> checksums);

  /// Call it when all pieces are on the disk. When this returns, the checkpoint is in the folder
  /// and survives a loss of power; of the earlier ones the latest `keep` - 1 remain. Those of later
  /// steps are removed: they are of a run that went back to an earlier step and goes on from there.
  /// Nothing is removed before the new file was read back. Throws Error(kInputOutput) with the
  /// file's path where writing fails; then nothing has been removed, and the next checkpoint may be
  /// written. Needs the space of `keep` + 1 files. Blocks.
  void finish(CheckpointDraft& draft);

  /// Throws Error(kInputOutput): a piece was not written, for the reason that write_pieces()
  /// returned. `writer` is who failed, "rank 2: ", or empty.
  [[noreturn]] static void fail_writing(const CheckpointPlace& place, int failure,
                                        const std::string& writer = "");

  /// All of it by one writer: begins and finishes a checkpoint, with their errors.
  void write(const CheckpointImage& image);

  /// newest_whole_checkpoint() of this folder.
  [[nodiscard]] std::optional<Found> newest_whole(
      const std::function<void(const std::string& why_skipped)>& skipped) const {
    return newest_whole_checkpoint(folder_, skipped);
  }

 private:
  void remove_all_but_newest(std::int64_t newest);

  std::filesystem::path folder_;
  int keep_;
  FileSystem& files_;
  FolderLock lock_;
};

}  // namespace barestep
