#include "model/parameters.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/index.h"

namespace barestep {
namespace {

constexpr std::int64_t kAlignedNumbers = 64 / bytes_of(DType::kF32);

PartOfParameter part_of(const Parameter& parameter, int rank, int ranks) {
  PartOfParameter own = parameter.in_whole();
  if (parameter.cut == Cut::kNone) return own;
  Rows& cut = parameter.cut == Cut::kRows ? own.rows : own.cols;
  cut = parameter.grid.share(cut.count, rank, ranks);
  own.groups = parameter.grid.groups;
  return own;
}

template <class Number>
std::span<Number> run_of(std::span<Number> numbers, std::int64_t first, std::int64_t count) {
  return numbers.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
}

}  // namespace

ParameterId Parameters::add(Parameter parameter) {
  BARESTEP_REQUIRE(parameter.shape.size() == 1 || parameter.shape.size() == 2,
                   "a parameter has one or two dimensions");
  const std::int64_t numbers =
      (parameter.size() + kAlignedNumbers - 1) / kAlignedNumbers * kAlignedNumbers;
  ends_.push_back((ends_.empty() ? 0 : ends_.back()) + numbers);
  all_.push_back(std::move(parameter));
  return count() - 1;
}

const Parameter& Parameters::operator[](ParameterId id) const {
  return at(all_, id);
}

Tensor Parameters::in(BufferId flat, ParameterId id, DType type) const {
  const Parameter& parameter = at(all_, id);
  const std::int64_t first = ends_.back() - at(ends_, id);
  return {flat, first * bytes_of(type), parameter.rows(), parameter.cols(), type};
}

Tensor Parameters::flat(BufferId flat, DType type) const {
  return {flat, 0, 1, bytes(type) / bytes_of(type), type};
}

std::int64_t Parameters::bytes(DType type) const {
  return ends_.empty() ? 0 : ends_.back() * bytes_of(type);
}

std::int64_t Parameters::size() const {
  std::int64_t sum = 0;
  for (const Parameter& each : all_) sum += each.size();
  return sum;
}

std::span<float> Parameters::in(FlatWeights& flat, ParameterId id) const {
  const Tensor place = in(BufferId{0}, id);
  return std::span(flat).subspan(static_cast<std::size_t>(place.offset_bytes) / sizeof(float),
                                 static_cast<std::size_t>(place.size()));
}

FlatWeights Parameters::zeros() const {
  return FlatWeights(static_cast<std::size_t>(bytes()) / sizeof(float));
}

std::optional<ParameterId> Parameters::find(std::string_view name) const {
  const auto found = std::ranges::find(all_, name, &Parameter::name);
  if (found == all_.end()) return std::nullopt;
  return static_cast<ParameterId>(found - all_.begin());
}

std::vector<const Parameter*> Parameters::by_turns() const {
  std::vector<const Parameter*> ordered;
  for (const Parameter& each : all_) ordered.push_back(&each);
  std::ranges::stable_sort(ordered, {}, [](const Parameter* each) { return each->initial.turn; });
  return ordered;
}

FlatWeights Parameters::initial_values(TorchGenerator& generator, const Parameters& whole) const {
  FlatWeights flat = zeros();
  for (const Parameter* const each : whole.by_turns()) {
    const Parameter& drawn = *each;
    const std::optional<ParameterId> own = find(drawn.name);
    const std::span<float> values = own ? in(flat, *own) : std::span<float>{};
    if (!drawn.initial.bound || drawn.initial.is_overwritten) {
      std::ranges::fill(values, drawn.initial.value);
      if (drawn.initial.bound) generator.discard(drawn.size());
      continue;
    }
    std::int64_t passed = 0;
    if (own) {
      for_each_run(at(all_, *own).in_whole(),
                   [&](std::int64_t first, std::int64_t begin, std::int64_t count) {
                     generator.discard(first - passed);
                     generator.uniform(run_of(values, begin, count), -*drawn.initial.bound,
                                       *drawn.initial.bound);
                     passed = first + count;
                   });
    }
    generator.discard(drawn.size() - passed);
  }
  return flat;
}

void Parameters::skip_initial_values(TorchGenerator& generator) const {
  for (const Parameter& each : all_) {
    if (each.initial.bound) generator.discard(each.size());
  }
}

Parameters Parameters::part(int rank, int ranks) const {
  Parameters parts;
  for (Parameter each : all_) {
    each.part = part_of(each, rank, ranks);
    const std::int64_t groups = each.part->groups;
    const bool by_rows = each.cut == Cut::kRows;
    if (each.shape.size() == 2) each.shape.front() = each.part->rows.count * (by_rows ? groups : 1);
    each.shape.back() = each.part->cols.count * (by_rows ? 1 : groups);
    parts.add(std::move(each));
  }
  return parts;
}

void copy_from_whole(const PartOfParameter& part, std::span<const float> whole,
                     std::span<float> own) {
  for_each_run(part, [&](std::int64_t first, std::int64_t at, std::int64_t count) {
    std::ranges::copy(run_of(whole, first, count), run_of(own, at, count).begin());
  });
}

void copy_to_whole(const PartOfParameter& part, std::span<const float> own,
                   std::span<float> whole) {
  for_each_run(part, [&](std::int64_t first, std::int64_t at, std::int64_t count) {
    std::ranges::copy(run_of(own, at, count), run_of(whole, first, count).begin());
  });
}

}  // namespace barestep
