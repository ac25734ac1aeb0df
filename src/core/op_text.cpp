#include "core/op_text.h"

#include <fmt/format.h>

#include "core/config.h"

namespace barestep {
namespace {

/// The words for one node's op.
class Words {
 public:
  Words(const Program& program, const Node& node) : buffers_(program.buffers()), node_(node) {}

  std::string operator()(const Gemm& o) const {
    std::string text = fmt::format("{} = {}{} * {}{}", t(o.c), t(o.a), o.transpose_a ? "^T" : "",
                                   t(o.b), o.transpose_b ? "^T" : "");
    if (o.bias) text += " + " + t(*o.bias);
    return text + old(o.c, o.beta) + then(o.activation);
  }
  std::string operator()(const BiasActivation& o) const {
    return fmt::format("{} += {}{}", t(o.values), t(o.bias), then(o.activation));
  }
  std::string operator()(const ActivationGrad& o) const {
    return fmt::format(fmt::runtime(traits_of(o.activation).grad_text), t(o.grad), t(o.output));
  }
  std::string operator()(const SumRows& o) const {
    return fmt::format("{} = column sums of {}{}", t(o.out), t(o.in), old(o.out, o.beta));
  }
  std::string operator()(const MseLoss& o) const {
    return fmt::format("{} = sum of ({} - {})^2 / {}{}, gradient in {}", t(o.loss), t(o.output),
                       t(o.target), o.count, old(o.loss, o.beta), t(o.grad));
  }
  std::string operator()(const CrossEntropy& o) const {
    return fmt::format("{} = cross entropy of {} with labels {} / {}{}, gradient in {}", t(o.loss),
                       t(o.logits), t(o.labels), o.count, old(o.loss, o.beta), t(o.grad));
  }
  std::string operator()(const CountCorrect& o) const {
    return fmt::format("{} = rows of {} whose largest is label {}", t(o.correct), t(o.logits),
                       t(o.labels));
  }
  template <OptimizerOp Update>
  std::string operator()(const Update& o) const {
    return o.text([this](const Tensor& tensor) { return t(tensor); });
  }
  std::string operator()(const SumSquares& o) const {
    return fmt::format("{} = sum of {}^2", t(o.out), t(o.in));
  }
  std::string operator()(const GramSquares& o) const {
    return fmt::format("{} = sum of {} * ({} + 1)", t(o.out), t(o.gram_y), t(o.gram_x));
  }
  std::string operator()(const ClipFactor& o) const {
    return fmt::format("{} = {} / root of the sum of {}, at most 1", t(o.factor), o.max_norm,
                       t(o.squares));
  }
  std::string operator()(const Copy& o) const { return fmt::format("{} = {}", t(o.to), t(o.from)); }
  std::string operator()(const Cast& o) const {
    const char* const type = o.to.dtype == DType::kBF16 ? "bf16" : "fp32";
    const std::string scale = o.scale == 1 ? "" : fmt::format("{} * ", o.scale);
    return fmt::format("{} = {}{} in {}", t(o.to), scale, t(o.from), type);
  }
  std::string operator()(const Fill& o) const { return fmt::format("{} = {}", t(o.out), o.value); }
  std::string operator()(const Randn& o) const {
    return fmt::format("{} = normal numbers drawn from {}", t(o.out), t(o.state));
  }
  std::string operator()(const Delay& o) const {
    return fmt::format("{} ms{}", o.seconds * 1e3,
                       o.more_seconds ? fmt::format(" and {} s", t(*o.more_seconds)) : "");
  }

  std::string operator()(const AllReduce& o) const {
    std::string text = list(o.tensors) + " summed over all ranks";
    if (o.scale != 1) text += fmt::format(", each times {}", o.scale);
    return text;
  }
  std::string operator()(const Broadcast& o) const {
    return fmt::format("{} = that of rank {}", list(o.tensors), o.root);
  }
  std::string operator()(const Reduce& o) const {
    return fmt::format("{} summed over all ranks into that of rank {}", list(o.tensors), o.root);
  }
  std::string operator()(const ReduceScatter& o) const {
    std::string text = list(o.tensors) + ", each rank's rows summed over all ranks";
    if (o.scale != 1) text += fmt::format(", each times {}", o.scale);
    return text;
  }
  std::string operator()(const AllGather& o) const {
    const std::string from = o.own.empty() ? "" : fmt::format(", this one's from {}", list(o.own));
    return list(o.tensors) + " = the rows of all ranks" + from;
  }

 private:
  [[nodiscard]] std::string t(const Tensor& tensor) const {
    const Buffer& buffer = buffers_[tensor.buffer];
    std::string text;
    if (buffer.device != node_.device) text += fmt::format("{}:", buffer.device);
    text += buffer.name;
    if (tensor.offset_bytes != 0) text += fmt::format("@{}", tensor.offset_bytes);
    return text + fmt::format("[{}x{}]", tensor.rows, tensor.cols);
  }

  [[nodiscard]] std::string list(const std::vector<Tensor>& tensors) const {
    std::string text;
    for (const Tensor& tensor : tensors) text += (text.empty() ? "" : ", ") + t(tensor);
    return text;
  }

  [[nodiscard]] std::string old(const Tensor& tensor, float beta) const {
    if (beta == 0) return "";
    return beta == 1 ? " + " + t(tensor) : fmt::format(" + {} * {}", beta, t(tensor));
  }

  static std::string then(Activation activation) {
    return activation == Activation::kNone ? "" : fmt::format(", {}", name_of(activation));
  }

  const Buffers& buffers_;
  const Node& node_;
};

}  // namespace

std::string text_of(const Program& program, const Node& node) {
  const Words words(program, node);
  return std::visit([&](const auto& kind) { return std::visit(words, kind); }, node.op);
}

}  // namespace barestep
