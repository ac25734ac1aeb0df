#include "core/operands.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "core/error.h"

namespace barestep {
namespace {

using Operands = std::vector<Operand>;

DType type_of_first(const std::vector<Tensor>& tensors) {
  return tensors.empty() ? DType::kF32 : tensors.front().dtype;
}

Operands list_of(const std::vector<Tensor>& tensors, const Operand& each) {
  Operands list;
  for (const Tensor& tensor : tensors) {
    list.push_back(each);
    list.back().tensor = &tensor;
    list.back().part = static_cast<int>(list.size()) - 1;
  }
  return list;
}

/// Partial sums cannot be added once they are rounded to 16 bits.
OperandUse sum_into(DType type) {
  return type == DType::kF32 ? OperandUse::kAccumulates : OperandUse::kWrites;
}

/// The lists of operands, the only description of an op's tensors.
struct Lists {
  using enum OperandUse;

  Operands operator()(const Gemm& o) const {
    // A weight's gradient sums over the rows of the batch; other products compute row by row. A
    // Gram matrix multiplies every row by every other, so it cannot be cut by rows.
    const bool is_gram = o.a == o.b && !o.transpose_a && o.transpose_b;
    const char m = is_gram ? 'M' : o.transpose_a ? 'm' : 'r';
    const char n = is_gram ? 'N' : 'n';
    const char k = o.transpose_a ? 'r' : 'k';
    // Partial sums cannot be added after a bias or an activation.
    const bool only_adds = !o.bias && o.activation == Activation::kNone;
    const DType from = real_type(o.a);
    const DType to = o.c.dtype == from ? from : DType::kF32;
    const OperandUse use = only_adds ? sum_into(to) : o.beta == 0 ? kWrites : kUpdates;
    return {{"c", &o.c, use, m, n, to},
            {"a", &o.a, kReads, o.transpose_a ? k : m, o.transpose_a ? m : k, from},
            {"b", &o.b, kReads, o.transpose_b ? n : k, o.transpose_b ? k : n, from},
            {"bias", optional_tensor(o.bias), kReads, '1', n, to},
            {"pre_activation", optional_tensor(o.pre_activation), kWrites, m, n, to}};
  }
  Operands operator()(const QuantizeWeight& o) const {
    return {{"to", &o.to, kWrites, 'N', 'K', DType::kI8},
            {"scales", &o.scales, kWrites, '1', o.scales.cols == 1 ? '1' : 'N'},
            {"sums", &o.sums, kWrites, '1', 'N', DType::kI32},
            {"from", &o.from, kReads, 'N', 'K'}};
  }
  /// One scale for each row, or one for all.
  Operands operator()(const Quantize& o) const {
    const char rows = o.zero_point ? 'M' : 'r';
    return {{"to", &o.to, kWrites, rows, 'K', DType::kI8},
            {"scales", &o.scales, kWrites, o.zero_point ? '1' : rows, '1'},
            {"from", &o.from, kReads, rows, 'K'},
            {"zero_point", optional_tensor(o.zero_point), kWrites, '1', '1', DType::kI32}};
  }
  Operands operator()(const QuantizedGemm& o) const {
    return {{"c", &o.c, kWrites, 'r', 'N'},
            {"a", &o.a, kReads, 'r', 'K', DType::kI8},
            {"b", &o.b, kReads, 'N', 'K', DType::kI8},
            {"a_scales", &o.a_scales, kReads, o.a_zero_point ? '1' : 'r', '1'},
            {"b_scales", &o.b_scales, kReads, '1', o.b_scales.cols == 1 ? '1' : 'N'},
            {"b_sums", &o.b_sums, kReads, '1', 'N', DType::kI32},
            {"bias", &o.bias, kReads, '1', 'N'},
            {"a_zero_point", optional_tensor(o.a_zero_point), kReads, '1', '1', DType::kI32}};
  }
  Operands operator()(const BiasActivation& o) const {
    const DType type = real_type(o.values);
    return {{"values", &o.values, kUpdates, 'r', 'n', type},
            {"bias", optional_tensor(o.bias), kReads, '1', 'n', type},
            {"pre_activation", optional_tensor(o.pre_activation), kWrites, 'r', 'n', type}};
  }
  Operands operator()(const ActivationGrad& o) const {
    const DType type = real_type(o.grad);
    return {{"grad", &o.grad, kUpdates, 'r', 'n', type},
            {"from", &o.from, kReads, 'r', 'n', type},
            {"sums", optional_tensor(o.sums), kAccumulates, '1', 'n'}};
  }
  /// A part would number its rows differently from the op, so the op is not cut.
  Operands operator()(const Dropout& o) const {
    return {{"values", &o.values, kUpdates, 'M', 'N', real_type(o.values)},
            {"step", &o.step, kReads, '1', '1', DType::kI32}};
  }
  Operands operator()(const SumRows& o) const {
    const DType from = real_type(o.in);
    const DType to = o.out.dtype == from ? from : DType::kF32;
    return {{"out", &o.out, sum_into(to), '1', 'n', to}, {"in", &o.in, kReads, 'r', 'n', from}};
  }
  Operands operator()(const PointwiseLoss& o) const {
    const DType type = real_type(o.output);
    const DType of_target = takes_labels(o.kind) ? DType::kI32 : DType::kF32;
    return {{"loss", &o.loss, kAccumulates, '1', '1'},
            {"grad", &o.grad, kWrites, 'r', 'n', type},
            {"output", &o.output, kReads, 'r', 'n', type},
            {"target", &o.target, kReads, 'r', 'n', of_target},
            {"scale", optional_tensor(o.scale), kReads, '1', '1'}};
  }
  Operands operator()(const CrossEntropy& o) const {
    const DType type = real_type(o.logits);
    return {{"loss", &o.loss, kAccumulates, '1', '1'},
            {"grad", &o.grad, kWrites, 'r', 'N', type},
            {"logits", &o.logits, kReads, 'r', 'N', type},
            {"labels", &o.labels, kReads, 'r', '1', DType::kI32},
            {"scale", optional_tensor(o.scale), kReads, '1', '1'}};
  }
  Operands operator()(const CountCorrect& o) const {
    return {{"correct", &o.correct, kWrites, '1', '1', DType::kI32},
            {"logits", &o.logits, kReads, 'r', 'N', real_type(o.logits)},
            {"labels", &o.labels, kReads, 'r', '1', DType::kI32},
            {"classes", optional_tensor(o.classes), kWrites, 'r', '1', DType::kI32}};
  }
  template <OptimizerOp Update>
  Operands operator()(const Update& o) const {
    return o.operands();
  }
  Operands operator()(const SumSquares& o) const {
    return {{"out", &o.out, kWrites, '1', '1'},
            {"in", &o.in, kReads, 'm', 'n', real_type(o.in)},
            {"scale", optional_tensor(o.scale), kReads, '1', '1'}};
  }
  Operands operator()(const CheckFinite& o) const {
    return {{"found_inf", &o.found_inf, kUpdates, '1', '1'},
            {"in", &o.in, kReads, '*', '*', real_type(o.in)}};
  }
  Operands operator()(const UpdateLossScale& o) const {
    return {{"scale", &o.state.scale, kUpdates, '1', '1'},
            {"found_inf", &o.state.found_inf, kReads, '1', '1'},
            {"updates", &o.state.updates, kUpdates, '1', '1', DType::kI32},
            {"good_steps", &o.good_steps, kUpdates, '1', '1', DType::kI32}};
  }
  Operands operator()(const GramSquares& o) const {
    return {{"out", &o.out, kWrites, '1', '1'},
            {"gram_y", &o.gram_y, kReads, 'N', 'N'},
            {"gram_x", &o.gram_x, kReads, 'N', 'N'}};
  }
  Operands operator()(const ClipFactor& o) const {
    return {{"factor", &o.factor, kWrites, '1', '1'}, {"squares", &o.squares, kReads, '1', 'n'}};
  }
  Operands operator()(const Copy& o) const {
    return {{"to", &o.to, kWrites, 'm', 'n', o.from.dtype},
            {"from", &o.from, kReads, 'm', 'n', o.from.dtype}};
  }
  Operands operator()(const Cast& o) const {
    const auto narrow = [](const Tensor& tensor) {
      return tensor.dtype == DType::kF16 ? DType::kF16 : DType::kBF16;
    };
    const bool narrows = o.from.dtype == DType::kF32;
    const DType to = narrows ? narrow(o.to) : DType::kF32;
    return {{"to", &o.to, sum_into(to), 'm', 'n', to},
            {"from", &o.from, kReads, 'm', 'n', narrows ? DType::kF32 : narrow(o.from)}};
  }
  Operands operator()(const Fill& o) const { return {{"out", &o.out, kWrites, 'm', 'n'}}; }
  /// Numbers are drawn in sequence, so this is not cut. A separate rule checks the state's size.
  Operands operator()(const Randn& o) const {
    return {{"out", &o.out, kWrites, '*', '*'},
            {"state", &o.state, kUpdates, '*', '*', DType::kU8}};
  }
  Operands operator()(const Delay& o) const {
    return {{"more_seconds", optional_tensor(o.more_seconds), kReads, '1', '1'}};
  }
  Operands operator()(const AllReduce& o) const {
    const bool is_bf16 = type_of_first(o.tensors) == DType::kBF16;
    const DType dtype = is_bf16 ? DType::kBF16 : DType::kF32;
    return list_of(o.tensors, {"tensor", nullptr, kUpdates, 'm', 'n', dtype});
  }
  /// Only the communicator can identify the root's tensor, since ranks are numbered across all
  /// processes. So every tensor counts as both read and written.
  Operands operator()(const Broadcast& o) const {
    return list_of(o.tensors, {"tensor", nullptr, kUpdates, 'm', 'n', type_of_first(o.tensors)});
  }
  Operands operator()(const Reduce& o) const {
    return list_of(o.tensors, {"tensor", nullptr, kUpdates, 'm', 'n'});
  }
  /// Likewise, a rank's own rows are unknown here.
  Operands operator()(const ReduceScatter& o) const {
    return list_of(o.tensors, {"tensor", nullptr, kUpdates, 'M', 'n'});
  }
  Operands operator()(const AllGather& o) const {
    const OperandUse use = o.own.empty() ? kUpdates : kWrites;
    const DType dtype = type_of_first(o.tensors);
    Operands list = list_of(o.tensors, {"tensor", nullptr, use, 'M', 'n', dtype});
    const Operands own = list_of(o.own, {"own", nullptr, kReads, '*', 'n', dtype});
    list.insert(list.end(), own.begin(), own.end());
    return list;
  }
};

template <class AnyOp, class Function>
auto visit_op(AnyOp& op, const Function& function) {
  return std::visit([&](auto& variant) { return std::visit(function, variant); }, op);
}

bool has(const Operand& operand, char dimension) {
  return operand.rows == dimension || operand.cols == dimension;
}

bool writes(const Operand& operand) {
  return operand.use != OperandUse::kReads;
}

bool reads(const Op& op, const Operand& operand) {
  if (operand.use != OperandUse::kAccumulates) return operand.use != OperandUse::kWrites;
  return visit_op(op, [](const auto& o) {
    if constexpr (requires { o.beta; }) return o.beta != 0;
    return false;
  });
}

/// Makes the op add to the old values of the operands that it accumulates.
void add_to_old(Op& op) {
  visit_op(op, [](auto& o) {
    if constexpr (requires { o.beta; }) o.beta = 1;
  });
}

/// Numbers or rows first .. first + count - 1 of an operand with the dimension.
Tensor cut(const Operand& operand, char dimension, std::int64_t first, std::int64_t count) {
  const Tensor& whole = *operand.tensor;
  const bool by_rows = operand.rows == dimension;
  BARESTEP_REQUIRE(by_rows || whole.rows == 1,
                   "a part of the columns of several rows is no tensor");
  BARESTEP_REQUIRE(first >= 0 && count >= 0 && first + count <= (by_rows ? whole.rows : whole.cols),
                   "a part lies inside its dimension");
  return by_rows ? whole.row_slice(first, count) : whole.flat_slice(first, count);
}

}  // namespace

std::vector<Operand> operands_of(const Op& op) {
  Operands list = visit_op(op, Lists{});
  std::erase_if(list, [](const Operand& operand) { return operand.tensor == nullptr; });
  return list;
}

std::vector<std::vector<Access>> parts_of(const Op& op) {
  std::vector<std::vector<Access>> parts(1);
  const Operands operands = operands_of(op);
  for (const OperandUse use :
       {OperandUse::kReads, OperandUse::kWrites, OperandUse::kAccumulates, OperandUse::kUpdates}) {
    for (const Operand& operand : operands) {
      const auto part = static_cast<std::size_t>(operand.part);
      if (part >= parts.size()) parts.resize(part + 1);
      if (operand.use != use) continue;
      if (reads(op, operand)) parts[part].push_back({*operand.tensor, false});
      if (writes(operand)) parts[part].push_back({*operand.tensor, true});
    }
  }
  return parts;
}

std::vector<Access> accesses_of(const Op& op) {
  std::vector<Access> all;
  for (const auto& part : parts_of(op)) all.insert(all.end(), part.begin(), part.end());
  return all;
}

Op with_tensors(Op op, const std::function<Tensor(const Operand&)>& replacement) {
  for (const Operand& operand : operands_of(op)) {
    // The tensor is a member of `op`, this function's own copy.
    const_cast<Tensor&>(*operand.tensor) = replacement(operand);
  }
  return op;
}

bool sums_over(const Op& op, char dimension) {
  const Operands operands = operands_of(op);
  const auto has_it = [&](const Operand& operand) { return has(operand, dimension); };
  return std::ranges::any_of(operands, has_it) &&
         std::ranges::none_of(operands, [&](const Operand& o) { return writes(o) && has_it(o); });
}

Op slice(const Op& op, char dimension, std::int64_t first, std::int64_t count) {
  BARESTEP_REQUIRE(std::islower(dimension), "what is cut is a dimension, and no capital");
  const std::string name = std::string(label_of(op)) + " along '" + dimension + "'";
  bool is_cut = false;
  bool adds_up = false;
  Op part = with_tensors(op, [&](const Operand& operand) {
    if (has(operand, dimension)) {
      is_cut = true;
      return cut(operand, dimension, first, count);
    }
    BARESTEP_REQUIRE(operand.use == OperandUse::kReads || operand.use == OperandUse::kAccumulates,
                     "no parts make up " + name);
    adds_up = adds_up || operand.use == OperandUse::kAccumulates;
    return *operand.tensor;
  });
  BARESTEP_REQUIRE(is_cut, "there is no " + name);
  if (adds_up && first > 0) add_to_old(part);
  return part;
}

}  // namespace barestep
