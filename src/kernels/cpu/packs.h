// Operands of products in the order in which the vector kernels read them.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>

#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/vector_kernels.h"

namespace barestep {

/// One operand of a product: `extent` rows or columns of the result, each with `depth` numbers to
/// sum over. Number k of row i is at values[i * step + k * depth_step]; one of the steps is 1.
struct OperandSide {
  const float* values;
  std::int64_t extent, depth, step, depth_step;
};

constexpr std::int64_t slices_of(std::int64_t extent, std::int64_t width) {
  return (extent + width - 1) / width;
}

/// The numbers a side takes in slices of `width` rows, the last of which is padded with zeros.
constexpr std::int64_t packed_size(const OperandSide& side, std::int64_t width) {
  return slices_of(side.extent, width) * width * side.depth;
}

/// The panel that begins with row `first`, for `depth` numbers from number `begin` on.
void pack_panel(const VectorKernels& kernels, const OperandSide& side, std::int64_t first,
                std::int64_t begin, std::int64_t depth, float* to);

/// All panels, one after the other, by all threads.
void pack_panels(const VectorKernels& kernels, const OperandSide& side, float* to,
                 ThreadPool& pool);

/// The same in groups of kGroupRows, for a side whose `step` is 1.
void pack_groups(const OperandSide& side, float* to, ThreadPool& pool);

/// Memory for packed operands, for two products at a time.
class Packs {
 public:
  /// Call while nothing runs.
  void reserve(std::int64_t floats);

  /// A lock on memory of as much as was ever reserved.
  class Taken {
   public:
    [[nodiscard]] float* floats() const { return floats_; }

   private:
    friend Packs;
    Taken(std::unique_lock<std::mutex> lock, float* floats)
        : lock_(std::move(lock)), floats_(floats) {}
    std::unique_lock<std::mutex> lock_;
    float* floats_;
  };
  /// Waits if others have all of it.
  [[nodiscard]] Taken take();

 private:
  struct Free {
    void operator()(float* floats) const noexcept { std::free(floats); }
  };
  struct Memory {
    std::mutex mutex;
    std::unique_ptr<float, Free> floats;
  };
  std::array<Memory, 2> memory_;
  std::int64_t size_ = 0;
};

}  // namespace barestep
