#include "model/model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/index.h"
#include "core/units.h"
#include "model/transformer.h"

namespace barestep {
namespace {

/// Blocks one after the other.
class Chain : public Block {
 public:
  Chain(std::string name, std::vector<std::unique_ptr<Block>> blocks)
      : Block(std::move(name)), blocks_(std::move(blocks)) {}

  Tensor forward(Pass& pass, const Tensor& x) override {
    Tensor y = x;
    for (const auto& block : blocks_) y = block->forward(pass, y);
    return y;
  }

  Tensor backward(Pass& pass, const Tensor& grad_y, bool wants_grad_x) override {
    Tensor grad = grad_y;
    for (auto block = blocks_.rbegin(); block != blocks_.rend(); ++block) {
      grad = (*block)->backward(pass, grad, wants_grad_x || block + 1 != blocks_.rend());
    }
    return grad;
  }

  void add_linears(std::vector<Linear*>& linears) override {
    for (const auto& block : blocks_) block->add_linears(linears);
  }

 protected:
  [[nodiscard]] const std::vector<std::unique_ptr<Block>>& blocks() const { return blocks_; }

 private:
  std::vector<std::unique_ptr<Block>> blocks_;
};

/// A segment of a model that recomputes (Chen et al. 2016). All segments share the buffers of
/// activations, "segment.0.out", ..., numbered by the position of a block in its segment. The last
/// block's output is not shared, as it is the next segment's input; nor are its other activations,
/// unless Block::keeps_more(). Backward first computes the shared ones again: the same ops, so the
/// bits are the same. The model's last segment does not need to.
class Recomputed final : public Chain {
 public:
  Recomputed(std::string name, std::vector<std::unique_ptr<Block>> blocks, bool is_last)
      : Chain(std::move(name), std::move(blocks)), is_last_(is_last) {}

  Tensor forward(Pass& pass, const Tensor& x) override {
    x_ = x;
    return forward_of_last(pass, forward_of_shared(pass, x));
  }

  Tensor backward(Pass& pass, const Tensor& grad_y, bool wants_grad_x) override {
    if (!is_last_) {
      const Phase phase = std::exchange(pass.phase, Phase::kRecompute);
      const Tensor x = forward_of_shared(pass, x_);
      if (blocks().back()->keeps_more()) forward_of_last(pass, x);
      pass.phase = phase;
    }
    return Chain::backward(pass, grad_y, wants_grad_x);
  }

 private:
  /// The output of the block before the last one.
  Tensor forward_of_shared(Pass& pass, const Tensor& x) const {
    Tensor y = x;
    for (std::size_t i = 0; i + 1 < blocks().size(); ++i) {
      share(pass, i);
      y = blocks()[i]->forward(pass, y);
    }
    pass.shared_name.clear();
    return y;
  }

  Tensor forward_of_last(Pass& pass, const Tensor& x) const {
    Block& last = *blocks().back();
    if (!last.keeps_more()) return last.forward(pass, x);
    share(pass, blocks().size() - 1);
    pass.keeps_output = true;
    const Tensor y = last.forward(pass, x);
    pass.shared_name.clear();
    pass.keeps_output = false;
    return y;
  }

  void share(Pass& pass, std::size_t number) const {
    pass.shared_block = blocks()[number]->name();
    pass.shared_name = "segment." + std::to_string(number);
  }

  bool is_last_;
  Tensor x_{};
};

std::unique_ptr<Block> linear_of(const ModelSpec& spec, int layer, Parameters& parameters) {
  const auto width = [&](int place) { return spec.widths[static_cast<std::size_t>(place)]; };
  const bool is_last = layer + 1 == spec.layers();
  LinearSpec linear{.name = spec.name_of_layer(layer),
                    .inputs = width(layer),
                    .outputs = width(layer + 1),
                    .activation = spec.activation_after(layer),
                    .loss_includes_activation = is_last && spec.loss_includes_activation()};
  if (spec.drops_after(layer)) linear.dropout = layer;
  if (spec.cuts_inputs_of(layer)) linear.cut = Cut::kCols;
  if (spec.cuts_outputs_of(layer)) linear.cut = Cut::kRows;
  linear.tensor_rank = spec.tensor_rank;
  linear.tensor_ranks = spec.tensor_ranks;
  return std::make_unique<Linear>(parameters, linear);
}

std::unique_ptr<Block> layer_of(const ModelSpec& spec, int layer, Parameters& parameters) {
  if (!spec.transformer) return linear_of(spec, layer, parameters);
  return transformer_block(parameters, {.name = spec.name_of_layer(layer),
                                        .number = layer,
                                        .width = spec.widths.front(),
                                        .ffn = spec.transformer->ffn,
                                        .attention = spec.transformer->attention,
                                        .tensor_rank = spec.tensor_rank,
                                        .tensor_ranks = spec.tensor_ranks});
}

std::unique_ptr<Block> tree_of(const ModelSpec& spec, const LayerRange& layers,
                               Parameters& parameters) {
  const std::string name = spec.container();
  std::vector<std::unique_ptr<Block>> blocks, segments;
  for (int layer = layers.first; layer < layers.end; ++layer) {
    blocks.push_back(layer_of(spec, layer, parameters));
    const Segment segment = spec.segment_of(layer);
    if (!spec.recomputes() || layer < segment.last) continue;
    const bool is_last = layer + 1 == spec.layers();
    segments.push_back(std::make_unique<Recomputed>(name, std::exchange(blocks, {}), is_last));
  }
  if (!spec.recomputes()) return std::make_unique<Chain>(name, std::move(blocks));
  return std::make_unique<Chain>(name, std::move(segments));
}

}  // namespace

std::string ModelSpec::short_text() const {
  return has_equal_widths() ? fmt::format("{} x {}", widths.front(), layers())
                            : fmt::format("{}", fmt::join(widths, "-"));
}

bool ModelSpec::has_equal_widths() const {
  return std::ranges::all_of(widths, [&](auto width) { return width == widths.front(); });
}

LayerRange ModelSpec::held_layers() const {
  if (stages == 1) return all_layers();
  return layers_of_stages(*this, stages)[static_cast<std::size_t>(stage)];
}

std::string ModelSpec::text() const {
  const std::int64_t first = widths.front();
  if (transformer) {
    const AttentionShape& attention = transformer->attention;
    return fmt::format("{} x TransformerBlock({}, {}, ffn {}, {}length {}, {} attention)", layers(),
                       first, counted(attention.heads, "head"), transformer->ffn,
                       attention.causal ? "causal, " : "", attention.length,
                       name_of(attention.form));
  }
  return has_equal_widths() ? fmt::format("{} x Linear({}, {})", layers(), first, first)
                            : fmt::format("Linear {}", fmt::join(widths, " - "));
}

namespace {

/// Where the first of `stages` stages ends if the largest of them has at most `most` parameters and
/// each takes all it can, and what the largest has; nothing if they need more. `sizes` are the
/// layers' parameters.
std::optional<std::pair<int, std::int64_t>> first_end(const std::vector<std::int64_t>& sizes,
                                                      int begin, int stages, std::int64_t most) {
  std::optional<int> first;
  int layer = begin;
  std::int64_t largest = 0;
  for (int left = stages - 1; left >= 0; --left) {
    std::int64_t sum = 0;
    // One layer for each later stage.
    for (; layer + left < std::ssize(sizes) && sum + at(sizes, layer) <= most; ++layer) {
      sum += at(sizes, layer);
    }
    largest = std::max(largest, sum);
    if (!first) first = layer;
  }
  if (layer < std::ssize(sizes)) return std::nullopt;
  return std::pair(*first, largest);
}

}  // namespace

std::vector<LayerRange> layers_of_stages(const ModelSpec& spec, int stages) {
  BARESTEP_REQUIRE(stages >= 1 && stages <= spec.layers(), "a stage has at least one layer");
  ModelSpec whole = spec.of(Mesh{});
  whole.segments = 1;
  std::vector<std::int64_t> sizes;
  for (int layer = 0; layer < spec.layers(); ++layer) {
    // A layer of the widths of the one before it has as many.
    const auto widths = spec.widths.begin() + layer;
    const bool is_same = layer > 0 && widths[-1] == widths[0] && widths[0] == widths[1];
    sizes.push_back(is_same ? sizes.back() : parameters_of(whole, {layer, layer + 1}).size());
  }
  std::vector<LayerRange> all;
  std::int64_t high = std::reduce(sizes.begin(), sizes.end());
  for (int begin = 0; stages > 0; begin = all.back().end, --stages) {
    std::int64_t low = *std::max_element(sizes.begin() + begin, sizes.end());
    while (low < high) {
      // Later stages have at most as much as the first; most often they cannot have less.
      const std::int64_t middle = begin == 0 ? low + (high - low) / 2 : high - 1;
      const auto found = first_end(sizes, begin, stages, middle);
      (found ? high : low) = found ? found->second : middle + 1;
    }
    all.push_back({begin, first_end(sizes, begin, stages, high)->first});
  }
  return all;
}

Model::Model(const ModelSpec& spec, const LayerRange& layers) {
  BARESTEP_REQUIRE(layers.size() >= 1, "a model has at least one layer");
  BARESTEP_REQUIRE(layers == spec.all_layers() || !spec.recomputes(), "a stage does not recompute");
  Parameters whole;
  root_ = tree_of(spec, layers, whole);
  parameters_ = spec.tensor_ranks == 1 ? whole : whole.part(spec.tensor_rank, spec.tensor_ranks);
  root_->add_linears(linears_);
}

void require_only_linears(const Parameters& parameters, const std::vector<Linear*>& linears,
                          std::string_view option, std::string_view value) {
  for (ParameterId id = 0; id < parameters.count(); ++id) {
    const bool is_linears = std::ranges::any_of(linears, [&](const Linear* linear) {
      return id == linear->weight() || id == linear->bias();
    });
    if (is_linears) continue;
    fail(ExitCode::kConfiguration,
         {std::string(option), std::string(value),
          fmt::format("{} is not a Linear's parameter, and only their gradients have factors",
                      parameters[id].name),
          "leave it out"});
  }
}

Parameters parameters_of(const ModelSpec& spec) {
  return Model(spec).parameters();
}

Parameters whole_parameters_of(const ModelSpec& spec) {
  return parameters_of(spec.of(Mesh{}));
}

Parameters parameters_of(const ModelSpec& spec, const LayerRange& layers) {
  return Model(spec, layers).parameters();
}

FlatBuffers take_flat_buffers(Buffers& buffers, const ModelSpec& spec, const Parameters& parameters,
                              int device, Holding holding, std::optional<std::int64_t> held) {
  const auto take = [&](const char* name, DType type) {
    const std::int64_t bytes = held ? *held * bytes_of(type) : parameters.bytes(type);
    return buffers.get(name, Category::kParameters, bytes, device);
  };
  FlatBuffers flat;
  const bool rounds = spec.numbers != DType::kF32;
  if (!rounds || holding == Holding::kParameters) {
    flat.parameters = take("parameters", DType::kF32);
  }
  flat.operands = rounds ? take("rounded_parameters", spec.numbers) : flat.parameters;
  return flat;
}

}  // namespace barestep
