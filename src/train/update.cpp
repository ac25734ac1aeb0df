// The end of a step: how gradients become new weights.

#include <algorithm>

#include "core/error.h"
#include "core/index.h"
#include "train/draft.h"

namespace barestep {

/// Adds the update of a step.
class Draft::Update {
 public:
  explicit Update(Draft& draft, const UpdateOptions& options = {})
      : draft_(draft), spec_(draft.spec_), buffers_(draft.buffers_), options_(options) {}

  void add() {
    if (!spec_.model.stores_gradients) return add_from_factors();
    std::vector<OfDevice> updates;  // by device
    for (int device = 0; device <= draft_.loss_device(); ++device) {
      updates.push_back(of_device(device));
    }
    if (spec_.update.loss_scale) find_inf(updates);
    std::optional<Tensor> factor;
    if (spec_.update.clip_norm) {
      std::vector<OfDevice> normed = updates;
      if (options_.norm_is_of_all) normed[0].parts = {whole_part(0, normed[0].tensors)};
      factor = add_clip_factor(add_squares(normed));
    }
    for (int device = 0; device <= draft_.loss_device(); ++device) {
      const auto& [state, whole, parts] = at(updates, device);
      UpdateTensors used = whole;
      if (factor) used.clip = draft_.on_device(*factor, device);
      for (int i = 0; i < static_cast<int>(parts.size()); ++i) {
        const UpdatedPart& part = at(parts, i);
        if (part.range.count == 0) continue;
        used.parameters = part.parameters;
        used.rounded = part.rounded;
        used.gradients = part.gradients;
        add_op(state.step(used, i), "", device);
      }
    }
    if (spec_.update.loss_scale) update_scale();
  }

  BufferId add_late() {
    BARESTEP_REQUIRE(spec_.stages_here() == 1, "one device has all stages that are here");
    std::vector<BufferId> kept;  // the newest first
    for (std::int64_t age = 1; age <= spec_.update.staleness; ++age) {
      const std::string name = "delayed_gradients." + std::to_string(age);
      kept.push_back(draft_.keep(name.c_str(), Category::kGradients, {.prefix = name + "."}));
    }
    const auto all = [&](BufferId flat) { return draft_.parameters_.flat(flat); };
    if (draft_.kind_ != StepKind::kFirstTraining) {
      const UpdateTensors whole = update_tensors();
      Update(draft_, {.parts = {{{.range = {0, whole.parameters.size()},
                                  .parameters = whole.parameters,
                                  .rounded = whole.rounded,
                                  .gradients = all(kept.back())}}}})
          .add();
    }
    for (std::size_t age = kept.size() - 1; age > 0; --age) {
      add_op(Copy{.to = all(kept[age]), .from = all(kept[age - 1])});
    }
    add_op(Copy{.to = all(kept.front()), .from = all(draft_.require_gradients())});
    return kept.front();
  }

  [[nodiscard]] Op whole() {
    BARESTEP_REQUIRE(!spec_.update.loss_scale,
                     "all gradients are looked at before the first is used");
    UpdateTensors tensors = update_tensors();
    tensors.gradients =
        draft_.parameters_.flat(draft_.require_gradients(), spec_.model.gradient_type());
    return optimizer().step(tensors);
  }

 private:
  /// What a device updates; `tensors` are of the whole flat buffers, without gradients.
  struct OfDevice {
    OptimizerState state;
    UpdateTensors tensors;
    std::vector<UpdatedPart> parts;
  };

  OfDevice of_device(int device) {
    const UpdateTensors whole = update_tensors(device);
    if (options_.parts) {
      std::vector<FlatRange> ranges;
      for (const UpdatedPart& part : *options_.parts) ranges.push_back(part.range);
      return {optimizer(device, ranges), whole, *options_.parts};
    }
    return {optimizer(device), whole, {whole_part(device, whole)}};
  }

  UpdatedPart whole_part(int device, const UpdateTensors& whole) {
    const Parameters& parameters = draft_.placed(device).parameters;
    const Tensor gradients = parameters.flat(
        take_gradients(buffers_, spec_.model, parameters, device), spec_.model.gradient_type());
    return {.range = {0, gradients.size()},
            .parameters = whole.parameters,
            .rounded = whole.rounded,
            .gradients = gradients};
  }

  /// The tensors of the update, without the optimizer's own memory.
  UpdateTensors update_tensors(int device = 0) {
    const ModelSpec& model = spec_.model;
    const Parameters& parameters = draft_.placed(device).parameters;
    const FlatBuffers flat = draft_.placed(device).flat;
    const auto there = [&](const Tensor& numbers) { return draft_.on_device(numbers, device); };
    UpdateTensors tensors{.parameters = parameters.flat(flat.parameters),
                          .scalars = there(draft_.scalars_)};
    if (draft_.first_update_) tensors.first_update = there(*draft_.first_update_);
    if (flat.operands != flat.parameters) {
      tensors.rounded = parameters.flat(flat.operands, model.numbers);
    }
    if (const auto& scaling = draft_.tensors().scaling) {
      tensors.loss_scale = scaling_in(there(scaling->bytes)).numbers;
    }
    return tensors;
  }

  OptimizerState optimizer(int device = 0,
                           const std::optional<std::vector<FlatRange>>& ranges = {}) {
    OptimizerState optimizer(buffers_, spec_.update.optimizer, draft_.placed(device).parameters,
                             device, ranges);
    draft_.optimizer_state_[device] = optimizer.buffers();
    return optimizer;
  }

  void add_from_factors() {
    BARESTEP_REQUIRE(!spec_.update.loss_scale, "loss scaling looks at stored gradients");
    const auto factors_of = [&](int linear) {
      return options_.factors ? options_.factors(linear) : draft_.factors(linear);
    };
    const OptimizerState state = optimizer();
    UpdateTensors used = update_tensors();
    if (spec_.update.clip_norm) {
      BARESTEP_REQUIRE(spec_.model.numbers == DType::kF32,
                       "factors give the norm of gradients that are not yet rounded");
      used.clip = add_clip_factor(add_squares_of(factors_of));
    }
    // The first one first: backward used its factors last, so they are still in the caches.
    const std::vector<Linear*>& linears = draft_.model().linears();
    for (int number = 0; number < std::ssize(linears); ++number) {
      const Linear& linear = *at(linears, number);
      add_op(state.step(used, linear, factors_of(number)), linear.name());
    }
  }

  Tensor add_clip_factor(const Tensor& squares) {
    const Tensor factor = buffers_.tensor("clip_factor", Category::kOptimizer, 1, 1);
    add_op(ClipFactor{.factor = factor, .squares = squares, .max_norm = *spec_.update.clip_norm});
    return factor;
  }

  void add_op(DeviceOp op, const std::string& block = "", int device = 0) {
    draft_.add({.op = std::move(op), .device = device, .phase = Phase::kOptimizer, .block = block});
  }

  /// One number of each device in a row on device 0.
  Tensor gather_numbers(const char* name, const std::vector<Tensor>& by_device) {
    if (by_device.size() == 1) return by_device.front();
    const Tensor all =
        buffers_.tensor(name, Category::kOptimizer, 1, std::ssize(by_device), DType::kF32);
    for (int device = 0; device < std::ssize(by_device); ++device) {
      draft_.copy_between(all.flat_slice(device, 1), at(by_device, device));
    }
    return all;
  }

  /// Before the step: checks the gradients that this process uses, by device.
  void find_inf(std::span<const OfDevice> updates) {
    std::vector<Tensor> found_inf;
    for (const OfDevice& update : updates) {
      const int device = static_cast<int>(found_inf.size());
      found_inf.push_back(update.tensors.loss_scale->found_inf);
      add_op(Fill{.out = found_inf.back()}, "", device);
      for (const UpdatedPart& part : update.parts) {
        if (part.range.count == 0) continue;
        add_op(CheckFinite{.found_inf = found_inf.back(), .in = part.gradients}, "", device);
      }
    }
    if (found_inf.size() > 1) {
      // If any device has found one, the sum is above 0 on all.
      Tensor all = gather_numbers("found_inf_of_stages", found_inf);
      std::swap(all.rows, all.cols);
      add_op(SumRows{.out = found_inf.front(), .in = all});
      for (const Tensor& other : std::span(found_inf).subspan(1)) {
        draft_.copy_between(other, found_inf.front());
      }
    }
    if (options_.found_inf_ready) options_.found_inf_ready(found_inf.front());
    add_up_over_model(found_inf.front(), "overflow of all parts");
  }

  /// After the step.
  void update_scale() {
    const ScalingState& scaling = *draft_.tensors().scaling;
    add_op(UpdateLossScale{.state = scaling.numbers,
                           .good_steps = scaling.good_steps,
                           .window = spec_.update.loss_scale->window,
                           .fixed = !spec_.update.loss_scale->dynamic});
    add_op(Copy{.to = draft_.tensors().scaling_host->bytes, .from = scaling.bytes});
  }

  /// Adds up a number of all ranks that share a copy of the model.
  void add_up_over_model(const Tensor& number, const char* name) {
    const Mesh& mesh = spec_.mesh;
    if (!mesh.cuts_model()) return;
    draft_.exchange(
        AllReduce{.tensors = {number}, .axis = mesh.simplest(Axis::kModel), .name = name});
  }

  /// The ranges of the flat buffers whose parameters are cut among tensor ranks.
  std::vector<FlatRange> counted_ranges(const FlatRange& within, int device) {
    const Parameters& parameters = draft_.placed(device).parameters;
    std::vector<FlatRange> ranges;
    for (ParameterId id = parameters.count() - 1; id >= 0; --id) {
      const Tensor tensor = parameters.in(kNoBuffer, id);
      const std::int64_t first =
          std::max(tensor.offset_bytes / bytes_of(tensor.dtype), within.first);
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

  /// The squares of a device's gradients, counted once over the ranks of a copy of the model.
  void add_squares_of_copy(const Tensor& out, const OfDevice& update, int device) {
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
    if (counted.empty()) return add_op(Fill{.out = out}, "", device);
    const auto add_sum = [&](const Tensor& sum, const Tensor& of) {
      add_op(SumSquares{.out = sum, .in = of, .scale = scale}, "", device);
    };
    if (counted.size() == 1) return add_sum(out, counted.front());
    const Tensor sums = buffers_.tensor("squares_of_ranges", Category::kOptimizer,
                                        std::ssize(counted), 1, DType::kF32, device);
    for (std::int64_t i = 0; i < std::ssize(counted); ++i) {
      add_sum(sums.row_slice(i, 1), at(counted, i));
    }
    add_op(SumRows{.out = out, .in = sums}, "", device);
  }

  Tensor add_squares(std::span<const OfDevice> updates) {
    std::vector<Tensor> of_devices;
    for (const OfDevice& update : updates) {
      const int device = static_cast<int>(of_devices.size());
      of_devices.push_back(
          buffers_.tensor("grad_squares", Category::kOptimizer, 1, 1, DType::kF32, device));
      add_squares_of_copy(of_devices.back(), update, device);
    }
    if (options_.squares_ready) options_.squares_ready(of_devices.front());
    add_up_over_model(of_devices.front(), "squares of gradients of all parts");
    return gather_numbers("squares_of_stages", of_devices);
  }

  /// One number for each Linear, computed from Gram matrices of its factors, which share their
  /// memory.
  Tensor add_squares_of(const std::function<Factors(int linear)>& factors_of) {
    const std::vector<Linear*>& linears = draft_.model().linears();
    const std::int64_t rows = draft_.tensors().x.rows * draft_.model_.rows_per_sample;
    const Tensor squares =
        buffers_.tensor("grad_squares", Category::kOptimizer, 1, std::ssize(linears));
    const Tensor gram_y = buffers_.tensor("gram_y", Category::kActivations, rows, rows);
    const Tensor gram_x = buffers_.tensor("gram_x", Category::kActivations, rows, rows);
    for (int number = 0; number < std::ssize(linears); ++number) {
      const std::string& name = at(linears, number)->name();
      const auto [grad_y, x] = factors_of(number);
      add_op(Gemm{.c = gram_y, .a = grad_y, .b = grad_y, .transpose_b = true}, name);
      add_op(Gemm{.c = gram_x, .a = x, .b = x, .transpose_b = true}, name);
      add_op(GramSquares{.out = squares.flat_slice(number, 1), .gram_y = gram_y, .gram_x = gram_x},
             name);
    }
    return squares;
  }

  Draft& draft_;
  const StepSpec& spec_;
  Buffers& buffers_;
  UpdateOptions options_;
};

void Draft::update(const UpdateOptions& options) {
  Update(*this, options).add();
}

BufferId Draft::update_later() {
  return Update(*this).add_late();
}

Op Draft::whole_update() {
  return Update(*this).whole();
}

BufferId Draft::keep(const char* name, Category category, KeptBuffer kept) {
  kept.flat = buffers_.get(name, category, parameters_.bytes());
  kept_.push_back(kept);
  return kept.flat;
}

}  // namespace barestep
