// What several experiments compute of their cases, and how they say it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lab/predict/prediction.h"
#include "lab/study/experiment.h"
#include "lab/study/step_parts.h"

namespace barestep {

/// The rank counts of mlp_ddp: 1, 2, 4, ... up to the number of cores or GPUs, at least 4 on the
/// CPU; or those requested.
std::vector<int> rank_counts(const Setting& setting);

/// The number of ranks or devices compared with one in experiments that vary something else: 2, or
/// the most that were requested.
int compared_with_one(const Setting& setting);

/// "two ranks", "4 ranks"; at the beginning of a sentence "Two ranks".
std::string several_words(int count, std::string_view noun, bool is_first = false);

/// Keys of all cases.
std::vector<std::string> keys_of(const Results& results);

/// The planned memory of the first device or rank.
DeviceMemory memory_of(const Measurement& measured);

/// The bytes that a rank sends in a step, the mean of all ranks and, with local SGD, of a round.
std::int64_t mean_sent_bytes(const Run& workload);

/// What a device of mlp_dp computes in a step, by start, and its share of the step, of a case that
/// records its ops.
std::vector<double> computing_seconds(const Measurement& measured, int device);
Estimate computing_share(const Measurement& measured, int device);
/// The same of all devices: "60.0 %, 20.0 %".
std::string computing_shares_text(const Measurement& measured);

/// Of the first start.
double last_loss(const Measurement& measured);

/// The largest difference between the losses of the same steps of two runs, of the first `steps`,
/// as a share of the second one's.
inline constexpr auto kAllSteps = std::numeric_limits<std::size_t>::max();
double loss_difference(const Start& a, const Start& b, std::size_t steps = kAllSteps);
/// Of their first starts.
double loss_difference(const Measurement& a, const Measurement& b, std::size_t steps = kAllSteps);

/// The largest difference between the last losses of several cases and that of `reference`, as a
/// share of the latter.
double last_loss_difference(std::span<const Measurement> cases, const Measurement& reference);

/// Whether the order of additions explains such a difference between losses.
bool is_rounding(double difference);

/// The share of a step in which ranks wait for others, the mean of all ranks: for tensor ranks, for
/// stages, and for copies of the model.
Estimate waiting_share(const Measurement& measured);

/// The bytes of `a` as a multiple of those of `b`.
double times_the_bytes(std::int64_t a, std::int64_t b);

/// "1024 x 6", width x layers; "1000 - 2000 - 1000" where they have different widths.
std::string model_text(std::int64_t dim, std::int64_t depth);
std::string model_text(const Workload& workload);

/// The seconds by start of the recorded ops that `takes` selects.
std::vector<double> op_seconds(const Measurement& measured,
                               const std::function<bool(const OpTime& op)>& takes);

/// Where throughput saturates, for cases with batches that double each time: the batch after which
/// no doubling certainly gains a tenth. `whose` is empty or " of two ranks".
std::string saturation_text(const Results& results, const std::vector<std::string>& by_batch,
                            std::string_view whose = "");

/// "Fastest: A.", or "Fastest: undecided among A and B." `names` are indexed as in
/// `fastest`; `what` may also be "Fastest of the schemes".
std::string fastest_text(const Fastest& fastest, const std::vector<std::string>& names,
                         std::string_view what = "Fastest");

/// The comparison with the highest speed.
const Comparison& fastest_gain(const std::vector<Comparison>& all);

/// Whether a claimed speed-up, at least `claimed`, is reached in the fastest of all, or may be in
/// any other: "The claimed factor of 2 to 3 is reached here: bf16, 2.50x as fast." `claim` begins
/// it, `fastest` describes that case.
std::string claim_text(const std::vector<Comparison>& all, double claimed, std::string_view claim,
                       const std::string& fastest);

/// A small share, of losses: "1.2e-05"; "0" for none.
std::string share_text(double share);

/// The first number from `begin` on, and below `end`, for which `holds` is false; it is true of all
/// numbers before that one. `end` if there is none.
template <class Holds>
std::int64_t first_that_fails(std::int64_t begin, std::int64_t end, const Holds& holds) {
  while (begin < end) {
    const std::int64_t middle = begin + (end - begin) / 2;
    if (holds(middle)) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

}  // namespace barestep
