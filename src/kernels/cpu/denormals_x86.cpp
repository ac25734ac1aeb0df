#include <immintrin.h>

#include "kernels/cpu/denormals.h"

namespace barestep {
namespace {

constexpr unsigned kFlushes = _MM_FLUSH_ZERO_ON | _MM_DENORMALS_ZERO_ON;  // results, operands

/// The other bits of the register, such as the exceptions that occurred, stay.
void set_flushes(std::uint64_t flags) {
  _mm_setcsr((_mm_getcsr() & ~kFlushes) | (static_cast<unsigned>(flags) & kFlushes));
}

}  // namespace

DenormalScope::DenormalScope(Denormals denormals) : before_(_mm_getcsr()) {
  set_flushes(denormals == Denormals::kFlush ? kFlushes : 0);
}

DenormalScope::~DenormalScope() {
  set_flushes(before_);
}

}  // namespace barestep
