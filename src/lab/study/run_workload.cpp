#include "lab/study/run_workload.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <system_error>

#include "core/error.h"
#include "core/host.h"
#include "core/input_file.h"
#include "lab/child.h"
#include "session/outputs.h"

namespace barestep {
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
  } else if (workload.has_ranks()) {
    command = {path_of_mpirun(), "-np", std::to_string(workload.ranks)};
  }
  if (!workload.pytorch) {
    command.push_back((programs.folder / program_of(workload)).string());
  }
  for (const std::string& argument : arguments_of(workload)) command.push_back(argument);
  return command;
}

[[noreturn]] void refuse_run(const Case& what, const ChildResult& child) {
  const bool is_known = child.exit_code == 2 || (child.exit_code >= 65 && child.exit_code <= 78);
  fail(is_known ? static_cast<ExitCode>(child.exit_code) : ExitCode::kTryAgain,
       {"run", command_line_of(what.workload),
        fmt::format("it ended with code {}: {}", child.exit_code, error_line(child.err)),
        "the measurements made so far are kept"});
}

/// Whether the kernel lists adapters that MPI uses through PSM or libfabric.
bool has_fabric() {
  for (const char* const folder : {"/sys/class/infiniband", "/sys/class/cxi"}) {
    std::error_code missing;
    if (!std::filesystem::is_empty(folder, missing) && !missing) return true;
  }
  return false;
}

/// The hash of the weights at the end, which trainers print; empty for what trains nothing.
std::string printed_hash(std::string_view out) {
  const std::size_t at = out.rfind(kWeightsLine);
  if (at == std::string_view::npos) return "";
  const std::string_view hash = out.substr(at + kWeightsLine.size());
  return std::string(hash.substr(0, hash.find('\n')));
}

/// The ops of the first rank, or of every device of mlp_dp.
std::vector<OpTime> recorded_ops(const Workload& workload, const std::filesystem::path& trace) {
  const bool is_dp = workload.scheme() == SchemeKind::kDataParallel;
  const auto files = trace_files(trace, is_dp ? "device" : "rank", workload.ranks);
  std::vector<OpTime> all;
  for (std::size_t i = 0; i < (is_dp ? files.size() : 1); ++i) {
    for (OpTime& op : op_times_of_trace(whole_file(files[i]), files[i].string())) {
      op.device = static_cast<int>(i);
      all.push_back(std::move(op));
    }
  }
  return all;
}

}  // namespace

const std::vector<std::string>& mpi_environment() {
  static const std::vector<std::string> variables = [] {
    std::vector<std::string> all = {"OMPI_ALLOW_RUN_AS_ROOT=1",
                                    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                                    "OMPI_MCA_rmaps_base_oversubscribe=1",
                                    "OMPI_MCA_mpi_yield_when_idle=1",
                                    "OMPI_MCA_hwloc_base_binding_policy=none",
                                    "OMPI_MCA_ess_base_forward_signals=SIGXCPU",
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
    fail(ExitCode::kNoInput, {"program", "mpirun", "not found on PATH",
                              "install Open MPI, or run experiments without ranks"});
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
         {"--with-pytorch", python,
          ::access(path.c_str(), X_OK) != 0 ? "there is no such interpreter" : "it has no PyTorch",
          "install python3-torch, or name an interpreter that has it with --python"});
  }
  return child.out.substr(0, child.out.find('\n'));
}

Start run_workload(const Case& what, const Programs& programs,
                   const std::filesystem::path& scratch) {
  const std::filesystem::path metrics = scratch / "metrics.jsonl";
  const std::filesystem::path trace = scratch / "trace.json";
  std::vector<std::string> command = command_of(what, programs);
  command.insert(command.end(), {"--metrics", metrics.string()});
  if (what.record_ops) command.insert(command.end(), {"--trace", trace.string()});

  const ChildResult child = run_child(command, mpi_environment());
  if (child.exit_code != 0) refuse_run(what, child);

  RunRecords records = parse_metrics(whole_file(metrics), metrics.string());
  Start& start = records.start;
  start.command = command_line_of(what.workload);
  start.wall_s = child.wall_s;
  start.lost_share = lost_share(records.lost, usable_cpus(), what.beyond_cores);
  start.governor = frequency_governor().value_or("");
  start.core_distance_s = core_distance_s();
  start.weights_hash = printed_hash(child.out);
  if (what.record_ops) start.ops = recorded_ops(what.workload, trace);
  return std::move(records.start);
}

}  // namespace barestep
