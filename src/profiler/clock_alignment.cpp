#include "profiler/clock_alignment.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <span>
#include <thread>

namespace barestep {
namespace {

constexpr int kRoundsPerRank = 10;

/// How much later than the others the last rank of a round sends: more than a message takes.
constexpr std::chrono::microseconds kLate{200};

/// What a rank tells in a round.
struct Times {
  double sent_s = 0;
  double previous_end_s = 0;  // of the round before: when this rank had all messages
};

}  // namespace

double ClockAlignment::largest_error_s() const {
  return *std::ranges::max_element(error_s);
}

ClockAlignment align_clocks(Communicator& ranks, double (*clock)()) {
  const auto size = static_cast<std::size_t>(ranks.size());
  constexpr double kFar = std::numeric_limits<double>::infinity();
  std::vector<double> least(size, -kFar);
  std::vector<double> most(size, kFar);
  std::vector<Times> all(size);
  std::vector<Times> before(size);
  double end_s = 0;
  const int rounds = kRoundsPerRank * ranks.size();
  // One round more, which tells how the last one ended.
  for (int round = 0; round <= rounds; ++round) {
    if (round % ranks.size() == ranks.rank()) std::this_thread::sleep_for(kLate);
    const Times mine{clock(), end_s};
    std::swap(all, before);
    ranks.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
    end_s = clock();
    if (round == 0) continue;
    for (std::size_t rank = 0; rank < size; ++rank) {
      most[rank] = std::min(most[rank], all[0].previous_end_s - before[rank].sent_s);
      least[rank] = std::max(least[rank], before[0].sent_s - all[rank].previous_end_s);
    }
  }
  ClockAlignment result;
  for (std::size_t rank = 0; rank < size; ++rank) {
    const bool is_reference = rank == 0;
    result.shift_s.push_back(is_reference ? 0 : (least[rank] + most[rank]) / 2);
    result.error_s.push_back(is_reference ? 0 : (most[rank] - least[rank]) / 2);
  }
  return result;
}

}  // namespace barestep
