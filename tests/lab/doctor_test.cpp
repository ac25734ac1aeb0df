// What mlp_lab doctor says of machines that are files of proc and sys, and of this one.
#include "lab/doctor.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "support/expect_error.h"
#include "support/pattern.h"
#include "support/temp_dir.h"
#include "support/testing.h"

namespace barestep {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

class Doctor : public TempDirTest {
 protected:
  /// A machine with a GPU on which nothing is amiss.
  Doctor() {
    machine_.gpus = "2 x NVIDIA H200, driver for CUDA 13.0";
    machine_.nccl = "2.28.9";
    machine_.cupti = "13.0.1";
    machine_.has_mpi = true;
    machine_.mpirun = "/usr/bin/mpirun";
    machine_.hwloc = "2.9.0";
    machine_.printer = "/usr/bin/chromium";
    machine_.page = "/usr/share/barestep/web/engine.base64";
    machine_.allowed = CpuSet(0xF);
    machine_.others = {.cores = 4, .busy_cores = 0.3, .busiest = "sshd 0.2"};
    machine_.files = {.at_start = 1024, .now = 4096};
    machine_.shared_memory_bytes = 1024 * kMiB;
    machine_.needed_bytes = 100 * kMiB;
    has("proc/meminfo", "MemTotal: 4194304 kB\nMemAvailable: 2097152 kB\n");
    has("sys/devices/system/cpu/online", "0-3\n");
    has("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
    has("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n");
    has("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n");
  }

  void has(const std::string& name, const std::string& content) {
    std::filesystem::create_directories((folder() / name).parent_path());
    file(name, content);
  }

  [[nodiscard]] std::vector<Diagnosis> all() const { return diagnoses(machine_, folder()); }

  /// What is amiss: the line that mends it, by its name.
  [[nodiscard]] std::vector<std::string> remedies() const {
    std::vector<std::string> found;
    for (const Diagnosis& each : all()) {
      EXPECT_EQ(each.health == Health::kGood, each.cost.empty()) << each.what;
      if (each.health != Health::kGood) found.push_back(each.what + ": " + each.remedy);
    }
    return found;
  }

  MachineFacts machine_;
};

TEST_F(Doctor, FindsNothingAmissOnAGoodMachine) {
  EXPECT_THAT(remedies(), IsEmpty());
  EXPECT_EQ(text_of(all()),
            R"(ok       cores               4 for this process; the machine's are 0-3
ok       other programs      0.3 of 4 cores (sshd 0.2)
ok       memory              2.00 GiB free of 4.00 GiB
ok       GPUs                2 x NVIDIA H200, driver for CUDA 13.0
ok       NCCL                2.28.9
ok       CUPTI               13.0.1
ok       MPI                 /usr/bin/mpirun
ok       hwloc               2.9.0
ok       /dev/shm            1.00 GiB
ok       open files          4096
ok       huge pages          madvise
ok       frequency governor  performance
ok       clock source        tsc
ok       PDF                 /usr/bin/chromium
ok       page                /usr/share/barestep/web/engine.base64
)");
}

TEST_F(Doctor, NamesTheRemedyOfEachThingThatIsAmiss) {
  machine_.nccl.clear();
  machine_.why_no_nccl = "libnccl.so.2: cannot open shared object file";
  machine_.cupti.clear();
  machine_.why_no_cupti = "CUPTI 13.0.0 is known to hang";
  machine_.mpirun.clear();
  machine_.hwloc.clear();
  machine_.printer.clear();
  machine_.page.clear();
  machine_.files.now = 256;
  machine_.shared_memory_bytes = 64 * kMiB;
  has("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  has("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
  has("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n");
  EXPECT_THAT(
      remedies(),
      ElementsAre(
          "NCCL: install libnccl2; a build without it needs libnccl-dev and a new configuration",
          "CUPTI: install CUDA 13.0 Update 1 or newer, or name libcupti.so in "
          "BARESTEP_CUPTI",
          "MPI: install openmpi-bin", "hwloc: install libhwloc-dev and configure again",
          "/dev/shm: start the container with --shm-size 1g",
          "open files: ulimit -Hn 1024 as root, or --ulimit nofile=1024 for a container",
          "huge pages: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled as root",
          "frequency governor: cpupower frequency-set --governor performance as root",
          "clock source: boot with clocksource=tsc if the CPU's counter is reliable",
          "PDF: install chromium or weasyprint",
          "page: install with cmake --install, or copy share/barestep beside the programs' "
          "folder"));
  EXPECT_THAT(text_of(all()), HasSubstr("limited  CUPTI               CUPTI 13.0.0 is known to "
                                        "hang\n           costs: --profile takes times from CUDA "
                                        "events, which contain the launches between kernels\n"));
}

TEST_F(Doctor, FindsABusyMachine) {
  machine_.others = {.cores = 4, .busy_cores = 1.94, .busiest = "cc1plus 1.9"};
  EXPECT_EQ(all().at(1).is, "1.9 of 4 cores (cc1plus 1.9)");
  EXPECT_THAT(remedies(), ElementsAre("other programs: end these programs; mlp_lab run "
                                      "--wait-quiet waits until they end"));
}

TEST(CoreUsers, AreSeenAtWork) {
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;) {
    }
  }
  const CoreUsers seen = watch_core_users(std::chrono::milliseconds(500));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_GE(seen.cores, 1);
  EXPECT_GT(seen.busy_cores, 0.1);
  EXPECT_LE(seen.busy_cores, seen.cores);
  EXPECT_NE(seen.busiest, "");
  for (const auto& each : all_matches(seen.busiest, "([0-9.]+)(,|$)")) {
    EXPECT_LE(std::stod(each[1]), seen.cores + 0.5) << seen.busiest;
  }
}

TEST_F(Doctor, TellsABuildWithoutALibraryFromAMachineWithoutIt) {
  machine_.gpus.clear();
  machine_.why_no_gpu = "no NVIDIA driver (libcuda.so.1 was not found)";
  EXPECT_THAT(remedies(), ElementsAre("GPUs: install NVIDIA's driver, and start a container with "
                                      "--gpus all"));
  machine_.why_no_gpu.clear();
  machine_.has_mpi = false;
  EXPECT_THAT(remedies(),
              ElementsAre("GPUs: install CUDA 12 or newer and configure with -DBARESTEP_CUDA=ON",
                          "MPI: install libopenmpi-dev and openmpi-bin, and configure again"));
}

TEST_F(Doctor, SaysWhatAQuotaCosts) {
  has("proc/self/cgroup", "0::/job\n");
  has("sys/fs/cgroup/job/cpu.max", "150000 100000\n");
  EXPECT_EQ(all().front().is, "2 for this process; the machine's are 0-3; a quota of 1.5");
  EXPECT_THAT(remedies(), ElementsAre("cores: start the container with --cpuset-cpus instead of "
                                      "--cpus, or with --cpus 4"));
}

TEST_F(Doctor, SaysWhichRunsEndWithOtherWeights) {
  file("hashes.txt", "# two runs\n1234 --seed 1\n5678 --seed 2 --dim 8\n");
  // A trainer that always ends with the same weights.
  file("trainer", "#!/bin/sh\necho Weights: xxh3-128 1234\n");
  std::filesystem::permissions(folder() / "trainer", std::filesystem::perms::owner_all);
  compare_weights(folder() / "trainer", folder() / "hashes.txt", machine_);
  EXPECT_EQ(all().back().is, "of 2 runs, one ends with other weights: --seed 2 --dim 8");
  machine_.other_weights.clear();
  EXPECT_EQ(all().back().is, "2 runs end with the weights of every machine");
  machine_.compared_runs = 0;
  compare_weights(folder() / "no_trainer", folder() / "hashes.txt", machine_);
  EXPECT_EQ(machine_.compared_runs, 0);
}

TEST_F(Doctor, FailsOnlyWhereNoRunWorks) {
  require_needed(all());
  machine_.gpus.clear();
  machine_.mpirun.clear();
  require_needed(all());
  machine_.needed_bytes = 3 * 1024 * kMiB;
  expect_error(ExitCode::kMemory,
               "memory '2.00 GiB free of 4.00 GiB': mlp_single without options needs 3.00 GiB; end "
               "other programs, raise the container's --memory, or give a smaller --dim",
               [&] { require_needed(all()); });
}

TEST(ThisMachine, HasAllThatAPlainRunNeeds) {
  const MachineFacts facts = facts_of_this_machine();
  EXPECT_GT(facts.needed_bytes, kMiB);
  EXPECT_GT(facts.allowed.count(), 0U);
  require_needed(diagnoses(facts));
}

}  // namespace
}  // namespace barestep
