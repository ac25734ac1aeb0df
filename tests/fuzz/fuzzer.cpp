// libFuzzer's entry point; FUZZ_TARGET selects the target.
#include <cstdint>
#include <cstring>

#include "fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  for (const barestep::FuzzTarget& target : barestep::fuzz_targets()) {
    if (std::strcmp(target.name, FUZZ_TARGET) == 0) {
      target.run(std::as_bytes(std::span(data, size)));
    }
  }
  return 0;
}
