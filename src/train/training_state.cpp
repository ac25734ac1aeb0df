#include "train/training_state.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "core/philox.h"
#include "core/random.h"
#include "train/optimizer.h"
#include "train/weights.h"

namespace barestep {
namespace {

constexpr std::string_view kOptimizer = "optimizer.";
constexpr std::string_view kGradients = "gradients.";
constexpr std::string_view kGenerator = "generator";

/// Weights and biases of all layers, as they lie in the buffer `flat`.
void add_parts(std::vector<StatePart>& parts, const MlpSpec& model, const std::string& prefix,
               BufferId flat) {
  const ParameterLayout& layout = model.layout;
  for (int layer = 0; layer < layout.layers(); ++layer) {
    parts.push_back({prefix + state_dict_name(model, layer, "weight"),
                     {layout.outputs(layer), layout.inputs(layer)},
                     layout.weight(flat, layer)});
    parts.push_back({prefix + state_dict_name(model, layer, "bias"),
                     {layout.outputs(layer)},
                     layout.bias(flat, layer)});
  }
}

/// What keeps a tensor from being as expected; empty if nothing does.
std::string difference_of(const StoredTensor* stored, const StoredTensor& expected) {
  const std::string& name = expected.name;
  if (stored == nullptr) return name + " is missing";
  if (stored->dtype != expected.dtype) {
    return fmt::format("{} is {}, not {}", name, stored->dtype, expected.dtype);
  }
  if (stored->shape != expected.shape) {
    return fmt::format("{} is [{}], not [{}]", name, fmt::join(stored->shape, ", "),
                       fmt::join(expected.shape, ", "));
  }
  const bool is_torch_state =
      name.starts_with(kGenerator) && stored->bytes.size() == kTorchStateBytes;
  if (is_torch_state && !TorchGenerator::from_state(stored->bytes)) {
    return name + " is not the state of a generator";
  }
  return "";
}

}  // namespace

std::vector<StatePart> state_parts(const StepPrograms& programs) {
  const StepSpec& spec = programs.spec();
  std::vector<StatePart> parts;
  add_parts(parts, spec.model, "", programs.parameters());
  for (const BufferId buffer : programs.optimizer_state()) {
    const std::string& name = programs.buffers()[buffer].name;
    add_parts(parts, spec.model, fmt::format("{}{}.", kOptimizer, name), buffer);
  }
  if (!spec.zero_grad) add_parts(parts, spec.model, std::string(kGradients), programs.gradients());
  return parts;
}

bool is_beside_weights(std::string_view name) {
  return name.starts_with(kOptimizer) || name.starts_with(kGradients) ||
         name.starts_with(kGenerator);
}

std::int64_t bytes_of_state(const StepPrograms& programs) {
  std::int64_t bytes = 0;
  for (const StatePart& part : state_parts(programs)) bytes += part.tensor.bytes();
  return bytes;
}

std::size_t bytes_of_generator(Generator generator) {
  return generator == Generator::kTorchCpu ? kTorchStateBytes : sizeof(PhiloxState);
}

std::vector<std::string> generator_names(const StepSpec& spec) {
  if (spec.data != DataKind::kRandn) return {};
  if (!spec.own_data) return {std::string(kGenerator)};
  std::vector<std::string> names;
  for (int rank = 0; rank < spec.ranks; ++rank) {
    names.push_back(fmt::format("{}.rank{}", kGenerator, rank));
  }
  return names;
}

std::vector<StoredTensor> state_tensors(const StepPrograms& programs) {
  std::vector<StoredTensor> tensors;
  for (const StatePart& part : state_parts(programs)) {
    const auto bytes = static_cast<std::size_t>(part.tensor.bytes());
    tensors.push_back({part.name, "F32", part.shape, std::vector<std::byte>(bytes)});
  }
  const std::size_t bytes = bytes_of_generator(programs.spec().generator);
  for (const std::string& name : generator_names(programs.spec())) {
    tensors.push_back(
        {name, "U8", {static_cast<std::int64_t>(bytes)}, std::vector<std::byte>(bytes)});
  }
  return tensors;
}

const StoredTensor* TrainingState::find(std::string_view name) const {
  const auto found = std::ranges::find(tensors, name, &StoredTensor::name);
  return found == tensors.end() ? nullptr : &*found;
}

std::string bad_weight_in(const std::vector<StoredTensor>& tensors) {
  for (const StoredTensor& tensor : tensors) {
    if (is_beside_weights(tensor.name)) continue;
    for (std::size_t at = 0; at < tensor.bytes.size(); at += sizeof(float)) {
      float number = 0;
      std::memcpy(&number, &tensor.bytes[at], sizeof(number));
      // A NaN's sign means nothing.
      if (std::isnan(number)) number = std::abs(number);
      if (!std::isfinite(number)) return fmt::format("{} holds {}", tensor.name, number);
    }
  }
  return "";
}

void require_state(const TrainingState& state, const StepPrograms& programs,
                   const std::filesystem::path& path) {
  std::vector<std::string> found;
  for (const StoredTensor& expected : state_tensors(programs)) {
    std::string difference = difference_of(state.find(expected.name), expected);
    if (!difference.empty()) found.push_back(std::move(difference));
  }
  if (found.empty()) return;
  constexpr std::size_t kShown = 3;
  std::string why = fmt::format(
      "{}",
      fmt::join(found.begin(),
                found.begin() + static_cast<std::ptrdiff_t>(std::min(kShown, found.size())), ", "));
  if (found.size() > kShown) why += fmt::format(", and {} more", found.size() - kShown);
  fail(ExitCode::kBadData, {.what = "checkpoint",
                            .value = path.string(),
                            .why = why,
                            .remedy = "resume from a checkpoint of this run"});
}

}  // namespace barestep
