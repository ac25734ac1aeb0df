#include "parallel/schemes/data_parallel.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>

#include "core/error.h"

namespace barestep {
namespace {

constexpr const char* kReducePieceName = "reduce_piece";

/// An Mlp on each device that has rows, with dropout by `step_rows` as in Mlp. Device 0's outputs
/// are already stored where all outputs are gathered, and its part of their gradient where the loss
/// writes it, so neither is copied.
class SpreadMlp {
 public:
  SpreadMlp(Draft& draft, const std::vector<Rows>& split,
            const std::optional<StepRows>& step_rows = {})
      : draft_(draft), split_(split) {
    Buffers& buffers = draft.buffers();
    const StepSpec& spec = draft.spec();
    for (std::size_t device = 0; device < split_.size(); ++device) {
      const std::int64_t rows = split_[device].count;
      const auto number = static_cast<int>(device);
      std::optional<StepRows> own_rows;
      if (step_rows) {
        own_rows = step_rows->from(split_[device].first);
        if (number > 0) own_rows->number = take_number(step_rows->number, number);
      }
      const Mlp& model = models_.emplace_back(buffers, spec.model, rows, number, 0, own_rows);
      parameters_.push_back(model.operands());
      gradients_.push_back(spec.model.layout.flat(model.gradients()));
      // Device 0 holds the rows of all devices, in two slots, before they are scattered.
      if (number == 0) continue;
      x_.push_back(buffers.tensor("x", Category::kData, rows, spec.model.layout.widths().front(),
                                  DType::kF32, number));
      if (spec.workspace_bytes > 0) {
        buffers.get("workspace", Category::kWorkspace, spec.workspace_bytes, number);
      }
    }
    const std::int64_t all_rows = split_.back().first + split_.back().count;
    const auto grow = [&](const Tensor& part) {
      const Buffer& buffer = buffers[part.buffer];
      return buffers.tensor(std::string(buffer.name), buffer.category, all_rows, part.cols,
                            part.dtype);
    };
    const ModelOutput part = models_[0].output();
    output_ = {grow(part.values), grow(part.grad)};
  }

  void forward(const Tensor& x, Phase phase) {
    for (std::size_t i = 1; i < split_.size(); ++i) add_copy(i, x_[i - 1], rows_of(x, i));
    for (std::size_t i = 0; i < numbers_.size(); ++i) add_copy(i + 1, numbers_[i], number_);
    exchange(Broadcast{.tensors = parameters_});
    for (std::size_t i = 0; i < split_.size(); ++i) {
      models_[i].forward(draft_.program(), input_of(i, x), phase);
    }
    for (std::size_t i = 1; i < split_.size(); ++i) {
      add_copy(0, rows_of(output_.values, i), models_[i].output().values);
    }
  }

  void backward(const Tensor& x, float beta) {
    for (std::size_t i = 1; i < split_.size(); ++i) {
      add_copy(i, models_[i].output().grad, rows_of(output_.grad, i));
    }
    for (std::size_t i = 0; i < split_.size(); ++i) {
      // Existing gradients are on device 0 only.
      models_[i].backward(draft_.program(), input_of(i, x), i == 0 ? beta : 0);
    }
    exchange(Reduce{.tensors = gradients_});
  }

  [[nodiscard]] const ModelOutput& output() const { return output_; }

 private:
  [[nodiscard]] Tensor rows_of(const Tensor& all, std::size_t device) const {
    return all.row_slice(split_[device].first, split_[device].count);
  }
  [[nodiscard]] Tensor input_of(std::size_t device, const Tensor& x) const {
    return device == 0 ? rows_of(x, 0) : x_[device - 1];
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

  Draft& draft_;
  std::vector<Rows> split_;
  std::vector<Mlp> models_;
  std::vector<Tensor> x_;                       // on the devices after device 0
  Tensor number_{};                             // the step's number
  std::vector<Tensor> numbers_;                 // its copies on the devices after device 0
  std::vector<Tensor> parameters_, gradients_;  // inputs of the products; their results
  ModelOutput output_;                          // for all rows, on device 0
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
  for (const MicroStep& part : draft.micro_steps()) {
    const std::vector<Rows> pieces = split(part.x.rows);
    if (adds_by_pieces_ && pieces.size() > 1) {
      draft.buffers().get(kReducePieceName, Category::kCommunication,
                          std::min(kReducePieceBytes, draft.spec().model.layout.bytes()));
    }
    SpreadMlp model(draft, pieces, draft.step_rows(part));
    model.forward(part.x, Phase::kForward);
    draft.loss(part, model.output());
    model.backward(part.x, part.beta);
  }
  draft.update();
}

void DataParallel::evaluate(Draft& draft) const {
  draft.input();
  SpreadMlp model(draft, split(draft.rows()));
  model.forward(draft.tensors().x, Phase::kEvaluate);
  draft.evaluate(model.output());
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
