// Finds bits that changed by themselves: some steps run twice from the same input and state, and
// the ranks compare theirs.
//
// The output of every op is hashed in both runs of a step, so the first difference names the op in
// which a fault entered: in inputs, activations, gradients, the update. A fault in the state
// between two steps changes both runs alike; ranks that must have the same state find it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/device.h"
#include "core/group.h"
#include "core/input_file.h"
#include "train/runner.h"
#include "train/schedule.h"
#include "train/step.h"

namespace barestep {

/// Throws Error(kConfiguration) if the run of `steps` steps, or its programs on the flip's rank,
/// have no such step, buffer, word or node. For that rank, or for the process that has the device.
void require_flip(const Flip& flip, const StepPrograms& programs, std::int64_t steps);

class Verification final : public StepWatch {
 public:
  /// All arguments must outlive it. `ranks` is null for a single process.
  Verification(const TrainConfig& config, const StepPrograms& programs, Runner& runner,
               const std::vector<Device*>& devices, Group* ranks);

  /// Whether the runner must watch this step.
  [[nodiscard]] bool watches(const Batch& batch) const;
  /// Sets the step that is watched next.
  void set_step(const Batch& batch, bool ends_alike);

  void begin() override;
  void after(NodeId node) override;
  /// Throws Error(kCorrupted) on every rank if any has found a difference.
  void end() override;

  /// Touches the memory of the kept state, so that the first verified step does not have to. Call
  /// once the state is set. Blocks.
  void prepare();

  /// The steps of the run after which the state was last found to be as it must be.
  [[nodiscard]] std::int64_t verified_steps() const { return verified_steps_; }

 private:
  [[nodiscard]] bool verifies(const Batch& batch) const;
  [[nodiscard]] bool flips(const Batch& batch) const;
  void flip_bit();
  /// Blocks.
  void copy(void* to, const void* from, std::int64_t bytes, int device) const;
  /// Copies the state to where the step will run again; or, if it is there, compares it.
  void keep_state();
  void add_to(ByteHash& hash, const Tensor& tensor, const Addresses& table) const;
  [[nodiscard]] std::string hash_of(const Tensor& tensor, const Addresses& table) const;
  /// Of all ranks.
  [[nodiscard]] std::vector<std::string> of_all(const std::string& own) const;
  [[nodiscard]] std::string name_of_node(NodeId id) const;
  void compare_runs() const;
  /// Empty if there is none.
  [[nodiscard]] std::string difference_of_states() const;
  void compare_states() const;
  /// ", rank 1"; empty without ranks.
  [[nodiscard]] std::string on(std::int64_t rank) const;
  [[noreturn]] void refuse(const std::string& where, const std::string& why) const;

  const TrainConfig& config_;
  const StepPrograms& programs_;
  Runner& runner_;
  const std::vector<Device*>& devices_;
  Group* ranks_;
  Batch batch_;             // the watched step
  bool ends_alike_ = true;  // the ranks' weights are equal after it
  const Addresses* addresses_ = nullptr;
  Addresses again_;                  // of the second run, which has a copy of the state
  bool is_second_ = false;           // the step runs again
  std::vector<std::string> hashes_;  // by node, of the first run
  std::optional<NodeId> different_;  // the first node whose output differed
  std::int64_t verified_steps_ = 0;
};

}  // namespace barestep
