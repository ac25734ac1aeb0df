// DataParallel: one process spreads each step over several devices, coordinated by device 0.
//
// The same steps as nn.DataParallel (torch/nn/parallel/data_parallel.py): it scatters the batch by
// torch.chunk's rule, broadcasts the parameters from device 0, runs forward on every device,
// gathers the outputs on device 0, computes the loss there, scatters its gradient, runs backward on
// every device, sums all gradients on device 0, and steps the optimizer there. If there are fewer
// chunks than devices, the last devices are idle.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/program.h"
#include "train/step.h"

namespace barestep {

/// torch.chunk's rule: pieces of ceil(rows / pieces) until the rows are used up. The last piece may
/// be smaller, and there may be fewer than requested: 16 rows in 5 pieces make four of 4.
std::vector<Rows> chunk(std::int64_t rows, int pieces);

/// Spreads the passes of a step. With one device, the programs are the same as without a scheme.
class DataParallel final : public Scheme {
 public:
  /// `adds_by_pieces`: gradients are summed on device 0 through a buffer there, see
  /// LocalTransport.
  DataParallel(int devices, bool adds_by_pieces)
      : devices_(devices), adds_by_pieces_(adds_by_pieces) {}

  /// Allocates the buffers of an Mlp on each device that has rows, "x" and "workspace" on the
  /// devices after device 0, and for training "reduce_piece" on device 0.
  void build(Draft& draft) const override;
  void evaluate(Draft& draft) const override;

  /// The rows of each device that has any, for a micro-step of `rows`.
  [[nodiscard]] std::vector<Rows> split(std::int64_t rows) const { return chunk(rows, devices_); }

 private:
  int devices_;
  bool adds_by_pieces_;
};

/// Size of "reduce_piece": large enough for a fast copy between GPUs.
constexpr std::int64_t kReducePieceBytes = std::int64_t{16} << 20;

/// The buffer "reduce_piece", if there is one; flat.
std::optional<Tensor> reduce_piece_of(const Buffers& buffers);

}  // namespace barestep
