// A model: its parameters and the tree of blocks over them.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "model/block.h"
#include "model/linear.h"

namespace barestep {

/// The end of a model: its output, and the gradient of the loss with respect to it (or to the last
/// activation's input; see ModelSpec::loss_includes_activation).
struct ModelOutput {
  Tensor values, grad;
};

class Model {
 public:
  /// The layers of this rank's stage.
  explicit Model(const ModelSpec& spec) : Model(spec, spec.held_layers()) {}

  /// A stage: only these layers, with the names that they have in the whole model. A stage does not
  /// recompute.
  Model(const ModelSpec& spec, const LayerRange& layers);

  [[nodiscard]] const Parameters& parameters() const { return parameters_; }
  [[nodiscard]] Block& root() const { return *root_; }

  /// Its Linear blocks, in the order of forward.
  [[nodiscard]] const std::vector<Linear*>& linears() const { return linears_; }

 private:
  Parameters parameters_;
  std::unique_ptr<Block> root_;
  std::vector<Linear*> linears_;
};

/// A rank's parameters, and those of the whole model.
Parameters parameters_of(const ModelSpec& spec);
Parameters whole_parameters_of(const ModelSpec& spec);
Parameters parameters_of(const ModelSpec& spec, const LayerRange& layers);

/// Throws Error(kConfiguration), naming the first parameter that is not a Linear's, for an option
/// that needs the factors of every gradient.
void require_only_linears(const Parameters& parameters, const std::vector<Linear*>& linears,
                          std::string_view option, std::string_view value);

/// Whether a device has only what products read, or also the fp32 parameters that are updated.
enum class Holding { kOperands, kParameters };

/// Creates the flat buffers of these parameters on a device: "parameters", and if products are in
/// 16 bits "rounded_parameters". Then a device that only holds operands has no "parameters". They
/// have room for `held` numbers if data ranks divide them.
FlatBuffers take_flat_buffers(Buffers& buffers, const ModelSpec& spec, const Parameters& parameters,
                              int device = 0, Holding holding = Holding::kParameters,
                              std::optional<std::int64_t> held = {});

}  // namespace barestep
