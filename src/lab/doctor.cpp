#include "lab/doctor.h"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <fstream>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/units.h"
#include "kernels/cpu/topology.h"
#include "kernels/make_device.h"
#include "lab/page.h"
#include "lab/run_workload.h"
#include "lab/workload.h"
#include "parallel/comm/mpi_communicator.h"
#include "parallel/comm/nccl_communicator.h"
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

/// The first line of a file of proc or sys; nothing if it cannot be read.
std::optional<std::string> line_of(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::string line;
  if (!std::getline(in, line)) return std::nullopt;
  return line;
}

Diagnosis of_cores(const MachineFacts& facts, const std::filesystem::path& root) {
  const auto quota = cpu_quota(root);
  const auto allowed = static_cast<int>(facts.allowed.count());
  const int usable = cpus_within(facts.allowed, quota);
  const auto online = line_of(root / "sys/devices/system/cpu/online");
  Diagnosis cores{.what = "cores", .is = fmt::format("{} for this process", usable)};
  if (online) cores.is += fmt::format("; the machine's are {}", *online);
  if (!quota) return cores;
  cores.is += fmt::format("; a quota of {:g}", *quota);
  if (*quota >= allowed) return cores;
  cores.health = Health::kLimited;
  cores.cost =
      "a program that uses more is stopped for the rest of a period of 100 ms, so steps "
      "differ in length";
  cores.remedy = fmt::format(
      "start the container with --cpuset-cpus instead of --cpus, or with "
      "--cpus {}",
      allowed);
  return cores;
}

Diagnosis of_memory(const MachineFacts& facts, const std::filesystem::path& root) {
  const HostMemory memory = host_memory(root);
  Diagnosis found{.what = "memory",
                  .is = fmt::format("{} free of {}", human_bytes(memory.free_bytes),
                                    human_bytes(memory.total_bytes)),
                  .is_needed = true};
  if (memory.free_bytes >= facts.needed_bytes) return found;
  found.health = Health::kMissing;
  found.cost = fmt::format("mlp_single without options needs {}", human_bytes(facts.needed_bytes));
  found.remedy = "end other programs, raise the container's --memory, or give a smaller --dim";
  return found;
}

Diagnosis of_gpus(const MachineFacts& facts) {
  Diagnosis found{.what = "GPUs"};
  found.is = facts.gpus;
  if (!facts.gpus.empty()) return found;
  found.health = Health::kMissing;
  found.cost = "runs train on the CPU; what GPUs would do is simulated (mlp_lab predict)";
  if (!facts.why_no_gpu.empty()) {
    found.is = facts.why_no_gpu;
    found.remedy = "install NVIDIA's driver, and start a container with --gpus all";
  } else {
    found.is = "this build has no CUDA";
    found.remedy = "install CUDA 12 or newer and configure with -DBARESTEP_CUDA=ON";
  }
  return found;
}

/// Only where there is a GPU.
Diagnosis of_nccl(const MachineFacts& facts) {
  Diagnosis found{.what = "NCCL", .is = facts.nccl};
  if (!facts.nccl.empty()) return found;
  found.health = Health::kMissing;
  found.is = "this build has none";
  found.cost = "mlp_ddp sends gradients through the host's memory";
  found.remedy = "install libnccl-dev and configure again";
  return found;
}

/// Only where there is a GPU.
Diagnosis of_cupti(const MachineFacts& facts) {
  Diagnosis found{.what = "CUPTI", .is = facts.cupti};
  if (!facts.cupti.empty()) return found;
  found.health = Health::kLimited;
  found.is = facts.why_no_cupti;
  found.cost = "--profile takes times from CUDA events, which contain the launches between kernels";
  found.remedy = "install CUDA 13.0 Update 1 or newer, or name libcupti.so in BARESTEP_CUPTI";
  return found;
}

Diagnosis of_mpi(const MachineFacts& facts) {
  Diagnosis found{.what = "MPI", .is = facts.mpirun};
  if (facts.has_mpi && !facts.mpirun.empty()) return found;
  found.health = Health::kMissing;
  found.is = facts.has_mpi ? "mpirun is not on PATH" : "this build has none";
  found.cost = "mlp_ddp runs as one rank; mlp_dp trains on several devices of one process";
  found.remedy = facts.has_mpi ? "install openmpi-bin"
                               : "install libopenmpi-dev and openmpi-bin, and configure again";
  return found;
}

Diagnosis of_hwloc(const MachineFacts& facts) {
  Diagnosis found{.what = "hwloc", .is = facts.hwloc};
  if (!facts.hwloc.empty()) return found;
  found.health = Health::kMissing;
  found.is = "this build has none";
  found.cost = "--affinity binds nothing";
  found.remedy = "install libhwloc-dev and configure again";
  return found;
}

Diagnosis of_shared_memory(const MachineFacts& facts) {
  Diagnosis found{.what = "/dev/shm",
                  .is = facts.shared_memory_bytes > 0 ? human_bytes(facts.shared_memory_bytes)
                                                      : "there is none"};
  if (facts.shared_memory_bytes >= kGoodSharedMemory) return found;
  found.health = Health::kLimited;
  found.cost =
      "ranks on this host that exchange through it may fail: NCCL's and Open MPI's buffers "
      "are there";
  found.remedy = "start the container with --shm-size 1g";
  return found;
}

Diagnosis of_open_files(const MachineFacts& facts) {
  Diagnosis found{.what = "open files", .is = fmt::format("{}", facts.files.now)};
  if (facts.files.now == 0) found.is = "not reported";
  if (facts.files.now == 0 || facts.files.now >= kGoodOpenFiles) return found;
  found.health = Health::kLimited;
  found.cost = "jobs of many ranks fail to connect them";
  found.remedy = fmt::format("ulimit -Hn {} as root, or --ulimit nofile={} for a container",
                             kGoodOpenFiles, kGoodOpenFiles);
  return found;
}

/// "always [madvise] never"
Diagnosis of_huge_pages(const std::filesystem::path& root) {
  Diagnosis found{.what = "huge pages", .is = "not reported"};
  const auto line = line_of(root / "sys/kernel/mm/transparent_hugepage/enabled");
  if (!line) return found;
  const std::size_t begin = line->find('['), end = line->find(']');
  if (begin == std::string::npos || end == std::string::npos || end < begin) return found;
  found.is = line->substr(begin + 1, end - begin - 1);
  if (found.is != "never") return found;
  found.health = Health::kLimited;
  found.cost =
      "arrays are in pages of 4 KiB, so products of large matrices wait for addresses to be "
      "translated";
  found.remedy = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled as root";
  return found;
}

Diagnosis of_governor(const std::filesystem::path& root) {
  Diagnosis found{.what = "frequency governor", .is = "not reported"};
  const auto governor = frequency_governor(root);
  if (!governor) return found;
  found.is = *governor;
  if (*governor == kSteadyGovernor) return found;
  found.health = Health::kLimited;
  found.cost = "cores change their clock rate between steps, so times differ";
  found.remedy = "cpupower frequency-set --governor performance as root";
  return found;
}

Diagnosis of_clock(const std::filesystem::path& root) {
  Diagnosis found{.what = "clock source", .is = "not reported"};
  const auto line =
      line_of(root / "sys/devices/system/clocksource/clocksource0/current_clocksource");
  if (!line) return found;
  found.is = *line;
  // These are read without a system call (clock_gettime in the vDSO).
  static constexpr std::string_view kFast[] = {"tsc", "kvm-clock", "hyperv_clocksource_tsc_page",
                                               "arch_sys_counter"};
  if (std::ranges::find(kFast, *line) != std::end(kFast)) return found;
  found.health = Health::kLimited;
  found.cost = "each reading of the clock is a system call, which lengthens profiled steps";
  found.remedy = "boot with clocksource=tsc if the CPU's counter is reliable";
  return found;
}

Diagnosis of_printer(const MachineFacts& facts) {
  Diagnosis found{.what = "PDF", .is = facts.printer};
  if (!facts.printer.empty()) return found;
  found.health = Health::kMissing;
  found.is = "neither Chromium nor WeasyPrint is on PATH";
  found.cost = "--pdf of mlp_lab is refused; a browser elsewhere prints its pages";
  found.remedy = "install chromium or weasyprint";
  return found;
}

}  // namespace

MachineFacts facts_of_this_machine() {
  MachineFacts facts{.why_no_gpu = why_no_cuda_device(),
                     .nccl = nccl_version(),
                     .has_mpi = has_mpi(),
                     .mpirun = find_on_path("mpirun"),
                     .hwloc = hwloc_version(),
                     .printer = find_page_printer(),
                     .allowed = allowed_cpus(),
                     .files = raise_open_files(),
                     .needed_bytes = max_rank_bytes(Workload{})};
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
  std::vector<Diagnosis> all = {of_cores(facts, root), of_memory(facts, root), of_gpus(facts)};
  if (!facts.gpus.empty()) {
    all.push_back(of_nccl(facts));
    all.push_back(of_cupti(facts));
  }
  for (Diagnosis& each :
       std::vector{of_mpi(facts), of_hwloc(facts), of_shared_memory(facts), of_open_files(facts),
                   of_huge_pages(root), of_governor(root), of_clock(root), of_printer(facts)}) {
    all.push_back(std::move(each));
  }
  return all;
}

std::string text_of(const std::vector<Diagnosis>& all) {
  std::size_t width = 0;
  for (const Diagnosis& each : all) width = std::max(width, each.what.size());
  std::string text;
  for (const Diagnosis& each : all) {
    text += fmt::format("{:<7}  {:<{}}  {}\n", name_of(each.health), each.what, width, each.is);
    if (each.health == Health::kGood) continue;
    text += fmt::format("{:11}costs: {}\n{:11}remedy: {}\n", "", each.cost, "", each.remedy);
  }
  return text;
}

void require_needed(const std::vector<Diagnosis>& all) {
  for (const Diagnosis& each : all) {
    if (!each.is_needed || each.health != Health::kMissing) continue;
    fail(ExitCode::kMemory,
         {.what = each.what, .value = each.is, .why = each.cost, .remedy = each.remedy});
  }
}

void examine_machine() {
  const std::vector<Diagnosis> all = diagnoses(facts_of_this_machine());
  print_now(text_of(all));
  require_needed(all);
}

}  // namespace barestep
