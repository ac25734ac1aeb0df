#include "session/run_program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <ios>
#include <iostream>
#include <new>
#include <system_error>

#include "core/host.h"
#include "core/output_file.h"
#include "session/progress_bar.h"

namespace barestep {
namespace {

/// The errno of the first show() that failed, or 0.
int lost_output = 0;

/// If a program starts with a standard stream closed, the first file that it opens would get that
/// stream's number, and output would go into the file.
void open_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) == -1 && errno == EBADF) ::open("/dev/null", O_RDWR);
  }
}

/// Other errors mean that work cannot continue: a rank or a device is lost, or this program has a
/// bug.
bool concerns_an_output(const Error& error) {
  return error.code() == ExitCode::kCannotCreate || error.code() == ExitCode::kInputOutput ||
         error.code() == ExitCode::kDiverged;  // the weights are not worth saving
}

int report(std::string_view name, const Error& error) {
  print_error(name, error);
  return static_cast<int>(error.code());
}

int report_lost_output(std::string_view name, int error) {
  const char* const remedy =
      error == EPIPE ? "read it to its end, or send it to a file" : "send it where there is room";
  return report(name,
                Error(ExitCode::kInputOutput,
                      {"standard output", "", std::generic_category().message(error), remedy}));
}

/// A pipe whose reading end is closed polls as an error, no matter which write failed first.
bool reader_is_gone() {
  pollfd output = {.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  return ::poll(&output, 1, 0) == 1 && (output.revents & POLLERR) != 0;
}

/// Flushes stdout. Returns 0 if everything printed so far has been written, else an errno.
int output_error() {
  errno = 0;
  const bool lost = !std::cout.flush() || std::fflush(stdout) != 0 || std::ferror(stdout) != 0;
  if (!lost) return 0;
  if (reader_is_gone()) return EPIPE;
  return errno != 0 ? errno : EIO;
}

/// The body's exit code, regardless of stdout. Sets `output_failed` to the errno of a write that
/// threw.
int guarded(std::string_view name, const std::function<void()>& body, int& output_failed) {
  try {
    body();
    return 0;
  } catch (const SilentExit& end) {
    return end.code;
  } catch (const std::filesystem::filesystem_error& error) {
    return report(name, error_of(error));
  } catch (const std::ios_base::failure& error) {
    return report(name, error_of(error));
  } catch (const std::system_error& error) {
    output_failed = error.code().value();
    if (output_error() != 0) return 0;
    return report(name, error_of(error));
  } catch (const std::exception& error) {
    return report(name, error_of(error));
  } catch (...) {
    return report(name, Error(ExitCode::kBug, {"unexpected", "", "an exception of no known type",
                                               "this is a bug, please report it"}));
  }
}

}  // namespace

Error error_of(const std::exception& error) {
  if (const auto* const known = dynamic_cast<const Error*>(&error)) return *known;
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    return {ExitCode::kMemory,
            {"memory", "", "this machine has no more", "use a smaller model or batch"}};
  }
  if (const auto* const file = dynamic_cast<const std::filesystem::filesystem_error*>(&error)) {
    return {ExitCode::kInputOutput,
            {"file", file->path1().string(), file->code().message(), "check the path"}};
  }
  if (const auto* const stream = dynamic_cast<const std::ios_base::failure*>(&error)) {
    return {ExitCode::kInputOutput,
            {"file", "", stream->code().message(), "check the files of this run"}};
  }
  if (const auto* const system = dynamic_cast<const std::system_error*>(&error)) {
    // As a thread that cannot start says.
    if (system->code() == std::errc::resource_unavailable_try_again) {
      return {ExitCode::kMemory,
              {"threads", "", "the system allows no more",
               "allow more processes (ulimit -u), or give smaller --threads and "
               "--workers"}};
    }
    return {ExitCode::kInputOutput, {"system", "", error.what()}};
  }
  return {ExitCode::kBug, {"unexpected", "", error.what(), "this is a bug, please report it"}};
}

int run_program(std::string_view name, int argc, const char* const* argv,
                const std::function<void(const std::vector<std::string>& arguments)>& body) {
  open_standard_streams();
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a file beyond `ulimit -f` fails as on a full disk
  raise_open_files();
  report_unsynced_folder([name](const std::filesystem::path& folder, int error) {
    print_note(name, fmt::format("the folder '{}' cannot be synced ({}): a loss of power may undo "
                                 "the names of files just written there",
                                 folder.string(), std::generic_category().message(error)));
  });
  int failed = 0;
  const int code = guarded(
      name, [&] { body(std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc)); },
      failed);
  const int at_end = output_error();
  if (code != 0) return code;
  if (lost_output != 0) return report_lost_output(name, lost_output);
  if (at_end == 0 || at_end == EPIPE) return code;
  return report_lost_output(name, failed != 0 ? failed : at_end);
}

void print_to_stderr(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

void print_error(std::string_view name, const Error& error) {
  const char* const word = stderr_has_colors() ? "\033[1;31merror:\033[0m" : "error:";
  print_to_stderr(fmt::format("{}: {} {}\n", name, word, error.what()));
}

void print_note(std::string_view name, std::string_view note) {
  if (note.empty()) return;
  // Names and files may contain characters that a line must not.
  print_to_stderr(fmt::format("{}: note: {}\n", name, on_one_line(std::string(note))));
}

std::optional<Error> first_failure(std::string_view program,
                                   std::span<const std::function<void()>> tasks) {
  std::optional<Error> first;
  for (const auto& task : tasks) {
    try {
      task();
    } catch (const Error& error) {
      if (!concerns_an_output(error)) throw;
      if (first) {
        print_note(program, error.what());
      } else {
        first = error;
      }
    }
  }
  return first;
}

void print_now(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    throw std::system_error(errno, std::generic_category(), "standard output");
  }
}

bool show(std::string_view text) {
  if (lost_output != 0) return false;
  try {
    print_now(text);
  } catch (const std::system_error& error) {
    lost_output = error.code().value();
  }
  return lost_output == 0;
}

}  // namespace barestep
