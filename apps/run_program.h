// What every program shares around its work: errors become one line and an exit code, and an output
// that cannot be written does not go unnoticed.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace barestep {

/// Thrown by a body that ends with a code and without a line, because another rank tells why.
struct QuietEnd {
  int code = 0;
};

/// Runs body(arguments, without the program's name) and returns the exit code for main().
///
/// An Error prints as `<name>: error: <line>` on stderr and gives its code; std::bad_alloc gives
/// 71, any other exception 70. SIGPIPE and SIGXFSZ are ignored. When the reader of stdout is gone
/// (`| head`), the program ends quietly with 0; when stdout cannot be written for another reason,
/// it ends with 74. `body` may write stdout by any means; a write that throws std::system_error
/// ends it early.
int run_program(std::string_view name, int argc, const char* const* argv,
                const std::function<void(const std::vector<std::string>& arguments)>& body);

/// Prints `<name>: error: <line>` on stderr.
void print_error(std::string_view name, const Error& error);

/// Writes to stdout and flushes. Throws std::system_error if that fails.
void print_now(std::string_view text);

}  // namespace barestep
