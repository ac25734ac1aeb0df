// Blocks, of which a model is a tree, and the pass that leads a micro-batch through them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/ops.h"
#include "core/program.h"
#include "model/model_spec.h"
#include "model/parameters.h"

namespace barestep {

class Linear;
struct Pass;

/// The row numbers that dropout uses, independent of which rank computes a row: sample i of a model
/// is sample first + i * stride of the training step. `number` holds the step's number; 1 x 1, i32.
struct StepRows {
  Tensor number;
  std::int64_t first = 0;
  std::int64_t stride = 1;

  /// The samples from `begin` on.
  [[nodiscard]] StepRows from(std::int64_t begin) const {
    return {number, first + begin * stride, stride};
  }
};

/// A model's flat buffers of parameters on a device.
struct FlatBuffers {
  BufferId parameters = kNoBuffer;  // fp32; none where only their rounded copy is needed
  BufferId operands = kNoBuffer;    // what products read: the parameters or the rounded copy
};

/// Creates "gradients" on a device, for a model that stores them.
BufferId take_gradients(Buffers& buffers, const ModelSpec& model, const Parameters& parameters,
                        int device = 0);

/// Memory for the gradients of blocks' outputs, and for what a block needs only while it adds its
/// nodes, on one device. These are ordinary buffers, handed out while a program is built, so
/// order() and the checker see every reuse.
class Scratch {
 public:
  /// Either blocks share a few buffers, "scratch.0", "scratch.1", ..., or nothing that is given
  /// back is handed out again, so that all gradients can still be read after the pass.
  Scratch(Buffers& buffers, int device, bool is_shared)
      : buffers_(buffers), device_(device), is_shared_(is_shared) {}

  /// rows x cols. If nothing is shared, the tensor is in the buffer `name`, where it follows
  /// `first_row` rows of other micro-steps.
  [[nodiscard]] Tensor take(const std::string& name, std::int64_t first_row, std::int64_t rows,
                            std::int64_t cols, DType dtype);

  /// Adds a user of a tensor that take() returned: it is in use until all have given it back.
  void share(const Tensor& tensor);

  /// Ends a use of a tensor that take() returned, or of a part of it.
  void give_back(const Tensor& tensor);

 private:
  Buffers& buffers_;
  int device_;
  bool is_shared_;
  std::vector<std::pair<BufferId, int>> slots_;  // and how many use them
};

/// What a Linear has, at these points of a pass.
enum class LinearEvent {
  kInput,       // forward, before its product: its input, in the type of products
  kGradOutput,  // backward, before its gradients: the gradient of its product
};

/// What a scheme adds to passes. Called in every micro-step (Pass::is_last tells the last), right
/// after the nodes that they are about. Empty ones are not called.
struct PassHooks {
  /// Where parameters, as blocks read them, and gradients live, if not in the flat buffers, which a
  /// pass without rows then does not fill with zeros.
  std::function<Tensor(ParameterId)> weight{}, gradient{};
  /// Gradients do not add up from pass to pass; each backward pass overwrites them.
  bool overwrites_gradients = false;
  /// The parameter is about to be read, forward or backward.
  std::function<void(const Pass&, ParameterId)> before{};
  /// The gradient of this parameter is complete, for this micro-step.
  std::function<void(const Pass&, ParameterId)> complete{};
  /// Backward does not read the parameter any more.
  std::function<void(const Pass&, ParameterId)> released{};
  std::function<void(const Pass&, const Linear&, LinearEvent)> linear{};
};

/// One pass of a micro-batch through blocks on one device: where nodes go, and where tensors live.
struct Pass {
  Program& program;
  Buffers& buffers;
  Scratch& scratch;
  const ModelSpec& model;
  const Parameters& parameters;
  FlatBuffers flat;
  const PassHooks& hooks;
  int device = 0;
  Phase phase = Phase::kForward;
  int micro_step = 0;
  bool is_last = true;          // of the forward passes, or of the backward passes of the step
  float beta = 0;               // backward; 1: adds to existing gradients
  bool is_empty = false;        // without rows: adds no nodes, but calls all hooks
  bool leaves_weights = false;  // backward: Linear::add_left_gradient() adds those of weights later
  std::int64_t first_row = 0;   // of this pass in the buffers of activations
  std::optional<StepRows> step_rows{};  // for dropout; without them nothing is dropped
  // Activations of this block are in buffers that segments share (model.cpp).
  std::string shared_block{}, shared_name{};
  bool keeps_output = false;  // but not its output

  /// Adds a node of a block on the compute lane.
  void add(DeviceOp op, const std::string& block) const;

  /// Adds the sum of the tensor ranks' tensors, on the comm lane. `what` it is of the block is part
  /// of its name: "net.2 output".
  void sum_over_tensor_ranks(const Tensor& tensor, const std::string& block,
                             const char* what) const;

  /// A parameter as blocks read it, and its gradient. Where a device lacks the fp32 parameters, a
  /// wide one has a buffer of its own, named like it.
  [[nodiscard]] Tensor weight(ParameterId id) const;
  [[nodiscard]] Tensor gradient(ParameterId id) const;

  /// rows x cols numbers, in the type of products if not said otherwise, from forward until
  /// backward has read them.
  [[nodiscard]] Tensor activation(const std::string& name, std::int64_t rows, std::int64_t cols,
                                  std::optional<DType> type = {}) const;

  /// A block's output, which is not in a shared buffer if it ends a segment.
  [[nodiscard]] Tensor output(const std::string& name, std::int64_t rows, std::int64_t cols,
                              std::optional<DType> type = {}) const {
    return keeps_output ? kept_activation(name, rows, cols, type)
                        : activation(name, rows, cols, type);
  }

  /// Whether forward runs again for a block whose output is still there.
  [[nodiscard]] bool has_output() const { return phase == Phase::kRecompute && keeps_output; }

  /// The same as activation(), never in a shared buffer.
  [[nodiscard]] Tensor kept_activation(const std::string& name, std::int64_t rows,
                                       std::int64_t cols, std::optional<DType> type = {}) const;

  void before(ParameterId id) const {
    if (hooks.before) hooks.before(*this, id);
  }
  /// The gradients of an empty pass are zeros.
  void complete(ParameterId id) const;
  void released(ParameterId id) const {
    if (hooks.released) hooks.released(*this, id);
  }
};

/// A part of a model. Remembers one pass: backward() belongs to the forward() before it.
class Block {
 public:
  /// The name precedes those of its parameters in the state_dict: "net.0".
  explicit Block(std::string name) : name_(std::move(name)) {}
  virtual ~Block() = default;
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  [[nodiscard]] const std::string& name() const { return name_; }

  /// Adds the nodes of y = block(x) and returns y. An evaluation keeps nothing for gradients. If
  /// pass.has_output(), adds only those of what backward reads besides y.
  virtual Tensor forward(Pass& pass, const Tensor& x) = 0;

  /// Whether it keeps more for backward than its output: then the last block of a segment, too, is
  /// recomputed.
  [[nodiscard]] virtual bool keeps_more() const { return false; }

  /// Adds the nodes of the gradients of its parameters, last one first, and returns that of x if
  /// wanted. May change grad_y, which it gives back to the pass's scratch memory.
  virtual Tensor backward(Pass& pass, const Tensor& grad_y, bool wants_grad_x) = 0;

  /// Appends the Linear blocks in this block, in the order of forward.
  virtual void add_linears(std::vector<Linear*>& linears) = 0;

 private:
  std::string name_;
};

}  // namespace barestep
