// How a thread computes with denormal numbers.
#pragma once

#include <cstdint>

#include "core/config.h"

namespace barestep {

/// While it exists, the thread that made it computes with denormal numbers as told, whatever it did
/// before, or the thread that started it. With kFlush, float and double instructions, those of
/// libraries too, take denormal operands as 0 and return 0 instead of denormal results, both with
/// the sign. Denormal numbers of fp16 stay: they are normal in fp32. On processors other than
/// x86-64 and AArch64, nothing is flushed.
class DenormalScope {
 public:
  explicit DenormalScope(Denormals denormals);
  ~DenormalScope();
  DenormalScope(const DenormalScope&) = delete;
  DenormalScope& operator=(const DenormalScope&) = delete;

 private:
  std::uint64_t before_;  // the processor's flags
};

}  // namespace barestep
