#include "lab/study/rank_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <future>
#include <mutex>
#include <numeric>

#include "core/clock.h"
#include "core/error.h"
#include "core/index.h"
#include "core/statistics.h"
#include "core/units.h"
#include "kernels/make_device.h"
#include "lab/predict/machine_card.h"
#include "lab/report/samples.h"
#include "parallel/comm/gpu_places.h"
#include "parallel/comm/mpi_transport.h"
#include "parallel/comm/nccl_transport.h"
#include "parallel/comm/staged_transport.h"
#include "parallel/comm/thread_transport.h"
#include "parallel/schemes/run.h"
#include "profiler/peaks.h"
#include "session/run_program.h"

namespace barestep {
namespace {

using MeasureOnRank = std::function<void(const MeasuringRank& rank)>;

void require_host_memory(const RanksToMeasure& requested) {
  if (requested.in_process == 1) return;
  if (requested.device != "cuda" && requested.transport == TransportKind::kAuto) return;
  fail(ExitCode::kUsage, {"--ranks", std::to_string(requested.in_process),
                          "ranks that are threads of one process meet in the CPU's memory",
                          "leave out --transport and --device cuda, or start processes by mpirun"});
}

void measure_on_threads(const RanksToMeasure& requested, const MeasureOnRank& measure) {
  require_host_memory(requested);
  const std::string device = requested.device == "cuda" ? "cuda" : "cpu";
  ThreadGroup group(requested.in_process);
  std::once_flag has_failed;
  std::exception_ptr failure;  // the first; the others only tell that a rank has failed
  std::vector<std::future<void>> ranks;
  for (int rank = 0; rank < requested.in_process; ++rank) {
    ranks.push_back(std::async(std::launch::async, [&, rank] {
      const auto self = group.join(rank);
      try {
        const auto own = make_device({.device = device, .threads = requested.threads});
        measure({*self, *self, "threads of one process", *own});
      } catch (...) {
        std::call_once(has_failed, [&] { failure = std::current_exception(); });
        self->abort(ExitCode::kTryAgain);  // the others need not wait
      }
    }));
  }
  for (std::future<void>& rank : ranks) rank.get();
  if (failure) std::rethrow_exception(failure);
}

void measure_on_processes(const RanksToMeasure& requested, const MeasureOnRank& measure) {
  const bool on_gpu =
      requested.device == "cuda" || (requested.device == "auto" && cuda_device_count() > 0);
  require({.on_gpu = on_gpu, .config = {.parallel = {.transport = requested.transport}}});
  const MpiRank place = join_mpi();
  Group& ranks = *place.group;
  const int gpus = std::max(1, cuda_device_count());
  const auto device =
      make_device({.device = on_gpu ? fmt::format("cuda:{}", place.local_rank % gpus) : "cpu",
                   .threads = requested.threads});
  if (!on_gpu) return measure({ranks, *place.transport, "MPI", *device});
  const std::vector<RankGpu> places = gather_gpu_places(ranks, device->info().pci_bus_id);
  if (requested.transport == TransportKind::kNccl) require_nccl_joins(places);
  if (joins_by_nccl(requested.transport, places)) {
    const auto transport = join_nccl(ranks, *device);
    return measure({ranks, *transport, "NCCL", *device});
  }
  StagedTransport transport(*place.transport, *device);
  measure({ranks, transport, "MPI through pinned memory", *device});
}

constexpr std::int64_t kComparedNumbers = std::int64_t{1} << 18;
constexpr double kSumBatchSeconds = 3e-3;

std::vector<std::int64_t> sizes_of(const MeasuredSumRequest& request) {
  constexpr std::int64_t kMinBytes = 8, kMaxBytes = std::int64_t{64} << 20;
  if (request.bytes > 0) return {std::max<std::int64_t>(request.bytes / 4, 1) * 4};
  std::vector<std::int64_t> sizes;
  for (std::int64_t bytes = kMinBytes; bytes <= kMaxBytes; bytes *= 2) sizes.push_back(bytes);
  return sizes;
}

/// The i-th number of a rank, between -1 and 1 (the finalizer of MurmurHash3). Cubed, because sums
/// of numbers that are multiples of one small number would be exact.
float number_of_rank(int rank, std::int64_t i) {
  auto bits = static_cast<std::uint64_t>(i) * 64 + static_cast<std::uint64_t>(rank) + 1;
  bits = (bits ^ (bits >> 33U)) * 0xFF51AFD7ED558CCDU;
  bits = (bits ^ (bits >> 33U)) * 0xC4CEB9FE1A85EC53U;
  bits ^= bits >> 33U;
  const float even = static_cast<float>(bits >> 40U) * 0x1p-23F - 1;
  return even * even * even;
}

/// The error of `averages` relative to averages in double precision.
double average_error(std::span<const float> averages, int ranks) {
  double errors = 0, squares = 0;
  for (std::int64_t i = 0; i < std::ssize(averages); ++i) {
    double average = 0;
    for (int rank = 0; rank < ranks; ++rank)
      average += number_of_rank(rank, i) / static_cast<double>(ranks);
    const double error = at(averages, i) - average;
    errors += error * error;
    squares += average * average;
  }
  return std::sqrt(errors / squares);
}

struct SumFigures {
  std::int64_t bytes = 0;
  std::vector<double> step_s{};
  double error = 0;
};

/// Sums of one rank, whose numbers are on its device.
class SumBench {
 public:
  SumBench(const MeasuringRank& rank, std::int64_t max_bytes)
      : rank_(rank),
        memory_(rank.device, max_bytes, "summed numbers"),
        bench_(rank, memory_.addresses()),
        copies_(rank.device.new_stream("copies of numbers")) {}

  SumFigures measure(std::int64_t bytes, int steps) {
    const Tensor tensor{0, 0, 1, bytes / bytes_of(DType::kF32)};
    const float scale = 1.0F / static_cast<float>(rank_.ranks.size());
    sums_.push_back(std::make_unique<Collective>(AllReduce{.tensors = {tensor}, .scale = scale}));
    const CollectiveBench::Collectives sum(&sums_.back(), 1);
    rank_.transport.prepare(*sum.front());
    fill(tensor);
    bench_.run(sum, 1);
    SumFigures figures{.bytes = bytes, .error = error_in(tensor)};
    figures.step_s = bench_.batches(sum, kSumBatchSeconds, steps);
    return figures;
  }

 private:
  void fill(const Tensor& tensor) {
    std::vector<float> piece(static_cast<std::size_t>(std::min(tensor.size(), kComparedNumbers)));
    for (std::int64_t first = 0; first < tensor.size(); first += std::ssize(piece)) {
      piece.resize(static_cast<std::size_t>(std::min(std::ssize(piece), tensor.size() - first)));
      for (std::int64_t i = 0; i < std::ssize(piece); ++i) {
        at(piece, i) = number_of_rank(rank_.ranks.rank(), first + i);
      }
      rank_.device.copy(memory_.addresses().at(tensor) + first, piece.data(),
                        std::ssize(piece) * bytes_of(DType::kF32), *copies_);
      copies_->synchronize();
    }
  }

  [[nodiscard]] double error_in(const Tensor& tensor) {
    const std::int64_t count = std::min(tensor.size(), kComparedNumbers);
    std::vector<float> averages(static_cast<std::size_t>(count));
    rank_.device.copy(averages.data(), memory_.addresses().at(tensor),
                      count * bytes_of(DType::kF32), *copies_);
    copies_->synchronize();
    return average_error(averages, rank_.ranks.size());
  }

  const MeasuringRank& rank_;
  BenchStream memory_;
  CollectiveBench bench_;
  std::unique_ptr<Stream> copies_;
  std::vector<std::unique_ptr<Collective>> sums_{};  // kept: transports know them by address
};

std::string sums_title(const MeasuringRank& rank) {
  return fmt::format(
      "# {}, {}, {}\n"
      "#       size         count      type   redop    root     time   algbw   busbw    error\n"
      "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)\n",
      counted(rank.ranks.size(), "rank"), rank.transport_name, rank.device.info().model);
}

std::string sums_row(const SumFigures& figures, int ranks) {
  const double seconds = median(figures.step_s);
  const double per_s = static_cast<double>(figures.bytes) / seconds;
  return fmt::format(
      "{:>12}  {:>12}  {:>8}  {:>6}  {:>6}  {:>7.2f}  {:>6.2f}  {:>6.2f}  {:>7.1e}\n",
      figures.bytes, figures.bytes / bytes_of(DType::kF32), "float", "avg", -1, 1e6 * seconds,
      1e-9 * per_s, 1e-9 * per_s * bus_factor(ExchangeKind::kAllReduce, ranks), figures.error);
}

void measure_sums_of_rank(const MeasuringRank& rank, const MeasuredSumRequest& request) {
  const bool prints = rank.ranks.rank() == 0;
  const std::vector<std::int64_t> sizes = sizes_of(request);
  SumBench bench(rank, sizes.back());
  if (prints) print_now(sums_title(rank));
  for (const std::int64_t bytes : sizes) {
    const std::string row = sums_row(bench.measure(bytes, request.steps), rank.ranks.size());
    if (prints) print_now(row);
  }
}

}  // namespace

void measure_on_ranks(const RanksToMeasure& requested, const MeasureOnRank& measure) {
  if (requested.in_process > 0) return measure_on_threads(requested, measure);
  measure_on_processes(requested, measure);
}

double mean_of_ranks(Group& ranks, double mine) {
  const std::vector<double> all = gather_values(ranks, mine);
  return std::accumulate(all.begin(), all.end(), 0.0) / ranks.size();
}

double largest_of_ranks(Group& ranks, double mine) {
  return std::ranges::max(gather_values(ranks, mine));
}

double CollectiveBench::run(Collectives all, std::size_t count) {
  const std::array<Stream*, 1> streams{stream_.get()};
  ranks_.barrier();
  const double begin_s = now_s();
  for (std::size_t i = 0; i < count; ++i) {
    transport_.run(*all[i % all.size()], addresses_, streams, {});
  }
  stream_->synchronize();
  return now_s() - begin_s;
}

std::vector<double> CollectiveBench::batches(Collectives all, double batch_s, int count) {
  constexpr std::size_t kWarmup = 3;
  constexpr double kMaxInBatch = 1000;
  const double once_s = mean_of_ranks(ranks_, run(all, kWarmup) / kWarmup);
  const auto times = static_cast<std::size_t>(std::clamp(batch_s / once_s, 1.0, kMaxInBatch));
  std::vector<double> seconds;
  for (int i = 0; i < count; ++i) {
    seconds.push_back(mean_of_ranks(ranks_, run(all, times) / static_cast<double>(times)));
  }
  return seconds;
}

void measure_sums(const MeasuredSumRequest& request) {
  measure_on_ranks(request.ranks,
                   [&](const MeasuringRank& rank) { measure_sums_of_rank(rank, request); });
}

}  // namespace barestep
