// How the ranks of a job share a model and its batches: a mesh of data x tensor x pipeline ranks.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

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

  /// The same mesh, seen by another rank.
  [[nodiscard]] constexpr Mesh with_rank(int other) const {
    Mesh mesh = *this;
    mesh.rank = other;
    return mesh;
  }

  [[nodiscard]] constexpr int ranks() const { return ranks_of_stage() * pipeline; }
  /// They are neighbors, and the first of them has the largest share of all that they share.
  [[nodiscard]] constexpr int ranks_of_stage() const { return data * tensor; }
  [[nodiscard]] constexpr int tensor_rank() const { return rank % tensor; }
  [[nodiscard]] constexpr int data_rank() const { return rank / tensor % data; }
  [[nodiscard]] constexpr int stage() const { return rank / ranks_of_stage(); }

  /// Whether several ranks share a copy of the model.
  [[nodiscard]] constexpr bool cuts_model() const { return tensor * pipeline > 1; }

  /// Whether this rank answers for its copy of the model: one rank of each copy has its loss and
  /// its results for a test set.
  [[nodiscard]] constexpr bool has_results() const {
    return tensor_rank() == 0 && stage() + 1 == pipeline;
  }

  /// The number of ranks of this rank's group.
  [[nodiscard]] constexpr int size_of(Axis axis) const {
    const Varying varying = varying_on(axis);
    return (varying.data ? data : 1) * (varying.tensor ? tensor : 1) *
           (varying.stage ? pipeline : 1);
  }

  /// The first rank of that group, by which groups of an axis differ.
  [[nodiscard]] constexpr int first_on(Axis axis) const {
    const Varying varying = varying_on(axis);
    return rank_at(varying.data ? 0 : data_rank(), varying.tensor ? 0 : tensor_rank(),
                   varying.stage ? 0 : stage());
  }

  /// The ranks of that group, ascending.
  [[nodiscard]] std::vector<int> ranks_on(Axis axis) const {
    std::vector<int> members;
    const auto [data_varies, tensor_varies, stage_varies] = varying_on(axis);
    for (int at_stage = stage_varies ? 0 : stage(); at_stage < pipeline; ++at_stage) {
      for (int at_data = data_varies ? 0 : data_rank(); at_data < data; ++at_data) {
        for (int at_tensor = tensor_varies ? 0 : tensor_rank(); at_tensor < tensor; ++at_tensor) {
          members.push_back(rank_at(at_data, at_tensor, at_stage));
          if (!tensor_varies) break;
        }
        if (!data_varies) break;
      }
      if (!stage_varies) break;
    }
    return members;
  }

  /// Ranks from the first of that group to its last, including those of other groups between them.
  [[nodiscard]] constexpr int span_of(Axis axis) const {
    const Varying varying = varying_on(axis);
    return rank_at(varying.data ? data - 1 : 0, varying.tensor ? tensor - 1 : 0,
                   varying.stage ? pipeline - 1 : 0) +
           1;
  }

  /// Axis::kAll if that group is all ranks.
  [[nodiscard]] constexpr Axis simplest(Axis axis) const {
    return size_of(axis) == ranks() ? Axis::kAll : axis;
  }

  /// "rank 5", and where ranks share the model also its place: "rank 5 (data 1, tensor 0, stage
  /// 1)", without the axes that have one rank.
  [[nodiscard]] std::string text() const {
    std::string places;
    const auto add = [&](const char* name, int size, int place) {
      if (size == 1) return;
      places += (places.empty() ? "" : ", ") + std::string(name) + ' ' + std::to_string(place);
    };
    add("data", data, data_rank());
    add("tensor", tensor, tensor_rank());
    add("stage", pipeline, stage());
    return "rank " + std::to_string(rank) + (cuts_model() ? " (" + places + ")" : "");
  }

  friend bool operator==(const Mesh&, const Mesh&) = default;

 private:
  /// The coordinates in which the ranks of a group differ.
  struct Varying {
    bool data = false, tensor = false, stage = false;
  };
  static constexpr Varying varying_on(Axis axis) {
    const bool all = axis == Axis::kAll, model = axis == Axis::kModel;
    return {.data = all || axis == Axis::kData,
            .tensor = all || model || axis == Axis::kTensor,
            .stage = all || model || axis == Axis::kPipeline};
  }

  [[nodiscard]] constexpr int rank_at(int at_data, int at_tensor, int at_stage) const {
    return at_tensor + tensor * (at_data + data * at_stage);
  }
};

}  // namespace barestep
