#include "kernels/cpu/sanitizer_ranges.h"

#include <cstddef>

// In the sanitizer's runtime library; null where the program is not linked to it.
extern "C" __attribute__((weak)) void __tsan_read_range(void* address, std::size_t bytes);
extern "C" __attribute__((weak)) void __tsan_write_range(void* address, std::size_t bytes);

namespace barestep {
namespace {

void announce(void (*range)(void*, std::size_t), const float* first, std::int64_t rows,
              std::int64_t cols, std::int64_t stride) {
  if (range == nullptr) return;
  for (std::int64_t row = 0; row < rows; ++row) {
    range(const_cast<float*>(first + row * stride), static_cast<std::size_t>(cols) * sizeof(float));
  }
}

}  // namespace

void announce_read(const float* first, std::int64_t rows, std::int64_t cols, std::int64_t stride) {
  announce(__tsan_read_range, first, rows, cols, stride);
}

void announce_write(const float* first, std::int64_t rows, std::int64_t cols, std::int64_t stride) {
  announce(__tsan_write_range, first, rows, cols, stride);
}

}  // namespace barestep
