// What the fuzzer runs, and the corpus test after it: each reader of files that a user gives, on
// any bytes at all.
#pragma once

#include <cstddef>
#include <span>

namespace barestep {

struct FuzzTarget {
  const char* name;  // also of its folder in corpus/
  /// Has the bytes read as a file of its format. Ends the program when the reader throws anything
  /// but an Error of one line, or takes a file whose parts disagree.
  void (*run)(std::span<const std::byte> bytes);
};

std::span<const FuzzTarget> fuzz_targets();

}  // namespace barestep
