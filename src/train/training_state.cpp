#include "train/training_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "core/error.h"
#include "core/index.h"
#include "core/philox.h"
#include "core/random.h"
#include "train/optimizer.h"
#include "train/weights.h"

namespace barestep {
namespace {

constexpr std::string_view kOptimizer = "optimizer.";
constexpr std::string_view kGradients = "gradients.";
constexpr std::string_view kGenerator = "generator";
constexpr std::string_view kKept = "kept.";

/// A flat buffer of the state.
struct StateBuffer {
  const HeldStage* stage;
  BufferId flat;
};

/// The weights, one of the optimizer's states, or the gradients: a flat buffer of each stage here.
struct StateKind {
  std::string prefix;  // of its tensors' names
  std::vector<StateBuffer> buffers;
  std::optional<int> data_rank{};  // that these are of, if each has its own
};

std::vector<StateKind> kinds_of_state(const StepPrograms& programs) {
  const std::vector<HeldStage>& stages = programs.stages();
  std::vector<StateKind> kinds;
  const auto add = [&](const std::string& prefix, const auto& flat_of) {
    StateKind& kind = kinds.emplace_back(StateKind{prefix, {}});
    for (const HeldStage& stage : stages) kind.buffers.push_back({&stage, flat_of(stage)});
  };
  const auto name_of_buffer = [&](BufferId flat) { return programs.buffers()[flat].name; };
  add("", [](const HeldStage& stage) { return stage.flat.parameters; });
  for (std::size_t i = 0; i < stages[0].optimizer_state.size(); ++i) {
    const auto flat_of = [i](const HeldStage& stage) { return stage.optimizer_state[i]; };
    const BufferId first = flat_of(stages[0]);
    const std::string prefix = fmt::format("{}{}.", kOptimizer, name_of_buffer(first));
    if (!programs.is_own(first)) {
      add(prefix, flat_of);
      continue;
    }
    for (int rank = 0; rank < programs.spec().mesh.data; ++rank) {
      add(fmt::format("{}rank{}.", prefix, rank), flat_of);
      kinds.back().data_rank = rank;
    }
  }
  for (const KeptBuffer& kept : programs.kept()) {
    add(std::string(kKept) + kept.prefix, [&](const HeldStage&) { return kept.flat; });
  }
  if (!programs.spec().update.zero_grad) {
    const std::string name = name_of_buffer(programs.gradients());
    add(std::string(kGradients),
        [&](const HeldStage& stage) { return programs.buffers().find(name, stage.device); });
  }
  return kinds;
}

std::vector<StateBuffer> buffers_of_state(const StepPrograms& programs) {
  const int own_rank = programs.spec().mesh.data_rank();
  std::vector<StateBuffer> buffers;
  for (const StateKind& kind : kinds_of_state(programs)) {
    if (kind.data_rank.value_or(own_rank) != own_rank) continue;
    buffers.insert(buffers.end(), kind.buffers.begin(), kind.buffers.end());
  }
  return buffers;
}

/// The ranges of a flat buffer that this rank saves.
std::vector<FlatRange> saved_of(const StepPrograms& programs, const StateBuffer& buffer) {
  if (programs.is_shared_out(buffer.flat) || programs.is_own(buffer.flat)) {
    return programs.held(buffer.flat);
  }
  const Mesh& mesh = programs.spec().mesh;
  return {share_of_lines({0, buffer.stage->range.count}, mesh.data_rank(), mesh.data)};
}

/// Whether this rank saves a random stream: that of its data rank, or as the first one the common
/// one. The ranks of a copy of the model have the same stream.
bool saves_generator(const StepPrograms& programs) {
  const StepSpec& spec = programs.spec();
  return spec.mesh.has_results() &&
         spec.mesh.data_rank() < static_cast<int>(generator_names(spec).size());
}

/// Empty if the tensor is what the run needs.
std::string problem_with(const StoredTensor* stored, const TensorForm& expected) {
  if (stored == nullptr) return difference_of(std::nullopt, expected);
  const TensorForm form{stored->name, stored->dtype, stored->shape, std::ssize(stored->bytes)};
  std::string difference = difference_of(form, expected);
  const bool is_torch_state =
      expected.name.starts_with(kGenerator) && stored->bytes.size() == kTorchStateBytes;
  if (difference.empty() && is_torch_state && !TorchGenerator::from_state(stored->bytes)) {
    return expected.name + " is not the state of a generator";
  }
  return difference;
}

}  // namespace

std::vector<StatePart> state_parts(const StepPrograms& programs) {
  const int own_rank = programs.spec().mesh.data_rank();
  std::vector<StatePart> parts;
  for (const auto& kind : kinds_of_state(programs)) {
    for (const Parameter& each : programs.whole_list().all()) {
      StatePart& part = parts.emplace_back(StatePart{kind.prefix + each.name, each.shape});
      if (kind.data_rank.value_or(own_rank) != own_rank) continue;
      for (const StateBuffer& buffer : kind.buffers) {
        const Parameters& parameters = buffer.stage->parameters;
        const std::optional<ParameterId> own = parameters.find(each.name);
        if (!own) continue;
        part.own = {parameters.in(buffer.flat, *own), parameters[*own].in_whole(),
                    parameters[*own].cut != Cut::kNone};
      }
    }
  }
  return parts;
}

std::int64_t StatePart::bytes() const {
  std::int64_t bytes = bytes_of(DType::kF32);
  for (const std::int64_t extent : shape) bytes *= extent;
  return bytes;
}

bool is_non_weight_state(std::string_view name) {
  return name.starts_with(kOptimizer) || name.starts_with(kGradients) || name.starts_with(kKept) ||
         name.starts_with(kGenerator);
}

std::size_t bytes_of_generator(Generator generator) {
  return generator == Generator::kTorchCpu ? kTorchStateBytes : sizeof(PhiloxState);
}

std::vector<std::string> generator_names(const StepSpec& spec) {
  if (spec.input.data != DataKind::kRandn) return {};
  if (!spec.input.own_data) return {std::string(kGenerator)};
  std::vector<std::string> names;
  for (int rank = 0; rank < spec.mesh.data; ++rank) {
    names.push_back(fmt::format("{}.rank{}", kGenerator, rank));
  }
  return names;
}

std::vector<TensorForm> state_tensors(const StepPrograms& programs) {
  std::vector<TensorForm> tensors;
  for (const StatePart& part : state_parts(programs)) {
    tensors.push_back({part.name, "F32", part.shape, part.bytes()});
  }
  const auto bytes = static_cast<std::int64_t>(bytes_of_generator(programs.spec().input.generator));
  for (const std::string& name : generator_names(programs.spec())) {
    tensors.push_back({name, "U8", {bytes}, bytes});
  }
  return tensors;
}

std::vector<SavedNumbers> saved_numbers(const StepPrograms& programs) {
  std::vector<SavedNumbers> saved;
  std::int64_t offset = 0;
  for (const StateBuffer& buffer : buffers_of_state(programs)) {
    const std::vector<FlatRange> held = programs.held(buffer.flat);
    for (const FlatRange& range : saved_of(programs, buffer)) {
      const FlatRange own{place_in(held, range.first), range.count};
      saved.push_back({own.of(buffer.flat), range, offset});
      offset += saved.back().numbers.bytes();
    }
  }
  return saved;
}

std::int64_t generator_offset(const StepPrograms& programs) {
  const SavedNumbers last = saved_numbers(programs).back();
  return last.offset + last.numbers.bytes();
}

std::int64_t bytes_saved(const StepPrograms& programs) {
  const std::size_t generator =
      saves_generator(programs) ? bytes_of_generator(programs.spec().input.generator) : 0;
  return generator_offset(programs) + static_cast<std::int64_t>(generator);
}

std::vector<TensorPiece> saved_pieces(const StepPrograms& programs,
                                      std::span<const std::byte> saved) {
  const auto bytes_at = [&](std::int64_t offset, std::int64_t bytes) {
    return saved.subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(bytes));
  };
  std::map<BufferId, std::vector<SavedNumbers>> by_buffer;
  for (const SavedNumbers& each : saved_numbers(programs)) {
    by_buffer[each.numbers.buffer].push_back(each);
  }
  std::vector<TensorPiece> pieces;
  const std::vector<StatePart> parts = state_parts(programs);
  for (std::int64_t place = 0; place < std::ssize(parts); ++place) {
    const auto& own = at(parts, place).own;
    // The tensor ranks have the same numbers of a parameter that is not cut; one saves them.
    if (!own || (!own->is_cut && programs.spec().mesh.tensor_rank() > 0)) continue;
    constexpr std::int64_t kBytes = bytes_of(DType::kF32);
    for_each_run(own->part, [&](std::int64_t whole, std::int64_t first, std::int64_t count) {
      const FlatRange run{own->tensor.offset_bytes / kBytes + first, count};
      for (const SavedNumbers& each : by_buffer[own->tensor.buffer]) {
        const FlatRange both = run.common(each.range);
        if (both.count == 0) continue;
        pieces.push_back({place, (whole + both.first - run.first) * kBytes,
                          bytes_at(each.offset + (both.first - each.range.first) * kBytes,
                                   both.count * kBytes)});
      }
    });
  }
  if (saves_generator(programs)) {
    const std::int64_t stream =
        programs.spec().input.own_data ? programs.spec().mesh.data_rank() : 0;
    const std::int64_t offset = generator_offset(programs);
    pieces.push_back({std::ssize(parts) + stream, 0, bytes_at(offset, std::ssize(saved) - offset)});
  }
  return pieces;
}

const StoredTensor* TrainingState::find(std::string_view name) const {
  const auto found = std::ranges::find(tensors, name, &StoredTensor::name);
  return found == tensors.end() ? nullptr : &*found;
}

std::string bad_weight_in(const std::vector<TensorForm>& tensors,
                          std::span<const TensorPiece> pieces) {
  for (const TensorPiece& piece : pieces) {
    const std::string& name = at(tensors, piece.tensor).name;
    if (is_non_weight_state(name)) continue;
    const std::span weights(reinterpret_cast<const float*>(piece.bytes.data()),
                            piece.bytes.size() / sizeof(float));
    if (const auto bad = first_bad_weight(weights)) {
      return fmt::format("{} holds {}", name, bad->text);
    }
  }
  return "";
}

void require_state(const TrainingState& state, const StepPrograms& programs,
                   const std::filesystem::path& path) {
  std::vector<std::string> found;
  const std::vector<TensorForm> tensors = state_tensors(programs);
  for (const TensorForm& expected : tensors) {
    std::string problem = problem_with(state.find(expected.name), expected);
    if (!problem.empty()) found.push_back(std::move(problem));
  }
  // Such as the moments of a data rank that this run does not have.
  for (const StoredTensor& stored : state.tensors) {
    const bool is_used =
        std::ranges::find(tensors, stored.name, &TensorForm::name) != tensors.end();
    if (!is_used && (stored.name.starts_with(kOptimizer) || stored.name.starts_with(kKept))) {
      found.push_back(stored.name + " would be lost");
    }
  }
  if (found.empty()) return;
  fail(ExitCode::kBadData, {"checkpoint", path.string(), text_of_differences(found),
                            "resume from a checkpoint of this run"});
}

}  // namespace barestep
