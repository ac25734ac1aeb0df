// Errors: one exception type, one line of text, one exit code; and "did you mean" for a name that
// was mistyped.
//
// Every message reads `<what> '<value>': <why>; <what to do>`, so that a user can act on it without
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
  kNoDevice = 69,       // no such device here
  kBug = 70,            // barestep broke a promise of its own
  kMemory = 71,         // too little memory
  kCannotCreate = 73,   // an output that cannot be created
  kInputOutput = 74,    // reading or writing failed half-way
  kTryAgain = 75,       // a peer or device was lost, or another program writes here: run again
  kDiverged = 76,       // the loss is no longer a number
  kConfiguration = 78,  // options that do not fit together
};

/// What went wrong, in the four parts of a message. `value` may be empty: the quotes are then left
/// out. So may `remedy`, where there is nothing to do.
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

/// Text from elsewhere as it may be shown: line breaks and tabs become spaces, what else steers a
/// terminal becomes question marks.
std::string on_one_line(std::string text);

[[noreturn]] void fail(ExitCode code, const Problem& problem);

/// Throws Error(kBug) naming the place; what BARESTEP_REQUIRE calls.
[[noreturn]] void report_bug(const char* file, int line, const char* condition,
                             const std::string& why);

/// One of `candidates` that `name` may be a slip of: a few letters off, or cut short. Empty if
/// nothing is near, or two are equally near.
std::string_view nearest(std::string_view name, std::span<const std::string_view> candidates);

}  // namespace barestep

/// A promise between parts of barestep. A user can break none of these: what a user can get wrong
/// is checked with fail() and says what to do.
#define BARESTEP_REQUIRE(condition, why) \
  ((condition) ? void() : ::barestep::report_bug(__FILE__, __LINE__, #condition, why))
