// One start of a trainer: what it wrote about its steps and ops, and how quiet the machine was
// meanwhile.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/host.h"

namespace barestep {

/// The steps of one rank, warm-up included.
struct RankSteps {
  std::vector<double> step_s{};
  std::vector<double> loss{};
  std::vector<double> queued_s{};  // until the host had queued the step's work
  std::map<std::string, std::vector<double>> phase_s{};
};

/// Work of a program's ops, as `--trace` records it; seconds of one step.
struct OpTime {
  std::string name{};
  std::string phase{};
  int layer = -1;
  double seconds = 0;
};

/// What `--monitor` saw of one source after warm-up.
struct Watched {
  std::string source{};  // "host", "cuda:0"
  /// By gauge ("own_percent"), a value for each reading that has one.
  std::map<std::string, std::vector<double>> gauges{};
  std::optional<double> energy_j_per_sample{};
  std::vector<std::string> marks{};  // why its figures are to be taken with care
};

/// What an evaluation of several precisions found in one of them.
struct Evaluated {
  std::string precision{};
  std::int64_t samples = 0;
  double loss = 0;
  double accuracy = 0;            // of a classifier
  std::int64_t changed = 0;       // its answers that are not those of the first precision
  std::int64_t weight_bytes = 0;  // that a batch reads
};

struct Start {
  std::string command{};
  double wall_s = 0;
  double lost_share = 0;        // of its threads' time, what others took; see lost_share()
  int attempts = 1;             // it was made again while the machine was disturbed
  std::string weights_hash{};   // of the weights at the end; where the case asks for it
  std::string configuration{};  // JSON, as the trainer resolved it; empty for PyTorch's scripts
  std::string library{};        // "PyTorch 1.13.1", of its scripts
  std::vector<RankSteps> ranks{};
  std::vector<OpTime> ops{};       // where the case asks for them
  std::vector<Watched> watched{};  // by source; where the case asks for it
  std::vector<Evaluated> evaluated{};
};

/// The records of a `--metrics` file; of an evaluation of several precisions those of the one that
/// was asked for, a batch for a step. Throws Error(kBadData) naming `name` if there are none or one
/// is not as report.h makes it.
std::vector<RankSteps> parse_metrics(std::string_view lines, const std::string& name);

/// What such a file says of each precision of an evaluation; nothing of others. Throws as
/// parse_metrics() does.
std::vector<Evaluated> evaluated_of_metrics(std::string_view lines, const std::string& name);

/// What such a file says of the machine, in the order of its first records. Throws as
/// parse_metrics() does for a record that is not as profiler/monitor.h makes it.
std::vector<Watched> parse_monitor(std::string_view lines, const std::string& name);

/// The configuration that such a file begins with, as JSON on one line; empty where it has none.
/// Throws as parse_metrics() does.
std::string configuration_of_metrics(std::string_view lines, const std::string& name);

/// What such a file says of the time that each rank lost to others; nothing from files without.
/// Throws as parse_metrics() does.
std::vector<LostTime> lost_of_metrics(std::string_view lines, const std::string& name);

/// Of the time of a start: what its busiest threads waited for a core that others had, of the rank
/// that waited most, and what the host of a virtual machine took. Ranks that share cores wait for
/// each other, so with `beyond_cores` only the latter counts. Both run-queue delay and steal are
/// needed: neither shows every slow start.
double lost_share(std::span<const LostTime> ranks, int cores, bool beyond_cores);

/// What such a file says it was made by; empty for our trainers. Throws as parse_metrics() does.
std::string library_of_metrics(std::string_view lines, const std::string& name);

std::string json_of(const Start& start);

/// Throws Error(kBadData) naming `name`.
Start parse_start(std::string_view text, const std::string& name);

/// Time of the device by op, phase and layer, per profiled step, the longest first. `trace` is a
/// `--trace` file of one rank. Throws Error(kBadData) naming `name` if it is none.
std::vector<OpTime> op_times_of_trace(std::string_view trace, const std::string& name);

}  // namespace barestep
