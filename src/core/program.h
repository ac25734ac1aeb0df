// A program: one training step as a list of ops.
//
// The order of the list defines its meaning. Lanes (streams) and waits only relax that order:
// order() adds the waits, and check() proves that they suffice (core/checker.h). A program is built
// once, before any memory exists; planner, checker, pricer, printer and runner then read it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/index.h"
#include "core/ops.h"
#include "core/tensor.h"

namespace barestep {

/// The categories of memory use; the rows of every memory table.
enum class Category {
  kParameters,
  kGradients,
  kOptimizer,
  kActivations,
  kData,
  kCommunication,
  kWorkspace,
  kCheckpoint,
};
template <>
inline constexpr std::string_view kNamesOf<Category>[] = {
    "parameters", "gradients",     "optimizer", "activations",
    "data",       "communication", "workspace", "checkpoint"};

/// Whether tables omit the category for runs that do not use it.
constexpr bool is_optional(Category category) {
  return category == Category::kCheckpoint;
}

/// A stream of a program: its nodes run one after another.
enum class Lane { kCompute, kCopy, kComm };
template <>
inline constexpr std::string_view kNamesOf<Lane>[] = {"compute", "copy", "comm"};

/// The phase that a node belongs to in a step's account.
enum class Phase {
  kData,
  kInjected,
  kForward,
  kLoss,
  kRecompute,
  kBackward,
  kCommunication,
  kOptimizer,
  kEvaluate,
};
template <>
inline constexpr std::string_view kNamesOf<Phase>[] = {"data",          "injected",  "forward",
                                                       "loss",          "recompute", "backward",
                                                       "communication", "optimizer", "evaluate"};

/// A named piece of memory. With two slots, step t uses slot t mod 2, so the next step's input can
/// arrive while this step's is read. `bytes` is the size of one slot.
struct Buffer {
  std::string name;
  Category category = Category::kData;
  std::int64_t bytes = 0;
  int device = 0;
  int slots = 1;
  bool pinned = false;  // page-locked host memory instead of device memory
};

/// The buffers of a run, shared by all its programs (training, last batch, evaluation).
class Buffers {
 public:
  /// The buffer with this name on this device: created if it does not exist, enlarged to `bytes` if
  /// it is smaller. Slots, category and pinned must match earlier calls.
  BufferId get(std::string_view name, Category category, std::int64_t bytes, int device = 0,
               int slots = 1, bool pinned = false);

  /// A rows x cols tensor at the start of the buffer with this name. Throws Error(kMemory) if it
  /// has more than 2^63 - 1 bytes.
  Tensor tensor(std::string_view name, Category category, std::int64_t rows, std::int64_t cols,
                DType dtype = DType::kF32, int device = 0, int slots = 1, bool pinned = false);

  /// kNoBuffer if there is none with this name on this device.
  [[nodiscard]] BufferId find(std::string_view name, int device = 0) const;

  [[nodiscard]] const Buffer& operator[](BufferId id) const;
  [[nodiscard]] int size() const { return static_cast<int>(all_.size()); }
  [[nodiscard]] const std::vector<Buffer>& all() const { return all_; }

  /// The largest number of slots of any buffer.
  [[nodiscard]] int max_slots() const;

 private:
  std::vector<Buffer> all_;
  std::map<std::pair<std::string, int>, BufferId> ids_;  // by name and device
};

using NodeId = int;

/// Waits for `node` of this step (0) or of 1 or 2 steps earlier.
struct Wait {
  NodeId node = 0;
  int steps_back = 0;

  friend bool operator==(const Wait&, const Wait&) = default;
};

struct Node {
  Op op;
  int device = 0;
  Lane lane = Lane::kCompute;
  Phase phase = Phase::kForward;
  std::string block{};  // whose node it is, "net.0"; empty: no block's
  std::vector<Wait> waits{};
  std::optional<int> micro_batch{};  // of a pipeline, for a node of its passes
  bool is_for_weights = false;       // of a pass that computes gradients of weights only

  /// " of net.0", or nothing.
  [[nodiscard]] std::string of_block() const { return block.empty() ? "" : " of " + block; }
};

/// `buffers` must outlive the program.
class Program {
 public:
  Program(std::string name, const Buffers& buffers) : name_(std::move(name)), buffers_(&buffers) {}

  /// Appends. Throws Error(kBug) if the op's shapes do not match, a tensor extends beyond its
  /// buffer, or two tensors of a collective are on one device.
  NodeId add(Node node);

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const Buffers& buffers() const { return *buffers_; }
  [[nodiscard]] const Node& node(NodeId id) const { return at(nodes_, id); }
  [[nodiscard]] const std::vector<Node>& nodes() const { return nodes_; }
  [[nodiscard]] std::vector<Node>& nodes() { return nodes_; }
  [[nodiscard]] int size() const { return static_cast<int>(nodes_.size()); }

 private:
  std::string name_;
  const Buffers* buffers_;
  std::vector<Node> nodes_;
};

/// One of a program's streams.
struct LaneId {
  int device = 0;
  Lane lane = Lane::kCompute;

  friend auto operator<=>(const LaneId&, const LaneId&) = default;
};

/// The lanes that a node occupies, one per part: its own lane, or for a collective its lane on
/// every device that has one of its tensors.
std::vector<LaneId> lanes_of(const Program& program, const Node& node);

/// The sum of cost_of over the nodes of one step, on all devices of the process.
struct Price {
  Cost total;
  EnumArray<Phase, Cost> by_phase{};
};

/// Throws Error(kMemory) if a sum is larger than 2^63 - 1.
Price price_of(const Program& program);

/// The bytes that one step moves to and from parameters, gradients and the optimizer's state, which
/// do not grow with the batch. Each op reads its input once and writes its output once.
std::int64_t state_bytes_of(const Program& program);

/// The bytes that each rank of a mesh sends in a step of `program`, averaged over the ranks of each
/// group, with ring collectives (Patarasuk & Yuan 2009): 2 (n - 1) / n of the payload for an
/// all-reduce, (n - 1) / n for all others.
std::int64_t bytes_sent(const Program& program, const Mesh& mesh);

/// The bytes of a device that a step reads before it writes them, and writes: what must be as
/// before for it to run again. Weights, moments, random streams; not the input that the host makes.
std::vector<Tensor> state_of_step(const Program& program, int device);

/// Replaces all waits of the program. Afterwards any two nodes that touch the same bytes, at least
/// one of them writing, run in the order of the list, within a step and across steps. Every wait is
/// needed: without it, some such pair would be unordered. core/checker.h proves both independently.
void order(Program& program);

}  // namespace barestep
