// DataParallel: one process spreads each step over several devices, device 0 in the middle.
//
// What nn.DataParallel does in each step (torch/nn/parallel/data_parallel.py): it scatters the
// batch by torch.chunk's rule, broadcasts the parameters from device 0, runs forward on every
// device, gathers the outputs on device 0, computes the loss there, scatters its gradient, runs
// backward on every device, adds all gradients up on device 0, and steps the optimizer there. Where
// there are fewer chunks than devices, the last devices have nothing to do.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/program.h"
#include "train/parameter_layout.h"
#include "train/step.h"

namespace barestep {

/// torch.chunk: pieces of ceil(rows / pieces) until the rows are used up. The last may be smaller,
/// and there may be fewer pieces than asked for: 16 rows in 5 pieces make four of 4.
std::vector<Rows> chunk(std::int64_t rows, int pieces);

/// Spreads the passes of a step. With one device the programs are those of no scheme at all.
class DataParallel final : public Scheme {
 public:
  /// `adds_by_pieces`: gradients are added up on device 0 by way of a buffer there, see
  /// LocalCommunicator.
  DataParallel(int devices, bool adds_by_pieces)
      : devices_(devices), adds_by_pieces_(adds_by_pieces) {}

  /// Take the buffers of an Mlp on each device that has rows, "x" and "workspace" on those after
  /// device 0, and for training "reduce_piece" there.
  void build(Draft& draft) const override;
  void evaluate(Draft& draft) const override;

  /// The rows of each device that has any, of a micro-step of `rows`.
  [[nodiscard]] std::vector<Rows> split(std::int64_t rows) const { return chunk(rows, devices_); }

 private:
  int devices_;
  bool adds_by_pieces_;
};

/// Large enough for a copy between GPUs to be fast.
constexpr std::int64_t kReducePieceBytes = std::int64_t{16} << 20;

/// The buffer "reduce_piece", if there is one; flat.
std::optional<Tensor> reduce_piece_of(const Buffers& buffers);

}  // namespace barestep
