// all_reduce: measures a sum over all ranks by size, and prints the table of nccl-tests'
// all_reduce_perf.
//
//   mpirun -np 2 build/all_reduce mpi       MPI in host memory
//   mpirun -np 2 build/all_reduce staged    MPI for GPUs, through pinned memory
//   mpirun -np 2 build/all_reduce nccl      NCCL, a GPU for each rank
//   build/all_reduce threads 4              four ranks that are threads of one process
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/addresses.h"
#include "core/clock.h"
#include "core/communicator.h"
#include "core/error.h"
#include "kernels/make_device.h"
#include "parallel/comm/mpi_communicator.h"
#include "parallel/comm/nccl_communicator.h"
#include "parallel/comm/staged_communicator.h"
#include "parallel/comm/thread_communicator.h"

namespace barestep {
namespace {

constexpr std::int64_t kMinBytes = 8;
constexpr std::int64_t kMaxBytes = std::int64_t{64} << 20;
constexpr int kWarmup = 3;
constexpr double kSecondsPerSize = 0.2;
constexpr int kMaxRepetitions = 1000;

/// Seconds of one call, as the mean over all ranks; all ranks make the same number of calls.
class Timer {
 public:
  Timer(Communicator& ranks, Device& device)
      : ranks_(ranks),
        device_(device),
        memory_(device.allocate(kMaxBytes, MemoryKind::kDevice)),
        addresses_({memory_}),
        stream_(device.new_stream("comm")) {
    // Zeros keep sums unchanged: neither infinite nor denormal, which would slow the processor
    // down.
    const DeviceOp zeros = Fill{.out = Tensor{0, 0, 1, kMaxBytes / 4}};
    device.prepare(zeros);
    device.run(zeros, addresses_, *stream_, {});
    stream_->synchronize();
  }
  ~Timer() { device_.release(memory_, MemoryKind::kDevice); }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  double seconds_of(const Collective& collective) {
    const double once_s = repeat(collective, kWarmup);
    const double wanted = kSecondsPerSize / std::max(once_s, 1e-9);
    return repeat(collective, static_cast<int>(std::clamp(wanted, 1.0, 1.0 * kMaxRepetitions)));
  }

 private:
  double repeat(const Collective& collective, int times) {
    const std::array<Stream*, 1> streams{stream_.get()};
    ranks_.barrier();
    const double start_s = now_s();
    for (int i = 0; i < times; ++i) ranks_.run(collective, addresses_, streams, {});
    stream_->synchronize();
    const double mine_s = (now_s() - start_s) / times;
    std::vector<double> all(static_cast<std::size_t>(ranks_.size()));
    ranks_.all_gather(std::as_bytes(std::span(&mine_s, 1)), std::as_writable_bytes(std::span(all)));
    double sum_s = 0;
    for (const double each_s : all) sum_s += each_s;
    return sum_s / ranks_.size();
  }

  Communicator& ranks_;
  Device& device_;
  std::byte* memory_;
  Addresses addresses_;
  std::unique_ptr<Stream> stream_;
};

void measure(Communicator& ranks, Device& device, const std::string& transport) {
  const bool prints = ranks.rank() == 0;
  if (prints) {
    fmt::print(
        "# {} ranks, {}, {}\n"
        "#       size         count      type   redop    root     time   algbw   busbw\n"
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)\n",
        ranks.size(), transport, device.info().model);
  }
  std::vector<Collective> collectives;  // not moved: communicators identify collectives by address
  for (std::int64_t bytes = kMinBytes; bytes <= kMaxBytes; bytes *= 2) {
    collectives.emplace_back(AllReduce{.tensors = {Tensor{0, 0, 1, bytes / 4}}});
  }
  Timer timer(ranks, device);
  for (const Collective& collective : collectives) {
    const Tensor& tensor = std::get<AllReduce>(collective).tensors[0];
    ranks.prepare(collective);
    const double seconds = timer.seconds_of(collective);
    const double algorithm = static_cast<double>(tensor.bytes()) / seconds / 1e9;
    // Bytes that a ring moves over each link, by nccl-tests' doc/PERFORMANCE.md.
    const double bus = algorithm * 2 * (ranks.size() - 1) / ranks.size();
    if (!prints) continue;
    fmt::print("{:>12}  {:>12}  {:>8}  {:>6}  {:>6}  {:>7.2f}  {:>6.2f}  {:>6.2f}\n",
               tensor.bytes(), tensor.size(), "float", "sum", -1, 1e6 * seconds, algorithm, bus);
    std::fflush(stdout);
  }
}

void measure_processes(const std::string& transport) {
  const MpiRank place = join_mpi();
  if (transport == "mpi") {
    measure(*place.communicator, *make_device({.device = "cpu", .threads = 1}), transport);
    return;
  }
  const int gpus = std::max(1, cuda_device_count());
  const auto device = make_device({.device = fmt::format("cuda:{}", place.local_rank % gpus)});
  std::unique_ptr<Communicator> ranks;
  if (transport == "nccl") {
    ranks = join_nccl(*place.communicator, *device);
  } else {
    ranks = std::make_unique<StagedCommunicator>(*place.communicator, *device);
  }
  measure(*ranks, *device, transport);
}

void measure_threads(int count) {
  ThreadGroup group(count);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < count; ++rank) {
    threads.emplace_back([&group, rank] {
      measure(*group.join(rank), *make_device({.device = "cpu", .threads = 1}), "threads");
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void run(const std::vector<std::string>& arguments) {
  const std::string transport = arguments.empty() ? "" : arguments[0];
  if (transport == "threads" && arguments.size() == 2) {
    measure_threads(std::max(1, std::atoi(arguments[1].c_str())));
  } else if (arguments.size() == 1 &&
             (transport == "mpi" || transport == "staged" || transport == "nccl")) {
    measure_processes(transport);
  } else {
    fail(ExitCode::kUsage, {.what = "arguments",
                            .value = fmt::format("{}", fmt::join(arguments, " ")),
                            .why = "name no transport",
                            .remedy = "give mpi, staged, nccl, or threads N"});
  }
}

}  // namespace
}  // namespace barestep

int main(int argc, char** argv) {
  try {
    barestep::run({argv + 1, argv + argc});
    return 0;
  } catch (const barestep::Error& error) {
    fmt::print(stderr, "all_reduce: error: {}\n", error.what());
    return static_cast<int>(error.code());
  }
}
