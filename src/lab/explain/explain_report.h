// What the traces of a run say, in words, tables and a picture.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/json_document.h"
#include "lab/explain/trace_account.h"
#include "lab/report/findings.h"

namespace barestep {

/// Accounts, summed over steps.
struct RankSum {
  std::int64_t steps = 0, wall_ns = 0, waiting_ns = 0, hidden_ns = 0, stalled_ns = 0;
  TracedStall longest_stall{};
  EnumArray<Part, std::int64_t> part_ns{};

  void add(const TracedAccount& account) {
    ++steps;
    wall_ns += account.wall_ns;
    waiting_ns += account.waiting_ns;
    hidden_ns += account.hidden_ns;
    stalled_ns += account.stalled_ns;
    longest_stall = std::max(longest_stall, account.longest_stall);
    for (const Part part : kValuesOf<Part>) part_ns[part] += account.part_ns[part];
  }
  [[nodiscard]] std::int64_t moving_ns() const {
    return part_ns[Part::kExposedCommunication] - waiting_ns;
  }
  [[nodiscard]] double step_s(std::int64_t ns) const {
    return ns_seconds(ns) / static_cast<double>(std::max<std::int64_t>(1, steps));
  }
};

/// Of a rank, or of all.
RankSum rank_sum(const RunAccount& account, std::optional<std::size_t> rank = std::nullopt);
RankSum others_sum(const RunAccount& account, std::size_t rank);

/// The rank that has most of a part.
std::size_t rank_with_most(const RunAccount& account, Part part);

/// What takes longer in one sum than in the other: exchanges, or anything else; and by how much.
Part excess_of(const RankSum& own, const RankSum& others, bool in_exchanges, double& excess_s);

// Exposed communication, in tables and in the picture.
inline constexpr std::string_view kWaitingForRank = "waiting for the last rank";
inline constexpr std::string_view kExchanging = "exchanging";

/// A rank that is late step by step, and why.
struct LateRank {
  std::size_t rank = 0;
  Part longer = Part::kIdle;  // what it does longer than the others
  double excess_s = 0;
};

/// "rank 1 spends 84.2 ms more than the others on the host, most of it in `augment` (...)", by its
/// computation.
std::string excess_text(const TracedRun& run, const RunAccount& account, std::size_t rank);

/// Nothing if the others wait for none during a tenth of their time, or if it waits for them half
/// as long.
std::optional<LateRank> late_rank_of(const RunAccount& account);

/// What most of a part's time has in common.
struct NamedCause {
  std::string name{};  // empty if only what comes next is known
  std::string text{};  // ", most of it in `augment` (27.1 ms of 31.4 ms)"
};
NamedCause cause_in(const TracedRun& run, const RunAccount& account, std::size_t rank, Part part);

/// Its text, or what makes the part long anywhere.
std::string cause_text(const TracedRun& run, const RunAccount& account, std::size_t rank,
                       Part part);

/// The verdict first, then what to change, then what the traces do not tell. Tables: the mean step
/// of every rank, its operators, who waited for whom, the collectives, and every step. The plot has
/// one step of all ranks on one axis.
Findings findings_of(const TracedRun& run, const RunAccount& account);

/// The multi-layer perceptron that a trace's linear layers are, if their shapes form a chain: the
/// command line that trains the same here, and, if a card is stated or fits the GPU of the trace,
/// the predicted parts of a step beside those of the traces. `machine` is a card's name or file;
/// empty: by the GPU's name. Empty findings if there is no such chain. Throws Error as load_card()
/// does.
Findings mlp_findings(const TracedRun& run, const RunAccount& account, const std::string& machine);

/// Both together, the sentence about the model last. Throws Error: also kBadData if no step is
/// complete.
/// `given`: as which files, folders or patterns the traces were given.
Findings explained(const TracedRun& run, const RunAccount& account, const std::string& machine,
                   const std::vector<std::filesystem::path>& given);

/// Throws Error(kBadData) if no step is complete.
void require_steps(const TracedRun& run, const RunAccount& account);

/// How long steps take, and which take much longer, and why; empty for a single step.
std::string steps_text(const TracedRun& run, const RunAccount& account);

/// What time was spent on: a part, and in it an op with its kernel, a collective, or what the host
/// did.
using PieceKey = std::pair<Part, std::string>;

/// In a step, mean over steps and ranks.
struct StepPiece {
  double seconds = 0, calls = 0;
};

/// The pieces of a step add up to its wall time.
struct StepPieces {
  std::map<PieceKey, StepPiece> pieces{};
  std::map<std::int64_t, double> ranks{}, steps{};  // wall seconds, by number
  double wall_s = 0;
  std::string outliers{};  // the sentence about them; empty if there are none
  std::string late{};      // likewise, about a rank, as excess_text()

  [[nodiscard]] StepPiece of(const PieceKey& key) const {
    const auto found = pieces.find(key);
    return found == pieces.end() ? StepPiece{} : found->second;
  }
  [[nodiscard]] double seconds_of(Part part) const;
};

/// Of a run, without outliers. Throws Error as require_steps() does.
StepPieces pieces_of(const TracedRun& run, const RunAccount& account);
/// As results.json has them, beside the accounts; and back.
EventJson pieces_json(const StepPieces& of);
StepPieces pieces_in(const JsonValue& results);

/// What a question about traces is answered with.
struct ExplainAnswer {
  std::string title{}, name{};  // of its page, and of the files of its plots
  Findings findings{};
  std::map<std::string, std::map<std::string, double>> figures{};  // by what they are of
};

/// Why a step of B takes longer than one of A.
struct TraceDifference {
  Comparison steps{};   // of B with A, step by step
  Findings findings{};  // the rows of each table add up
};
TraceDifference difference_of(const StepPieces& a, const StepPieces& b);
/// The members of its results.json.
EventJson difference_json(const StepPieces& a, const StepPieces& b, const TraceDifference& of);

/// A path as one types it in a shell.
std::string typed(const std::filesystem::path& path);

/// A name of a trace, as it is shown: a kernel's may have a thousand characters.
std::string shown_name(const std::string& name);

/// explained() for the page of `mlp_lab explore`, as JSON, and what `mlp_lab explain` prints of it:
/// {sentences, tables: [{title, columns, rows}], plots: [SVG], text}. Throws Error as run_from(),
/// too.
std::string explained_json(std::vector<TraceFile> files);

}  // namespace barestep
