#include "lab/study/rank_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <future>
#include <mutex>
#include <numeric>
#include <vector>

#include "core/clock.h"
#include "core/error.h"
#include "kernels/make_device.h"
#include "parallel/comm/gpu_places.h"
#include "parallel/comm/mpi_transport.h"
#include "parallel/comm/nccl_transport.h"
#include "parallel/comm/staged_transport.h"
#include "parallel/comm/thread_transport.h"
#include "parallel/schemes/run.h"

namespace barestep {
namespace {

using MeasureOnRank = std::function<void(const MeasuringRank& rank)>;

void require_host_memory(const RanksToMeasure& requested) {
  if (requested.in_process == 1) return;
  if (requested.device != "cuda" && requested.transport == TransportKind::kAuto) return;
  fail(ExitCode::kUsage,
       {.what = "--ranks",
        .value = std::to_string(requested.in_process),
        .why = "ranks that are threads of one process meet in the CPU's memory",
        .remedy = "leave out --transport and --device cuda, or start processes by mpirun"});
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

}  // namespace

void measure_on_ranks(const RanksToMeasure& requested, const MeasureOnRank& measure) {
  if (requested.in_process > 0) return measure_on_threads(requested, measure);
  measure_on_processes(requested, measure);
}

double mean_of_ranks(Group& ranks, double mine) {
  const std::vector<double> all = gather_values(ranks, mine);
  return std::accumulate(all.begin(), all.end(), 0.0) / ranks.size();
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

}  // namespace barestep
