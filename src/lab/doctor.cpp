#include "lab/doctor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <sstream>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/input_file.h"
#include "core/units.h"
#include "kernels/cpu/topology.h"
#include "kernels/make_device.h"
#include "lab/child.h"
#include "lab/commands.h"
#include "lab/predict/workload.h"
#include "lab/report/page.h"
#include "lab/study/run_workload.h"
#include "parallel/comm/mpi_transport.h"
#include "parallel/comm/nccl_transport.h"
#include "profiler/checklist.h"
#include "profiler/gpu_records.h"
#include "session/run_program.h"

namespace barestep {
namespace {

/// Open MPI and NCCL place the buffers between ranks of a host there. A container has 64 MiB by
/// default.
constexpr std::int64_t kGoodSharedMemory = std::int64_t{256} << 20;
/// Each rank opens files of its devices, its outputs, and connections to the others.
constexpr std::uint64_t kGoodOpenFiles = 1024;

constexpr const char* kNotReported = "not reported";

/// The first line of a file of proc or sys; nothing if it cannot be read.
std::optional<std::string> line_of(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::string line;
  if (!std::getline(in, line)) return std::nullopt;
  return line;
}

/// What is found, with its cost and remedy unless it is good.
Diagnosis judged(const char* what, std::string is, bool is_good, Health otherwise, std::string cost,
                 std::string remedy) {
  if (is_good) return {what, std::move(is)};
  return {what, std::move(is), std::move(cost), std::move(remedy), otherwise};
}

/// What is `there`, a version or a path, or else `absent`.
Diagnosis of_part(const char* what, const std::string& there, const char* absent, const char* cost,
                  const char* remedy) {
  return judged(what, there.empty() ? absent : there, !there.empty(), Health::kMissing, cost,
                remedy);
}

Diagnosis of_cores(const MachineFacts& facts, const std::filesystem::path& root) {
  const auto quota = cpu_quota(root);
  const auto allowed = static_cast<int>(facts.allowed.count());
  const int usable = cpus_within(facts.allowed, quota);
  const auto online = line_of(root / "sys/devices/system/cpu/online");
  std::string is = fmt::format("{} for this process", usable);
  if (online) is += fmt::format("; the machine's are {}", *online);
  if (quota) is += fmt::format("; a quota of {:g}", *quota);
  return judged("cores", is, !quota || *quota >= allowed, Health::kLimited,
                "a program that uses more is stopped for the rest of a period of 100 ms, so steps "
                "differ in length",
                fmt::format("start the container with --cpuset-cpus instead of --cpus, or with "
                            "--cpus {}",
                            allowed));
}

Diagnosis of_others(const MachineFacts& facts) {
  return judged("other programs", facts.others.text(), !facts.others.disturb(), Health::kLimited,
                "runs wait for cores, so times differ, and mlp_lab concludes little from them",
                "end these programs; mlp_lab run --wait-quiet waits until they end");
}

Diagnosis of_memory(const MachineFacts& facts, const std::filesystem::path& root) {
  const HostMemory memory = host_memory(root);
  Diagnosis found = judged(
      "memory",
      fmt::format("{} free of {}", human_bytes(memory.free_bytes), human_bytes(memory.total_bytes)),
      memory.free_bytes >= facts.needed_bytes, Health::kMissing,
      fmt::format("mlp_single without options needs {}", human_bytes(facts.needed_bytes)),
      "end other programs, raise the container's --memory, or give a smaller --dim");
  found.is_needed = true;
  return found;
}

/// NCCL and CUPTI only where there is a GPU.
std::vector<Diagnosis> of_libraries(const MachineFacts& facts) {
  const bool has_cuda = !facts.why_no_gpu.empty();
  std::vector<Diagnosis> all = {
      of_part("GPUs", facts.gpus, has_cuda ? facts.why_no_gpu.c_str() : "this build has no CUDA",
              "runs train on the CPU; what GPUs would do is simulated (mlp_lab predict)",
              has_cuda ? "install NVIDIA's driver, and start a container with --gpus all"
                       : "install CUDA 12 or newer and configure with -DBARESTEP_CUDA=ON")};
  if (!facts.gpus.empty()) {
    all.push_back(
        of_part("NCCL", facts.nccl, facts.why_no_nccl.c_str(),
                "mlp_ddp sends gradients through the host's memory",
                "install libnccl2; a build without it needs libnccl-dev and a new configuration"));
    const bool has_cupti = !facts.cupti.empty();
    all.push_back(
        judged("CUPTI", has_cupti ? facts.cupti : facts.why_no_cupti, has_cupti, Health::kLimited,
               "--profile takes times from CUDA events, which contain the launches between kernels",
               "install CUDA 13.0 Update 1 or newer, or name libcupti.so in BARESTEP_CUPTI"));
  }
  all.push_back(of_part("MPI", facts.has_mpi ? facts.mpirun : "",
                        facts.has_mpi ? "mpirun is not on PATH" : "this build has none",
                        "mlp_ddp runs as one rank; mlp_dp trains on several devices of one process",
                        facts.has_mpi
                            ? "install openmpi-bin"
                            : "install libopenmpi-dev and openmpi-bin, and configure again"));
  all.push_back(of_part("hwloc", facts.hwloc, "this build has none", "--affinity binds nothing",
                        "install libhwloc-dev and configure again"));
  return all;
}

Diagnosis of_shared_memory(const MachineFacts& facts) {
  const std::int64_t bytes = facts.shared_memory_bytes;
  return judged("/dev/shm", bytes > 0 ? human_bytes(bytes) : "there is none",
                bytes >= kGoodSharedMemory, Health::kLimited,
                "ranks on this host that exchange through it may fail: NCCL's and Open MPI's "
                "buffers are there",
                "start the container with --shm-size 1g");
}

Diagnosis of_open_files(const MachineFacts& facts) {
  const std::uint64_t now = facts.files.now;
  return judged("open files", now == 0 ? kNotReported : std::to_string(now),
                now == 0 || now >= kGoodOpenFiles, Health::kLimited,
                "jobs of many ranks fail to connect them",
                fmt::format("ulimit -Hn {} as root, or --ulimit nofile={} for a container",
                            kGoodOpenFiles, kGoodOpenFiles));
}

/// "always [madvise] never"
Diagnosis of_huge_pages(const std::filesystem::path& root) {
  const auto line = line_of(root / "sys/kernel/mm/transparent_hugepage/enabled").value_or("");
  const std::size_t begin = line.find('['), end = line.find(']');
  const bool is_known = begin != std::string::npos && end != std::string::npos && begin < end;
  const std::string is = is_known ? line.substr(begin + 1, end - begin - 1) : kNotReported;
  return judged("huge pages", is, is != "never", Health::kLimited,
                "arrays are in pages of 4 KiB, so products of large matrices wait for addresses to "
                "be translated",
                "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled as root");
}

Diagnosis of_governor(const std::filesystem::path& root) {
  const auto governor = frequency_governor(root);
  return judged("frequency governor", governor.value_or(kNotReported),
                governor.value_or(std::string(kSteadyGovernor)) == kSteadyGovernor,
                Health::kLimited, "cores change their clock rate between steps, so times differ",
                "cpupower frequency-set --governor performance as root");
}

Diagnosis of_clock(const std::filesystem::path& root) {
  const auto line =
      line_of(root / "sys/devices/system/clocksource/clocksource0/current_clocksource");
  // These are read without a system call (clock_gettime in the vDSO).
  static constexpr std::string_view kFast[] = {"tsc", "kvm-clock", "hyperv_clocksource_tsc_page",
                                               "arch_sys_counter"};
  const bool is_fast = !line || std::ranges::find(kFast, *line) != std::end(kFast);
  return judged("clock source", line.value_or(kNotReported), is_fast, Health::kLimited,
                "each reading of the clock is a system call, which lengthens profiled steps",
                "boot with clocksource=tsc if the CPU's counter is reliable");
}

Diagnosis of_weights(const MachineFacts& facts) {
  const std::vector<std::string>& others = facts.other_weights;
  const std::string runs = counted(facts.compared_runs, "run");
  return judged(
      "same bits",
      others.empty()
          ? fmt::format("{} end with the weights of every machine", runs)
          : fmt::format("of {}, {} with other weights: {}", runs,
                        others.size() == 1 ? "one ends" : "some end", fmt::join(others, "; ")),
      others.empty(), Health::kLimited, "runs here and on other machines differ in the last bits",
      "see docs/same-bits.md for what the same bits need");
}

}  // namespace

void compare_weights(const std::filesystem::path& mlp_single, const std::filesystem::path& hashes,
                     MachineFacts& facts) {
  if (!std::filesystem::exists(mlp_single)) return;
  std::ifstream lines(hashes);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line.front() == '#') continue;
    std::istringstream words(line);
    std::string hash;
    words >> hash;
    std::vector<std::string> command{mlp_single.string()};
    for (std::string word; words >> word;) command.push_back(word);
    ++facts.compared_runs;
    if (run_child(command).out.find("xxh3-128 " + hash) != std::string::npos) continue;
    facts.other_weights.push_back(line.substr(hash.size() + 1));
  }
}

MachineFacts facts_of_this_machine() {
  MachineFacts facts{.why_no_gpu = why_no_cuda_device(),
                     .nccl = nccl_version(),
                     .why_no_nccl = why_no_nccl(),
                     .has_mpi = has_mpi(),
                     .mpirun = find_on_path("mpirun"),
                     .hwloc = hwloc_version(),
                     .printer = find_page_printer(),
                     .allowed = allowed_cpus(),
                     .files = raise_open_files(),
                     .others = watch_core_users(std::chrono::seconds(1)),
                     .needed_bytes = max_rank_bytes(Run{})};
  if (std::filesystem::exists(page_module())) facts.page = page_module().string();
  if (const int gpus = cuda_device_count(); gpus > 0) {
    DeviceConfig config;
    config.device = "cuda:0";
    try {
      const DeviceInfo first = make_device(config)->info();
      facts.gpus = fmt::format("{} x {}, {}", gpus, first.model, first.driver);
      facts.cupti = cupti_version(cupti_files(), facts.why_no_cupti);
    } catch (const Error& error) {
      facts.why_no_gpu = error.what();  // one that is sick, or that another program occupies
    }
  }
  struct statvfs shared {};
  if (::statvfs("/dev/shm", &shared) == 0) {
    facts.shared_memory_bytes = static_cast<std::int64_t>(shared.f_blocks * shared.f_frsize);
  }
  return facts;
}

std::vector<Diagnosis> diagnoses(const MachineFacts& facts, const std::filesystem::path& root) {
  std::vector<Diagnosis> all = {of_cores(facts, root), of_others(facts), of_memory(facts, root)};
  std::ranges::move(of_libraries(facts), std::back_inserter(all));
  for (Diagnosis& diagnosis : std::vector{
           of_shared_memory(facts), of_open_files(facts), of_huge_pages(root), of_governor(root),
           of_clock(root),
           of_part("PDF", facts.printer, "neither Chromium nor WeasyPrint is on PATH",
                   "--pdf of mlp_lab is refused; a browser elsewhere prints its pages",
                   "install chromium or weasyprint"),
           of_part("page", facts.page, "its module web/engine.base64 is missing",
                   "mlp_lab explore writes no page; mlp_lab predict gives the same answers",
                   "install with cmake --install, or copy share/barestep beside the programs' "
                   "folder")}) {
    all.push_back(std::move(diagnosis));
  }
  if (facts.compared_runs > 0) all.push_back(of_weights(facts));
  return all;
}

std::string text_of(const std::vector<Diagnosis>& all) {
  std::size_t width = 0;
  for (const Diagnosis& diagnosis : all) width = std::max(width, diagnosis.what.size());
  std::string text;
  for (const Diagnosis& diagnosis : all) {
    text += fmt::format("{:<7}  {:<{}}  {}\n", name_of(diagnosis.health), diagnosis.what, width,
                        diagnosis.is);
    if (diagnosis.health == Health::kGood) continue;
    text +=
        fmt::format("{:11}costs: {}\n{:11}remedy: {}\n", "", diagnosis.cost, "", diagnosis.remedy);
  }
  return text;
}

void require_needed(const std::vector<Diagnosis>& all) {
  for (const Diagnosis& diagnosis : all) {
    if (!diagnosis.is_needed || diagnosis.health != Health::kMissing) continue;
    fail(ExitCode::kMemory, {diagnosis.what, diagnosis.is, diagnosis.cost, diagnosis.remedy});
  }
}

void examine_machine() {
  MachineFacts facts = facts_of_this_machine();
  compare_weights(folder_of_program() / "mlp_single", installed_file(BARESTEP_LAB, "same_bits.txt"),
                  facts);
  const std::vector<Diagnosis> all = diagnoses(facts);
  print_now(text_of(all));
  require_needed(all);
}

}  // namespace barestep
