// Whether the tests are instrumented; GCC and Clang have different macros for it.
#pragma once

namespace barestep {

#ifdef __has_feature
constexpr bool kAddressSanitized = __has_feature(address_sanitizer);
constexpr bool kThreadSanitized = __has_feature(thread_sanitizer);
#else
#ifdef __SANITIZE_ADDRESS__
constexpr bool kAddressSanitized = true;
#else
constexpr bool kAddressSanitized = false;
#endif
#ifdef __SANITIZE_THREAD__
constexpr bool kThreadSanitized = true;
#else
constexpr bool kThreadSanitized = false;
#endif
#endif

}  // namespace barestep
