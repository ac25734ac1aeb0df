// Whether the tests are instrumented; GCC and Clang have different macros for it. And how many of
// their cases they go through then.
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

/// Tests that go through many cases of one kind go through one of so many where they are
/// instrumented: a case takes 5 to 15 times as long there, and a sanitizer sees what each line
/// does, for which a few cases are enough. The optimized build compares the results of all. Five is
/// no factor of usual counts, so nested loops meet all of their values.
constexpr int kOneOf = kAddressSanitized || kThreadSanitized ? 5 : 1;

/// Tells which cases to go through: the first, and every kOneOf-th from there.
class Sample {
 public:
  bool takes_next() { return count_++ % kOneOf == 0; }

 private:
  int count_ = 0;
};

}  // namespace barestep
