// The targets of the fuzzer and of the corpus test: each reader of users' files, with arbitrary
// bytes.
#pragma once

#include <cstddef>
#include <span>

namespace barestep {

struct FuzzTarget {
  const char* name;  // also the name of its folder in corpus/
  /// Reads the bytes as a file of its format. Ends the program if the reader throws anything other
  /// than an Error with one line, or accepts an inconsistent file.
  void (*run)(std::span<const std::byte> bytes);
};

std::span<const FuzzTarget> fuzz_targets();

}  // namespace barestep
