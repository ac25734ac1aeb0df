#include "core/checked.h"

#include <string>

#include "core/error.h"

namespace barestep {
namespace {

[[noreturn]] void refuse(std::string_view what) {
  fail(ExitCode::kMemory, {.what = "size of",
                           .value = std::string(what),
                           .why = "is larger than 2^63 - 1",
                           .remedy = "make the model or the batch smaller"});
}

}  // namespace

std::int64_t checked_add(std::int64_t a, std::int64_t b, std::string_view what) {
  std::int64_t result = 0;
  if (__builtin_add_overflow(a, b, &result)) refuse(what);
  return result;
}

std::int64_t checked_multiply(std::int64_t a, std::int64_t b, std::string_view what) {
  std::int64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result)) refuse(what);
  return result;
}

}  // namespace barestep
