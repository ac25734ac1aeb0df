// The frame that every program shares: errors become one line and an exit code, and output that
// cannot be written is reported.
#pragma once

#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace barestep {

/// Thrown by a body to exit with a code but no line, because another rank reports the reason.
struct SilentExit {
  int code = 0;
};

/// The error that an exception of the standard library means to a user: without memory or threads
/// 71, for files and the system 74, else 70, a bug. An Error is returned as it is.
Error error_of(const std::exception& error);

/// Runs body(arguments without the program's name) and returns the exit code for main().
///
/// An Error prints `<name>: error: <line>` on stderr and sets the exit code; other exceptions do so
/// as error_of() says. SIGPIPE and SIGXFSZ are ignored, the limit of open files is raised, and the
/// first folder that cannot be synced is noted on stderr. If stdout cannot be written, the program
/// exits with 74, or silently with 0 if print_now() finds that the reader is gone (`| head`).
/// `body` may write to stdout by any means; a write that throws std::system_error ends it early.
int run_program(std::string_view name, int argc, const char* const* argv,
                const std::function<void(const std::vector<std::string>& arguments)>& body);

/// Writes to stderr; ignores failures.
void print_to_stderr(std::string_view text);

/// Prints `<name>: error: <line>` on stderr, on a terminal with colors in red.
void print_error(std::string_view name, const Error& error);

/// Prints `<name>: note: <note>` on stderr; nothing if the note is empty.
void print_note(std::string_view name, std::string_view note);

/// Calls each of `tasks` in turn, even after one that could not write its output. Returns the first
/// such failure; `program` prints the others as notes on stderr. Throws any other error at once.
std::optional<Error> first_failure(std::string_view program,
                                   std::span<const std::function<void()>> tasks);

/// Writes to stdout and flushes, for text that is the program's only result. Throws
/// std::system_error if that fails.
void print_now(std::string_view text);

/// Like print_now(), for a program whose other work must continue if the output fails. Returns
/// whether all text so far has been written. After a failure it writes nothing more, and the
/// program exits with 74 if its body succeeds.
bool show(std::string_view text);

}  // namespace barestep
