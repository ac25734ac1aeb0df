#include "core/printer.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/config.h"
#include "core/text_table.h"
#include "core/units.h"

namespace barestep {

std::string text_of(const Program& program, const Node& node) {
  const TensorText of_tensor = [&](const Tensor& tensor) {
    const Buffer& buffer = program.buffers()[tensor.buffer];
    std::string text;
    if (buffer.device != node.device) text += fmt::format("{}:", buffer.device);
    text += buffer.name;
    if (tensor.offset_bytes != 0) text += fmt::format("@{}", tensor.offset_bytes);
    const bool is_half = is_real(tensor.dtype) && tensor.dtype != DType::kF32;
    return text + fmt::format("[{}x{}{}]", tensor.rows, tensor.cols,
                              is_half ? fmt::format(" {}", name_of(tensor.dtype)) : "");
  };
  return text_of(node.op, of_tensor);
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
  std::vector<std::string> titles{">#", "phase", "block"};
  if (shown.devices) titles.emplace_back("device");
  titles.insert(titles.end(), {"lane", "op", "what", ">flops", ">bytes"});
  if (shown.messages) titles.emplace_back(">message");
  titles.emplace_back("waits for");

  TextTable table(std::move(titles));
  NodeId id = 0;
  for (const Node& node : program.nodes()) {
    const Cost cost = cost_of(node.op);
    std::vector<std::string> cells{fmt::format("{}", id++), std::string(name_of(node.phase)),
                                   node.block.empty() ? "-" : node.block};
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
  std::vector<std::string> titles{"phase", ">nodes", ">flops", ">bytes"};
  if (shown.messages) titles.emplace_back(">message");
  TextTable table(std::move(titles));
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
  TextTable table({"", ">", ">"});
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

}  // namespace

std::int64_t launches_of(const Program& program) {
  std::int64_t launches = 0;
  for (const Node& node : program.nodes()) {
    const auto* const op = std::get_if<DeviceOp>(&node.op);
    if (op != nullptr && node.phase != Phase::kData) launches += launches_of(*op);
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
