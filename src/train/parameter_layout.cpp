#include "train/parameter_layout.h"

#include <algorithm>

#include "core/error.h"
#include "core/index.h"

namespace barestep {

namespace {

constexpr std::int64_t kAlignmentBytes = 64;

std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
}

/// Converts an offset in a flat fp32 buffer to one in a flat buffer of another type.
std::int64_t offset_of(std::int64_t bytes, DType type) {
  return bytes / bytes_of(DType::kF32) * bytes_of(type);
}

}  // namespace

ParameterLayout::ParameterLayout(std::vector<std::int64_t> widths) : widths_(std::move(widths)) {
  BARESTEP_REQUIRE(widths_.size() >= 2, "a model has at least one layer");
  offsets_.resize(widths_.size() - 1);
  for (int layer = layers() - 1; layer >= 0; --layer) {
    auto& offsets = at(offsets_, layer);
    offsets.bias_bytes = bytes_;
    bytes_ += aligned(outputs(layer) * bytes_of(DType::kF32));
    offsets.weight_bytes = bytes_;
    bytes_ += aligned(outputs(layer) * inputs(layer) * bytes_of(DType::kF32));
  }
}

std::int64_t ParameterLayout::inputs(int layer) const {
  return at(widths_, layer);
}

std::int64_t ParameterLayout::outputs(int layer) const {
  return at(widths_, layer + 1);
}

Tensor ParameterLayout::weight(BufferId flat, int layer, DType type) const {
  return {flat, offset_of(at(offsets_, layer).weight_bytes, type), outputs(layer), inputs(layer),
          type};
}

Tensor ParameterLayout::bias(BufferId flat, int layer, DType type) const {
  return {flat, offset_of(at(offsets_, layer).bias_bytes, type), 1, outputs(layer), type};
}

Tensor ParameterLayout::flat(BufferId flat, DType type) const {
  return {flat, 0, 1, bytes_ / bytes_of(DType::kF32), type};
}

std::int64_t ParameterLayout::parameters() const {
  std::int64_t sum = 0;
  for (int layer = 0; layer < layers(); ++layer) sum += outputs(layer) * (inputs(layer) + 1);
  return sum;
}

std::int64_t ParameterLayout::largest_tensor() const {
  std::int64_t largest = 0;
  for (int layer = 0; layer < layers(); ++layer) {
    largest = std::max(largest, outputs(layer) * inputs(layer));
  }
  return largest;
}

}  // namespace barestep
