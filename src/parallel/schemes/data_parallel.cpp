#include "parallel/schemes/data_parallel.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/error.h"

namespace barestep {
namespace {

constexpr const char* kReducePieceName = "reduce_piece";

/// The model on each device that has samples. Device 0's outputs are already stored where all
/// outputs are gathered, and its part of their gradient where the loss writes it, so neither is
/// copied.
class SpreadModel {
 public:
  /// Dropout numbers samples by `step_rows`; without them nothing is dropped.
  SpreadModel(Draft& draft, std::vector<Rows> split, Phase forward,
              const std::optional<StepRows>& step_rows = {})
      : draft_(draft), split_(std::move(split)) {
    for (std::size_t device = 0; device < split_.size(); ++device) {
      const auto number = static_cast<int>(device);
      Pass& pass = passes_.emplace_back(draft.pass(forward, kNoHooks, number));
      if (step_rows) {
        pass.step_rows = step_rows->from(split_[device].first);
        if (number > 0) pass.step_rows->number = take_number(step_rows->number, number);
      }
      parameters_.push_back(draft.parameters().flat(pass.flat.operands, pass.model.numbers));
      if (forward != Phase::kEvaluate) {
        gradients_.push_back(draft.parameters().flat(
            take_gradients(draft.buffers(), pass.model, draft.parameters(), number)));
      }
      // Device 0 holds the rows of all devices, in two slots, before they are scattered.
      if (number == 0) continue;
      x_.push_back(draft.buffers().tensor("x", Category::kData, split_[device].count,
                                          pass.model.inputs(), DType::kF32, number));
      if (const std::int64_t bytes = draft.spec().workspace_bytes; bytes > 0) {
        draft.buffers().get("workspace", Category::kWorkspace, bytes, number);
      }
    }
  }

  /// The output of all devices, and the place of its gradient, on device 0.
  ModelOutput forward(const Tensor& x) {
    for (std::size_t i = 1; i < split_.size(); ++i) add_copy(i, x_[i - 1], rows_of(x, i));
    for (std::size_t i = 0; i < numbers_.size(); ++i) add_copy(i + 1, numbers_[i], number_);
    broadcast_parameters();
    for (std::size_t i = 0; i < split_.size(); ++i) {
      const ModelSpec& model = passes_[i].model;
      outputs_.push_back(
          model.as_samples(root(i).forward(passes_[i], model.as_rows(input_of(i, x)))));
    }
    const Tensor values = grown(outputs_[0]);
    for (std::size_t i = 1; i < split_.size(); ++i) add_copy(0, rows_of(values, i), outputs_[i]);
    grad_ = draft_.take_output_grad(values);
    return {values, grad_};
  }

  void backward(float beta) {
    std::vector<Tensor> grads = {rows_of(grad_, 0)};
    for (std::size_t i = 1; i < split_.size(); ++i) {
      grads.push_back(draft_.take_output_grad(outputs_[i], static_cast<int>(i)));
      add_copy(i, grads[i], rows_of(grad_, i));
    }
    for (std::size_t i = 0; i < split_.size(); ++i) {
      passes_[i].phase = Phase::kBackward;
      passes_[i].beta = i == 0 ? beta : 0;  // existing gradients are on device 0 only
      root(i).backward(passes_[i], passes_[i].model.as_rows(grads[i]), false);
    }
    exchange(Reduce{.tensors = gradients_});
  }

 private:
  /// In the type of products; wide ones in fp32 too.
  void broadcast_parameters() {
    exchange(Broadcast{.tensors = parameters_});
    const Parameters& list = draft_.parameters();
    for (ParameterId id = 0; id < list.count(); ++id) {
      if (!list[id].is_wide || passes_[0].model.numbers == DType::kF32) continue;
      Broadcast wide;
      for (const Pass& pass : passes_) wide.tensors.push_back(pass.weight(id));
      exchange(std::move(wide));
    }
  }

  [[nodiscard]] Block& root(std::size_t device) {
    return draft_.model(static_cast<int>(device)).root();
  }
  [[nodiscard]] std::int64_t all_rows() const { return split_.back().first + split_.back().count; }
  [[nodiscard]] Tensor rows_of(const Tensor& all, std::size_t device) const {
    return all.row_slice(split_[device].first, split_[device].count);
  }
  [[nodiscard]] Tensor input_of(std::size_t device, const Tensor& x) const {
    return device == 0 ? rows_of(x, 0) : x_[device - 1];
  }

  /// Device 0's tensor, followed by the rows of the other devices.
  [[nodiscard]] Tensor grown(const Tensor& part) const {
    const Buffer& buffer = draft_.buffers()[part.buffer];
    return draft_.buffers().tensor(std::string(buffer.name), buffer.category, all_rows(), part.cols,
                                   part.dtype);
  }

  /// The copy of the step's number on another device.
  Tensor take_number(const Tensor& number, int device) {
    number_ = number;
    numbers_.push_back(
        draft_.buffers().tensor("step_number", Category::kData, 1, 1, DType::kI32, device));
    return numbers_.back();
  }

  // On the communication lanes, so that waits for other devices count as communication.
  void exchange(Collective collective) {
    if (split_.size() > 1) draft_.exchange(std::move(collective));
  }
  void add_copy(std::size_t device, const Tensor& to, const Tensor& from) {
    draft_.add({.op = DeviceOp{Copy{.to = to, .from = from}},
                .device = static_cast<int>(device),
                .lane = Lane::kComm,
                .phase = Phase::kCommunication});
  }

  static inline const PassHooks kNoHooks{};
  Draft& draft_;
  std::vector<Rows> split_;
  std::vector<Pass> passes_;                    // by device
  std::vector<Tensor> x_;                       // on the devices after device 0
  Tensor number_{};                             // the step's number
  std::vector<Tensor> numbers_;                 // its copies on the devices after device 0
  std::vector<Tensor> parameters_, gradients_;  // inputs of the products; their results
  std::vector<Tensor> outputs_;                 // by device
  Tensor grad_{};                               // of all outputs, on device 0
};

}  // namespace

std::vector<Rows> chunk(std::int64_t rows, int pieces) {
  BARESTEP_REQUIRE(rows >= 0 && pieces >= 1, "rows are split into at least one piece");
  const std::int64_t each = (rows + pieces - 1) / pieces;
  std::vector<Rows> all;
  for (std::int64_t first = 0; first < rows; first += each) {
    all.push_back({first, std::min(each, rows - first)});
  }
  return all;
}

void DataParallel::build(Draft& draft) const {
  draft.require_gradients();
  draft.input();
  std::optional<SpreadModel> model;
  draft.passes({.forward =
                    [&](const MicroStep& part) {
                      const std::vector<Rows> pieces = split(part.x.rows);
                      if (adds_by_pieces_ && pieces.size() > 1) {
                        draft.buffers().get(
                            kReducePieceName, Category::kCommunication,
                            std::min(kReducePieceBytes, draft.parameters().bytes()));
                      }
                      model.emplace(draft, pieces, Phase::kForward, draft.step_rows(part));
                      return model->forward(part.x);
                    },
                .backward = [&](const MicroStep&, float beta) { model->backward(beta); }});
  draft.update();
}

void DataParallel::evaluate(Draft& draft) const {
  draft.input();
  SpreadModel model(draft, split(draft.rows()), Phase::kEvaluate);
  draft.evaluate(model.forward(draft.tensors().x));
}

std::optional<Tensor> reduce_piece_of(const Buffers& buffers) {
  for (BufferId id = 0; id < buffers.size(); ++id) {
    const Buffer& buffer = buffers[id];
    if (buffer.name != kReducePieceName) continue;
    return Tensor{id, 0, 1, buffer.bytes / bytes_of(DType::kF32)};
  }
  return std::nullopt;
}

}  // namespace barestep
