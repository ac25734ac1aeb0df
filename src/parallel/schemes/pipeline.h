// A pipeline: the model's layers are cut into stages, and the micro-batches of a step pass through
// them one after the other, so that several stages work at the same time.
//
// GPipe (Huang et al. 2019) and 1F1B (Narayanan et al. 2019) differ only in the order of passes
// (train/pass_schedule.h). Every stage adds up the gradients of its micro-batches in their order
// and is updated after the last one, so a step has the bits of --accumulate on one device.
#pragma once

#include "train/step.h"

namespace barestep {

/// The stages of the spec's pipeline, each on a device of this process. A stage's input and the
/// gradient of its output are copied from the device that computed them, on the communication lane
/// of the device that reads them.
class Pipeline final : public Scheme {
 public:
  /// Allocates the buffers of its layers on the device of each stage, and "x" and the random stream
  /// on device 0.
  void build(Draft& draft) const override;
  void evaluate(Draft& draft) const override;
};

}  // namespace barestep
