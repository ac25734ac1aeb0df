// What a model is, without batch size or memory: the options that make its blocks, and how these
// compute.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/attention.h"
#include "core/config.h"
#include "core/mesh.h"
#include "core/tensor.h"

namespace barestep {

/// How an evaluation quantizes; see QuantizeWeight and Quantize.
struct QuantizationSpec {
  Quantization scheme = Quantization::kRow;
  int bits = 8;  // for activations
};

/// Layers first .. last, whose forward pass backward may compute again.
struct Segment {
  int first = 0;
  int last = 0;
  bool is_recomputed = false;
};

/// Consecutive layers: `first` up to but not including `end`.
struct LayerRange {
  int first = 0;
  int end = 0;

  [[nodiscard]] int size() const { return end - first; }

  friend bool operator==(const LayerRange&, const LayerRange&) = default;
};

/// The blocks of a transformer; see TransformerBlock.
struct TransformerSpec {
  AttentionShape attention{};
  std::int64_t ffn = 0;  // width of the hidden layer
};

/// An MLP: Linear layers, each followed by an activation and dropout. Or a transformer, whose
/// layers are blocks.
struct ModelSpec {
  std::vector<std::int64_t> widths;  // the layers' inputs, then the last one's outputs
  Activation activation = Activation::kRelu;
  bool last_relu = true;
  LossKind loss = LossKind::kMse;
  double label_smoothing = 0;
  double dropout = 0;                // probability that a number becomes 0
  std::uint64_t dropout_seed = 0;    // the run's; the same on all ranks
  std::int64_t rows_per_sample = 1;  // rows of blocks' tensors; losses of labels need 1
  // Bias and activation are in the forward product. A pointwise loss includes the gradient of a
  // ReLU before it. The gradients of other activations include the bias's, if that is stored in
  // fp32 and there are few rows (see Linear).
  bool fusion = true;
  bool stores_gradients = true;  // false: backward leaves their factors
  bool trains = true;            // false: the only gradient is that of the loss
  // For products: the type of their operands, of the layers' outputs and of these outputs'
  // gradients. Parameters are fp32; with 16 bits, products read a rounded copy, as under
  // torch.autocast.
  DType numbers = DType::kF32;
  bool wide_gradients = true;  // those of parameters are fp32, whatever `numbers` is
  int segments = 1;            // for recomputation; at most one per layer
  int tensor_rank = 0;         // these programs' rank of the `tensor_ranks` that share layers
  int tensor_ranks = 1;
  int stage = 0;  // these programs' stage of the `stages` into which ranks cut the layers
  int stages = 1;
  std::optional<QuantizationSpec> quantized{};   // of evaluations, the products
  std::optional<TransformerSpec> transformer{};  // its rows_per_sample is the length of sequences
  std::string name = "net";                      // of an MLP's container of layers

  /// The part of this model that such a rank has.
  [[nodiscard]] ModelSpec of(const Mesh& rank) const {
    ModelSpec part = *this;
    part.tensor_rank = rank.tensor_rank();
    part.tensor_ranks = rank.tensor;
    part.stage = rank.stage();
    part.stages = rank.pipeline;
    return part;
  }

  [[nodiscard]] bool has_equal_widths() const;
  [[nodiscard]] int layers() const { return static_cast<int>(widths.size()) - 1; }

  /// Numbers of a sample, which is a row of data, of the loss and of its gradient.
  [[nodiscard]] std::int64_t inputs() const { return rows_per_sample * widths.front(); }
  [[nodiscard]] std::int64_t outputs() const { return rows_per_sample * widths.back(); }

  /// The same numbers with a row for each sample, and with the rows that blocks work on.
  [[nodiscard]] Tensor as_samples(Tensor rows) const {
    rows.rows /= rows_per_sample;
    rows.cols *= rows_per_sample;
    return rows;
  }
  [[nodiscard]] Tensor as_rows(Tensor samples) const {
    samples.rows *= rows_per_sample;
    samples.cols /= rows_per_sample;
    return samples;
  }

  /// "6 x Linear(1024, 1024)" or "Linear 784 - 512 - 10".
  [[nodiscard]] std::string text() const;

  /// The same in short: "1024 x 6" or "784-512-10".
  [[nodiscard]] std::string short_text() const;

  [[nodiscard]] Activation activation_after(int layer) const {
    return last_relu || layer + 1 < layers() ? activation : Activation::kNone;
  }

  /// The name of a layer in PyTorch's Sequential of Linear and activation modules: "net.0", ... Or
  /// of a block in its ModuleList: "layers.0", ...
  [[nodiscard]] std::string name_of_layer(int layer) const {
    const bool has_modules = !transformer && activation != Activation::kNone;
    return container() + "." + std::to_string(has_modules ? 2 * layer : layer);
  }
  [[nodiscard]] std::string container() const { return transformer ? "layers" : name; }

  [[nodiscard]] LayerRange all_layers() const { return {0, layers()}; }
  /// Those of this rank's stage.
  [[nodiscard]] LayerRange held_layers() const;

  /// Pairs of layers are cut among tensor ranks: the first one's outputs, and so the second one's
  /// inputs. A last layer without a partner is whole on every tensor rank.
  [[nodiscard]] bool cuts_outputs_of(int layer) const {
    return !transformer && layer % 2 == 0 && layer + 1 < layers();
  }
  [[nodiscard]] bool cuts_inputs_of(int layer) const { return !transformer && layer % 2 == 1; }

  /// The numbers in a row that a tensor rank's layer `layer` reads; layers() has the model's
  /// outputs.
  [[nodiscard]] std::int64_t inputs_of(int layer) const {
    const std::int64_t width = widths[static_cast<std::size_t>(layer)];
    const bool is_cut = layer < layers() && cuts_inputs_of(layer);
    return is_cut ? share_of_rank(width, tensor_rank, tensor_ranks).count : width;
  }

  /// The type of what layers hand to each other. Blocks of a transformer add to a stream of fp32.
  [[nodiscard]] DType stream() const { return transformer ? DType::kF32 : numbers; }

  /// The type of the stored gradients of the parameters.
  [[nodiscard]] DType gradient_type() const { return wide_gradients ? DType::kF32 : numbers; }

  /// Dropout follows every activation except the last layer's.
  [[nodiscard]] bool drops_after(int layer) const { return dropout > 0 && layer + 1 < layers(); }

  /// Whether the op of the loss also computes the gradient of the last activation.
  [[nodiscard]] bool loss_includes_activation() const {
    return trains && fusion && !transformer && is_pointwise(loss) && last_relu &&
           activation == Activation::kRelu;
  }

  /// Segments of a single Linear recompute nothing: its output is all that it keeps.
  [[nodiscard]] bool recomputes() const {
    return trains && segments > 1 && (transformer || layers() / segments > 1);
  }

  /// The segment of a layer, cut as in torch.utils.checkpoint.checkpoint_sequential: segments of
  /// floor(layers / segments) layers, with the rest in the last segment, which is not recomputed.
  [[nodiscard]] Segment segment_of(int layer) const {
    const int size = layers() / segments;
    const int index = std::min(layer / size, segments - 1);
    const bool is_last = index + 1 == segments;
    return {index * size, (is_last ? layers() : (index + 1) * size) - 1, recomputes() && !is_last};
  }
};

/// The layers of each stage of a pipeline, at least one each. Stage by stage, the stages that are
/// left get layers so that the largest of them has as few parameters as possible; of several ways,
/// the first stage takes the most. So layers of equal size are divided as share_of_rank() does.
std::vector<LayerRange> layers_of_stages(const ModelSpec& spec, int stages);

}  // namespace barestep
