#include "core/printer.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/config.h"
#include "core/program.h"
#include "core/text_table.h"
#include "core/units.h"

namespace barestep {
namespace {

/// The text for one node's op.
class Words {
 public:
  Words(const Program& program, const Node& node) : buffers_(program.buffers()), node_(node) {}

  std::string operator()(const Gemm& o) const {
    std::string text = fmt::format("{} = {}{} * {}{}", t(o.c), t(o.a), o.transpose_a ? "^T" : "",
                                   t(o.b), o.transpose_b ? "^T" : "");
    if (o.bias) text += " + " + t(*o.bias);
    return text + old(o.c, o.beta) + then(o);
  }
  std::string operator()(const QuantizeWeight& o) const {
    return fmt::format("{} = {} / {} in int8, sums of its rows in {}", t(o.to), t(o.from),
                       t(o.scales), t(o.sums));
  }
  std::string operator()(const Quantize& o) const {
    const std::string zero = o.zero_point ? " + " + t(*o.zero_point) : "";
    return fmt::format("{} = {} / {}{} in {} bits", t(o.to), t(o.from), t(o.scales), zero, o.bits);
  }
  std::string operator()(const QuantizedGemm& o) const {
    const std::string a =
        o.a_zero_point ? fmt::format("({} - {})", t(o.a), t(*o.a_zero_point)) : t(o.a);
    return fmt::format("{} = {} * {}^T in int32, times {} * {}, + {}{}", t(o.c), a, t(o.b),
                       t(o.a_scales), t(o.b_scales), t(o.bias), then_text(o.activation));
  }
  std::string operator()(const BiasActivation& o) const {
    return t(o.values) + (o.bias ? fmt::format(" += {}", t(*o.bias)) : "") + then(o);
  }
  std::string operator()(const ActivationGrad& o) const {
    const std::string sums =
        o.sums ? fmt::format(", {} = its column sums{}", t(*o.sums), old(*o.sums, o.beta)) : "";
    return fmt::format(fmt::runtime(traits_of(o.activation).grad_text), t(o.grad), t(o.from)) +
           sums;
  }
  std::string operator()(const Dropout& o) const {
    return fmt::format("{} *= {}, or 0 by chance {}; drawn by {} for rows {}, {}, ...", t(o.values),
                       1 / (1 - o.rate), o.rate, t(o.step), o.first_row,
                       o.first_row + o.row_stride);
  }
  std::string operator()(const SumRows& o) const {
    return fmt::format("{} = column sums of {}{}", t(o.out), t(o.in), old(o.out, o.beta));
  }
  std::string operator()(const PointwiseLoss& o) const {
    const std::string term =
        fmt::format(fmt::runtime(traits_of(o.kind).text), t(o.output), t(o.target));
    const bool has_relu = o.activation == Activation::kRelu;
    return fmt::format("{} = sum of {} / {}{}, gradient in {}{}", t(o.loss), term, o.count,
                       old(o.loss, o.beta), grad_of(o),
                       has_relu ? fmt::format(", 0 where {} <= 0", t(o.output)) : "");
  }
  std::string operator()(const CrossEntropy& o) const {
    const std::string smoothing =
        o.smoothing == 0 ? "" : fmt::format(" smoothed by {}", o.smoothing);
    return fmt::format("{} = cross entropy of {} with labels {}{} / {}{}, gradient in {}",
                       t(o.loss), t(o.logits), t(o.labels), smoothing, o.count, old(o.loss, o.beta),
                       grad_of(o));
  }
  std::string operator()(const CountCorrect& o) const {
    const std::string classes = o.classes ? fmt::format(", classes in {}", t(*o.classes)) : "";
    return fmt::format("{} = rows of {} whose {} is label {}{}", t(o.correct), t(o.logits),
                       o.binary ? "sign" : "largest", t(o.labels), classes);
  }
  template <OptimizerOp Update>
  std::string operator()(const Update& o) const {
    return o.text([this](const Tensor& tensor) { return t(tensor); });
  }
  std::string operator()(const SumSquares& o) const {
    if (o.scale) return fmt::format("{} = sum of ({} / {})^2", t(o.out), t(o.in), t(*o.scale));
    return fmt::format("{} = sum of {}^2", t(o.out), t(o.in));
  }
  std::string operator()(const CheckFinite& o) const {
    return fmt::format("{} = 1 where {} is not finite", t(o.found_inf), t(o.in));
  }
  std::string operator()(const UpdateLossScale& o) const {
    std::string counted =
        fmt::format("{} += 1 unless {}", t(o.state.updates), t(o.state.found_inf));
    if (o.fixed) return counted;
    return fmt::format("{}; {} *= {} if so, {} after {} steps without, counted in {}", counted,
                       t(o.state.scale), o.backoff, o.growth, o.window, t(o.good_steps));
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
    const char* const type = o.to.dtype == DType::kBF16  ? "bf16"
                             : o.to.dtype == DType::kF16 ? "fp16"
                                                         : "fp32";
    const std::string scale = o.scale == 1 ? "" : fmt::format("{} * ", o.scale);
    return fmt::format("{} = {}{} in {}{}", t(o.to), scale, t(o.from), type, old(o.to, o.beta));
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
    const bool is_half = is_real(tensor.dtype) && tensor.dtype != DType::kF32;
    return text + fmt::format("[{}x{}{}]", tensor.rows, tensor.cols,
                              is_half ? fmt::format(" {}", name_of(tensor.dtype)) : "");
  }

  /// The loss's gradient, and its scale if any.
  template <class LossOp>
  [[nodiscard]] std::string grad_of(const LossOp& o) const {
    return t(o.grad) + (o.scale ? fmt::format(" times {}", t(*o.scale)) : "");
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

  /// What is applied to the sum of a Gemm or a BiasActivation.
  template <class ActivatingOp>
  [[nodiscard]] std::string then(const ActivatingOp& o) const {
    const bool keeps = o.activation != Activation::kNone && o.pre_activation;
    return then_text(o.activation) + (keeps ? fmt::format(" of {}", t(*o.pre_activation)) : "");
  }
  static std::string then_text(Activation activation) {
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

namespace {

constexpr std::size_t kLargestShown = 8;

std::string waits_text(const Node& node) {
  std::string text;
  for (const Wait& wait : node.waits) {
    if (!text.empty()) text += ", ";
    text += fmt::format("#{}", wait.node);
    if (wait.steps_back == 1) text += " of the step before";
    if (wait.steps_back > 1) text += fmt::format(" of {} steps before", wait.steps_back);
  }
  return text;
}

/// The columns that a program needs.
struct ShownColumns {
  bool devices = false;
  bool messages = false;
};

ShownColumns shown_columns(const Program& program) {
  ShownColumns shown;
  for (const Node& node : program.nodes()) {
    shown.messages |= std::holds_alternative<Collective>(node.op);
    for (const LaneId& lane : lanes_of(program, node)) shown.devices |= lane.device != 0;
  }
  return shown;
}

std::string devices_text(const Program& program, const Node& node) {
  std::string text;
  for (const LaneId& lane : lanes_of(program, node)) {
    text += fmt::format("{}{}", text.empty() ? "" : ",", lane.device);
  }
  return text;
}

std::string nodes_table(const Program& program, const ShownColumns& shown) {
  std::vector<TextTable::Column> columns{{"#", Align::kRight}, {"phase"}, {"layer", Align::kRight}};
  if (shown.devices) columns.push_back({"device"});
  columns.insert(columns.end(), {{"lane"}, {"op"}, {"what"}});
  columns.insert(columns.end(), {{"flops", Align::kRight}, {"bytes", Align::kRight}});
  if (shown.messages) columns.push_back({"message", Align::kRight});
  columns.push_back({"waits for"});

  TextTable table(std::move(columns));
  NodeId id = 0;
  for (const Node& node : program.nodes()) {
    const Cost cost = cost_of(node.op);
    std::vector<std::string> cells{fmt::format("{}", id++), std::string(name_of(node.phase)),
                                   node.layer < 0 ? "-" : fmt::format("{}", node.layer)};
    if (shown.devices) cells.push_back(devices_text(program, node));
    cells.insert(cells.end(), {std::string(name_of(node.lane)), std::string(label_of(node.op)),
                               text_of(program, node)});
    cells.insert(cells.end(), {grouped(cost.flops), grouped(cost.bytes)});
    if (shown.messages) cells.push_back(grouped(cost.message_bytes));
    cells.push_back(waits_text(node));
    table.add_row(std::move(cells));
  }
  return table.text();
}

std::string phases_table(const Program& program, const ShownColumns& shown) {
  std::vector<TextTable::Column> columns{
      {"phase"}, {"nodes", Align::kRight}, {"flops", Align::kRight}, {"bytes", Align::kRight}};
  if (shown.messages) columns.push_back({"message", Align::kRight});
  TextTable table(std::move(columns));
  const auto add = [&](std::string_view name, std::int64_t nodes, const Cost& cost) {
    std::vector<std::string> cells{std::string(name), grouped(nodes), grouped(cost.flops),
                                   grouped(cost.bytes)};
    if (shown.messages) cells.push_back(grouped(cost.message_bytes));
    table.add_row(std::move(cells));
  };
  const Price price = price_of(program);
  for (const Phase phase : kValuesOf<Phase>) {
    const auto nodes = std::count_if(program.nodes().begin(), program.nodes().end(),
                                     [&](const Node& node) { return node.phase == phase; });
    if (nodes > 0) add(name_of(phase), nodes, price.by_phase[phase]);
  }
  add("total", program.size(), price.total);
  return table.text();
}

std::string legend(const ShownColumns& shown) {
  std::string text =
      "name[4x3] is a tensor of 4 rows and 3 columns in the buffer of that name; name@64 starts "
      "64\n"
      "bytes into it; ^T is the transpose. Nodes of one lane run one after the other, lanes side "
      "by\n"
      "side; #3 is node 3 of the same step. A multiply-add is two flops; bytes are those of every\n"
      "input read once and every output written once.\n";
  if (shown.devices) text += "1:name is a buffer of device 1, where that is not the node's own.\n";
  if (shown.messages) text += "A message counts the bytes of one rank's tensor.\n";
  return text;
}

void add_bytes(TextTable& table, std::string name, std::int64_t bytes) {
  table.add_row({std::move(name), grouped(bytes) + " B", human_bytes(bytes)});
}

void add_largest_buffers(TextTable& table, const MemoryPlan& plan, const Buffers& buffers,
                         int device) {
  std::vector<BufferId> ids;
  for (BufferId id = 0; id < buffers.size(); ++id) {
    if (buffers[id].device == device && !buffers[id].pinned) ids.push_back(id);
  }
  std::stable_sort(ids.begin(), ids.end(), [&](BufferId a, BufferId b) {
    return plan.buffer_bytes(a) > plan.buffer_bytes(b);
  });
  if (ids.size() > kLargestShown) {
    table.add_line(fmt::format("largest {} of {} buffers", kLargestShown, ids.size()));
    ids.resize(kLargestShown);
  } else {
    table.add_line("buffers");
  }
  for (const BufferId id : ids) {
    const Buffer& buffer = buffers[id];
    add_bytes(table,
              fmt::format("  {} ({}{})", buffer.name, name_of(buffer.category),
                          buffer.slots > 1 ? fmt::format(", {} slots", buffer.slots) : ""),
              plan.buffer_bytes(id));
  }
}

std::string device_plan(const MemoryPlan& plan, const Buffers& buffers, int device) {
  TextTable table({{"", Align::kLeft}, {"", Align::kRight}, {"", Align::kRight}});
  for (const Category category : kValuesOf<Category>) {
    const std::int64_t bytes = plan.category_bytes(device, category);
    if (bytes > 0 || !is_optional(category)) {
      add_bytes(table, std::string(name_of(category)), bytes);
    }
  }
  add_bytes(table, "total", plan.device_bytes(device));
  if (plan.pinned_bytes(device) > 0) {
    table.add_line("pinned host memory");
    for (const Category category : kValuesOf<Category>) {
      const std::int64_t bytes = plan.pinned_category_bytes(device, category);
      if (bytes > 0) add_bytes(table, fmt::format("  {}", name_of(category)), bytes);
    }
    add_bytes(table, "  total", plan.pinned_bytes(device));
  }
  add_largest_buffers(table, plan, buffers, device);
  return table.text(2);
}

/// One overload for each op that is not a single launch.
struct Launches {
  std::int64_t operator()(const Copy& /*op*/) const { return 0; }
  std::int64_t operator()(const Gemm& op) const {
    const bool inside = op.activation == Activation::kNone || op.activation == Activation::kRelu;
    return inside ? 1 : 2;
  }
  std::int64_t operator()(const QuantizedGemm& /*op*/) const { return 2; }
  std::int64_t operator()(const QuantizeWeight& op) const { return op.scales.cols == 1 ? 3 : 1; }
  std::int64_t operator()(const Quantize& op) const { return op.zero_point ? 3 : 1; }
  std::int64_t operator()(const auto& /*op*/) const { return 1; }
};

}  // namespace

std::int64_t launches_of(const Op& op) {
  const auto* const of_device = std::get_if<DeviceOp>(&op);
  return of_device == nullptr ? 0 : std::visit(Launches{}, *of_device);
}

std::int64_t launches_of(const Program& program) {
  std::int64_t launches = 0;
  for (const Node& node : program.nodes()) {
    if (node.phase != Phase::kData) launches += launches_of(node.op);
  }
  return launches;
}

std::string explain(const Program& program) {
  const ShownColumns shown = shown_columns(program);
  return fmt::format("Program '{}': one step of {}, kernels on a GPU: {}\n\n{}\n{}\n{}",
                     program.name(), counted(std::ssize(program.nodes()), "node"),
                     launches_of(program), nodes_table(program, shown),
                     phases_table(program, shown), legend(shown));
}

std::string plan_table(const MemoryPlan& plan, const Buffers& buffers,
                       const std::vector<std::string>& device_names) {
  std::string text;
  for (int device = 0; device < plan.devices(); ++device) {
    const auto index = static_cast<std::size_t>(device);
    const std::string name =
        index < device_names.size() ? device_names[index] : fmt::format("device {}", device);
    text += fmt::format("Memory plan of {}\n{}", name, device_plan(plan, buffers, device));
  }
  return text;
}

}  // namespace barestep
