// Writing one checkpoint from several ranks, during training.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/group.h"
#include "data/checkpoint_folder.h"

namespace barestep {

/// Why a rank has nothing to write.
struct CheckpointFailure {
  ExitCode code = ExitCode::kInputOutput;
  std::string why, remedy;
};

/// A rank's part of a checkpoint.
struct CheckpointShare {
  CheckpointForm form;              // rank 0's is used
  std::vector<TensorPiece> pieces;  // together with all ranks', they make up the tensors
  std::optional<CheckpointFailure> failure{};
};

/// Writes a checkpoint into `folder`, which is rank 0's and null on other ranks. The ranks exchange
/// checksums, and rank 0 starts the file; then each rank writes its pieces, in parallel; when all
/// are on disk, rank 0 finishes the file. `ranks` is null for a single process. On rank 0, throws
/// the first failure of any rank as an Error; the folder is then unchanged. Every rank calls it.
/// Blocks.
void write_checkpoint(Group* ranks, CheckpointFolder* folder, const CheckpointShare& share,
                      FileSystem& files = real_files());

}  // namespace barestep
