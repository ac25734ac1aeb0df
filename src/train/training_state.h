// The state of a run between two steps, in a form that knows no ranks: whole tensors without
// padding, under names that PyTorch users know. What checkpoints hold.
//
// Ranks save it together. Of a buffer that ranks share out, each saves what it holds; of one that
// all hold, each saves an even part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/checkpoint_file.h"
#include "train/schedule.h"
#include "train/step.h"

namespace barestep {

/// A tensor of the state, and where it lies in its flat buffer.
struct StatePart {
  std::string name;
  std::vector<std::int64_t> shape;
  Tensor tensor;  // placed as in the layout of the parameters, whatever this rank holds of it
};

/// The tensors that steps of these programs go on from: the weights ("net.0.weight"), the
/// optimizer's memory ("optimizer.exp_avg.net.0.weight"), and gradients that add up from step to
/// step ("gradients.net.0.weight"). The same on every rank.
std::vector<StatePart> state_parts(const StepPrograms& programs);

/// Whether such a tensor stands beside the weights of a checkpoint.
bool is_beside_weights(std::string_view name);

/// The names of the states of random streams: of one for all ranks ("generator"), or of one for
/// each ("generator.rank0", ...). Their bytes are those of PyTorch's get_rng_state().
std::vector<std::string> generator_names(const StepSpec& spec);
std::size_t bytes_of_generator(Generator generator);

/// What a file holds of these programs' state: the parts, then the generators.
std::vector<TensorForm> state_tensors(const StepPrograms& programs);

/// Numbers that this rank saves, one buffer's after the other's.
struct SavedNumbers {
  Tensor numbers;           // in this rank's memory
  std::int64_t offset = 0;  // of their copy in what the rank saves, in bytes
};
std::vector<SavedNumbers> saved_numbers(const StepPrograms& programs);

/// Bytes that this rank saves: the numbers, then the state of a random stream where it saves one.
std::int64_t bytes_saved(const StepPrograms& programs);

/// Where the state of this rank's random stream begins in what it saves; bytes_saved() where it
/// saves none.
std::int64_t generator_offset(const StepPrograms& programs);

/// What this rank saves of each tensor. `saved` are the bytes_saved(), to which the pieces refer.
std::vector<CheckpointPiece> saved_pieces(const StepPrograms& programs,
                                          std::span<const std::byte> saved);

struct TrainingState {
  Position position;
  std::vector<StoredTensor> tensors;  // those of state_tensors(), on rank 0; empty on others

  /// Null when there is no tensor of this name.
  [[nodiscard]] const StoredTensor* find(std::string_view name) const;
};

/// The first weight that is no finite number, "net.0.weight holds nan"; empty where all are.
std::string bad_weight_in(const std::vector<TensorForm>& tensors,
                          std::span<const CheckpointPiece> pieces);

/// Throws Error(kBadData), naming the first differences, when the tensors are not those that these
/// programs go on from. `path` is where they were read.
void require_state(const TrainingState& state, const StepPrograms& programs,
                   const std::filesystem::path& path);

}  // namespace barestep
