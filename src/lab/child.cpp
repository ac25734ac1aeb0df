#include "lab/child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <sstream>
#include <system_error>

#include "core/clock.h"
#include "core/error.h"

extern char** environ;

namespace barestep {
namespace {

std::atomic<bool> stopped = false;

struct OutputPipe {
  OutputPipe() {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
      throw std::system_error(errno, std::generic_category(), "pipe");
    }
    read_end = ends[0];
    write_end = ends[1];
  }
  OutputPipe(const OutputPipe&) = delete;
  OutputPipe& operator=(const OutputPipe&) = delete;
  ~OutputPipe() {
    close_end(read_end);
    close_end(write_end);
  }
  static void close_end(int& end) {
    if (end >= 0) ::close(end);
    end = -1;
  }
  int read_end = -1;
  int write_end = -1;
};

/// This process's environment with `more` appended; the pointers are valid as long as both exist.
std::vector<char*> environment_with(const std::vector<std::string>& more) {
  std::vector<char*> all;
  for (char** variable = environ; *variable != nullptr; ++variable) all.push_back(*variable);
  for (const std::string& setting : more) {
    const std::string name = setting.substr(0, setting.find('='));
    if (std::getenv(name.c_str()) == nullptr) all.push_back(const_cast<char*>(setting.c_str()));
  }
  all.push_back(nullptr);
  return all;
}

/// In its own process group, so that all processes of mpirun can be ended at once.
pid_t start(const std::vector<std::string>& command, const std::vector<std::string>& environment,
            const OutputPipe& out, const OutputPipe& err) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out.write_end, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err.write_end, STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  posix_spawnattr_setpgroup(&attributes, 0);
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  std::vector<char*> variables = environment_with(environment);
  pid_t child = 0;
  const int error = ::posix_spawn(&child, command.at(0).c_str(), &actions, &attributes,
                                  arguments.data(), variables.data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) {
    fail(ExitCode::kNoInput, {"program", command.at(0), std::generic_category().message(error),
                              "build it in the same folder as mlp_lab"});
  }
  return child;
}

void drain_into(int& end, std::string& text) {
  std::array<char, 65536> bytes;
  const ssize_t count = ::read(end, bytes.data(), bytes.size());
  if (count > 0) text.append(bytes.data(), static_cast<std::size_t>(count));
  if (count == 0) OutputPipe::close_end(end);
}

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

/// Closes the pipes first: a trainer that is being ended may still print, and must not block on it.
[[noreturn]] void give_up(pid_t child, OutputPipe& out, OutputPipe& err) {
  ::kill(-child, SIGTERM);
  OutputPipe::close_end(out.read_end);
  OutputPipe::close_end(err.read_end);
  ::waitpid(child, nullptr, 0);
  fail(ExitCode::kTryAgain, {"study", "", "it was interrupted",
                             "run the same command again; one with --output continues"});
}

}  // namespace

TemporaryFolder::TemporaryFolder(std::string_view use) {
  std::error_code error;
  path_ = std::filesystem::temp_directory_path(error);
  if (error) {
    const char* const named = std::getenv("TMPDIR");
    fail(ExitCode::kCannotCreate, {"temporary folder", named == nullptr ? "/tmp" : named,
                                   error.message(), "set TMPDIR to a writable folder"});
  }
  path_ /= "mlp_lab-" + std::string(use) + std::to_string(::getpid());
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

ChildResult run_child(const std::vector<std::string>& command,
                      const std::vector<std::string>& environment) {
  OutputPipe out, err;
  const double begin_s = now_s();
  const pid_t child = start(command, environment, out, err);
  OutputPipe::close_end(out.write_end);
  OutputPipe::close_end(err.write_end);

  ChildResult result;
  while (out.read_end >= 0 || err.read_end >= 0) {
    if (stopped) give_up(child, out, err);
    std::array<pollfd, 2> ends = {{{.fd = out.read_end, .events = POLLIN, .revents = 0},
                                   {.fd = err.read_end, .events = POLLIN, .revents = 0}}};
    ::poll(ends.data(), ends.size(), 100);
    if (ends[0].revents != 0) drain_into(out.read_end, result.out);
    if (ends[1].revents != 0) drain_into(err.read_end, result.err);
  }
  int status = 0;
  rusage usage{};
  while (::wait4(child, &status, 0, &usage) < 0 && errno == EINTR) {
  }
  if (stopped) give_up(child, out, err);
  result.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  result.wall_s = now_s() - begin_s;
  result.cpu_s = seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
  return result;
}

bool children_are_stopped() {
  return stopped;
}

void stop_children() {
  stopped = true;
}

std::string find_on_path(const std::string& program) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::filesystem::path full = std::filesystem::path(folder) / program;
    if (::access(full.c_str(), X_OK) == 0 && std::filesystem::is_regular_file(full)) {
      return full.string();
    }
  }
  return "";
}

std::string error_line(const std::string& err) {
  const std::string_view mark = "error: ";
  const std::size_t place = err.rfind(mark);
  if (place != std::string::npos) {
    return err.substr(place + mark.size(), err.find('\n', place) - place - mark.size());
  }
  const std::size_t last = err.find_last_not_of("-\n \t");
  if (last == std::string::npos) return "it wrote nothing on stderr";
  const std::size_t line = err.find_last_of('\n', last);
  return err.substr(line + 1, err.find('\n', last) - line - 1);  // npos + 1 is 0
}

}  // namespace barestep
