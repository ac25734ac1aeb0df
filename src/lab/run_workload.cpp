#include "lab/run_workload.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

#include "core/error.h"
#include "core/host.h"
#include "core/input_file.h"
#include "lab/start.h"
#include "session/outputs.h"

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
  for (char** each = environ; *each != nullptr; ++each) all.push_back(*each);
  for (const std::string& each : more) {
    const std::string name = each.substr(0, each.find('='));
    if (std::getenv(name.c_str()) == nullptr) all.push_back(const_cast<char*>(each.c_str()));
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
  for (const std::string& each : command) arguments.push_back(const_cast<char*>(each.c_str()));
  arguments.push_back(nullptr);
  std::vector<char*> variables = environment_with(environment);
  pid_t child = 0;
  const int error = ::posix_spawn(&child, command.at(0).c_str(), &actions, &attributes,
                                  arguments.data(), variables.data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) {
    fail(ExitCode::kNoInput, {.what = "program",
                              .value = command.at(0),
                              .why = std::generic_category().message(error),
                              .remedy = "build it in the same folder as mlp_lab"});
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
  fail(ExitCode::kTryAgain, {.what = "study",
                             .why = "it was interrupted; the finished runs are kept",
                             .remedy = "run the same command again to continue"});
}

}  // namespace

ChildResult run_child(const std::vector<std::string>& command,
                      const std::vector<std::string>& environment) {
  OutputPipe out, err;
  const auto begin = std::chrono::steady_clock::now();
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
  result.wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  result.cpu_s = seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
  return result;
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

namespace {

std::string whole_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// posix_spawn does not search PATH.
std::string path_of_python(const std::string& python) {
  return python.find('/') == std::string::npos ? find_on_path(python) : python;
}

std::vector<std::string> command_of(const Case& what, const Programs& programs) {
  const Workload& workload = what.workload;
  std::vector<std::string> command;
  if (workload.pytorch) {
    command = {path_of_python(programs.python),
               installed_file(BARESTEP_LAB, "pytorch/practical.py").string()};
  } else if (workload.trainer == TrainerKind::kDdp) {
    command = mpirun_arguments_of(workload);
    command.insert(command.begin(), path_of_mpirun());
  }
  if (!workload.pytorch) {
    command.push_back((programs.folder / program_of(workload)).string());
  }
  for (const std::string& each : arguments_of(workload)) command.push_back(each);
  return command;
}

[[noreturn]] void refuse_run(const Case& what, const ChildResult& child) {
  const bool is_known = child.exit_code == 2 || (child.exit_code >= 65 && child.exit_code <= 78);
  fail(is_known ? static_cast<ExitCode>(child.exit_code) : ExitCode::kTryAgain,
       {.what = "run",
        .value = command_line_of(what.workload),
        .why = fmt::format("it ended with code {}: {}", child.exit_code, error_line(child.err)),
        .remedy = "the measurements made so far are kept"});
}

/// Whether the kernel lists adapters that MPI uses through PSM or libfabric.
bool has_fabric() {
  for (const char* const folder : {"/sys/class/infiniband", "/sys/class/cxi"}) {
    std::error_code missing;
    if (!std::filesystem::is_empty(folder, missing) && !missing) return true;
  }
  return false;
}

/// The weights that an evaluation loads are trained once before, by the same program.
void train_for_evaluation(const Case& what, const Programs& programs) {
  constexpr std::int64_t kEpochs = 5;
  const std::filesystem::path weights = what.workload.config.output.load;
  if (!what.workload.config.training.evaluate_only || std::filesystem::exists(weights)) return;
  Case training = what;
  TrainConfig& config = training.workload.config;
  config.training.evaluate_only = false;
  config.training.epochs = kEpochs;
  config.data.batch_size = DataConfig{}.batch_size;
  config.device.precision = Precision::kFp32;
  config.output.load.clear();
  config.output.save = weights;
  const ChildResult child = run_child(command_of(training, programs), mpi_environment());
  if (child.exit_code != 0) refuse_run(training, child);
}

/// The ops of the first rank, or of every device of mlp_dp.
std::vector<OpTime> recorded_ops(const Workload& workload, const std::filesystem::path& trace) {
  const bool is_dp = workload.trainer == TrainerKind::kDataParallel;
  const auto files = trace_files(trace, is_dp ? "device" : "rank", workload.ranks);
  std::vector<OpTime> all;
  for (std::size_t i = 0; i < (is_dp ? files.size() : 1); ++i) {
    for (OpTime& each : op_times_of_trace(whole_file(files[i]), files[i].string())) {
      each.device = static_cast<int>(i);
      all.push_back(std::move(each));
    }
  }
  return all;
}

}  // namespace

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

const std::vector<std::string>& mpi_environment() {
  static const std::vector<std::string> variables = [] {
    std::vector<std::string> all = {"OMPI_ALLOW_RUN_AS_ROOT=1",
                                    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                                    "OMPI_MCA_rmaps_base_oversubscribe=1",
                                    "OMPI_MCA_mpi_yield_when_idle=1",
                                    "OMPI_MCA_hwloc_base_binding_policy=none",
                                    "OMPI_MCA_btl_vader_single_copy_mechanism=none"};
    if (!has_fabric() && std::getenv("OMPI_MCA_mtl") == nullptr) {
      all.emplace_back("OMPI_MCA_mtl=^psm,psm2,ofi");
    }
    return all;
  }();
  return variables;
}

std::string path_of_mpirun() {
  std::string mpirun = find_on_path("mpirun");
  if (mpirun.empty()) {
    fail(ExitCode::kNoInput, {.what = "program",
                              .value = "mpirun",
                              .why = "not found on PATH",
                              .remedy = "install Open MPI, or run experiments without ranks"});
  }
  return mpirun;
}

std::string pytorch_version(const std::string& python) {
  const std::string path = path_of_python(python);
  ChildResult child{.exit_code = 1};
  if (::access(path.c_str(), X_OK) == 0) {
    child = run_child({path, "-c", "import torch; print(torch.__version__)"});
  }
  if (child.exit_code != 0) {
    fail(ExitCode::kNoInput,
         {.what = "--with-pytorch",
          .value = python,
          .why = ::access(path.c_str(), X_OK) != 0 ? "there is no such interpreter"
                                                   : "it has no PyTorch",
          .remedy = "install python3-torch, or name an interpreter that has it with --python"});
  }
  return child.out.substr(0, child.out.find('\n'));
}

Start run_workload(const Case& what, const Programs& programs,
                   const std::filesystem::path& scratch) {
  const std::filesystem::path metrics = scratch / "metrics.jsonl";
  const std::filesystem::path weights = scratch / "weights.safetensors";
  const std::filesystem::path trace = scratch / "trace.json";
  train_for_evaluation(what, programs);
  std::vector<std::string> command = command_of(what, programs);
  command.insert(command.end(), {"--metrics", metrics.string()});
  if (what.hash_weights) command.insert(command.end(), {"--save", weights.string()});
  if (what.record_ops) command.insert(command.end(), {"--trace", trace.string()});
  const std::filesystem::path checkpoints = scratch / "checkpoints";
  std::filesystem::remove_all(checkpoints);  // left by another start
  if (what.checkpoint_every > 0) {
    command.insert(command.end(), {"--checkpoint", checkpoints.string(), "--checkpoint-every",
                                   std::to_string(what.checkpoint_every)});
  }

  const ChildResult child = run_child(command, mpi_environment());
  if (child.exit_code != 0) refuse_run(what, child);

  Start start{.command = command_line_of(what.workload), .wall_s = child.wall_s};
  const std::string records = whole_file(metrics);
  start.lost_share =
      lost_share(lost_of_metrics(records, metrics.string()), usable_cpus(), what.beyond_cores);
  start.governor = frequency_governor().value_or("");
  start.ranks = parse_metrics(records, metrics.string());
  start.configuration = configuration_of_metrics(records, metrics.string());
  start.library = library_of_metrics(records, metrics.string());
  start.watched = parse_monitor(records, metrics.string());
  start.evaluated = evaluated_of_metrics(records, metrics.string());
  if (what.hash_weights) start.weights_hash = hash_of_bytes(whole_file(weights));
  if (what.record_ops) start.ops = recorded_ops(what.workload, trace);
  return start;
}

}  // namespace barestep
