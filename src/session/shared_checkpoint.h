// Ranks that write one checkpoint together, beside training.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/communicator.h"
#include "core/error.h"
#include "data/checkpoint_folder.h"

namespace barestep {

/// Why a rank has nothing to write.
struct CheckpointFailure {
  ExitCode code = ExitCode::kInputOutput;
  std::string why, remedy;
};

/// What a rank contributes to a checkpoint.
struct CheckpointShare {
  CheckpointForm form;                  // rank 0's counts
  std::vector<CheckpointPiece> pieces;  // those of all ranks make up the tensors
  std::optional<CheckpointFailure> failure{};
};

/// Writes a checkpoint into `folder`, which is rank 0's and null on others: the ranks exchange
/// checksums, and rank 0 begins the file; then each writes its pieces, side by side; once all are
/// on the disk, rank 0 finishes it. `ranks` is null for a process that is alone. Throws Error on
/// rank 0, the first failure of any rank; the folder is as before then. Every rank calls it.
/// Blocks.
void write_checkpoint(Communicator* ranks, CheckpointFolder* folder, const CheckpointShare& share,
                      FileSystem& files = real_files());

}  // namespace barestep
