#include "model/parameters.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/index.h"

namespace barestep {
namespace {

constexpr std::int64_t kAlignedNumbers = 64 / bytes_of(DType::kF32);

/// The rows and columns of a parameter that a rank has.
struct OwnPart {
  Rows rows, cols;
};

OwnPart own_part_of(const Parameter& parameter, int rank, int ranks) {
  OwnPart own{{0, parameter.rows()}, {0, parameter.cols()}};
  if (parameter.cut == Cut::kRows) own.rows = share_of_rank(parameter.rows(), rank, ranks);
  if (parameter.cut == Cut::kCols) own.cols = share_of_rank(parameter.cols(), rank, ranks);
  return own;
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

std::int64_t Parameters::largest_size() const {
  std::int64_t largest = 0;
  for (const Parameter& each : all_) largest = std::max(largest, each.size());
  return largest;
}

std::span<float> Parameters::in(FlatWeights& flat, ParameterId id) const {
  const Tensor place = in(BufferId{0}, id);
  return std::span(flat).subspan(static_cast<std::size_t>(place.offset_bytes) / sizeof(float),
                                 static_cast<std::size_t>(place.size()));
}

FlatWeights Parameters::zeros() const {
  return FlatWeights(static_cast<std::size_t>(bytes()) / sizeof(float));
}

FlatWeights Parameters::initial_values(TorchGenerator& generator) const {
  FlatWeights flat = zeros();
  for (ParameterId id = 0; id < count(); ++id) {
    const InitialValues& initial = at(all_, id).initial;
    const std::span<float> values = in(flat, id);
    if (initial.bound) {
      generator.uniform(values, -*initial.bound, *initial.bound);
    } else {
      std::ranges::fill(values, initial.value);
    }
  }
  return flat;
}

Parameters Parameters::part(int rank, int ranks) const {
  Parameters parts;
  for (Parameter each : all_) {
    const OwnPart own = own_part_of(each, rank, ranks);
    if (each.shape.size() == 2) each.shape.front() = own.rows.count;
    each.shape.back() = own.cols.count;
    parts.add(std::move(each));
  }
  return parts;
}

FlatWeights Parameters::part(FlatWeights& all, int rank, int ranks) const {
  const Parameters parts = part(rank, ranks);
  FlatWeights flat = parts.zeros();
  for (ParameterId id = 0; id < count(); ++id) {
    const OwnPart own = own_part_of(at(all_, id), rank, ranks);
    const std::span<const float> from = in(all, id);
    auto to = parts.in(flat, id).begin();
    for (std::int64_t row = 0; row < own.rows.count; ++row) {
      const std::int64_t first = (own.rows.first + row) * at(all_, id).cols() + own.cols.first;
      to = std::ranges::copy(from.subspan(static_cast<std::size_t>(first),
                                          static_cast<std::size_t>(own.cols.count)),
                             to)
               .out;
    }
  }
  return flat;
}

}  // namespace barestep
