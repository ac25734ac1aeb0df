// validate(op): which shapes and types each op accepts.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "core/checked.h"
#include "core/error.h"
#include "core/ops.h"
#include "core/overloaded.h"

namespace barestep {
namespace {

struct Operand {
  std::string_view name;
  Tensor tensor;
  DType dtype = DType::kF32;  // the type it must have
};
using Operands = std::vector<Operand>;

Operands operands_of_update(const Adam& op) {
  Operands list{{"weights", op.weights},
                {"grads", op.grads},
                {"moments1", op.moments1},
                {"moments2", op.moments2},
                {"scalars", op.scalars}};
  if (op.clip) list.push_back({"clip", *op.clip});
  return list;
}

Operands operands_of_update(const Sgd& op) {
  Operands list{{"weights", op.weights}, {"grads", op.grads}, {"scalars", op.scalars}};
  if (op.velocities) list.push_back({"velocities", *op.velocities});
  if (op.clip) list.push_back({"clip", *op.clip});
  return list;
}

Operands operands_of_update(const LinearAdam& op) {
  Operands list{{"weight", op.weight},
                {"weight_moments1", op.weight_moments1},
                {"weight_moments2", op.weight_moments2},
                {"bias", op.bias},
                {"bias_moments1", op.bias_moments1},
                {"bias_moments2", op.bias_moments2},
                {"grad_y", op.grad_y},
                {"x", op.x},
                {"scalars", op.scalars}};
  if (op.clip) list.push_back({"clip", *op.clip});
  return list;
}

Operands operands_of_product(const Gemm& op) {
  Operands list{{"c", op.c}, {"a", op.a}, {"b", op.b}};
  if (op.bias) list.push_back({"bias", *op.bias});
  return list;
}

Operands operands_of_cast(const Cast& op) {
  const bool narrows = op.to.dtype == DType::kBF16;
  return {{"to", op.to, narrows ? DType::kBF16 : DType::kF32},
          {"from", op.from, narrows ? DType::kF32 : DType::kBF16}};
}

Operands operands_of_device_op(const DeviceOp& op) {
  return std::visit(
      Overloaded{
          [](const Gemm& o) { return operands_of_product(o); },
          [](const BiasRelu& o) {
            return Operands{{"values", o.values}, {"bias", o.bias}};
          },
          [](const ReluGrad& o) {
            return Operands{{"grad", o.grad}, {"output", o.output}};
          },
          [](const SumRows& o) {
            return Operands{{"out", o.out}, {"in", o.in}};
          },
          [](const MseLoss& o) {
            return Operands{
                {"loss", o.loss}, {"grad", o.grad}, {"output", o.output}, {"target", o.target}};
          },
          [](const CrossEntropy& o) {
            return Operands{{"loss", o.loss},
                            {"grad", o.grad},
                            {"logits", o.logits},
                            {"labels", o.labels, DType::kI32}};
          },
          [](const CountCorrect& o) {
            return Operands{{"correct", o.correct, DType::kI32},
                            {"logits", o.logits},
                            {"labels", o.labels, DType::kI32}};
          },
          [](const Adam& o) { return operands_of_update(o); },
          [](const Sgd& o) { return operands_of_update(o); },
          [](const LinearAdam& o) { return operands_of_update(o); },
          [](const SumSquares& o) {
            return Operands{{"out", o.out}, {"in", o.in}};
          },
          [](const GramSquares& o) {
            return Operands{{"out", o.out}, {"gram_y", o.gram_y}, {"gram_x", o.gram_x}};
          },
          [](const ClipFactor& o) {
            return Operands{{"factor", o.factor}, {"squares", o.squares}};
          },
          [](const Copy& o) {
            return Operands{{"to", o.to, o.from.dtype}, {"from", o.from, o.from.dtype}};
          },
          [](const Cast& o) { return operands_of_cast(o); },
          [](const Fill& o) {
            return Operands{{"out", o.out}};
          },
          [](const Randn& o) {
            return Operands{{"out", o.out}, {"state", o.state, DType::kU8}};
          },
          [](const Delay& o) {
            return o.more_seconds ? Operands{{"more_seconds", *o.more_seconds}} : Operands{};
          },
      },
      op);
}

Operands operands_of(const Op& op) {
  if (const auto* device_op = std::get_if<DeviceOp>(&op)) return operands_of_device_op(*device_op);
  return std::visit(
      [](const auto& collective) {
        // These move bytes of any type; the others add numbers.
        using Kind = std::decay_t<decltype(collective)>;
        constexpr bool kAnyType =
            std::is_same_v<Kind, Broadcast> || std::is_same_v<Kind, AllGather>;
        const auto& tensors = collective.tensors;
        const DType first = tensors.empty() ? DType::kF32 : tensors.front().dtype;
        const bool is_bf16_sum = std::is_same_v<Kind, AllReduce> && first == DType::kBF16;
        const DType dtype = kAnyType || is_bf16_sum ? first : DType::kF32;
        Operands list;
        for (const Tensor& tensor : tensors) list.push_back({"tensor", tensor, dtype});
        if constexpr (std::is_same_v<std::decay_t<decltype(collective)>, AllGather>) {
          for (const Tensor& tensor : collective.own) list.push_back({"own", tensor, dtype});
        }
        return list;
      },
      std::get<Collective>(op));
}

std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kI32:
      return "i32";
    case DType::kBF16:
      return "bf16";
    case DType::kU8:
      return "u8";
  }
  return "?";
}

bool same_shape(const Tensor& a, const Tensor& b) {
  return a.rows == b.rows && a.cols == b.cols;
}

bool has_shape(const Tensor& tensor, std::int64_t rows, std::int64_t cols) {
  return tensor.rows == rows && tensor.cols == cols;
}

/// The rules of one op. Each check throws with the op's label and all its tensors.
class Rules {
 public:
  explicit Rules(const Op& op) : op_(op), operands_(operands_of(op)) {}

  void check_tensors() const {
    for (const auto& [name, tensor, dtype] : operands_) {
      demand(tensor.dtype == dtype, fmt::format("{} must be {}", name, name_of(dtype)));
      demand(tensor.rows >= 0 && tensor.cols >= 1,
             fmt::format("{} must have zero or more rows and one or more columns", name));
      demand(tensor.offset_bytes >= 0 && tensor.offset_bytes % bytes_of(dtype) == 0,
             fmt::format("{} must start at a multiple of its type's size", name));
      const std::string what = fmt::format("{} of {}", name, label_of(op_));
      const std::int64_t size = checked_multiply(tensor.rows, tensor.cols, what);
      checked_add(tensor.offset_bytes, checked_multiply(size, bytes_of(dtype), what), what);
    }
  }

  void check_overlap() const {
    const auto accesses = accesses_of(op_);
    const auto written = [&](const Tensor& tensor) {
      return std::any_of(accesses.begin(), accesses.end(), [&](const Access& access) {
        return access.writes && access.tensor == tensor;
      });
    };
    for (auto one = operands_.begin(); one != operands_.end(); ++one) {
      for (auto other = one + 1; other != operands_.end(); ++other) {
        demand(!overlap(one->tensor, other->tensor) ||
                   (!written(one->tensor) && !written(other->tensor)),
               fmt::format("{} must not share bytes with {}", one->name, other->name));
      }
    }
  }

  void operator()(const Gemm& o) const {
    const auto [m, k] =
        o.transpose_a ? std::pair(o.a.cols, o.a.rows) : std::pair(o.a.rows, o.a.cols);
    const auto [l, n] =
        o.transpose_b ? std::pair(o.b.cols, o.b.rows) : std::pair(o.b.rows, o.b.cols);
    demand(k == l, "op(a) must have as many columns as op(b) has rows");
    demand(has_shape(o.c, m, n), "c must be the rows of op(a) by the columns of op(b)");
    demand(!o.bias || has_shape(*o.bias, 1, n), "bias must be 1 by the columns of c");
    demand(!o.bias || o.beta == 0, "a bias needs beta == 0");
  }
  void operator()(const BiasRelu& o) const {
    demand(has_shape(o.bias, 1, o.values.cols), "bias must be 1 by the columns of values");
  }
  void operator()(const ReluGrad& o) const {
    demand(same_shape(o.grad, o.output), "grad and output must have the same shape");
  }
  void operator()(const SumRows& o) const {
    demand(has_shape(o.out, 1, o.in.cols), "out must be 1 by the columns of in");
  }
  void operator()(const MseLoss& o) const {
    demand(has_shape(o.loss, 1, 1), "loss must be 1 by 1");
    demand(same_shape(o.grad, o.output) && same_shape(o.target, o.output),
           "grad, output and target must have the same shape");
    demand(o.count >= 1 && o.count >= o.output.size(),
           "count must be at least 1 and at least the size of output");
  }
  void operator()(const CrossEntropy& o) const {
    demand(has_shape(o.loss, 1, 1), "loss must be 1 by 1");
    demand(same_shape(o.grad, o.logits), "grad and logits must have the same shape");
    demand(has_shape(o.labels, o.logits.rows, 1), "labels must be the rows of logits by 1");
    demand(o.count >= 1 && o.count >= o.logits.rows,
           "count must be at least 1 and at least the rows of logits");
  }
  void operator()(const CountCorrect& o) const {
    demand(has_shape(o.correct, 1, 1), "correct must be 1 by 1");
    demand(has_shape(o.labels, o.logits.rows, 1), "labels must be the rows of logits by 1");
  }
  void operator()(const Adam& o) const {
    demand(o.weights.rows == 1, "weights must be flat, 1 by n");
    demand(same_shape(o.grads, o.weights) && same_shape(o.moments1, o.weights) &&
               same_shape(o.moments2, o.weights),
           "weights, grads, moments1 and moments2 must have the same shape");
    check_adam(o);
  }
  void operator()(const Sgd& o) const {
    demand(o.weights.rows == 1, "weights must be flat, 1 by n");
    demand(
        same_shape(o.grads, o.weights) && (!o.velocities || same_shape(*o.velocities, o.weights)),
        "weights, grads and velocities must have the same shape");
    demand(has_shape(o.scalars, 1, 1), "scalars must be 1 by 1");
    demand(o.momentum >= 0 && o.weight_decay >= 0,
           "momentum and weight_decay must be zero or more");
    demand(o.velocities.has_value() == (o.momentum > 0), "velocities go with momentum");
    demand(!o.nesterov || o.momentum > 0, "nesterov needs momentum");
    check_clip(o.clip);
  }
  void operator()(const LinearAdam& o) const {
    demand(o.grad_y.rows == o.x.rows && has_shape(o.weight, o.grad_y.cols, o.x.cols),
           "weight must be the columns of grad_y by the columns of x, which have equal rows");
    demand(has_shape(o.bias, 1, o.weight.rows), "bias must be 1 by the rows of weight");
    demand(same_shape(o.weight_moments1, o.weight) && same_shape(o.weight_moments2, o.weight) &&
               same_shape(o.bias_moments1, o.bias) && same_shape(o.bias_moments2, o.bias),
           "moments must have the shapes of weight and bias");
    check_adam(o);
  }
  void operator()(const SumSquares& o) const {
    demand(has_shape(o.out, 1, 1), "out must be 1 by 1");
  }
  void operator()(const GramSquares& o) const {
    demand(has_shape(o.out, 1, 1), "out must be 1 by 1");
    demand(o.gram_y.rows == o.gram_y.cols && same_shape(o.gram_y, o.gram_x),
           "gram_y and gram_x must be square and have the same shape");
  }
  void operator()(const ClipFactor& o) const {
    demand(has_shape(o.factor, 1, 1), "factor must be 1 by 1");
    demand(o.squares.rows == 1, "squares must be flat, 1 by n");
    demand(std::isfinite(o.max_norm) && o.max_norm > 0, "max_norm must be above zero");
  }
  void operator()(const Copy& o) const {
    demand(same_shape(o.to, o.from), "to and from must have the same shape");
  }
  void operator()(const Cast& o) const {
    demand(same_shape(o.to, o.from), "to and from must have the same shape");
  }
  void operator()(const Fill&) const {}
  void operator()(const Randn& o) const {
    demand(o.state.bytes() == state_bytes(o.generator),
           fmt::format("state must have the {} bytes of its generator", state_bytes(o.generator)));
  }
  void operator()(const Delay& o) const {
    demand(std::isfinite(o.seconds) && o.seconds >= 0, "seconds must be zero or more");
    demand(!o.more_seconds || has_shape(*o.more_seconds, 1, 1), "more_seconds must be 1 by 1");
  }

  void operator()(const AllReduce& o) const {
    check_parts(o.tensors);
    demand(o.scale == 1 || o.tensors.front().dtype == DType::kF32, "only floats are scaled");
  }
  void operator()(const Broadcast& o) const { check_rooted(o.tensors, o.root); }
  void operator()(const Reduce& o) const { check_rooted(o.tensors, o.root); }
  void operator()(const ReduceScatter& o) const { check_parts(o.tensors); }
  void operator()(const AllGather& o) const {
    check_parts(o.tensors);
    demand(o.own.empty() || o.own.size() == o.tensors.size(), "own must be one for each tensor");
    for (const Tensor& own : o.own) {
      demand(own.cols == o.tensors.front().cols && own.rows <= o.tensors.front().rows,
             "own must be rows of the tensor");
    }
  }

 private:
  void demand(bool holds, std::string_view rule) const {
    if (holds) return;
    std::string tensors;
    for (const auto& [name, tensor, dtype] : operands_) {
      tensors += fmt::format("{}{} {}x{} {}", tensors.empty() ? " (" : ", ", name, tensor.rows,
                             tensor.cols, name_of(tensor.dtype));
    }
    if (!tensors.empty()) tensors += ")";
    fail(ExitCode::kBug, {.what = "ill-formed op",
                          .value = std::string(label_of(op_)),
                          .why = fmt::format("{}{}", rule, tensors),
                          .remedy = "this is a bug in barestep, please report it"});
  }

  void check_clip(const std::optional<Tensor>& clip) const {
    demand(!clip || has_shape(*clip, 1, 1), "clip must be 1 by 1");
  }

  template <class AdamOp>
  void check_adam(const AdamOp& o) const {
    demand(has_shape(o.scalars, 1, o.decoupled ? 3 : 2),
           "scalars must be 1 by 2, or by 3 with decoupled weight decay");
    demand(o.weight_decay >= 0, "weight_decay must be zero or more");
    check_clip(o.clip);
  }

  void check_parts(const std::vector<Tensor>& tensors) const {
    demand(!tensors.empty(), "a collective must have a tensor");
    for (const Tensor& tensor : tensors) {
      demand(same_shape(tensor, tensors.front()), "all tensors must have the same shape");
    }
  }

  void check_rooted(const std::vector<Tensor>& tensors, int root) const {
    check_parts(tensors);
    demand(root >= 0, "root must be a rank");
  }

  const Op& op_;
  Operands operands_;
};

}  // namespace

void validate(const Op& op) {
  const Rules rules(op);
  rules.check_tensors();
  std::visit([&](const auto& kind) { std::visit(rules, kind); }, op);
  rules.check_overlap();
}

}  // namespace barestep
