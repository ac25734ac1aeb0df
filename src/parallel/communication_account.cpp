#include "parallel/communication_account.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <optional>

#include "core/clock.h"
#include "core/text_table.h"
#include "core/units.h"
#include "train/schedule.h"

namespace barestep {
namespace {

/// Seconds of [from, to] that lie behind `border`.
double behind(double from, double to, double border) {
  return std::max(0.0, to - std::max(from, border));
}

bool computes(const Node& node) {
  return node.lane == Lane::kCompute && node.phase != Phase::kOptimizer &&
         node.phase != Phase::kData;
}

bool narrows(const Node& node) {
  const auto* const op = std::get_if<DeviceOp>(&node.op);
  const auto* const cast = op == nullptr ? nullptr : std::get_if<Cast>(op);
  return cast != nullptr && cast->to.dtype == DType::kBF16;
}

bool brings_data(const Program& program, NodeId id) {
  return program.nodes()[static_cast<std::size_t>(id)].phase == Phase::kData;
}

std::string milliseconds(double seconds) {
  return fmt::format("{:.4f}", 1e3 * seconds);
}

/// The loss is the first, whatever the scheme.
std::string title_of(const Program& program, const Node& node, std::size_t index) {
  if (index == 0) return "loss";
  const auto& collective = std::get<Collective>(node.op);
  if (const auto* gather = std::get_if<AllGather>(&collective)) {
    return program.buffers()[gather->tensors[0].buffer].name + ", gathered";
  }
  if (std::holds_alternative<ReduceScatter>(collective)) return "gradients, scattered";
  const Tensor reduced = parts_of(collective).front().front().tensor;
  if (program.buffers()[reduced.buffer].name == "grad_squares") return "squares of gradients";
  return fmt::format("bucket {}", index);
}

/// One collective of one step: adds what it came to on every rank to `of_collective`, and to
/// `waited_for_s` how long each rank was waited for.
void add_collective(const std::vector<CommunicatedStep>& ranks, std::size_t index,
                    CommunicationSummary::OfCollective& of_collective,
                    std::vector<double>& waited_for_s) {
  std::size_t last = 0;
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
    if (ranks[rank].collectives[index].start_s > ranks[last].collectives[index].start_s) {
      last = rank;
    }
  }
  const double all_there_s = ranks[last].collectives[index].start_s;
  for (const CommunicatedStep& rank : ranks) {
    const CollectiveTimes& times = rank.collectives[index];
    const double border_s = rank.computing_end_s;
    const CommunicationParts parts{
        .hidden_s = times.end_s - times.start_s - behind(times.start_s, times.end_s, border_s),
        .waiting_s = behind(times.start_s, all_there_s, border_s),
        .moving_s = behind(all_there_s, times.end_s, border_s)};
    of_collective.parts += parts;
    of_collective.ready_before_start_s += times.start_s - times.ready_s;
    waited_for_s[last] += parts.waiting_s;
  }
}

/// The runner's steps that are training steps from `first` on and run programs.train().
std::vector<std::int64_t> counted_steps(const StepPrograms& programs,
                                        const TrainingConfig& training, std::int64_t first) {
  constexpr std::size_t kMostSteps = 10'000;
  std::vector<std::int64_t> counted;
  Schedule schedule(training, programs);
  for (std::int64_t step = 0; counted.size() < kMostSteps; ++step) {
    const std::optional<Batch> batch = schedule.next();
    if (!batch) break;
    const bool trains = !batch->evaluates && batch->program == &programs.train();
    if (trains && batch->number >= first) counted.push_back(step);
  }
  return counted;
}

/// What all ranks have to say, rank after rank; each has as much. Every rank calls it. Blocks.
template <class Number>
std::vector<Number> gather_all(Communicator& ranks, std::span<const Number> mine) {
  std::vector<Number> all(static_cast<std::size_t>(ranks.size()) * mine.size());
  ranks.all_gather(std::as_bytes(mine), std::as_writable_bytes(std::span(all)));
  return all;
}

}  // namespace

CommunicationParts& CommunicationParts::operator+=(const CommunicationParts& other) {
  hidden_s += other.hidden_s;
  waiting_s += other.waiting_s;
  moving_s += other.moving_s;
  return *this;
}

CommunicationParts& CommunicationParts::operator/=(double divisor) {
  hidden_s /= divisor;
  waiting_s /= divisor;
  moving_s /= divisor;
  return *this;
}

CommunicationSummary summary_of(std::span<const std::vector<CommunicatedStep>> steps) {
  CommunicationSummary summary{.steps = static_cast<std::int64_t>(steps.size())};
  if (steps.empty()) return summary;
  const std::size_t ranks = steps.front().size();
  summary.ranks.resize(ranks);
  summary.collectives.resize(steps.front().front().collectives.size());
  for (const std::vector<CommunicatedStep>& step : steps) {
    std::vector<double> waited_for_s(ranks);
    for (std::size_t i = 0; i < summary.collectives.size(); ++i) {
      add_collective(step, i, summary.collectives[i], waited_for_s);
    }
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      summary.ranks[rank].cost_s += waited_for_s[rank];
    }
    const auto longest = std::ranges::max_element(waited_for_s);
    if (*longest > 0) {
      ++summary.ranks[static_cast<std::size_t>(longest - waited_for_s.begin())].steps_waited_for;
    }
  }
  const auto count = static_cast<double>(steps.size());
  for (auto& of_collective : summary.collectives) {
    of_collective.parts /= count * static_cast<double>(ranks);
    of_collective.ready_before_start_s /= count * static_cast<double>(ranks);
    summary.parts += of_collective.parts;
  }
  for (auto& rank : summary.ranks) {
    rank.cost_s /= count * std::max(1.0, static_cast<double>(ranks) - 1);
  }
  return summary;
}

std::string CommunicationSummary::text() const {
  if (steps == 0) return "";
  std::string text = fmt::format("Communication of a step, mean of {} and {}\n",
                                 counted(steps, "step"), counted(std::ssize(ranks), "rank"));
  const double total_s = parts.hidden_s + parts.waiting_s + parts.moving_s;
  const auto row = [&](const char* name, double seconds) {
    text += fmt::format("  {:<24}{:>12} ms\n", name, milliseconds(seconds));
  };
  row("all", total_s);
  row("hidden", parts.hidden_s);
  row("exposed, waiting", parts.waiting_s);
  row("exposed, moving bytes", parts.moving_s);
  text += "\n";
  TextTable table({{"Reduced", Align::kLeft},
                   {"Size", Align::kRight},
                   {"Queued (ms)", Align::kRight},
                   {"Hidden", Align::kRight},
                   {"Waiting", Align::kRight},
                   {"Moving", Align::kRight}});
  for (const OfCollective& each : collectives) {
    table.add_row({each.name, human_bytes(each.bytes), milliseconds(each.ready_before_start_s),
                   milliseconds(each.parts.hidden_s), milliseconds(each.parts.waiting_s),
                   milliseconds(each.parts.moving_s)});
  }
  text += table.text() + "\n";
  if (ranks.size() == 1) return text;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    text += fmt::format("Waited for rank {}: longest in {} of {}, {} ms a step\n", rank,
                        ranks[rank].steps_waited_for, counted(steps, "step"),
                        milliseconds(ranks[rank].cost_s));
  }
  return text +
         fmt::format("The ranks' clocks are aligned within {:.1f} us\n\n", 1e6 * clock_error_s);
}

CommunicationAccount::CommunicationAccount(const StepPrograms& programs,
                                           const TrainingConfig& training, std::int64_t first_step)
    : program_(programs.train().program),
      steps_(counted_steps(programs, training, first_step)),
      feeds_(program_.nodes().size()),
      computing_end_s_(steps_.size()) {
  for (NodeId id = 0; id < program_.size(); ++id) {
    const Node& node = program_.nodes()[static_cast<std::size_t>(id)];
    const bool is_collective = std::holds_alternative<Collective>(node.op);
    // What narrows its numbers is in front of it in the same lane and waits in its place.
    if (!is_collective && !narrows(node)) continue;
    for (const Wait& wait : node.waits) {
      if (wait.steps_back > 0 || brings_data(program_, wait.node)) continue;
      feeds_[static_cast<std::size_t>(wait.node)].push_back(collectives_.size());
    }
    if (is_collective) collectives_.push_back(id);
  }
  times_.resize(computing_end_s_.size() * collectives_.size());
}

void CommunicationAccount::on_record(const Record& record) {
  // The trainer's runner knows the training program first.
  if (record.tag.program != 0) return;
  const auto found_step = std::ranges::lower_bound(steps_, record.tag.step);
  if (found_step == steps_.end() || *found_step != record.tag.step) return;
  const auto step = static_cast<std::size_t>(found_step - steps_.begin());
  // Nodes of one lane report from one thread, in order, and each to places of its own.
  const auto times = std::span(times_).subspan(step * collectives_.size(), collectives_.size());
  const auto id = static_cast<std::size_t>(record.tag.node);
  for (const std::size_t fed : feeds_[id]) times[fed].ready_s = record.end_s;
  if (const auto found = std::ranges::find(collectives_, record.tag.node);
      found != collectives_.end()) {
    CollectiveTimes& mine = times[static_cast<std::size_t>(found - collectives_.begin())];
    mine.start_s = record.start_s;
    mine.end_s = record.end_s;
  } else if (computes(program_.nodes()[id])) {
    computing_end_s_[step] = record.end_s;
  }
}

std::vector<NodeId> CommunicationAccount::nodes() const {
  std::vector<NodeId> needed;
  NodeId last_computing = -1;
  for (NodeId id = 0; id < program_.size(); ++id) {
    const Node& node = program_.nodes()[static_cast<std::size_t>(id)];
    const bool is_collective = std::holds_alternative<Collective>(node.op);
    if (!is_collective && computes(node)) last_computing = id;
    if (is_collective || !feeds_[static_cast<std::size_t>(id)].empty()) needed.push_back(id);
  }
  if (std::ranges::find(needed, last_computing) == needed.end()) needed.push_back(last_computing);
  std::ranges::sort(needed);
  return needed;
}

std::int64_t CommunicationAccount::steps_heard() const {
  const auto unheard = std::ranges::find(computing_end_s_, 0);
  return unheard - computing_end_s_.begin();
}

CommunicationSummary CommunicationAccount::gather(Communicator& ranks, double own_error_s) const {
  const ClockAlignment clocks = align_clocks(ranks, &now_s);
  const std::vector<double> errors_s = gather_all<double>(ranks, {&own_error_s, 1});
  const std::int64_t heard = steps_heard();
  const auto steps =
      static_cast<std::size_t>(std::ranges::min(gather_all<std::int64_t>(ranks, {&heard, 1})));
  const auto size = static_cast<std::size_t>(ranks.size());
  const std::size_t count = collectives_.size();
  const std::vector<double> ends = gather_all<double>(ranks, {computing_end_s_.data(), steps});
  const std::vector<CollectiveTimes> times =
      gather_all<CollectiveTimes>(ranks, {times_.data(), steps * count});

  std::vector<std::vector<CommunicatedStep>> all;
  for (std::size_t step = 0; step < steps; ++step) {
    auto& of_ranks = all.emplace_back();
    for (std::size_t rank = 0; rank < size; ++rank) {
      const double shift_s = clocks.shift_s[rank];
      CommunicatedStep mine{.computing_end_s = ends[rank * steps + step] + shift_s,
                            .collectives = {}};
      for (std::size_t i = 0; i < count; ++i) {
        const CollectiveTimes& raw = times[(rank * steps + step) * count + i];
        mine.collectives.push_back(
            {raw.ready_s + shift_s, raw.start_s + shift_s, raw.end_s + shift_s});
      }
      of_ranks.push_back(std::move(mine));
    }
  }
  CommunicationSummary summary = summary_of(all);
  summary.clock_error_s = clocks.largest_error_s() + *std::ranges::max_element(errors_s);
  for (std::size_t i = 0; i < summary.collectives.size(); ++i) {
    const Node& node = program_.nodes()[static_cast<std::size_t>(collectives_[i])];
    summary.collectives[i].name = title_of(program_, node, i);
    summary.collectives[i].bytes = cost_of(node.op).message_bytes;
  }
  return summary;
}

}  // namespace barestep
