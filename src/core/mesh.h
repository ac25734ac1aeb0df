// How the ranks of a job share a model and its batches: a mesh of data x tensor x pipeline ranks.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "core/error.h"
#include "core/index.h"

namespace barestep {

/// The ranks that take part in a collective: all, or those whose places in the mesh differ in this
/// coordinate only. Those of a model are all that share one copy of it: they have the same data
/// coordinate.
enum class Axis { kAll, kData, kTensor, kPipeline, kModel };
template <>
inline constexpr std::string_view kNamesOf<Axis>[] = {"all", "data", "tensor", "pipeline", "model"};

/// The axes that have groups of their own, in the order in which every rank makes them.
inline constexpr std::array kGroupedAxes = {Axis::kData, Axis::kTensor, Axis::kPipeline,
                                            Axis::kModel};

/// Rank = tensor rank + tensor * (data rank + data * stage), as in Megatron-LM
/// (megatron/core/parallel_state.py). The ranks of a tensor group exchange the most and are
/// neighbors; a stage talks only to the one before it and the one after it.
struct Mesh {
  int data = 1;      // copies of the model; each has its own rows of a batch
  int tensor = 1;    // ranks that share every layer
  int pipeline = 1;  // stages, ranges of layers
  int rank = 0;      // of the process, below ranks()

  /// A rank of a job whose ranks only share the batch.
  static constexpr Mesh of_data(int rank, int ranks) { return {.data = ranks, .rank = rank}; }

  [[nodiscard]] constexpr int ranks() const { return data * tensor * pipeline; }
  [[nodiscard]] constexpr int tensor_rank() const { return rank % tensor; }
  [[nodiscard]] constexpr int data_rank() const { return rank / tensor % data; }
  [[nodiscard]] constexpr int stage() const { return rank / (tensor * data); }
  [[nodiscard]] constexpr bool is_last_stage() const { return stage() + 1 == pipeline; }

  /// Whether several ranks share a copy of the model.
  [[nodiscard]] constexpr bool cuts_model() const { return tensor * pipeline > 1; }

  /// The rank at these coordinates.
  [[nodiscard]] constexpr int rank_at(int data_rank, int tensor_rank, int stage) const {
    return tensor_rank + tensor * (data_rank + data * stage);
  }

  /// Whether this rank answers for its copy of the model: one rank of each copy has its loss and
  /// its results for a test set.
  [[nodiscard]] constexpr bool has_results() const { return tensor_rank() == 0 && is_last_stage(); }

  /// The number of ranks of this rank's group.
  [[nodiscard]] constexpr int size_of(Axis axis) const {
    switch (axis) {
      case Axis::kAll:
        return ranks();
      case Axis::kData:
        return data;
      case Axis::kTensor:
        return tensor;
      case Axis::kPipeline:
        return pipeline;
      case Axis::kModel:
        return tensor * pipeline;
    }
    return 1;
  }

  /// Axis::kAll if that group is all ranks.
  [[nodiscard]] constexpr Axis simplest(Axis axis) const {
    return size_of(axis) == ranks() ? Axis::kAll : axis;
  }

  /// This rank's place in that group; places follow the order of ranks.
  [[nodiscard]] constexpr int place_on(Axis axis) const {
    switch (axis) {
      case Axis::kAll:
        return rank;
      case Axis::kData:
        return data_rank();
      case Axis::kTensor:
        return tensor_rank();
      case Axis::kPipeline:
        return stage();
      case Axis::kModel:
        return tensor_rank() + tensor * stage();
    }
    return 0;
  }

  /// Ranks from the first of that group to its last, including those of other groups between them.
  [[nodiscard]] constexpr int span_of(Axis axis) const {
    switch (axis) {
      case Axis::kAll:
        return ranks();
      case Axis::kData:
        return tensor * (data - 1) + 1;
      case Axis::kTensor:
        return tensor;
      case Axis::kPipeline:
        return tensor * data * (pipeline - 1) + 1;
      case Axis::kModel:
        return tensor * data * (pipeline - 1) + tensor;
    }
    return 1;
  }

  /// The first rank of that group, by which groups of an axis differ.
  [[nodiscard]] constexpr int first_on(Axis axis) const {
    switch (axis) {
      case Axis::kAll:
        return 0;
      case Axis::kData:
        return rank_at(0, tensor_rank(), stage());
      case Axis::kTensor:
        return rank_at(data_rank(), 0, stage());
      case Axis::kPipeline:
        return rank_at(data_rank(), tensor_rank(), 0);
      case Axis::kModel:
        return rank_at(data_rank(), 0, 0);
    }
    return 0;
  }

  /// "rank 5", and where ranks share the model also its place: "rank 5 (data 1, tensor 0, stage
  /// 1)", without the axes that have one rank.
  [[nodiscard]] std::string text() const;

  friend bool operator==(const Mesh&, const Mesh&) = default;
};

}  // namespace barestep
