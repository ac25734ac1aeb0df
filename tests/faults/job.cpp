#include "faults/job.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <system_error>

extern char** environ;

namespace barestep {
namespace {

constexpr int kPollMilliseconds = 20;

[[noreturn]] void refuse(int error, const char* call) {
  throw std::system_error(error, std::generic_category(), call);
}

std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

/// Starts the command in its own session, without input; only `err` is read.
pid_t start(const Job& job, int err) {
  std::vector<std::string> words = job.command;
  std::vector<std::string> variables = job.variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    variables.emplace_back(*variable);
  }
  posix_spawn_file_actions_t files{};
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_adddup2(&files, err, STDERR_FILENO);
  posix_spawnattr_t attributes{};
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
  pid_t process = 0;
  const int error = ::posix_spawnp(&process, words[0].c_str(), &files, &attributes,
                                   pointers_to(words).data(), pointers_to(variables).data());
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) refuse(error, job.command[0].c_str());
  return process;
}

/// Reads until the last writer has closed, or until the deadline; true in the first case.
bool hear(int from, double deadline_s, std::string& text) {
  std::array<char, 4096> piece{};
  while (seconds_now() < deadline_s) {
    pollfd ready{.fd = from, .events = POLLIN, .revents = 0};
    if (::poll(&ready, 1, kPollMilliseconds) <= 0) continue;
    const ssize_t count = ::read(from, piece.data(), piece.size());
    if (count == 0) return true;
    if (count > 0) text.append(piece.data(), static_cast<std::size_t>(count));
  }
  return false;
}

}  // namespace

double seconds_now() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

JobResult run_job(const Job& job) {
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) refuse(errno, "pipe2");
  const double start_s = seconds_now();
  const pid_t process = start(job, pipe[1]);
  ::close(pipe[1]);
  JobResult result;
  if (!hear(pipe[0], start_s + job.limit_s, result.err)) {
    ::kill(-process, SIGKILL);
    hear(pipe[0], seconds_now() + 1, result.err);
  }
  ::close(pipe[0]);
  int status = 0;
  while (::waitpid(process, &status, 0) < 0 && errno == EINTR) {
  }
  result.code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  result.seconds = seconds_now() - start_s;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  result.ended_at_s = std::chrono::duration<double>(now).count();
  return result;
}

}  // namespace barestep
