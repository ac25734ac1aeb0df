#include "parallel/schemes/data_parallel.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>

#include "core/error.h"
#include "train/mlp.h"

namespace barestep {
namespace {

constexpr const char* kReducePieceName = "reduce_piece";

/// An Mlp on each device. The outputs of device 0 lie where those of all are gathered, and its part
/// of their gradient where the loss leaves it, so neither is copied.
class SpreadMlp final : public Model {
 public:
  SpreadMlp(Buffers& buffers, const MlpSpec& spec, const std::vector<Rows>& split)
      : loss_kind_(spec.loss), split_(split) {
    const ParameterLayout& layout = spec.layout;
    for (std::size_t device = 0; device < split_.size(); ++device) {
      const std::int64_t rows = split_[device].count;
      const auto number = static_cast<int>(device);
      const Mlp& model = models_.emplace_back(buffers, spec, rows, number);
      parameters_.push_back(layout.flat(model.parameters()));
      gradients_.push_back(layout.flat(model.gradients()));
      // Device 0 has the rows of all devices, in two slots, before they are scattered.
      if (number > 0) {
        x_.push_back(buffers.tensor("x", Category::kData, rows, layout.widths().front(),
                                    DType::kF32, number));
      }
    }
    const std::int64_t all_rows = split_.back().first + split_.back().count;
    const auto grow = [&](const Tensor& part) {
      const Buffer& buffer = buffers[part.buffer];
      return buffers.tensor(std::string(buffer.name), buffer.category, all_rows, part.cols);
    };
    output_ = grow(models_[0].output());
    grad_output_ = grow(models_[0].grad_output());
  }

  void forward(Program& program, const Tensor& x, Phase phase) const override {
    for (std::size_t i = 1; i < split_.size(); ++i) {
      add_copy(program, static_cast<int>(i), x_[i - 1], rows_of(x, i));
    }
    add_exchange(program, 0, Collective{Broadcast{.tensors = parameters_}});
    for (std::size_t i = 0; i < split_.size(); ++i) {
      models_[i].forward(program, input_of(i, x), phase);
    }
    for (std::size_t i = 1; i < split_.size(); ++i) {
      add_copy(program, 0, rows_of(output_, i), models_[i].output());
    }
  }

  void loss(Program& program, const Tensor& target, const Tensor& loss, std::int64_t count_rows,
            float beta, Phase phase) const override {
    add_loss(program, loss_kind_,
             {.loss = loss, .grad = grad_output_, .output = output_, .target = target}, count_rows,
             beta, phase);
  }

  void backward(Program& program, const Tensor& x, float beta) const override {
    for (std::size_t i = 1; i < split_.size(); ++i) {
      add_copy(program, static_cast<int>(i), models_[i].grad_output(), rows_of(grad_output_, i));
    }
    for (std::size_t i = 0; i < split_.size(); ++i) {
      // What is there already is device 0's alone.
      models_[i].backward(program, input_of(i, x), i == 0 ? beta : 0);
    }
    add_exchange(program, 0, Collective{Reduce{.tensors = gradients_}});
  }

  [[nodiscard]] const Tensor& output() const override { return output_; }

 private:
  [[nodiscard]] Tensor rows_of(const Tensor& all, std::size_t device) const {
    return all.row_slice(split_[device].first, split_[device].count);
  }
  [[nodiscard]] Tensor input_of(std::size_t device, const Tensor& x) const {
    return device == 0 ? rows_of(x, 0) : x_[device - 1];
  }

  /// On the lanes of communication, so that what other devices are waited for shows as that.
  static void add_exchange(Program& program, int device, Op op) {
    program.add(
        {.op = std::move(op), .device = device, .lane = Lane::kComm, .phase = Phase::kReduce});
  }
  static void add_copy(Program& program, int device, const Tensor& to, const Tensor& from) {
    add_exchange(program, device, DeviceOp{Copy{.to = to, .from = from}});
  }

  LossKind loss_kind_;
  std::vector<Rows> split_;
  std::vector<Mlp> models_;
  std::vector<Tensor> x_;  // of the devices behind device 0
  std::vector<Tensor> parameters_, gradients_;
  Tensor output_, grad_output_;  // of all rows, on device 0
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

std::unique_ptr<Model> DataParallel::new_model(Buffers& buffers, const StepSpec& spec,
                                               std::int64_t rows) const {
  const std::vector<Rows> pieces = split(rows);
  if (pieces.size() == 1) return Scheme::new_model(buffers, spec, rows);
  for (std::size_t device = 1; device < pieces.size(); ++device) {
    if (spec.workspace_bytes == 0) break;
    buffers.get("workspace", Category::kWorkspace, spec.workspace_bytes, static_cast<int>(device));
  }
  if (adds_by_pieces_) {
    buffers.get(kReducePieceName, Category::kCommunication,
                std::min(kReducePieceBytes, spec.model.layout.bytes()));
  }
  return std::make_unique<SpreadMlp>(buffers, spec.model, pieces);
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
