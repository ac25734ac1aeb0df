#include "kernels/cpu/denormals.h"

namespace barestep {
namespace {

/// FZ of the register FPCR: operands and results of all instructions but those of half precision.
constexpr std::uint64_t kFlushes = std::uint64_t{1} << 24U;

std::uint64_t flags() {
  std::uint64_t value = 0;
  asm volatile("mrs %0, fpcr" : "=r"(value));
  return value;
}

void set_flushes(std::uint64_t wanted) {
  const std::uint64_t value = (flags() & ~kFlushes) | (wanted & kFlushes);
  asm volatile("msr fpcr, %0" : : "r"(value));
}

}  // namespace

DenormalScope::DenormalScope(Denormals denormals) : before_(flags()) {
  set_flushes(denormals == Denormals::kFlush ? kFlushes : 0);
}

DenormalScope::~DenormalScope() {
  set_flushes(before_);
}

}  // namespace barestep
