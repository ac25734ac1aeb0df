// One description of a run, and the one answer to the question whether the trainers can make it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/config.h"
#include "core/device.h"
#include "core/error.h"
#include "core/mesh.h"
#include "train/step.h"

namespace barestep {

/// The configuration that a trainer receives, and its place.
struct Run {
  int ranks = 1;  // or devices of one process
  bool on_gpu = false;
  int gpus = 1;                // available GPUs; further devices of mlp_dp share them
  std::int64_t data_rows = 0;  // of its files, if it reads any
  TrainConfig config{};        // its batch is that of all ranks

  [[nodiscard]] SchemeKind scheme() const { return config.parallel.scheme; }
  [[nodiscard]] bool has_ranks() const { return barestep::has_ranks(scheme()); }
  [[nodiscard]] DeviceKind kind() const { return on_gpu ? DeviceKind::kCuda : DeviceKind::kCpu; }
  /// The largest width of the layers.
  [[nodiscard]] std::int64_t dim() const {
    const std::vector<std::int64_t>& layers = config.model.layers;
    return layers.empty() ? config.model.dim.value() : std::ranges::max(layers);
  }
  [[nodiscard]] std::int64_t depth() const {
    const std::vector<std::int64_t>& layers = config.model.layers;
    return layers.empty() ? config.model.depth.value()
                          : static_cast<std::int64_t>(layers.size()) - 1;
  }
  [[nodiscard]] std::int64_t batch_size() const { return config.data.batch_size; }
  /// Samples of a whole step over all ranks.
  [[nodiscard]] std::int64_t step_samples() const {
    return batch_size() * config.training.accumulate;
  }
  [[nodiscard]] std::int64_t steps() const {
    return config.training.steps.value_or(kDefaultSteps);  // an evaluation has none
  }

  friend bool operator==(const Run&, const Run&) = default;
};

/// The Error that `check` throws; nothing if it throws none.
template <class Check>
std::optional<Error> refusal_of(const Check& check) {
  try {
    check();
    return std::nullopt;
  } catch (const Error& error) {
    return error;
  }
}

/// Why the trainers refuse the run, in the words of the command line: kUsage for a value that an
/// option does not allow, kConfiguration for options that contradict each other or the place.
/// Finds every reason that can be found without a device or a file. Nothing if they make it.
std::optional<Error> why_not(const Run& run);

/// Throws what why_not() finds.
void require(const Run& run);

/// The spec of a rank, or of the one process.
StepSpec spec_of(const Run& run, int rank = 0);

/// Of its processes, or of the devices of one process. Throws Error(kConfiguration) if they do not
/// form the mesh of --tensor and --pipeline.
Mesh mesh_of(const Run& run);

}  // namespace barestep
