#include "kernels/cpu/packs.h"

#include <algorithm>
#include <cstdlib>
#include <new>

namespace barestep {

void pack_slice(const OperandSide& side, std::int64_t first, std::int64_t width, std::int64_t begin,
                std::int64_t depth, float* to) {
  const std::int64_t count = std::min(width, side.extent - first);
  const float* const from = side.values + first * side.step + begin * side.depth_step;
  if (side.depth_step != 1 || side.extent == 1) {
    for (std::int64_t k = 0; k < depth; ++k) {
      const float* const row = from + k * side.depth_step;
      float* const slice = to + k * width;
      std::copy_n(row, count, slice);
      std::fill(slice + count, slice + width, 0.0F);
    }
    return;
  }
  // In short runs, so that what is written stays in the first-level cache.
  constexpr std::int64_t kRun = 16;
  for (std::int64_t k = 0; k < depth; k += kRun) {
    const std::int64_t end = std::min(depth, k + kRun);
    for (std::int64_t i = 0; i < width; ++i) {
      const float* const row = from + i * side.step;
      for (std::int64_t j = k; j < end; ++j) to[j * width + i] = i < count ? row[j] : 0.0F;
    }
  }
}

void pack_slices(const OperandSide& side, std::int64_t first, std::int64_t end, std::int64_t width,
                 std::int64_t begin, std::int64_t depth, float* to) {
  if (side.depth_step == 1 || end % width != 0) {
    for (std::int64_t i = first; i < end; i += width) {
      pack_slice(side, i, width, begin, depth, to + (i - first) * depth);
    }
    return;
  }
  // Row by row, as they are in memory.
  for (std::int64_t k = 0; k < depth; ++k) {
    const float* const row = side.values + first + (begin + k) * side.depth_step;
    for (std::int64_t i = 0; i < end - first; i += width) {
      std::copy_n(row + i, width, to + i * depth + k * width);
    }
  }
}

void pack_slices(const OperandSide& side, std::int64_t width, float* to, ThreadPool& pool) {
  // Some microseconds for each task.
  constexpr std::int64_t kNumbers = 16384;
  const std::int64_t depth = std::max<std::int64_t>(1, kNumbers / width);
  const std::int64_t parts = std::max<std::int64_t>(1, slices_of(side.depth, depth));
  pool.run(slices_of(side.extent, width) * parts, [&](std::int64_t task, int) {
    const std::int64_t slice = task / parts;
    const std::int64_t begin = task % parts * depth;
    pack_slice(side, slice * width, width, begin, std::min(depth, side.depth - begin),
               to + (slice * side.depth + begin) * width);
  });
}

void Packs::reserve(std::int64_t floats) {
  if (floats <= size_) return;
  constexpr std::size_t kLine = 64;
  const std::size_t bytes = (static_cast<std::size_t>(floats) * sizeof(float) + kLine - 1) / kLine;
  for (Memory& memory : memory_) {
    memory.floats.reset(static_cast<float*>(std::aligned_alloc(kLine, bytes * kLine)));
    if (memory.floats == nullptr) throw std::bad_alloc();
  }
  size_ = floats;
}

Packs::Taken Packs::take() {
  std::unique_lock lock(memory_[0].mutex, std::try_to_lock);
  if (lock.owns_lock()) return {std::move(lock), memory_[0].floats.get()};
  return {std::unique_lock(memory_[1].mutex), memory_[1].floats.get()};
}

}  // namespace barestep
