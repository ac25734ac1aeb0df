#include "core/operands.h"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <string>
#include <utility>
#include <variant>

#include "core/error.h"
#include "core/index.h"
#include "core/philox.h"
#include "core/random.h"
#include "core/units.h"

namespace barestep {
namespace {

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

std::vector<std::vector<Access>> parts_of(const Op& op) {
  std::vector<std::vector<Access>> parts(1);
  const Operands operands = operands_of(op);
  parts.front().reserve(2 * operands.size());
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
  std::vector<std::vector<Access>> parts = parts_of(op);
  std::vector<Access> all = std::move(parts.front());
  for (std::size_t i = 1; i < parts.size(); ++i) {
    all.insert(all.end(), parts[i].begin(), parts[i].end());
  }
  return all;
}

Op with_tensors(Op op, const std::function<Tensor(const Operand&)>& replacement) {
  for (const Operand& operand : operands_of(op)) {
    // The tensor is a member of `op`, this function's own copy.
    const_cast<Tensor&>(*operand.tensor) = replacement(operand);
  }
  return op;
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

std::int64_t state_bytes(Generator generator) {
  return generator == Generator::kTorchCpu ? sizeof(TorchGenerator) : sizeof(PhiloxState);
}

Cost& Cost::operator+=(const Cost& other) {
  flops = checked_add(flops, other.flops, "the flops of a program");
  bytes = checked_add(bytes, other.bytes, "the bytes of a program");
  message_bytes = checked_add(message_bytes, other.message_bytes, "the messages of a program");
  return *this;
}

Cost cost_of(const Op& op) {
  if (const auto* exchange = op_if<SendReceive>(op)) {
    return {.message_bytes = exchange->sent_bytes() + exchange->received_bytes()};
  }
  if (std::holds_alternative<Collective>(op)) {
    return {.message_bytes = operands_of(op).front().tensor->bytes()};
  }
  Cost cost{.flops = flops_of(std::get<DeviceOp>(op))};
  for (const Access& access : accesses_of(op)) {
    cost.bytes = checked_add(cost.bytes, access.tensor.bytes(), "the bytes of an op");
  }
  return cost;
}

namespace {

/// Checks an op. Each check throws, naming the op's label and all its tensors.
class Validation {
 public:
  explicit Validation(const Op& op) : op_(op), operands_(operands_of(op)) {}

  void run() {
    check_rules();
    for (const Operand& operand : operands_) check_tensor(operand);
    for (const Operand& operand : operands_) check_shape(operand);
    check_overlap();
  }

 private:
  void check_rules() const {
    for (const OpRule& rule : rules_of(op_)) {
      if (!rule.holds) refuse(rule.text);
    }
  }

  void check_tensor(const Operand& operand) const {
    const Tensor& tensor = *operand.tensor;
    const auto refuse_unless = [&](bool holds, std::string_view rule, std::string_view of = "") {
      if (!holds) refuse(fmt::format("{} must {}{}", name_of(operand), rule, of));
    };
    refuse_unless(tensor.dtype == operand.dtype, "be ", barestep::name_of(operand.dtype));
    refuse_unless(tensor.rows >= 0 && tensor.cols >= 1,
                  "have zero or more rows and one or more columns");
    refuse_unless(tensor.offset_bytes >= 0 && tensor.offset_bytes % bytes_of(tensor.dtype) == 0,
                  "start at a multiple of its type's size");
    const std::int64_t size = checked_multiply(tensor.rows, tensor.cols, operand.name);
    checked_add(tensor.offset_bytes, checked_multiply(size, bytes_of(tensor.dtype), operand.name),
                operand.name);
  }

  /// The first operand with a dimension sets its size.
  void check_shape(const Operand& operand) {
    check_size(operand, operand.rows, operand.tensor->rows, "row");
    check_size(operand, operand.cols, operand.tensor->cols, "column");
  }

  void check_size(const Operand& operand, char dimension, std::int64_t size,
                  std::string_view unit) {
    if (dimension == '*') return;
    const auto is = [&] {
      return fmt::format("{} is {} x {}", name_of(operand), operand.tensor->rows,
                         operand.tensor->cols);
    };
    if (std::isdigit(dimension) != 0) {
      const std::int64_t required = dimension - '0';
      if (size != required)
        refuse(fmt::format("{}, but must have {}", is(), counted(required, unit)));
      return;
    }
    Size& known = at(sizes_, static_cast<unsigned char>(dimension));
    if (known.from == nullptr) known = {size, &operand};
    if (known.size == size) return;
    refuse(fmt::format("{}, but {} = {} (from {})", is(), dimension, known.size,
                       name_of(*known.from)));
  }

  void check_overlap() const {
    for (auto one = operands_.begin(); one != operands_.end(); ++one) {
      for (auto other = one + 1; other != operands_.end(); ++other) {
        if (one->use == OperandUse::kReads && other->use == OperandUse::kReads) continue;
        if (!overlap(*one->tensor, *other->tensor)) continue;
        refuse(fmt::format("{} must not share bytes with {}", name_of(*one), name_of(*other)));
      }
    }
  }

  static std::string name_of(const Operand& operand) {
    return operand.part == 0 ? std::string(operand.name)
                             : fmt::format("{} {}", operand.name, operand.part);
  }

  [[noreturn]] void refuse(std::string_view rule) const {
    std::string tensors;
    for (const Operand& operand : operands_) {
      const Tensor& tensor = *operand.tensor;
      tensors += fmt::format("{}{} {}x{} {}", tensors.empty() ? " (" : ", ", operand.name,
                             tensor.rows, tensor.cols, barestep::name_of(tensor.dtype));
    }
    if (!tensors.empty()) tensors += ")";
    fail(ExitCode::kBug,
         {"ill-formed op", std::string(label_of(op_)), fmt::format("{}{}", rule, tensors),
          "this is a bug in barestep, please report it"});
  }

  struct Size {
    std::int64_t size = 0;
    const Operand* from = nullptr;
  };

  const Op& op_;
  const Operands operands_;
  std::array<Size, 128> sizes_{};  // of the dimensions seen so far, by their letters
};

}  // namespace

void validate(const Op& op) {
  Validation(op).run();
}

}  // namespace barestep
