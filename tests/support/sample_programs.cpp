#include "support/sample_programs.h"

#include <algorithm>
#include <random>
#include <string>

#include "core/random.h"

namespace barestep {
namespace {

constexpr std::int64_t kTensorAlignmentBytes = 64;

/// The offsets of each layer's bias and weight in a flat buffer: last layer first, bias before
/// weight.
struct FlatLayout {
  explicit FlatLayout(const std::vector<std::int64_t>& layer_widths)
      : widths(layer_widths), bias(layer_widths.size() - 1), weight(bias), end(bias) {
    for (std::size_t l = bias.size(); l-- > 0;) {
      bias[l] = bytes;
      weight[l] = aligned(bias[l] + widths[l + 1] * 4);
      bytes = end[l] = aligned(weight[l] + widths[l + 1] * widths[l] * 4);
    }
  }
  static std::int64_t aligned(std::int64_t value) {
    return (value + kTensorAlignmentBytes - 1) / kTensorAlignmentBytes * kTensorAlignmentBytes;
  }

  [[nodiscard]] Tensor bias_in(BufferId flat, std::size_t l) const {
    return {flat, bias[l], 1, widths[l + 1]};
  }
  [[nodiscard]] Tensor weight_in(BufferId flat, std::size_t l) const {
    return {flat, weight[l], widths[l + 1], widths[l]};
  }
  /// Layers last ... first, including all padding between them.
  [[nodiscard]] Tensor range_in(BufferId flat, std::size_t last, std::size_t first) const {
    return {flat, bias[last], 1, (end[first] - bias[last]) / 4};
  }

  std::vector<std::int64_t> widths;
  std::vector<std::int64_t> bias, weight, end;
  std::int64_t bytes = 0;
};

struct Input {
  Tensor x, y, scalars;
};

/// Adds the nodes of a multi-layer perceptron on one device.
struct ModelBuilder {
  ModelBuilder(Buffers& all_buffers, Program& to, const SampleShape& shape, int on_device,
               std::int64_t rows)
      : buffers(all_buffers),
        program(to),
        layout(shape.widths),
        fused(shape.fused),
        device(on_device),
        params(buffers.get("params", Category::kParameters, layout.bytes, device)),
        grads(buffers.get("grads", Category::kGradients, layout.bytes, device)) {
    for (std::size_t l = 0; l < layers(); ++l) {
      const std::string number = std::to_string(l);
      outputs.push_back(activation(std::string("out").append(number), rows, shape.widths[l + 1]));
      grad_outputs.push_back(
          activation(std::string("grad_out").append(number), rows, shape.widths[l + 1]));
    }
  }

  [[nodiscard]] std::size_t layers() const { return layout.bias.size(); }

  Tensor activation(const std::string& name, std::int64_t rows, std::int64_t cols) {
    return buffers.tensor(name, Category::kActivations, rows, cols, DType::kF32, device);
  }

  void add(const DeviceOp& op, Phase phase, std::size_t layer) {
    program.add({op, device, Lane::kCompute, phase, "net." + std::to_string(2 * layer)});
  }

  void forward(const Tensor& x, Phase phase = Phase::kForward) {
    for (std::size_t l = 0; l < layers(); ++l) {
      Gemm gemm{.c = outputs[l],
                .a = l == 0 ? x : outputs[l - 1],
                .b = layout.weight_in(params, l),
                .transpose_b = true};
      if (fused) {
        gemm.bias = layout.bias_in(params, l);
        gemm.activation = Activation::kRelu;
      }
      add(gemm, phase, l);
      if (!fused) add(BiasActivation{outputs[l], layout.bias_in(params, l)}, phase, l);
    }
  }

  void weight_gradients(std::size_t l, const Tensor& x, float beta) {
    add(ActivationGrad{grad_outputs[l], outputs[l]}, Phase::kBackward, l);
    add(SumRows{layout.bias_in(grads, l), grad_outputs[l], beta}, Phase::kBackward, l);
    add(Gemm{.c = layout.weight_in(grads, l),
             .a = grad_outputs[l],
             .b = l == 0 ? x : outputs[l - 1],
             .transpose_a = true,
             .beta = beta},
        Phase::kBackward, l);
  }

  void input_gradient(std::size_t l) {
    if (l == 0) return;
    add(Gemm{.c = grad_outputs[l - 1], .a = grad_outputs[l], .b = layout.weight_in(params, l)},
        Phase::kBackward, l);
  }

  void backward(const Tensor& x, float beta = 0) {
    for (std::size_t l = layers(); l-- > 0;) {
      weight_gradients(l, x, beta);
      input_gradient(l);
    }
  }

  void adam(std::size_t last, std::size_t first, const Tensor& scalars, Lane lane) {
    const auto range = [&](BufferId flat) { return layout.range_in(flat, last, first); };
    const auto moments = [&](const char* name) {
      return range(buffers.get(name, Category::kOptimizer, layout.bytes, device));
    };
    program.add({DeviceOp{OptimizerUpdate{.weights = range(params),
                                          .grads = range(grads),
                                          .state = {moments("moments1"), moments("moments2")},
                                          .scalars = scalars}},
                 device, lane, Phase::kOptimizer});
  }

  Buffers& buffers;
  Program& program;
  FlatLayout layout;
  bool fused;
  int device;
  BufferId params, grads;
  std::vector<Tensor> outputs, grad_outputs;
};

/// The data nodes, on the copy lane of device 0.
Input add_input(Buffers& buffers, Program& program, const SampleShape& shape) {
  const auto data = [&](const char* name, std::int64_t rows, std::int64_t cols,
                        bool pinned = false) {
    return buffers.tensor(name, Category::kData, rows, cols, DType::kF32, 0, 2, pinned);
  };
  const Input input{data("x", shape.rows, shape.widths.front()),
                    data("y", shape.rows, shape.widths.back()), data("scalars", 1, 2)};
  const Tensor state =
      buffers.tensor("random", Category::kData, 1, sizeof(TorchGenerator), DType::kU8);
  const Tensor host_scalars = data("host_scalars", 1, 2, true);
  const auto add = [&](const DeviceOp& op) { program.add({op, 0, Lane::kCopy, Phase::kData}); };
  add(Randn{input.x, state});
  add(Randn{input.y, state});
  add(Copy{input.scalars, host_scalars});
  return input;
}

Tensor loss_of(Buffers& buffers) {
  return buffers.tensor("loss", Category::kData, 1, 1, DType::kF32, 0, 2);
}

SampleProgram empty(const char* name) {
  auto buffers = std::make_unique<Buffers>();
  Program program(name, *buffers);
  return {std::move(buffers), std::move(program)};
}

}  // namespace

SampleProgram training_step(const SampleShape& shape) {
  SampleProgram sample = empty("train");
  auto& [buffers, program] = sample;
  const Input input = add_input(*buffers, program, shape);
  const std::int64_t rows = shape.rows / shape.micro_steps;
  ModelBuilder model(*buffers, program, shape, 0, rows);
  const std::int64_t count = shape.rows * shape.widths.back();
  for (int micro = 0; micro < shape.micro_steps; ++micro) {
    const float beta = micro == 0 ? 0.F : 1.F;
    const Tensor x = input.x.row_slice(micro * rows, rows);
    model.forward(x);
    model.add(PointwiseLoss{.loss = loss_of(*buffers),
                            .grad = model.grad_outputs.back(),
                            .output = model.outputs.back(),
                            .target = input.y.row_slice(micro * rows, rows),
                            .count = count,
                            .beta = beta},
              Phase::kLoss, model.layers() - 1);
    model.backward(x, beta);
  }
  model.adam(model.layers() - 1, 0, input.scalars, Lane::kCompute);
  return sample;
}

SampleProgram ddp_step(const SampleShape& shape, int ranks, int layers_per_bucket,
                       bool adam_per_bucket) {
  SampleProgram sample = empty("train");
  auto& [buffers, program] = sample;
  const Input input = add_input(*buffers, program, shape);
  ModelBuilder model(*buffers, program, shape, 0, shape.rows);
  const float scale = 1.F / static_cast<float>(ranks);
  model.forward(input.x);
  model.add(PointwiseLoss{.loss = loss_of(*buffers),
                          .grad = model.grad_outputs.back(),
                          .output = model.outputs.back(),
                          .target = input.y,
                          .count = input.y.size()},
            Phase::kLoss, model.layers() - 1);
  std::size_t bucket_last = model.layers() - 1;
  for (std::size_t l = model.layers(); l-- > 0;) {
    model.weight_gradients(l, input.x, 0);
    const bool complete =
        l == 0 || bucket_last - l + 1 == static_cast<std::size_t>(layers_per_bucket);
    if (complete) {
      program.add(
          {Collective{AllReduce{{model.layout.range_in(model.grads, bucket_last, l)}, scale}}, 0,
           Lane::kComm, Phase::kCommunication});
    }
    model.input_gradient(l);
    if (!complete) continue;
    if (adam_per_bucket) model.adam(bucket_last, l, input.scalars, Lane::kComm);
    if (l > 0) bucket_last = l - 1;
  }
  if (!adam_per_bucket) model.adam(model.layers() - 1, 0, input.scalars, Lane::kCompute);
  return sample;
}

SampleProgram data_parallel_step(const SampleShape& shape, int devices) {
  SampleProgram sample = empty("train");
  auto& [buffers, program] = sample;
  const Input input = add_input(*buffers, program, shape);
  const std::int64_t max_rows = (shape.rows + devices - 1) / devices;
  std::vector<ModelBuilder> models;
  std::vector<Tensor> inputs, params, grads;
  for (std::int64_t first = 0; first < shape.rows; first += max_rows) {
    const auto device = static_cast<int>(models.size());
    const std::int64_t rows = std::min(max_rows, shape.rows - first);
    Tensor x = input.x.row_slice(first, rows);
    if (device > 0) {
      const Tensor piece =
          buffers->tensor("x_piece", Category::kData, rows, x.cols, DType::kF32, device);
      program.add({DeviceOp{Copy{piece, x}}, device, Lane::kCopy, Phase::kForward});
      x = piece;
    }
    inputs.push_back(x);
    const ModelBuilder& model = models.emplace_back(*buffers, program, shape, device, rows);
    params.push_back(model.layout.range_in(model.params, model.layers() - 1, 0));
    grads.push_back(model.layout.range_in(model.grads, model.layers() - 1, 0));
  }
  const Tensor all = models[0].activation("gathered", shape.rows, shape.widths.back());
  const Tensor grad_all = models[0].activation("grad_gathered", shape.rows, shape.widths.back());

  program.add({Collective{Broadcast{params}}, 0, Lane::kComm, Phase::kForward});
  std::int64_t first = 0;
  for (std::size_t i = 0; i < models.size(); ++i) {
    models[i].forward(inputs[i]);
    const Tensor& out = models[i].outputs.back();
    program.add(
        {DeviceOp{Copy{all.row_slice(first, out.rows), out}}, 0, Lane::kComm, Phase::kForward});
    first += out.rows;
  }
  models[0].add(PointwiseLoss{loss_of(*buffers), grad_all, all, input.y, all.size()}, Phase::kLoss,
                models[0].layers() - 1);
  first = 0;
  for (std::size_t i = 0; i < models.size(); ++i) {
    const Tensor& grad = models[i].grad_outputs.back();
    program.add({DeviceOp{Copy{grad, grad_all.row_slice(first, grad.rows)}}, static_cast<int>(i),
                 Lane::kCompute, Phase::kBackward});
    first += grad.rows;
    models[i].backward(inputs[i]);
  }
  program.add({Collective{Reduce{grads}}, 0, Lane::kComm, Phase::kCommunication});
  models[0].adam(models[0].layers() - 1, 0, input.scalars, Lane::kCompute);
  return sample;
}

SampleProgram evaluation_step(const SampleShape& shape) {
  SampleProgram sample = empty("evaluate");
  auto& [buffers, program] = sample;
  const auto data = [&, b = buffers.get()](const char* name, std::int64_t cols, DType dtype,
                                           bool pinned) {
    return b->tensor(name, Category::kData, shape.rows, cols, dtype, 0, 2, pinned);
  };
  const Tensor x = data("x", shape.widths.front(), DType::kF32, false);
  const Tensor labels = data("labels", 1, DType::kI32, false);
  const auto copy = [&, p = &program](const Tensor& to, const Tensor& from) {
    p->add({DeviceOp{Copy{to, from}}, 0, Lane::kCopy, Phase::kData});
  };
  copy(x, data("host_x", shape.widths.front(), DType::kF32, true));
  copy(labels, data("host_labels", 1, DType::kI32, true));
  ModelBuilder model(*buffers, program, shape, 0, shape.rows);
  model.forward(x, Phase::kEvaluate);
  const Tensor correct = buffers->tensor("correct", Category::kData, 1, 1, DType::kI32);
  const Tensor host_correct =
      buffers->tensor("host_correct", Category::kData, 1, 1, DType::kI32, 0, 2, true);
  model.add(CountCorrect{correct, model.outputs.back(), labels}, Phase::kEvaluate,
            model.layers() - 1);
  model.add(CrossEntropy{.loss = loss_of(*buffers),
                         .grad = model.grad_outputs.back(),
                         .logits = model.outputs.back(),
                         .labels = labels,
                         .count = shape.rows},
            Phase::kEvaluate, model.layers() - 1);
  program.add({DeviceOp{Copy{host_correct, correct}}, 0, Lane::kComm, Phase::kEvaluate});
  return sample;
}

SampleProgram random_program(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::int64_t limit) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(limit));
  };
  constexpr std::int64_t kNumbers = 16;  // in every buffer
  SampleProgram sample = empty("random");
  auto& [buffers, program] = sample;
  const auto devices = static_cast<int>(1 + below(3));
  const std::int64_t names = 1 + below(3);
  for (std::int64_t name = 0; name < names; ++name) {
    for (int device = 0; device < devices; ++device) {
      buffers->tensor(std::string("b").append(std::to_string(name)), Category::kData, 1, kNumbers,
                      DType::kF32, device, static_cast<int>(1 + below(2)), below(4) == 0);
    }
  }
  const auto range = [&](BufferId id, std::int64_t first, std::int64_t numbers) {
    return Tensor{id, first * 4, 1, numbers};
  };
  const std::int64_t nodes = 2 + below(10);
  while (program.size() < nodes) {
    const std::int64_t numbers = 1 + below(kNumbers);
    const auto first = [&] { return below(kNumbers - numbers + 1); };
    const auto any = [&, b = buffers.get()] {
      return range(static_cast<BufferId>(below(b->size())), first(), numbers);
    };
    const auto device = static_cast<int>(below(devices));
    const auto lane = static_cast<Lane>(below(kCountOf<Lane>));
    const std::int64_t kind = below(8);
    if (kind < 2) {
      program.add({DeviceOp{Fill{any()}}, device, lane, Phase::kForward});
    } else if (kind < 6) {
      const Copy copy{any(), any()};
      if (!overlap(copy.to, copy.from)) {
        program.add({DeviceOp{copy}, device, lane, Phase::kForward});
      }
    } else {
      std::vector<Tensor> parts;  // one per device
      for (int d = 0; d < devices; ++d) {
        parts.push_back(range(static_cast<BufferId>(below(names) * devices + d), first(), numbers));
      }
      const Collective op = kind == 6 ? Collective{AllReduce{parts}} : Collective{Broadcast{parts}};
      program.add({op, 0, lane, Phase::kCommunication});
    }
  }
  return sample;
}

}  // namespace barestep
