#include "lab/run_workload.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

#include "core/error.h"
#include "core/host_cpus.h"
#include "lab/child_process.h"
#include "lab/op_times.h"

namespace barestep {
namespace {

std::string whole_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// FNV-1a, 64 bits (Fowler, Noll, Vo): equal files have equal hashes, and hardly others.
std::string hash_of(const std::string& bytes) {
  std::uint64_t hash = 14695981039346656037ULL;
  for (const char byte : bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 1099511628211ULL;
  return fmt::format("{:016x}", hash);
}

/// posix_spawn takes a path.
std::string path_of_python(const std::string& python) {
  return python.find('/') == std::string::npos ? find_on_path(python) : python;
}

std::vector<std::string> command_of(const Case& what, const Programs& programs) {
  const Workload& workload = what.workload;
  std::vector<std::string> command;
  if (workload.pytorch) {
    command = {path_of_python(programs.python), BARESTEP_PRACTICAL};
  } else if (workload.trainer == TrainerKind::kDdp) {
    command = {path_of_mpirun(), "-np", std::to_string(workload.ranks)};
  }
  if (!workload.pytorch) {
    command.push_back((programs.folder / name_of(workload.trainer)).string());
  }
  for (const std::string& each : arguments_of(workload)) command.push_back(each);
  return command;
}

/// The trainer's own error, which is the first line that says so.
std::string error_line(const std::string& err) {
  const std::size_t place = err.find("error: ");
  if (place == std::string::npos) return err.substr(0, err.find('\n'));
  return err.substr(place + 7, err.find('\n', place) - place - 7);
}

[[noreturn]] void refuse_run(const Case& what, const ChildResult& child) {
  const bool is_known = child.exit_code == 2 || (child.exit_code >= 65 && child.exit_code <= 78);
  fail(is_known ? static_cast<ExitCode>(child.exit_code) : ExitCode::kTryAgain,
       {.what = "run",
        .value = command_line_of(what.workload),
        .why = fmt::format("it ended with code {}: {}", child.exit_code, error_line(child.err)),
        .remedy = "what was measured before is kept"});
}

/// Adapters that MPI reaches through PSM or libfabric, as far as the kernel knows.
bool has_fabric() {
  for (const char* const folder : {"/sys/class/infiniband", "/sys/class/cxi"}) {
    std::error_code missing;
    if (!std::filesystem::is_empty(folder, missing) && !missing) return true;
  }
  return false;
}

}  // namespace

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
  std::vector<std::string> command = command_of(what, programs);
  command.insert(command.end(), {"--metrics", metrics.string()});
  if (what.hash_weights) command.insert(command.end(), {"--save", weights.string()});
  if (what.record_ops) command.insert(command.end(), {"--trace", trace.string()});

  const CoreWatch watch;
  const ChildResult child = run_child(command, mpi_environment());
  const double others_share = watch.others_share(child.cpu_s);
  if (child.exit_code != 0) refuse_run(what, child);

  Start start{.command = command_line_of(what.workload),
              .wall_s = child.wall_s,
              .others_share = others_share};
  const std::string records = whole_file(metrics);
  start.ranks = parse_metrics(records, metrics.string());
  start.configuration = configuration_of_metrics(records, metrics.string());
  start.library = library_of_metrics(records, metrics.string());
  start.watched = parse_monitor(records, metrics.string());
  if (what.hash_weights) start.weights_hash = hash_of(whole_file(weights));
  if (what.record_ops) start.ops = op_times_of_trace(whole_file(trace), trace.string());
  return start;
}

}  // namespace barestep
