#include "support/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

extern char** environ;

namespace barestep {
namespace {

using Clock = std::chrono::steady_clock;

void check(int error, const char* what) {
  if (error != 0) throw std::system_error(error, std::generic_category(), what);
}

/// Both ends close on exec; dup2 makes the copy that the child keeps.
struct Pipe {
  Pipe() {
    std::array<int, 2> ends{};
    check(::pipe2(ends.data(), O_CLOEXEC) == 0 ? 0 : errno, "pipe");
    read = ends[0];
    write = ends[1];
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  ~Pipe() {
    close(read);
    close(write);
  }
  static void close(int& end) {
    if (end >= 0) ::close(end);
    end = -1;
  }
  int read = -1;
  int write = -1;
};

/// Ends with a null pointer, as posix_spawn wants it.
std::vector<char*> pointers_to(const std::vector<std::string>& words, char** more = nullptr) {
  std::vector<char*> pointers;
  for (const std::string& word : words) pointers.push_back(const_cast<char*>(word.c_str()));
  for (; more != nullptr && *more != nullptr; ++more) pointers.push_back(*more);
  pointers.push_back(nullptr);
  return pointers;
}

pid_t spawn(const std::vector<std::string>& command, const ProcessOptions& options, Pipe& out,
            Pipe& err) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, err.write, STDERR_FILENO);
  using Stdout = ProcessOptions::Stdout;
  if (options.stdout_to == Stdout::kFile) {
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, options.stdout_file.c_str(), O_WRONLY,
                                     0);
  } else if (options.stdout_to == Stdout::kClosed) {
    posix_spawn_file_actions_addclose(&actions, STDOUT_FILENO);
  } else {
    posix_spawn_file_actions_adddup2(&actions, out.write, STDOUT_FILENO);
  }
  if (!options.working_directory.empty()) {
    posix_spawn_file_actions_addchdir_np(&actions, options.working_directory.c_str());
  }
  if (options.stdout_to == Stdout::kNoReader) Pipe::close(out.read);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  if (options.in_own_session) posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
  pid_t child = 0;
  const int error =
      ::posix_spawnp(&child, command.at(0).c_str(), &actions, &attributes,
                     pointers_to(command).data(), pointers_to(options.variables, environ).data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  check(error, command.at(0).c_str());
  return child;
}

/// Appends the available bytes to `text`; closes the pipe at end of file.
void drain(int& end, std::string& text) {
  std::array<char, 65536> bytes;
  const ssize_t count = ::read(end, bytes.data(), bytes.size());
  if (count > 0) text.append(bytes.data(), static_cast<std::size_t>(count));
  if (count == 0) Pipe::close(end);
}

double cpu_seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

/// Open MPI keeps the sessions of a user in one folder, which the last one to end removes: a job
/// that starts at that moment fails. So the jobs of a test process have a folder of their own, for
/// tests run side by side.
class MpiSessions {
 public:
  MpiSessions() {
    check(::mkdtemp(folder_.data()) == nullptr ? errno : 0, "mkdtemp");
    ::setenv("OMPI_MCA_orte_tmpdir_base", folder_.c_str(), 1);
  }
  MpiSessions(const MpiSessions&) = delete;
  MpiSessions& operator=(const MpiSessions&) = delete;
  ~MpiSessions() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

 private:
  std::string folder_ = std::filesystem::temp_directory_path() / "mpi-XXXXXX";
};

int exit_code_of(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace

ProcessResult run_process(const std::vector<std::string>& command, const ProcessOptions& options) {
  static const MpiSessions sessions;
  Pipe out, err;
  const auto deadline = Clock::now() + std::chrono::duration<double>(options.timeout_s);
  const pid_t child = spawn(command, options, out, err);
  Pipe::close(out.write);
  Pipe::close(err.write);

  ProcessResult result;
  while ((out.read >= 0 || err.read >= 0) && Clock::now() < deadline) {
    std::array<pollfd, 2> ends = {{{.fd = out.read, .events = POLLIN, .revents = 0},
                                   {.fd = err.read, .events = POLLIN, .revents = 0}}};
    ::poll(ends.data(), ends.size(), 50);
    if (ends[0].revents != 0) drain(out.read, result.out);
    if (ends[1].revents != 0) drain(err.read, result.err);
  }
  int status = 0;
  rusage usage{};
  while (::wait4(child, &status, WNOHANG, &usage) == 0) {
    if (Clock::now() >= deadline) {
      ::kill(options.in_own_session ? -child : child, SIGKILL);
      ::waitpid(child, &status, 0);
      result.exit_code = 124;
      return result;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  result.exit_code = exit_code_of(status);
  result.peak_bytes = 1024 * std::int64_t{usage.ru_maxrss};
  result.cpu_s = cpu_seconds(usage.ru_utime) + cpu_seconds(usage.ru_stime);
  return result;
}

}  // namespace barestep
