// Gradients with the same bits on any number of ranks, for --reproducible: those of a step's chunks
// of samples, added up in the order of one binary tree over the chunks.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "train/draft.h"

namespace barestep {

/// Node k of level l is the sum of chunks k 2^l to (k + 1) 2^l - 1, as far as the step has them.
struct TreeNode {
  int level = 0;
  std::int64_t number = 0;

  friend bool operator==(const TreeNode&, const TreeNode&) = default;
};

/// The sums of consecutive chunks, added up as far as the tree allows without the other chunks. A
/// node without a sibling, at the end of the step, is also its parent.
class TreeStack {
 public:
  /// Of a step of so many chunks.
  explicit TreeStack(std::int64_t chunks) : chunks_(chunks) {}

  /// Puts the sum on the stack that follows its newest one. Returns how often the two newest sums
  /// are then replaced by their sum.
  int push(TreeNode node);

  [[nodiscard]] const std::vector<TreeNode>& nodes() const { return nodes_; }

 private:
  std::int64_t chunks_;
  std::vector<TreeNode> nodes_;
};

/// Adds up the gradients of a step whose micro-steps are chunks (StepSpec::chunk_rows). Each one is
/// computed alone and then added, so its bits do not depend on what a rank has besides it, and the
/// additions are the same ones whichever rank makes them. A rank with C chunks in a row needs flat
/// buffers for at most log2(C) + 1 sums, or about twice as many if its chunks begin and end inside
/// subtrees: "gradients" and "gradients.1", "gradients.2", ...
class ChunkSums {
 public:
  /// The draft must outlive it. Throws Error(kConfiguration) if gradients are not stored.
  explicit ChunkSums(Draft& draft);
  // Hooks point to it.
  ChunkSums(const ChunkSums&) = delete;
  ChunkSums& operator=(const ChunkSums&) = delete;

  /// For the passes: `more`, with gradients that are added up. On one rank they are then the
  /// step's, in "gradients".
  [[nodiscard]] PassHooks hooks(PassHooks more = {});

  /// Once the last pass has completed the gradients in a range of whole lines: this rank's share of
  /// these lines of "gradients" becomes the sum of all chunks. Ranks exchange their sums pair by
  /// pair. Creates "received_gradients".
  void reduce_scatter(const FlatRange& lines, const std::string& name);
  /// The same for all of these lines.
  void all_reduce(const FlatRange& lines, const std::string& name);
  /// The shares of all ranks.
  void all_gather(const FlatRange& lines, const std::string& name);

 private:
  /// Where a chunk's gradients are stored, and how often the two newest sums are then added.
  struct ChunkStep {
    int place = 0, additions = 0;
  };

  /// The flat buffer of a sum, by its place on the stack.
  [[nodiscard]] BufferId flat(int place) const;
  void add_chunk(const Pass& pass, ParameterId id);
  void exchange_with(int peer, const FlatRange& lines, const std::string& name);
  /// The place of another rank's sum, of this rank's share of some lines.
  [[nodiscard]] Tensor received(int rank, int number, const FlatRange& share) const;
  void add_all_ranks(const FlatRange& share);

  Draft& draft_;
  std::int64_t chunks_;
  std::vector<std::vector<TreeNode>> sums_;  // of each rank's chunks
  std::vector<ChunkStep> steps_;             // of this rank's chunks
  std::map<ParameterId, int> completed_{};   // chunks of a parameter's gradient
};

}  // namespace barestep
