#include "lab/study/measured_sum.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/host.h"
#include "core/index.h"
#include "core/output_file.h"
#include "core/statistics.h"
#include "core/units.h"
#include "lab/predict/machine_card.h"
#include "lab/report/samples.h"
#include "profiler/peaks.h"
#include "profiler/report.h"
#include "session/run_program.h"

namespace barestep {
namespace {

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

std::string sums_records(const std::vector<SumFigures>& sums, std::span<const LostTime> lost) {
  std::string text;
  int step = 0;
  for (const SumFigures& figures : sums) {
    for (const double seconds : figures.step_s) {
      const nlohmann::json record = {
          {"step", step++},         {"rank", 0},
          {"loss", figures.error},  {"samples", 1},
          {"step_time_s", seconds}, {"queued_s", 0},
          {"warmup", false},        {"phases_s", nlohmann::json::object()},
          {"bytes", figures.bytes}};
      text += record.dump() + "\n";
    }
  }
  for (std::size_t rank = 0; rank < lost.size(); ++rank) {
    text += lost_time_record(lost[rank], static_cast<int>(rank)) + "\n";
  }
  return text;
}

void measure_sums_of_rank(const MeasuringRank& rank, const MeasuredSumRequest& request) {
  const bool prints = rank.ranks.rank() == 0;
  const std::vector<std::int64_t> sizes = sizes_of(request);
  SumBench bench(rank, sizes.back());
  if (prints) print_now(sums_title(rank));
  const LostTimeWatch watch;
  std::vector<SumFigures> sums;
  for (const std::int64_t bytes : sizes) {
    sums.push_back(bench.measure(bytes, request.steps));
    if (prints) print_now(sums_row(sums.back(), rank.ranks.size()));
  }
  std::vector<LostTime> lost = gather_values(rank.ranks, watch.lost());
  if (request.ranks.in_process > 0) lost.resize(1);  // all ranks are one process
  if (prints && !request.metrics.empty()) {
    replace_file(request.metrics, sums_records(sums, lost));
  }
}

}  // namespace

void measure_sums(const MeasuredSumRequest& request) {
  measure_on_ranks(request.ranks,
                   [&](const MeasuringRank& rank) { measure_sums_of_rank(rank, request); });
}

}  // namespace barestep
