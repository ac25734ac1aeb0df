// The state of a run between two steps, independent of ranks: whole tensors without padding, under
// the names that PyTorch uses. Checkpoints contain this state.
//
// Ranks save it together. If ranks divide a buffer, each saves its own part; if all hold the whole
// buffer, each saves an equal part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/checkpoint_file.h"
#include "train/schedule.h"
#include "train/step.h"

namespace barestep {

/// A tensor of the state of the whole model.
struct StatePart {
  std::string name;
  std::vector<std::int64_t> shape;
  /// What this rank's model has of it, as placed in a whole flat buffer of that model, even if data
  /// ranks share it out; nothing if it belongs to another stage.
  struct Own {
    Tensor tensor;
    PartOfParameter part;
    bool is_cut = false;  // the tensor ranks have different parts
  };
  std::optional<Own> own{};

  [[nodiscard]] std::int64_t bytes() const;
};

/// The tensors that these programs need to resume: the weights ("net.0.weight"), the optimizer's
/// memory ("optimizer.exp_avg.net.0.weight", or "optimizer.exp_avg.rank1.net.0.weight" where each
/// data rank has its own), gradients that are accumulated from step to step
/// ("gradients.net.0.weight"), and what else the run keeps
/// ("kept.delayed_gradients.1.net.0.weight"; see KeptBuffer). The same on every rank.
std::vector<StatePart> state_parts(const StepPrograms& programs);

/// Whether such a tensor is in a checkpoint in addition to the weights.
bool is_non_weight_state(std::string_view name);

/// The names of the random streams' states: one for all ranks ("generator"), or one for each rank
/// ("generator.rank0", ...). Their bytes are those of PyTorch's get_rng_state().
std::vector<std::string> generator_names(const StepSpec& spec);
std::size_t bytes_of_generator(Generator generator);

/// The tensors of these programs' state in a file: the parts, then the generators.
std::vector<TensorForm> state_tensors(const StepPrograms& programs);

/// Numbers of a flat buffer that this rank saves.
struct SavedNumbers {
  Tensor numbers;           // in this rank's memory
  FlatRange range;          // in the whole flat buffer
  std::int64_t offset = 0;  // of their copy in the saved bytes
};
std::vector<SavedNumbers> saved_numbers(const StepPrograms& programs);

/// The number of bytes that this rank saves: the numbers, then the state of a random stream if it
/// saves one.
std::int64_t bytes_saved(const StepPrograms& programs);

/// The offset of this rank's random stream's state in its saved bytes; bytes_saved() if it saves
/// none.
std::int64_t generator_offset(const StepPrograms& programs);

/// This rank's part of each tensor. `saved` are the bytes_saved() that the pieces refer to.
std::vector<TensorPiece> saved_pieces(const StepPrograms& programs,
                                      std::span<const std::byte> saved);

struct TrainingState {
  Position position;
  std::vector<StoredTensor> tensors;  // for state_tensors(), on rank 0; empty on others

  /// Null if no tensor has this name.
  [[nodiscard]] const StoredTensor* find(std::string_view name) const;
};

/// The first weight that is not finite, "net.0.weight holds nan"; empty if all are finite.
std::string bad_weight_in(const std::vector<TensorForm>& tensors,
                          std::span<const TensorPiece> pieces);

/// Throws Error(kBadData), naming the first differences, if the tensors are not those that these
/// programs need to resume. `path` is the file they were read from.
void require_state(const TrainingState& state, const StepPrograms& programs,
                   const std::filesystem::path& path);

}  // namespace barestep
