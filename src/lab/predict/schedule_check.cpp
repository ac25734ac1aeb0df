#include "lab/predict/schedule_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "core/error.h"
#include "core/index.h"
#include "core/json_document.h"
#include "core/text_table.h"
#include "core/units.h"
#include "session/run_program.h"

namespace barestep {
namespace {

using Direction = ScheduledPass::Direction;

constexpr std::string_view kLetters = "FBW";
constexpr int kMaxStages = 1024;
constexpr int kMaxMicroBatches = 65536;
constexpr std::int64_t kMaxFileBytes = 64 << 20;

std::string name_of_pass(const ScheduledPass& pass) {
  return fmt::format("{}{}", kLetters[static_cast<std::size_t>(pass.direction)], pass.micro_step);
}

/// "F0" as a pass of a stage; nothing if it is none.
std::optional<ScheduledPass> pass_of(std::string_view text, int stage) {
  if (text.size() < 2 || text.size() > 6) return std::nullopt;
  const std::size_t letter = kLetters.find(text.front());
  const std::string_view digits = text.substr(1);
  if (letter == std::string_view::npos ||
      digits.find_first_not_of("0123456789") != std::string_view::npos) {
    return std::nullopt;
  }
  return ScheduledPass{static_cast<Direction>(letter), std::stoi(std::string(digits)), stage};
}

/// The pass of a message, such as "send F0" for the verb "send "; passes for weights have none.
std::optional<ScheduledPass> message_of(std::string_view text, std::string_view verb, int stage) {
  if (!text.starts_with(verb)) return std::nullopt;
  const std::optional<ScheduledPass> pass = pass_of(text.substr(verb.size()), stage);
  return pass && pass->direction != Direction::kWeights ? pass : std::nullopt;
}

/// "F0", "send B1", "receive F2" or "send F1, receive B0".
ScheduleEntry entry_of(const JsonValue& value, int stage, int micro_batches) {
  const std::string text = value.text();
  const std::string_view whole = text;
  const std::size_t comma = whole.find(", ");
  ScheduleEntry entry{.text = text, .pass = pass_of(whole, stage)};
  if (comma != std::string_view::npos) {
    entry.sends = message_of(whole.substr(0, comma), "send ", stage);
    entry.receives = message_of(whole.substr(comma + 2), "receive ", stage);
  } else if (!entry.pass) {
    entry.sends = message_of(whole, "send ", stage);
    entry.receives = message_of(whole, "receive ", stage);
  }
  const bool has_both = entry.sends && entry.receives;
  const bool fits =
      comma != std::string_view::npos ? has_both : entry.pass || entry.sends || entry.receives;
  if (!fits) {
    value.refuse(
        R"(is not a pass ("F0", "B0", "W0"), "send F0", "receive B0", or both with a comma)");
  }
  for (const auto& pass : {entry.pass, entry.sends, entry.receives}) {
    if (!pass || pass->micro_step < micro_batches) continue;
    value.refuse(fmt::format("is of micro-batch {}, but the last one is {}", pass->micro_step,
                             micro_batches - 1));
  }
  return entry;
}

PassTimes times_of(const JsonValue& root) {
  PassTimes times;
  if (!root.has("times")) return times;
  const JsonValue given = root.at("times");
  const auto read = [&](const char* key, double& to, double least) {
    if (given.has(key)) to = given.at(key).number(least, 1e9);
  };
  read("forward", times.forward, 1e-9);
  read("backward", times.backward, 1e-9);
  read("weights", times.weights, 1e-9);
  read("message", times.message, 0);
  return times;
}

}  // namespace

bool WrittenSchedule::has_messages() const {
  return std::ranges::any_of(stages, [](const auto& list) {
    return std::ranges::any_of(list, [](const ScheduleEntry& entry) { return !entry.pass; });
  });
}

WrittenSchedule read_schedule(const std::filesystem::path& file) {
  const JsonDocument document(file, kMaxFileBytes, "schedule",
                              "mlp_lab check-schedule --write 1f1b shows the form");
  const JsonValue root = document.root();
  WrittenSchedule schedule{
      .micro_batches = static_cast<int>(root.at("micro_batches").whole(1, kMaxMicroBatches)),
      .times = times_of(root)};
  const std::vector<JsonValue> lists = root.at("stages").items();
  if (lists.empty() || lists.size() > kMaxStages) {
    root.at("stages").refuse(fmt::format("must have 1 to {} lists", kMaxStages));
  }
  for (const JsonValue& list : lists) {
    const int stage = static_cast<int>(schedule.stages.size());
    std::vector<ScheduleEntry>& entries = schedule.stages.emplace_back();
    for (const JsonValue& value : list.items()) {
      entries.push_back(entry_of(value, stage, schedule.micro_batches));
    }
  }
  document.require_known();
  return schedule;
}

namespace {

ScheduleEntry entry_of(const ScheduledPass& pass) {
  return {.text = name_of_pass(pass), .pass = pass};
}

ScheduleEntry entry_of(const StageExchange& exchange) {
  std::string text;
  if (exchange.sends) text = "send " + name_of_pass(*exchange.sends);
  if (exchange.receives) {
    text += (text.empty() ? "receive " : ", receive ") + name_of_pass(*exchange.receives);
  }
  return {.text = text, .sends = exchange.sends, .receives = exchange.receives};
}

}  // namespace

WrittenSchedule built_in_schedule(const PipelineSpec& pipeline, const PassTimes& times,
                                  bool exchanges) {
  const std::vector<PassSchedule> lists = schedules_of_stages(pipeline);
  WrittenSchedule written{.micro_batches = pipeline.micro_batches, .times = times};
  for (int stage = 0; stage < pipeline.stages; ++stage) {
    std::vector<ScheduleEntry>& entries = written.stages.emplace_back();
    // Exchanges are between the passes that read or leave something.
    const auto between = exchanges_of_stage(lists, stage);
    std::size_t place = 0;
    const auto add_exchanges = [&] {
      if (!exchanges) return;
      for (const StageExchange& exchange : between[place]) entries.push_back(entry_of(exchange));
    };
    add_exchanges();
    for (const ScheduledPass& pass : at(lists, stage)) {
      entries.push_back(entry_of(pass));
      if (pass.direction == Direction::kWeights) continue;
      ++place;
      add_exchanges();
    }
  }
  return written;
}

std::string schedule_json(const PipelineSpec& pipeline) {
  const WrittenSchedule written = built_in_schedule(pipeline, {}, true);
  std::string text = fmt::format("{{\"micro_batches\": {},\n \"stages\": [", written.micro_batches);
  for (const auto& list : written.stages) {
    nlohmann::json entries = nlohmann::json::array();
    for (const ScheduleEntry& entry : list) entries.push_back(entry.text);
    text += fmt::format("{}\n  {}", &list == &written.stages.front() ? "" : ",", entries.dump());
  }
  return text + "\n ]}\n";
}

namespace {

/// Runs a schedule.
class Examination {
 public:
  explicit Examination(const WrittenSchedule& schedule)
      : schedule_(schedule),
        stages_(static_cast<int>(schedule.stages.size())),
        has_messages_(schedule.has_messages()),
        passes_(schedule.stages.size()),
        exchanges_(schedule.stages.size()),
        splits_(schedule.stages.size()) {
    for (int stage = 0; stage < stages_; ++stage) {
      for (const ScheduleEntry& entry : list(stage)) {
        at(entry.pass ? passes_ : exchanges_, stage).entries.push_back(&entry);
      }
    }
    found_.timeline.resize(schedule.stages.size());
    found_.stuck.resize(schedule.stages.size());
    found_.kept.resize(schedule.stages.size());
  }

  ScheduleFindings run() {
    for (int stage = 0; stage < stages_; ++stage) check_list(stage);
    // Without the passes that belong there, what follows would only repeat it.
    if (!found_.faults.empty()) return std::move(found_);
    for (bool advances = true; advances;) {
      advances = false;
      for (int stage = 0; stage < stages_; ++stage) {
        while (run_pass(stage) || exchange(stage)) advances = true;
      }
    }
    note_stuck();
    for (const Queue& queue : passes_) found_.step = std::max(found_.step, queue.clock);
    const PassTimes& times = schedule_.times;
    const double work = schedule_.micro_batches * (times.forward + times.backward + times.weights);
    found_.waits = found_.step > 0 ? 1 - work / found_.step : 0;
    check_order();
    return std::move(found_);
  }

 private:
  void add_fault(int stage, const std::string& why) {
    found_.faults.push_back(fmt::format("stage {}: {}", stage, why));
  }

  [[nodiscard]] const std::vector<ScheduleEntry>& list(int stage) const {
    return at(schedule_.stages, stage);
  }

  /// Entries of a stage that run one after the other.
  struct Queue {
    std::vector<const ScheduleEntry*> entries{};
    std::size_t next = 0;
    double clock = 0;  // the end of those that have run

    [[nodiscard]] const ScheduleEntry* current() const {
      return next < entries.size() ? entries[next] : nullptr;
    }
    void advance(double end) {
      ++next;
      clock = end;
    }
  };

  /// Every pass and every message once, and each pass after what it needs in its own list.
  void check_list(int stage) {
    std::map<std::string, int> counts;
    std::vector<std::array<bool, 3>> done(static_cast<std::size_t>(schedule_.micro_batches));
    std::map<std::string, bool> arrived;
    for (const ScheduleEntry& entry : list(stage)) {
      if (entry.pass) {
        check_pass(stage, *entry.pass, done, arrived);
        ++counts[entry.text];
      }
      if (entry.sends) {
        ++counts["send " + name_of_pass(*entry.sends)];
        check_send(stage, *entry.sends, done);
      }
      if (entry.receives) {
        ++counts["receive " + name_of_pass(*entry.receives)];
        arrived[name_of_pass(*entry.receives)] = true;
        if (!source_of(*entry.receives, stages_)) {
          add_fault(stage, fmt::format("'receive {}' has no stage to receive from",
                                       name_of_pass(*entry.receives)));
        }
      }
    }
    at(splits_, stage) =
        std::ranges::any_of(counts, [](const auto& each) { return each.first.front() == 'W'; }) ? 1
                                                                                                : 0;
    count_all(stage, counts);
  }

  void check_pass(int stage, const ScheduledPass& pass, std::vector<std::array<bool, 3>>& done,
                  const std::map<std::string, bool>& arrived) {
    auto& of_batch = at(done, pass.micro_step);
    const auto kind = static_cast<std::size_t>(pass.direction);
    if (kind > 0 && !of_batch[kind - 1]) {
      add_fault(stage, fmt::format("{} runs before {}{}", name_of_pass(pass), kLetters[kind - 1],
                                   pass.micro_step));
    }
    of_batch[kind] = true;
    if (has_messages_ && source_of(pass, stages_) && !arrived.contains(name_of_pass(pass))) {
      add_fault(stage,
                fmt::format("{} reads what has not been received; 'receive {}' must come first",
                            name_of_pass(pass), name_of_pass(pass)));
    }
  }

  void check_send(int stage, const ScheduledPass& pass,
                  const std::vector<std::array<bool, 3>>& done) {
    if (!reader_of(pass, stages_)) {
      add_fault(stage, fmt::format("'send {}' has no stage to send to", name_of_pass(pass)));
    } else if (!at(done, pass.micro_step)[static_cast<std::size_t>(pass.direction)]) {
      add_fault(stage, fmt::format("'send {}' sends what {} has not computed yet",
                                   name_of_pass(pass), name_of_pass(pass)));
    }
  }

  void count_all(int stage, const std::map<std::string, int>& counts) {
    const auto expect = [&](const std::string& what) {
      const auto found = counts.find(what);
      if (found == counts.end()) add_fault(stage, fmt::format("'{}' is missing", what));
      if (found != counts.end() && found->second > 1) {
        add_fault(stage, fmt::format("'{}' is there {} times", what, found->second));
      }
    };
    for (int number = 0; number < schedule_.micro_batches; ++number) {
      for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
        const ScheduledPass pass{direction, number, stage};
        expect(name_of_pass(pass));
        if (!has_messages_) continue;
        if (source_of(pass, stages_)) expect("receive " + name_of_pass(pass));
        if (reader_of(pass, stages_)) expect("send " + name_of_pass(pass));
      }
      if (at(splits_, stage) > 0) expect(fmt::format("W{}", number));
    }
  }

  /// Runs the stage's next pass if what it reads is there.
  bool run_pass(int stage) {
    Queue& queue = at(passes_, stage);
    const ScheduleEntry* const entry = queue.current();
    if (entry == nullptr) return false;
    const ScheduledPass& pass = *entry->pass;
    double begin = queue.clock;
    if (const auto source = source_of(pass, stages_)) {
      const auto arrival = arrivals_.find(key_of(pass));
      const auto end = ends_.find(key_of(*source));
      if (has_messages_ ? arrival == arrivals_.end() : end == ends_.end()) return false;
      begin =
          std::max(begin, has_messages_ ? arrival->second : end->second + schedule_.times.message);
    }
    const double end = begin + seconds(pass);
    ends_[key_of(pass)] = end;
    keep(stage, pass);
    at(found_.timeline, stage).push_back({entry, begin, end});
    queue.advance(end);
    return true;
  }

  [[nodiscard]] double seconds(const ScheduledPass& pass) const {
    const PassTimes& times = schedule_.times;
    switch (pass.direction) {
      case Direction::kForward:
        return times.forward;
      case Direction::kBackward:
        return times.backward + (at(splits_, pass.stage) > 0 ? 0 : times.weights);
      case Direction::kWeights:
        return times.weights;
    }
    return 0;
  }

  void keep(int stage, const ScheduledPass& pass) {
    int& kept = kept_[stage];
    if (pass.direction == Direction::kForward) {
      at(found_.kept, stage) = std::max(at(found_.kept, stage), ++kept);
    } else if ((pass.direction == Direction::kWeights) == (at(splits_, stage) > 0)) {
      --kept;
    }
  }

  /// The parts of an exchange, each by the pass that reads the message: what is sent, and what is
  /// received.
  [[nodiscard]] std::array<std::optional<ScheduledPass>, 2> parts_of(
      const ScheduleEntry& entry) const {
    return {entry.sends ? reader_of(*entry.sends, stages_) : std::nullopt, entry.receives};
  }

  /// Begins the stage's next exchange if what it sends is there. It ends when both of its parts
  /// have met their counterparts.
  bool exchange(int stage) {
    Queue& queue = at(exchanges_, stage);
    const ScheduleEntry* const entry = queue.current();
    if (entry == nullptr || !has_begun(*entry)) return false;
    double begin = queue.clock;
    if (entry->sends) begin = std::max(begin, ends_.at(key_of(*entry->sends)));
    const auto parts = parts_of(*entry);
    bool has_met = true;
    double end = begin;
    for (std::size_t side = 0; side < parts.size(); ++side) {
      if (!parts[side]) continue;
      Meeting& meeting = meetings_[key_of(*parts[side])];
      if (!meeting[side]) meeting[side] = begin;
      has_met &= has_both(meeting);
      end = std::max(
          end, std::max(meeting[0].value_or(0), meeting[1].value_or(0)) + schedule_.times.message);
    }
    if (!has_met) return false;
    if (entry->receives) arrivals_[key_of(*entry->receives)] = end;
    queue.advance(end);
    return true;
  }

  /// Whether what an exchange sends is there.
  [[nodiscard]] bool has_begun(const ScheduleEntry& exchange) const {
    return !exchange.sends || ends_.contains(key_of(*exchange.sends));
  }

  /// Where a stage stands: at an exchange that does not end, or at a pass.
  [[nodiscard]] const ScheduleEntry* current(int stage) const {
    const ScheduleEntry* const exchange = at(exchanges_, stage).current();
    return exchange != nullptr && has_begun(*exchange) ? exchange : at(passes_, stage).current();
  }

  void note_stuck() {
    for (int stage = 0; stage < stages_; ++stage) {
      const ScheduleEntry* const entry = current(stage);
      at(found_.stuck, stage) = entry;
      if (entry == nullptr) continue;
      const int peer = awaited_by(*entry);
      const ScheduleEntry* const there = current(peer);
      add_fault(stage, fmt::format("'{}' waits forever for stage {}, which {}", entry->text, peer,
                                   there == nullptr ? "has ended"
                                                    : fmt::format("is at '{}'", there->text)));
    }
  }

  /// The stage that a stuck entry waits for.
  [[nodiscard]] int awaited_by(const ScheduleEntry& entry) {
    if (entry.pass) return source_of(*entry.pass, stages_)->stage;
    const auto [sent, received] = parts_of(entry);
    if (sent && !has_both(meetings_[key_of(*sent)])) return sent->stage;
    return source_of(*received, stages_)->stage;
  }

  /// Gradients of weights add up in the order of --accumulate only if theirs is that of the
  /// micro-batches.
  void check_order() {
    for (int stage = 0; stage < stages_; ++stage) {
      const Direction adds = at(splits_, stage) > 0 ? Direction::kWeights : Direction::kBackward;
      int expected = 0;
      for (const ScheduleEntry& entry : list(stage)) {
        if (!entry.pass || entry.pass->direction != adds) continue;
        if (entry.pass->micro_step == expected++) continue;
        found_.other_order =
            fmt::format("stage {} adds the gradients of {} where micro-batch {} would be next",
                        stage, entry.text, expected - 1);
        return;
      }
    }
  }

  using Key = std::tuple<Direction, int, int>;
  static Key key_of(const ScheduledPass& pass) {
    return {pass.direction, pass.micro_step, pass.stage};
  }
  /// When the sender and the receiver of a message arrived.
  using Meeting = std::array<std::optional<double>, 2>;
  static bool has_both(const Meeting& meeting) { return meeting[0] && meeting[1]; }

  const WrittenSchedule& schedule_;
  int stages_;
  bool has_messages_;
  std::vector<Queue> passes_, exchanges_;  // of each stage
  std::vector<int> splits_;                // whether a stage has passes for weights
  std::map<int, int> kept_;                // now, of each stage
  std::map<Key, double> ends_;             // of passes
  std::map<Key, double> arrivals_;         // of what a pass reads
  std::map<Key, Meeting> meetings_;        // by the pass that reads the message
  ScheduleFindings found_;
};

}  // namespace

ScheduleFindings examine(const WrittenSchedule& schedule) {
  return Examination(schedule).run();
}

namespace {

constexpr double kMaxColumns = 160;

/// A row for each stage: passes by their names, as long as they take; "." where it waits.
std::string timeline_text(const WrittenSchedule& schedule, const ScheduleFindings& findings) {
  const PassTimes& times = schedule.times;
  double end = 0;
  for (const auto& row : findings.timeline) {
    if (!row.empty()) end = std::max(end, row.back().end);
  }
  // A column is a fraction of the shortest pass that leaves room for its name.
  const std::string longest = fmt::format("F{}", schedule.micro_batches - 1);
  const double shortest = std::min({times.forward, times.backward, times.weights});
  double columns = (static_cast<double>(longest.size()) + 1) / shortest;
  if (end * columns > kMaxColumns) columns = kMaxColumns / end;
  std::string text;
  for (std::size_t stage = 0; stage < findings.timeline.size(); ++stage) {
    std::string row;
    for (const PlacedEntry& placed : findings.timeline[stage]) {
      if (!placed.entry->pass) continue;
      const auto begin = static_cast<std::size_t>(std::lround(placed.begin * columns));
      const auto after = static_cast<std::size_t>(std::lround(placed.end * columns));
      row.resize(std::max(row.size(), begin), '.');
      std::string name = placed.entry->text.substr(0, std::max<std::size_t>(after - begin, 1));
      name.resize(std::max<std::size_t>(after - begin, name.size()), ' ');
      row += name;
    }
    if (const ScheduleEntry* const entry = at(findings.stuck, static_cast<int>(stage))) {
      row += fmt::format("| {}: waits forever", entry->text);
    }
    text += fmt::format("stage {} {}\n", stage, row);
  }
  return text;
}

/// The step and the memory of this schedule and of the built-in ones.
std::string comparison_text(const WrittenSchedule& schedule, const ScheduleFindings& findings) {
  TextTable table({{"Schedule", Align::kLeft},
                   {"Step", Align::kRight},
                   {"Stages wait", Align::kRight},
                   {"Micro-batches kept, by stage", Align::kLeft}});
  const auto add = [&](const std::string& name, const ScheduleFindings& of) {
    table.add_row({name, fmt::format("{:.6g}", of.step), percent_text(of.waits),
                   fmt::format("{}", fmt::join(of.kept, " "))});
  };
  add("this one", findings);
  for (const PipelineSchedule kind : kValuesOf<PipelineSchedule>) {
    const WrittenSchedule other =
        built_in_schedule({.stages = static_cast<int>(schedule.stages.size()),
                           .micro_batches = schedule.micro_batches,
                           .schedule = kind},
                          schedule.times, schedule.has_messages());
    add(std::string(name_of(kind)), examine(other));
  }
  return table.text();
}

}  // namespace

std::string text_of(const WrittenSchedule& schedule, const ScheduleFindings& findings) {
  const int stages = static_cast<int>(schedule.stages.size());
  std::string text = fmt::format("{} of {}{}\n\n", counted(stages, "stage"),
                                 counted(schedule.micro_batches, "micro-batch"),
                                 schedule.has_messages() ? "" : ", messages travel by themselves");
  for (const std::string& fault : findings.faults) text += fault + "\n";
  if (findings.faults.empty())
    text += "No stage waits forever, and none reads what is not there.\n";
  if (findings.timeline.front().empty() && !findings.faults.empty()) return text;
  text += "\n" + timeline_text(schedule, findings);
  if (!findings.faults.empty()) return text;
  const PassTimes& times = schedule.times;
  text += "\n" + comparison_text(schedule, findings);
  const double least = schedule.micro_batches * (times.forward + times.backward + times.weights) +
                       (stages - 1) * times.forward;
  constexpr double kRounding = 1e-9;
  text += fmt::format(
      "\nNo schedule of one step takes less than {:.6g}: the last stage begins after {} forward "
      "passes (calculated).{}\n",
      least, stages - 1,
      findings.step <= least * (1 + kRounding) ? " This one takes no longer." : "");
  text += findings.other_order.empty()
              ? fmt::format("Gradients add up as with --accumulate {}, to the bit.\n",
                            schedule.micro_batches)
              : fmt::format("Gradients do not have the bits of --accumulate {}: {}.\n",
                            schedule.micro_batches, findings.other_order);
  return text;
}

void check_schedule_file(const std::filesystem::path& file) {
  const WrittenSchedule schedule = read_schedule(file);
  const ScheduleFindings findings = examine(schedule);
  print_now(text_of(schedule, findings));
  if (findings.faults.empty()) return;
  fail(ExitCode::kBadData,
       {.what = "schedule",
        .value = file.string(),
        .why = fmt::format("{}, the first: {}", counted(std::ssize(findings.faults), "fault"),
                           findings.faults.front()),
        .remedy = "the output shows where stages stand"});
}

}  // namespace barestep
