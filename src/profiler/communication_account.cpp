#include "profiler/communication_account.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstddef>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <thread>
#include <utility>
#include <variant>

#include "core/clock.h"
#include "core/index.h"
#include "core/text_table.h"
#include "core/units.h"
#include "profiler/account.h"

namespace barestep {
namespace {

constexpr int kRoundsPerRank = 10;

/// Of the table of collectives.
constexpr std::size_t kMaxRows = 20;

/// How much later than the others the last rank of a round sends: longer than a message takes.
constexpr std::chrono::microseconds kLate{200};

/// The times that a rank sends in a round.
struct Times {
  double sent_s = 0;
  double previous_end_s = 0;  // previous round: when this rank had all messages
};

/// "bucket" of "bucket 1, gathered"; anything that is not counted is a message.
std::string noun_of(const std::string& name) {
  const std::size_t end = name.find(' ');
  const bool is_counted = end != name.npos && std::isdigit(name[end + 1]) != 0;
  return is_counted ? name.substr(0, end) : "message";
}

/// Messages of a step, each by a collective of one kind on one axis.
struct Messages {
  std::string noun;
  std::vector<std::int64_t> bytes;
  bool is_beside_backward = false;
};

/// When the data that a collective reduces were complete: when the work of its own step that it
/// waits for was done. If its numbers are narrowed first, on its own lane, that node waits instead.
/// What only receives is ready when its turn comes.
double ready_time(const StepTimeline& step, const NodeRun& collective) {
  const std::vector<NodeRun>& runs = step.plan->runs();
  const bool waits = !collective.awaited.empty() || !collective.previous ||
                     runs[*collective.previous].is_collective;
  const NodeRun& waiting = waits ? collective : runs[*collective.previous];
  const double start_s = step.spans[step.plan->runs_of(collective.first)[0]].begin_s;
  double ready_s = 0;
  for (const NodeRun::AwaitedPart& awaited : waiting.awaited) {
    const std::size_t run = step.plan->runs_of(awaited.node)[awaited.part];
    if (awaited.steps_back > 0 || runs[run].phase == Phase::kData) continue;
    ready_s = std::max(ready_s, step.spans[run].end_s);
  }
  return ready_s > 0 ? ready_s : start_s;
}

/// Adds one collective of one step: its parts on every rank of a group to `of_collective`, and the
/// time that others waited for each rank to `waited_for_s`.
void add_collective(const std::vector<CommunicatedStep>& ranks, std::span<const std::size_t> group,
                    std::size_t index, CommunicationSummary::OfCollective& of_collective,
                    std::vector<double>& waited_for_s) {
  const std::size_t last = *std::ranges::max_element(
      group, {}, [&](std::size_t rank) { return ranks[rank][index].start_s; });
  const double all_there_s = ranks[last][index].start_s;
  for (const std::size_t rank : group) {
    const CollectiveTimes& times = ranks[rank][index];
    const double border_s = std::clamp(all_there_s, times.held_from_s, times.held_to_s);
    const double exposed_s = times.held_to_s - times.held_from_s;
    const CommunicationParts parts{
        .hidden_s = std::max(0.0, times.end_s - times.start_s - exposed_s),
        .waiting_s = border_s - times.held_from_s,
        .moving_s = times.held_to_s - border_s};
    of_collective.parts += parts;
    of_collective.ready_before_start_s += times.start_s - times.ready_s;
    waited_for_s[last] += parts.waiting_s;
  }
}

using OfCollective = CommunicationSummary::OfCollective;

/// The collectives of a rank in program order, without their times.
std::vector<OfCollective> collectives_of(const Program& program, std::span<const NodeId> nodes) {
  std::vector<OfCollective> named;
  for (const NodeId id : nodes) {
    const Node& node = program.node(id);
    const auto& collective = std::get<Collective>(node.op);
    named.push_back({name_of(collective), axis_of(collective), cost_of(node.op).message_bytes});
  }
  return named;
}

/// The collectives of all ranks by name; ranks of different stages have different ones. A name that
/// a program has several times counts every time.
class CollectivesOfRanks {
 public:
  /// Every rank calls it. Blocks.
  CollectivesOfRanks(Group& ranks, const std::vector<OfCollective>& mine) {
    std::string names;
    std::vector<std::int64_t> numbers;  // axis and bytes, one after the other
    for (const OfCollective& collective : mine) {
      names += collective.name + '\n';
      numbers.insert(numbers.end(), {static_cast<std::int64_t>(collective.axis), collective.bytes});
    }
    const auto names_of = gather_lists(ranks, names);
    const auto numbers_of = gather_lists(ranks, numbers);
    for (std::size_t rank = 0; rank < names_of.size(); ++rank)
      add(names_of[rank], numbers_of[rank]);
  }

  [[nodiscard]] const std::vector<OfCollective>& all() const { return all_; }
  /// Where a rank's collectives are in all().
  [[nodiscard]] const std::vector<std::size_t>& places_of(std::size_t rank) const {
    return places_[rank];
  }
  [[nodiscard]] std::vector<RankGroups> groups(Mesh mesh) const {
    std::vector<std::map<int, std::vector<std::size_t>>> by_first(all_.size());
    for (std::size_t rank = 0; rank < places_.size(); ++rank) {
      mesh.rank = static_cast<int>(rank);
      for (const std::size_t place : places_[rank]) {
        by_first[place][mesh.first_on(all_[place].axis)].push_back(rank);
      }
    }
    std::vector<RankGroups> groups;
    for (const auto& collective : by_first) {
      RankGroups& of_collective = groups.emplace_back();
      for (const auto& [first, ranks] : collective) of_collective.push_back(ranks);
    }
    return groups;
  }

 private:
  void add(std::string_view names, std::span<const std::int64_t> numbers) {
    std::vector<std::size_t>& places = places_.emplace_back();
    std::map<std::string, int> seen;
    for (std::size_t i = 0; i < numbers.size(); i += 2) {
      const std::string name(names.substr(0, names.find('\n')));
      names.remove_prefix(name.size() + 1);
      const auto [place, is_new] = found_.try_emplace({name, seen[name]++}, all_.size());
      if (is_new) all_.push_back({name, static_cast<Axis>(numbers[i]), numbers[i + 1]});
      places.push_back(place->second);
    }
  }

  std::vector<OfCollective> all_;
  std::map<std::pair<std::string, int>, std::size_t> found_;
  std::vector<std::vector<std::size_t>> places_;  // by rank
};

}  // namespace

double ClockAlignment::largest_error_s() const {
  return *std::ranges::max_element(error_s);
}

ClockAlignment align_clocks(Group& ranks, double (*clock)()) {
  const auto size = static_cast<std::size_t>(ranks.size());
  constexpr double kFar = std::numeric_limits<double>::infinity();
  std::vector<double> min(size, -kFar);
  std::vector<double> max(size, kFar);
  std::vector<Times> all(size);
  std::vector<Times> before(size);
  double end_s = 0;
  const int rounds = kRoundsPerRank * ranks.size();
  // One extra round, to exchange the end times of the last one.
  for (int round = 0; round <= rounds; ++round) {
    if (round % ranks.size() == ranks.rank()) std::this_thread::sleep_for(kLate);
    const Times mine{clock(), end_s};
    std::swap(all, before);
    ranks.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
    end_s = clock();
    if (round == 0) continue;
    for (std::size_t rank = 0; rank < size; ++rank) {
      max[rank] = std::min(max[rank], all[0].previous_end_s - before[rank].sent_s);
      min[rank] = std::max(min[rank], before[0].sent_s - all[rank].previous_end_s);
    }
  }
  ClockAlignment result;
  for (std::size_t rank = 0; rank < size; ++rank) {
    const bool is_reference = rank == 0;
    result.shift_s.push_back(is_reference ? 0 : (min[rank] + max[rank]) / 2);
    result.error_s.push_back(is_reference ? 0 : (max[rank] - min[rank]) / 2);
  }
  return result;
}

std::string exchange_text(const StepPrograms& programs) {
  const StepSpec& spec = programs.spec();
  const std::vector<Node>& nodes = programs.train().program.nodes();
  const auto backward = std::find_if(nodes.rbegin(), nodes.rend(), [](const Node& node) {
    return node.phase == Phase::kBackward;
  });
  std::map<std::pair<Axis, std::string_view>, Messages> exchanges;
  for (auto node = nodes.begin(); node != nodes.end(); ++node) {
    const auto* const collective = std::get_if<Collective>(&node->op);
    if (collective == nullptr || name_of(*collective) == "loss") continue;
    Messages& messages = exchanges[{axis_of(*collective), label_of(node->op)}];
    const std::string noun = noun_of(name_of(*collective));
    messages.noun = messages.bytes.empty() || messages.noun == noun ? noun : "message";
    messages.bytes.push_back(cost_of(node->op).message_bytes);
    messages.is_beside_backward |= node < backward.base();
  }
  std::string text;
  for (const auto& [kind, messages] : exchanges) {
    const auto& [axis, label] = kind;
    const auto [least, largest] = std::ranges::minmax(messages.bytes);
    const std::string sizes = least < largest ? human_bytes(least) + " to " : "";
    const char* const each = least == largest && messages.bytes.size() > 1 ? " each" : "";
    text += fmt::format("{}{} of {} ({}{}{})", text.empty() ? "" : ", ", label,
                        counted(std::ssize(messages.bytes), messages.noun), sizes,
                        human_bytes(largest), each);
    if (spec.mesh.cuts_model() && axis != Axis::kAll) {
      text += fmt::format(" by {} {} ranks", spec.mesh.size_of(axis), name_of(axis));
    }
    if (axis == Axis::kTensor || axis == Axis::kPipeline) continue;
    text += spec.update.staleness > 0     ? " beside the next step"
            : messages.is_beside_backward ? " while backward goes on"
                                          : " after backward";
  }
  if (text.empty()) return "nothing but the loss";
  return spec.update.sync_every > 1
             ? fmt::format("{}, every {} steps", text, spec.update.sync_every)
             : text;
}

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

CommunicationSummary summary_of(std::span<const std::vector<CommunicatedStep>> steps,
                                std::span<const RankGroups> groups) {
  CommunicationSummary summary{.steps = static_cast<std::int64_t>(steps.size())};
  if (steps.empty()) return summary;
  const std::size_t ranks = steps.front().size();
  summary.ranks.resize(ranks);
  summary.collectives.resize(steps.front().front().size());
  RankGroups one_group(1, std::vector<std::size_t>(ranks));
  std::iota(one_group.front().begin(), one_group.front().end(), std::size_t{0});
  for (const std::vector<CommunicatedStep>& step : steps) {
    std::vector<double> waited_for_s(ranks);
    for (std::size_t i = 0; i < summary.collectives.size(); ++i) {
      for (const auto& group : groups.empty() ? one_group : groups[i]) {
        add_collective(step, group, i, summary.collectives[i], waited_for_s);
      }
    }
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      summary.ranks[rank].cost_s += waited_for_s[rank];
    }
    const auto longest = std::ranges::max_element(waited_for_s);
    if (*longest > 0) {
      ++at(summary.ranks, longest - waited_for_s.begin()).steps_waited_for;
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
  text += "\n" + by_collective();
  if (ranks.size() == 1) return text;
  text += "\n" + by_axis();
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    Mesh place = mesh;
    place.rank = static_cast<int>(rank);
    text += fmt::format("Waited for {}: longest in {} of {}, {} ms a step\n", place.text(),
                        ranks[rank].steps_waited_for, counted(steps, "step"),
                        milliseconds(ranks[rank].cost_s));
  }
  return text +
         fmt::format("The ranks' clocks are aligned within {:.1f} us\n", 1e6 * clock_error_s);
}

std::string CommunicationSummary::by_collective() const {
  std::string text;
  std::vector<OfCollective> shown = collectives;
  if (shown.size() > kMaxRows) {
    const auto exposed_s = [](const OfCollective& collective) {
      return collective.parts.waiting_s + collective.parts.moving_s;
    };
    std::ranges::stable_sort(shown, std::greater(), exposed_s);
    shown.resize(kMaxRows);
    text = fmt::format("The {} of {} that were exposed longest; --trace has all\n", kMaxRows,
                       counted(std::ssize(collectives), "collective"));
  }
  TextTable table({"Collective", ">Size", ">Queued (ms)", ">Hidden", ">Waiting", ">Moving"});
  for (const OfCollective& collective : shown) {
    table.add_row(
        {collective.name, human_bytes(collective.bytes),
         milliseconds(collective.ready_before_start_s), milliseconds(collective.parts.hidden_s),
         milliseconds(collective.parts.waiting_s), milliseconds(collective.parts.moving_s)});
  }
  return text + table.text();
}

std::string CommunicationSummary::by_axis() const {
  if (!mesh.cuts_model()) return "";
  struct Sum {
    std::int64_t count = 0, bytes = 0;
    CommunicationParts parts{};
  };
  EnumArray<Axis, Sum> sums{};
  for (const OfCollective& collective : collectives) {
    Sum& sum = sums[collective.axis];
    ++sum.count;
    sum.bytes += collective.bytes;
    sum.parts += collective.parts;
  }
  TextTable table({"Axis of the mesh", ">Messages", ">Size", ">Hidden", ">Waiting", ">Moving"});
  for (const Axis axis : kValuesOf<Axis>) {
    const auto& [count, bytes, times] = sums[axis];
    if (count == 0) continue;
    table.add_row({std::string(name_of(axis)), std::to_string(count), human_bytes(bytes),
                   milliseconds(times.hidden_s), milliseconds(times.waiting_s),
                   milliseconds(times.moving_s)});
  }
  return table.text() + "\n";
}

CommunicationAccount::CommunicationAccount(const StepPrograms& programs, std::int64_t steps)
    : programs_(programs), mesh_(programs.spec().mesh) {
  follow(programs.train().program);
  times_.resize(static_cast<std::size_t>(std::min(steps, kMaxSteps)) * collectives_.size());
}

void CommunicationAccount::follow(const Program& program) {
  program_ = &program;
  collectives_.clear();
  for (NodeId id = 0; id < program.size(); ++id) {
    if (std::holds_alternative<Collective>(program.node(id).op)) collectives_.push_back(id);
  }
}

void CommunicationAccount::add(const StepReport& report) {
  if (const Program& train = programs_.train().program; &train != program_) follow(train);
  const Timeline& timeline = *report.timeline;
  const StepTimeline& step = *timeline.at(0);
  const std::size_t count = collectives_.size();
  const bool follows = steps_ > 0 && last_step_ + 1 == step.step;
  const bool is_counted =
      !report.warmup && &step.plan->program() == program_ && (steps_ + 1) * count <= times_.size();
  if (is_counted) {
    keep(step);
    last_step_ = step.step;
    ++steps_;
  }
  // Communication that a step leaves unfinished holds up the next step.
  visit_stretches(timeline, kMainLane, [&](const CauseSpan& stretch) {
    if (!stretch.held_by || stretch.is_own_work) return;
    const int back = stretch.held_by->steps_back;
    const bool is_kept = back == 0 ? is_counted : back == 1 && follows;
    const NodeRun& run = timeline.at(back)->plan->runs()[stretch.held_by->run];
    if (!is_kept || !run.is_collective) return;
    const std::size_t place = steps_ - 1 - (back == 1 && is_counted ? 1 : 0);
    CollectiveTimes& times = times_[place * count + place_of(run)];
    if (times.held_from_s == times.held_to_s) times.held_from_s = stretch.begin_s;
    times.held_to_s = stretch.end_s;
  });
}

void CommunicationAccount::keep(const StepTimeline& step) {
  error_s_ = std::max(error_s_, step.clock_error_s);
  const auto times = std::span(times_).subspan(steps_ * collectives_.size(), collectives_.size());
  for (std::size_t i = 0; i < step.spans.size(); ++i) {
    const NodeRun& run = step.plan->runs()[i];
    if (!run.is_collective) continue;
    const Span& span = step.spans[i];
    times[place_of(run)] = {.ready_s = ready_time(step, run),
                            .start_s = span.begin_s,
                            .end_s = span.end_s,
                            .held_from_s = span.end_s,
                            .held_to_s = span.end_s};
  }
}

std::size_t CommunicationAccount::place_of(const NodeRun& collective) const {
  const auto found = std::ranges::lower_bound(collectives_, collective.first);
  return static_cast<std::size_t>(found - collectives_.begin());
}

CommunicationSummary CommunicationAccount::gather(Group& ranks) const {
  const ClockAlignment clocks = align_clocks(ranks, &now_s);
  const std::vector<double> errors_s = gather_values(ranks, error_s_);
  // A run that ends early may end between two ranks' reports of the same step.
  const std::size_t steps = std::ranges::min(gather_values(ranks, steps_));
  const std::size_t own_count = collectives_.size();
  const CollectivesOfRanks collectives(ranks, collectives_of(*program_, collectives_));
  const auto mine = std::span(times_).first(steps * own_count);
  const auto times = gather_lists(ranks, std::vector<CollectiveTimes>(mine.begin(), mine.end()));

  std::vector<std::vector<CommunicatedStep>> all(
      steps,
      std::vector<CommunicatedStep>(times.size(), CommunicatedStep(collectives.all().size())));
  for (std::size_t rank = 0; rank < times.size(); ++rank) {
    const std::vector<std::size_t>& places = collectives.places_of(rank);
    for (std::size_t i = 0; i < steps * places.size(); ++i) {
      CollectiveTimes shifted = times[rank][i];
      for (double* const at : {&shifted.ready_s, &shifted.start_s, &shifted.end_s,
                               &shifted.held_from_s, &shifted.held_to_s}) {
        *at += clocks.shift_s[rank];
      }
      all[i / places.size()][rank][places[i % places.size()]] = shifted;
    }
  }
  CommunicationSummary summary = summary_of(all, collectives.groups(mesh_));
  summary.mesh = mesh_;
  summary.clock_error_s = clocks.largest_error_s() + *std::ranges::max_element(errors_s);
  for (std::size_t i = 0; i < summary.collectives.size(); ++i) {
    const OfCollective& named = collectives.all()[i];
    summary.collectives[i].name = named.name;
    summary.collectives[i].axis = named.axis;
    summary.collectives[i].bytes = named.bytes;
  }
  return summary;
}

}  // namespace barestep
