// One start of a trainer: what it recorded about its steps and ops, and how quiet the machine was
// meanwhile.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/host.h"

namespace barestep {

/// The steps of one rank, warm-up included.
struct RankSteps {
  std::vector<double> step_s{};
  std::vector<double> samples{};  // of all ranks; empty: as many in each step as in the workload's
  std::vector<double> loss{};
  std::vector<double> queued_s{};  // until the host had queued the work of the step
  std::map<std::string, std::vector<double>> phase_s{};
  std::vector<double> scale{};  // of fp16's gradients; empty in other precisions
  std::int64_t skipped = 0;     // steps whose gradients overflowed
};

/// The work of a program's ops, as recorded by `--trace`; seconds per step.
struct OpTime {
  std::string name{};
  std::string phase{};
  std::string block{};  // empty: no block's
  double seconds = 0;
  int device = 0;  // of mlp_dp
};

/// A gauge of `--monitor` after warm-up.
struct GaugeLevel {
  double mean = 0, least = 0, most = 0;
};

/// What `--monitor` says of one source.
struct Watched {
  std::string source{};                        // "host", "cuda:0"
  std::map<std::string, GaugeLevel> gauges{};  // by name ("own_percent"), if it has readings
  std::optional<double> energy_j_per_sample{};
  std::vector<std::string> marks{};  // reasons to treat its figures with care
};

struct Start {
  std::string command{};
  double wall_s = 0;
  double lost_share = 0;        // of its wall time, taken by others; see lost_share()
  int attempts = 1;             // more than 1 if it was repeated because the machine was disturbed
  std::string governor{};       // frequency_governor(); empty if unknown
  double core_distance_s = 0;   // core_distance_s() at its end; 0: unknown
  std::string weights_hash{};   // of the weights at the end; empty if nothing was trained
  std::string configuration{};  // JSON, as the trainer resolved it; empty for PyTorch's scripts
  std::string library{};        // "PyTorch 1.13.1", for its scripts
  std::vector<RankSteps> ranks{};
  std::vector<OpTime> ops{};       // if the case asks for them
  std::vector<Watched> watched{};  // by source, if the case asks for it
  std::string hash{};              // of all of the above, from its file; empty in older ones
  bool is_altered = false;         // the file has another content than that of this hash
};

/// What a `--metrics` file has of a start: ranks, configuration, library and what was watched.
struct RunRecords {
  Start start{};
  std::vector<LostTime> lost{};  // by rank
};

/// Throws Error(kBadData) naming `name` if there are no steps or a record is not in the format of
/// profiler/report.h or profiler/monitor.h.
RunRecords parse_metrics(std::string_view lines, const std::string& name);

/// With the hash of what it holds.
std::string json_of(const Start& start);

/// Throws Error(kBadData) naming `name`.
Start parse_start(std::string_view text, const std::string& name);

/// The library of a start that was read from log lines.
constexpr const char* kLogged = "log lines";

/// The starts in a log of another program with a line for each step, "Step 00 | Step time: 0.1234s
/// | Throughput: 518.63 samples/sec | Loss: 1.036895", of which only the time is needed; where all
/// lines of a start have a throughput, the samples of its steps follow from that. A number
/// that is not above the one before begins another start. Throws Error(kBadData) naming `name` and
/// the line; also if there is no such line.
std::vector<Start> starts_of_log(std::string_view log, const std::string& name);

/// Device time by op, phase and block, per profiled step, the longest first. `trace` is a `--trace`
/// file of one rank. Throws Error(kBadData) naming `name` if it is not a trace.
std::vector<OpTime> op_times_of_trace(std::string_view trace, const std::string& name);

}  // namespace barestep
