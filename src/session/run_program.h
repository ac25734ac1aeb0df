// What every program shares around its work: errors become one line and an exit code, and an output
// that cannot be written does not go unnoticed.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace barestep {

/// Thrown by a body that ends with a code and without a line, because another rank reports why.
struct SilentExit {
  int code = 0;
};

/// Runs body(arguments, without the program's name) and returns the exit code for main().
///
/// An Error prints as `<name>: error: <line>` on stderr and gives its code; std::bad_alloc gives
/// 71, any other exception 70. SIGPIPE and SIGXFSZ are ignored. Where stdout cannot be written, the
/// program ends with 74; but quietly with 0 where print_now() finds its reader gone (`| head`).
/// `body` may write stdout by any means; a write that throws std::system_error ends it early.
int run_program(std::string_view name, int argc, const char* const* argv,
                const std::function<void(const std::vector<std::string>& arguments)>& body);

/// Writes to stderr, as far as it can be written.
void print_to_stderr(std::string_view text);

/// Prints `<name>: error: <line>` on stderr.
void print_error(std::string_view name, const Error& error);

/// Prints `<name>: note: <note>` on stderr.
void print_note(std::string_view name, std::string_view note);

/// Does each of `works` in turn, even after one that could not write its output. Returns the first
/// such failure; the others are notes of `program` on stderr. Throws any other error at once.
std::optional<Error> first_failure(std::string_view program,
                                   std::span<const std::function<void()>> works);

/// Writes to stdout and flushes: text that is all there is to do. Throws std::system_error if that
/// fails.
void print_now(std::string_view text);

/// The same for text beside work that must not be lost with it. Returns whether all text so far is
/// out. After a failure it writes nothing more, and the program ends with 74 if its body succeeds.
bool show(std::string_view text);

}  // namespace barestep
