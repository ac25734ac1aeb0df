#include "train/weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <numeric>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/index.h"
#include "core/output_file.h"
#include "core/units.h"
#include "data/safetensors.h"
#include "train/training_state.h"

namespace barestep {
namespace {

/// The model's tensors as a file contains them, by id; `prefix` stands for the first `own` bytes of
/// the names.
std::vector<TensorForm> forms_of(const Parameters& parameters, const std::string& prefix = "",
                                 std::size_t own = 0) {
  std::vector<TensorForm> forms;
  for (const Parameter& each : parameters.all()) {
    forms.push_back(
        {prefix + each.name.substr(own), "F32", each.shape, each.size() * bytes_of(DType::kF32)});
  }
  return forms;
}

/// The part of the names that a module inside another has before its own: "net." of "net.0.bias".
/// Empty if the model's names do not all begin with the same one.
std::string common_prefix(const Parameters& parameters) {
  const std::string& first = parameters[0].name;
  const std::string prefix = first.substr(0, first.find('.') + 1);
  const bool is_common = std::ranges::all_of(
      parameters.all(), [&](const Parameter& each) { return each.name.starts_with(prefix); });
  return is_common ? prefix : "";
}

/// How the file's names begin where the model's begin with `own`, by the model's first name; the
/// shortest way, since a file may hold averages of the weights, too.
std::optional<std::string> prefix_in(const SafetensorsFile& file, const Parameters& parameters,
                                     std::string_view own) {
  const std::string_view rest = std::string_view(parameters[0].name).substr(own.size());
  std::optional<std::string> found;
  for (const SafetensorsEntry& each : file.tensors()) {
    if (is_non_weight_state(each.name) || !each.name.ends_with(rest)) continue;
    std::string prefix = each.name.substr(0, each.name.size() - rest.size());
    if (!prefix.empty() && !prefix.ends_with('.')) continue;
    if (!found || prefix.size() < found->size()) found = std::move(prefix);
  }
  return found;
}

/// How the file differs from this model: one sentence for each tensor.
std::vector<std::string> differences(const std::vector<TensorForm>& model,
                                     const SafetensorsFile& file) {
  std::vector<std::string> found;
  for (const TensorForm& expected : model) {
    const SafetensorsEntry* const stored = file.find(expected.name);
    std::string difference =
        difference_of(stored ? std::optional(stored->form()) : std::nullopt, expected);
    if (!difference.empty()) found.push_back(std::move(difference));
  }
  for (const SafetensorsEntry& stored : file.tensors()) {
    if (is_non_weight_state(stored.name)) continue;
    const bool is_known = std::ranges::find(model, stored.name, &TensorForm::name) != model.end();
    if (!is_known) found.push_back(fmt::format("{} is not in the model", stored.name));
  }
  return found;
}

/// "3, 0": the position of element `index` in a row-major tensor.
std::string place_of(std::int64_t index, const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> place(shape.size());
  for (std::size_t d = shape.size(); d-- > 0; index /= shape[d]) place[d] = index % shape[d];
  return fmt::format("{}", fmt::join(place, ", "));
}

void require_finite_weights(const std::filesystem::path& path, const TensorForm& tensor,
                            std::span<const float> values) {
  const auto bad = first_bad_weight(values);
  if (!bad) return;
  fail(ExitCode::kBadData,
       {"weights", path.string(),
        fmt::format("{}[{}] is {}", tensor.name, place_of(bad->index, tensor.shape), bad->text),
        "load weights of a training run that did not diverge"});
}

void require_finite_result(const std::filesystem::path& path, const Parameter& parameter,
                           std::span<const float> values) {
  const auto bad = first_bad_weight(values);
  if (!bad) return;
  fail(ExitCode::kDiverged,
       {"weights", path.string(),
        fmt::format("{} holds {}, so they are not saved", parameter.name, bad->text),
        "training diverged in its last step: use a smaller --lr"});
}

std::vector<ParameterId> order_in_file(const std::vector<TensorForm>& forms) {
  const std::vector<std::int64_t> offsets = safetensors_parts(forms).offsets;
  std::vector<ParameterId> order(forms.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, {}, [&](ParameterId id) { return at(offsets, id); });
  return order;
}

/// Visits all parameters even if `use` throws, which is returned.
std::exception_ptr visit_all(const VisitOfWeights& visit, const std::vector<ParameterId>& order,
                             const UseOfWeights& use) {
  std::exception_ptr failure;
  visit(order, [&](ParameterId id, std::span<const float> numbers) {
    if (failure) return;
    try {
      use(id, numbers);
    } catch (...) {
      failure = std::current_exception();
    }
  });
  return failure;
}

}  // namespace

std::optional<BadWeight> first_bad_weight(std::span<const float> values) {
  const auto bad = std::ranges::find_if(values, [](float value) { return !std::isfinite(value); });
  if (bad == values.end()) return std::nullopt;
  return BadWeight{bad - values.begin(), not_finite_text(*bad)};
}

void save_weights(const std::filesystem::path& path, const Parameters& parameters,
                  const VisitOfWeights& visit, bool writes) {
  const std::vector<TensorForm> forms = forms_of(parameters);
  // The first visit is in the order of the model, so that its first weight that is not finite is
  // named.
  std::vector<ParameterId> as_added(forms.size());
  std::iota(as_added.begin(), as_added.end(), 0);
  const std::vector<ParameterId> in_file = order_in_file(forms);
  const auto ignore = [](ParameterId, std::span<const float>) {};
  if (!writes) {
    visit(as_added, ignore);
    visit(in_file, ignore);
    return;
  }
  std::vector<PieceChecksum> checksums;
  const std::exception_ptr bad = visit_all(visit, as_added, [&](ParameterId id, auto numbers) {
    require_finite_result(path, parameters[id], numbers);
    checksums.push_back(checksum_of({.tensor = id, .bytes = std::as_bytes(numbers)}));
  });
  bool is_written = false;
  const auto write = [&](const ByteSink& sink) {
    // Some of PyTorch's tools take only files that say "pt".
    sink(checked_safetensors_parts(forms, {{"format", "pt"}}, std::move(checksums)).head);
    is_written = true;
    const auto failed = visit_all(visit, in_file, [&](ParameterId, std::span<const float> numbers) {
      sink({reinterpret_cast<const char*>(numbers.data()), numbers.size_bytes()});
    });
    if (failed) std::rethrow_exception(failed);
  };
  try {
    if (bad) std::rethrow_exception(bad);
    replace_file_by(path, write);
  } catch (...) {
    if (!is_written) visit(in_file, ignore);
    throw;
  }
}

LoadedWeights load_weights(const std::filesystem::path& path, const Parameters& parameters) {
  const SafetensorsFile file(path);
  LoadedWeights loaded{.numbers = parameters.zeros()};
  std::optional<std::string> prefix = prefix_in(file, parameters, "");
  if (!prefix) {
    loaded.own_prefix = common_prefix(parameters);
    prefix = prefix_in(file, parameters, loaded.own_prefix);
    if (!prefix) loaded.own_prefix.clear();
  }
  loaded.prefix = prefix.value_or("");
  const std::vector<TensorForm> forms =
      forms_of(parameters, loaded.prefix, loaded.own_prefix.size());
  const std::vector<std::string> found = differences(forms, file);
  if (!found.empty()) {
    fail(ExitCode::kBadData, {"weights", path.string(),
                              "the weights are not this model's: " + text_of_differences(found),
                              "give the options the file was saved with"});
  }
  for (ParameterId id = 0; id < parameters.count(); ++id) {
    const std::span<const float> values = file.f32(at(forms, id).name);
    require_finite_weights(path, at(forms, id), values);
    std::ranges::copy(values, parameters.in(loaded.numbers, id).begin());
  }
  return loaded;
}

}  // namespace barestep
