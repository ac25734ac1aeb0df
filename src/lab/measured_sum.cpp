#include "lab/measured_sum.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "core/clock.h"
#include "core/communicator.h"
#include "core/host.h"
#include "core/index.h"
#include "kernels/make_device.h"
#include "lab/report.h"
#include "parallel/comm/mpi_communicator.h"
#include "parallel/comm/thread_communicator.h"
#include "profiler/peaks.h"
#include "profiler/report.h"

namespace barestep {
namespace {

constexpr std::int64_t kComparedNumbers = std::int64_t{1} << 18;
constexpr double kSumBatchSeconds = 3e-3;
constexpr double kMaxSumsInBatch = 1000;

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
  for (std::int64_t i = 0; i < std::min(std::ssize(averages), kComparedNumbers); ++i) {
    double average = 0;
    for (int rank = 0; rank < ranks; ++rank)
      average += number_of_rank(rank, i) / static_cast<double>(ranks);
    const double error = averages[static_cast<std::size_t>(i)] - average;
    errors += error * error;
    squares += average * average;
  }
  return std::sqrt(errors / squares);
}

/// The seconds of one all-reduce in each step, and the error of the first.
struct SumFigures {
  std::vector<double> step_s{};
  double error = 0;
  std::vector<LostTime> lost{};  // by process
};

SumFigures measured_by_rank(Communicator& ranks, const MeasuredSumRequest& request) {
  const auto device = make_device({.device = "cpu", .threads = 1});
  const BenchStream memory(*device, request.bytes, "summed numbers");
  const std::unique_ptr<Stream> stream = device->new_stream("sums");
  const std::array<Stream*, 1> streams{stream.get()};
  const Tensor tensor{0, 0, 1, request.bytes / bytes_of(DType::kF32)};
  const Collective sum =
      AllReduce{.tensors = {tensor}, .scale = 1.0F / static_cast<float>(ranks.size())};
  const std::span<float> numbers(memory.addresses().at(tensor),
                                 static_cast<std::size_t>(tensor.size()));
  for (std::int64_t i = 0; i < tensor.size(); ++i) {
    numbers[static_cast<std::size_t>(i)] = number_of_rank(ranks.rank(), i);
  }
  ranks.prepare(sum);
  const auto seconds_of = [&](std::int64_t times) {
    ranks.barrier();
    const double begin_s = now_s();
    for (std::int64_t i = 0; i < times; ++i) ranks.run(sum, memory.addresses(), streams, {});
    stream->synchronize();
    const std::vector<double> all_s = gather_values(ranks, now_s() - begin_s);
    return std::ranges::max(all_s) / static_cast<double>(times);
  };
  seconds_of(1);
  SumFigures figures{.error = average_error(numbers, ranks.size())};
  const auto times =
      static_cast<std::int64_t>(std::clamp(kSumBatchSeconds / seconds_of(3), 1.0, kMaxSumsInBatch));
  const LostTimeWatch watch;
  for (std::int64_t i = 0; i < request.steps; ++i) figures.step_s.push_back(seconds_of(times));
  figures.lost = gather_values(ranks, watch.lost());
  if (request.threads > 0) figures.lost.resize(1);  // all ranks are one process
  return figures;
}

void write_records(const SumFigures& figures, const std::filesystem::path& path) {
  std::string text;
  for (std::size_t i = 0; i < figures.step_s.size(); ++i) {
    const nlohmann::json record = {{"step", i},
                                   {"rank", 0},
                                   {"loss", figures.error},
                                   {"samples", 1},
                                   {"step_time_s", figures.step_s[i]},
                                   {"queued_s", 0},
                                   {"warmup", false},
                                   {"phases_s", nlohmann::json::object()}};
    text += record.dump() + "\n";
  }
  for (std::size_t rank = 0; rank < figures.lost.size(); ++rank) {
    text += lost_time_record(figures.lost[rank], static_cast<int>(rank)) + "\n";
  }
  write_text_file(path, text);
}

}  // namespace

void measure_sum(const MeasuredSumRequest& request) {
  if (request.threads == 0) {
    const MpiRank place = join_mpi();
    const SumFigures figures = measured_by_rank(*place.communicator, request);
    if (place.communicator->rank() == 0) write_records(figures, request.metrics);
    return;
  }
  ThreadGroup group(request.threads);
  std::vector<SumFigures> figures(static_cast<std::size_t>(request.threads));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < request.threads; ++rank) {
    threads.emplace_back(
        [&, rank] { at(figures, rank) = measured_by_rank(*group.join(rank), request); });
  }
  for (std::thread& thread : threads) thread.join();
  write_records(figures.front(), request.metrics);
}

}  // namespace barestep
