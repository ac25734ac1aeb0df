// Errors: one exception type, one line of text and one exit code; also "did you mean" for mistyped
// names.
//
// Every message reads `<what> '<value>': <why>; <what to do>`, so a user can act on it without
// reading code. The programs print it after `mlp_single: error: ` and exit with code().
#pragma once

#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace barestep {

/// The exit codes of sysexits(3) that barestep uses.
enum class ExitCode : int {
  kUsage = 2,           // the command line
  kBadData = 65,        // a file's content
  kNoInput = 66,        // a file that is missing or cannot be read
  kNoDevice = 69,       // the device does not exist here
  kBug = 70,            // barestep broke one of its own invariants
  kMemory = 71,         // too little memory
  kCannotCreate = 73,   // an output that cannot be created
  kInputOutput = 74,    // reading or writing failed half-way
  kTryAgain = 75,       // a peer or device was lost, or another program writes here: run again
  kDiverged = 76,       // the loss is no longer a number
  kCorrupted = 77,      // a step gave other bits when it ran again, or ranks' states differ
  kConfiguration = 78,  // options that contradict each other
};

/// Whether every rank throws such an error, after the same step.
constexpr bool is_of_all_ranks(ExitCode code) {
  return code == ExitCode::kDiverged || code == ExitCode::kCorrupted;
}

/// The four parts of a message. If `value` is empty, its quotes are left out. `remedy` may be empty
/// if the user can do nothing.
struct Problem {
  std::string what{};
  std::string value{};
  std::string why{};
  std::string remedy{};
};

class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const Problem& problem);

  [[nodiscard]] ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

/// Makes text from outside safe to show: line breaks and tabs become spaces, other control
/// characters become question marks.
std::string on_one_line(std::string text);

[[noreturn]] void fail(ExitCode code, const Problem& problem);

/// Throws Error(kBug) naming the place; BARESTEP_REQUIRE calls it.
[[noreturn]] void report_bug(const char* file, int line, const char* condition,
                             const std::string& why);

/// The one of `candidates` that `name` may be a misspelling of: a few letters off, or cut short.
/// Empty if none is near or two are equally near.
std::string_view nearest(std::string_view name, std::span<const std::string_view> candidates);

}  // namespace barestep

/// An invariant between parts of barestep. No user can break one: user errors are checked with
/// fail(), and the message says what to do.
#define BARESTEP_REQUIRE(condition, why) \
  ((condition) ? void() : ::barestep::report_bug(__FILE__, __LINE__, #condition, why))
