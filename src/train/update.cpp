// The end of a step: how gradients become new weights.

#include <algorithm>

#include "core/error.h"
#include "core/index.h"
#include "train/draft.h"

namespace barestep {

OptimizerState Draft::optimizer(int device, const std::optional<std::vector<FlatRange>>& ranges) {
  OptimizerState optimizer(buffers_, spec_.optimizer, placed(device).parameters, device, ranges);
  optimizer_state_[device] = optimizer.buffers();
  return optimizer;
}

UpdateTensors Draft::update_tensors(int device) {
  const ModelSpec& model = spec_.model;
  const Parameters& parameters = placed(device).parameters;
  const FlatBuffers flat = placed(device).flat;
  UpdateTensors tensors{.parameters = parameters.flat(flat.parameters),
                        .scalars = on_device(scalars_, device)};
  if (first_update_) tensors.first_update = on_device(*first_update_, device);
  if (flat.operands != flat.parameters) {
    tensors.rounded = parameters.flat(flat.operands, model.numbers);
  }
  if (const auto& scaling = step_.tensors.scaling) {
    tensors.loss_scale = scaling_in(on_device(scaling->bytes, device)).numbers;
  }
  return tensors;
}

Op Draft::whole_update() {
  BARESTEP_REQUIRE(!spec_.loss_scale, "all gradients are looked at before the first is used");
  UpdateTensors tensors = update_tensors();
  tensors.gradients = parameters_.flat(require_gradients(), spec_.model.gradient_type());
  return optimizer().step(tensors);
}

Draft::DeviceUpdate Draft::update_of(int device, const UpdateOptions& options) {
  const UpdateTensors whole = update_tensors(device);
  if (options.parts) {
    std::vector<FlatRange> ranges;
    for (const UpdatedPart& part : *options.parts) ranges.push_back(part.range);
    return {optimizer(device, ranges), whole, *options.parts};
  }
  return {optimizer(device), whole, {whole_part(device, whole)}};
}

UpdatedPart Draft::whole_part(int device, const UpdateTensors& whole) {
  const Parameters& parameters = placed(device).parameters;
  const Tensor gradients = parameters.flat(
      take_gradients(buffers_, spec_.model, parameters, device), spec_.model.gradient_type());
  return {.range = {0, gradients.size()},
          .parameters = whole.parameters,
          .rounded = whole.rounded,
          .gradients = gradients};
}

void Draft::update(const UpdateOptions& options) {
  if (!spec_.model.stores_gradients) return update_from_factors(options);
  std::vector<DeviceUpdate> updates;  // by device
  for (int device = 0; device <= loss_device(); ++device) {
    updates.push_back(update_of(device, options));
  }
  if (spec_.loss_scale) find_inf(updates, options);
  std::optional<Tensor> factor;
  if (spec_.clip_norm) {
    std::vector<DeviceUpdate> normed = updates;
    if (options.norm_is_of_all) normed[0].parts = {whole_part(0, normed[0].tensors)};
    factor = add_clip_factor(add_squares(normed, options));
  }
  for (int device = 0; device <= loss_device(); ++device) {
    const auto& [state, whole, parts] = at(updates, device);
    UpdateTensors used = whole;
    if (factor) used.clip = on_device(*factor, device);
    for (int i = 0; i < static_cast<int>(parts.size()); ++i) {
      const UpdatedPart& part = at(parts, i);
      if (part.range.count == 0) continue;
      used.parameters = part.parameters;
      used.rounded = part.rounded;
      used.gradients = part.gradients;
      add_update(state.step(used, i), "", device);
    }
  }
  if (spec_.loss_scale) update_scale();
}

BufferId Draft::keep(const char* name, Category category, KeptBuffer kept) {
  kept.flat = buffers_.get(name, category, parameters_.bytes());
  kept_.push_back(kept);
  return kept.flat;
}

BufferId Draft::update_later() {
  BARESTEP_REQUIRE(spec_.stages_here() == 1, "one device has all stages that are here");
  std::vector<BufferId> kept;  // the newest first
  for (std::int64_t age = 1; age <= spec_.staleness; ++age) {
    const std::string name = "delayed_gradients." + std::to_string(age);
    kept.push_back(keep(name.c_str(), Category::kGradients, {.prefix = name + "."}));
  }
  const auto all = [&](BufferId flat) { return parameters_.flat(flat); };
  if (kind_ != StepKind::kFirstTraining) {
    const UpdateTensors whole = update_tensors();
    update({.parts = {{{.range = {0, whole.parameters.size()},
                        .parameters = whole.parameters,
                        .rounded = whole.rounded,
                        .gradients = all(kept.back())}}}});
  }
  for (std::size_t age = kept.size() - 1; age > 0; --age) {
    add_update(Copy{.to = all(kept[age]), .from = all(kept[age - 1])});
  }
  add_update(Copy{.to = all(kept.front()), .from = all(require_gradients())});
  return kept.front();
}

void Draft::update_from_factors(const UpdateOptions& options) {
  BARESTEP_REQUIRE(!spec_.loss_scale, "loss scaling looks at stored gradients");
  const auto factors_of = [&](int linear) {
    return options.factors ? options.factors(linear) : factors(linear);
  };
  const OptimizerState state = optimizer();
  UpdateTensors used = update_tensors();
  if (spec_.clip_norm) {
    BARESTEP_REQUIRE(spec_.model.numbers == DType::kF32,
                     "factors give the norm of gradients that are not yet rounded");
    used.clip = add_clip_factor(add_squares_of(factors_of));
  }
  // The first one first: backward used its factors last, so they are still in the caches.
  const std::vector<Linear*>& linears = model().linears();
  for (int number = 0; number < std::ssize(linears); ++number) {
    const Linear& linear = *at(linears, number);
    add_update(state.step(used, linear, factors_of(number)), linear.name());
  }
}

Tensor Draft::add_clip_factor(const Tensor& squares) {
  const Tensor factor = buffers_.tensor("clip_factor", Category::kOptimizer, 1, 1);
  add_update(ClipFactor{.factor = factor, .squares = squares, .max_norm = *spec_.clip_norm});
  return factor;
}

Tensor Draft::gather_numbers(const char* name, const std::vector<Tensor>& by_device) {
  if (by_device.size() == 1) return by_device.front();
  const Tensor all =
      buffers_.tensor(name, Category::kOptimizer, 1, std::ssize(by_device), DType::kF32);
  for (int device = 0; device < std::ssize(by_device); ++device) {
    copy_between(all.flat_slice(device, 1), at(by_device, device));
  }
  return all;
}

void Draft::find_inf(std::span<const DeviceUpdate> updates, const UpdateOptions& options) {
  std::vector<Tensor> found_inf;
  for (const DeviceUpdate& update : updates) {
    const int device = static_cast<int>(found_inf.size());
    found_inf.push_back(update.tensors.loss_scale->found_inf);
    add_update(Fill{.out = found_inf.back()}, "", device);
    for (const UpdatedPart& part : update.parts) {
      if (part.range.count == 0) continue;
      add_update(CheckFinite{.found_inf = found_inf.back(), .in = part.gradients}, "", device);
    }
  }
  if (found_inf.size() > 1) {
    // If any device has found one, the sum is above 0 on all.
    Tensor all = gather_numbers("found_inf_of_stages", found_inf);
    std::swap(all.rows, all.cols);
    add_update(SumRows{.out = found_inf.front(), .in = all});
    for (std::size_t i = 1; i < found_inf.size(); ++i) copy_between(found_inf[i], found_inf[0]);
  }
  if (options.found_inf_ready) options.found_inf_ready(found_inf.front());
  add_up_over_model(found_inf.front(), "overflow of all parts");
}

void Draft::add_up_over_model(const Tensor& number, const char* name) {
  const Mesh& mesh = spec_.mesh;
  if (!mesh.cuts_model()) return;
  exchange(AllReduce{.tensors = {number}, .axis = mesh.simplest(Axis::kModel), .name = name});
}

std::vector<FlatRange> Draft::counted_ranges(const FlatRange& within, int device) {
  const Parameters& parameters = placed(device).parameters;
  std::vector<FlatRange> ranges;
  for (ParameterId id = parameters.count() - 1; id >= 0; --id) {
    const Tensor tensor = parameters.in(kNoBuffer, id);
    const std::int64_t first = std::max(tensor.offset_bytes / bytes_of(tensor.dtype), within.first);
    const std::int64_t end =
        std::min(tensor.end_bytes() / bytes_of(tensor.dtype), within.first + within.count);
    if (parameters[id].cut == Cut::kNone || first >= end) continue;
    // The padding between two tensors is zero.
    const bool follows = id + 1 < parameters.count() && parameters[id + 1].cut != Cut::kNone;
    if (follows && !ranges.empty()) {
      ranges.back().count = end - ranges.back().first;
    } else {
      ranges.push_back({first, end - first});
    }
  }
  return ranges;
}

void Draft::add_squares_of_copy(const Tensor& out, const DeviceUpdate& update, int device) {
  std::optional<Tensor> scale;
  if (const auto& scaling = update.tensors.loss_scale) scale = scaling->scale;
  // All tensor ranks have the same parameters that are not cut; the first one counts them.
  std::vector<Tensor> counted;
  for (const UpdatedPart& part : update.parts) {
    const FlatRange& within = part.range;
    const std::vector<FlatRange> ranges =
        spec_.mesh.tensor_rank() == 0 ? std::vector{within} : counted_ranges(within, device);
    for (const FlatRange& range : ranges) {
      if (range.count == 0) continue;
      counted.push_back(part.gradients.flat_slice(range.first - within.first, range.count));
    }
  }
  if (counted.empty()) return add_update(Fill{.out = out}, "", device);
  const auto add_sum = [&](const Tensor& sum, const Tensor& of) {
    add_update(SumSquares{.out = sum, .in = of, .scale = scale}, "", device);
  };
  if (counted.size() == 1) return add_sum(out, counted.front());
  const Tensor sums = buffers_.tensor("squares_of_ranges", Category::kOptimizer,
                                      std::ssize(counted), 1, DType::kF32, device);
  for (std::int64_t i = 0; i < std::ssize(counted); ++i) {
    add_sum(sums.row_slice(i, 1), at(counted, i));
  }
  add_update(SumRows{.out = out, .in = sums}, "", device);
}

void Draft::update_scale() {
  const ScalingState& scaling = *tensors().scaling;
  add_update(UpdateLossScale{.state = scaling.numbers,
                             .good_steps = scaling.good_steps,
                             .window = spec_.loss_scale->window,
                             .fixed = !spec_.loss_scale->dynamic});
  add_update(Copy{.to = tensors().scaling_host->bytes, .from = scaling.bytes});
}

void Draft::add_update(DeviceOp op, const std::string& block, int device) {
  add({.op = std::move(op), .device = device, .phase = Phase::kOptimizer, .block = block});
}

Tensor Draft::add_squares(std::span<const DeviceUpdate> updates, const UpdateOptions& options) {
  std::vector<Tensor> of_devices;
  for (const DeviceUpdate& update : updates) {
    const int device = static_cast<int>(of_devices.size());
    of_devices.push_back(
        buffers_.tensor("grad_squares", Category::kOptimizer, 1, 1, DType::kF32, device));
    add_squares_of_copy(of_devices.back(), update, device);
  }
  if (options.squares_ready) options.squares_ready(of_devices.front());
  add_up_over_model(of_devices.front(), "squares of gradients of all parts");
  return gather_numbers("squares_of_stages", of_devices);
}

Tensor Draft::add_squares_of(const std::function<Factors(int linear)>& factors_of) {
  const std::vector<Linear*>& linears = model().linears();
  const std::int64_t rows = tensors().x.rows * model_.rows_per_sample;
  const Tensor squares =
      buffers_.tensor("grad_squares", Category::kOptimizer, 1, std::ssize(linears));
  const Tensor gram_y = buffers_.tensor("gram_y", Category::kActivations, rows, rows);
  const Tensor gram_x = buffers_.tensor("gram_x", Category::kActivations, rows, rows);
  for (int number = 0; number < std::ssize(linears); ++number) {
    const std::string& name = at(linears, number)->name();
    const auto [grad_y, x] = factors_of(number);
    add_update(Gemm{.c = gram_y, .a = grad_y, .b = grad_y, .transpose_b = true}, name);
    add_update(Gemm{.c = gram_x, .a = x, .b = x, .transpose_b = true}, name);
    add_update(
        GramSquares{.out = squares.flat_slice(number, 1), .gram_y = gram_y, .gram_x = gram_x},
        name);
  }
  return squares;
}

}  // namespace barestep
