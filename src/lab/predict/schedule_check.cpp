#include "lab/predict/schedule_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <map>
#include <utility>

#include "core/error.h"
#include "core/index.h"
#include "core/json_document.h"
#include "core/rank_checker.h"
#include "core/text_table.h"
#include "core/units.h"
#include "lab/predict/simulator.h"
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

/// "F0", "send B1", "receive F2" or "send F1, receive B0"; passes for weights have no messages.
std::optional<ScheduleEntry> entry_of(const std::string& text, int stage) {
  const auto message = [&](std::string_view part, std::string_view verb) {
    auto pass = part.starts_with(verb) ? pass_of(part.substr(verb.size()), stage) : std::nullopt;
    return pass && pass->direction != Direction::kWeights ? pass : std::nullopt;
  };
  const std::string_view whole = text;
  const std::size_t comma = whole.find(", ");
  ScheduleEntry entry{.text = text, .pass = pass_of(whole, stage)};
  if (entry.pass) return entry;
  entry.sends = message(whole.substr(0, comma), "send ");
  entry.receives = message(comma == whole.npos ? whole : whole.substr(comma + 2), "receive ");
  const bool fits =
      comma == whole.npos ? entry.sends || entry.receives : entry.sends && entry.receives;
  return fits ? std::optional(entry) : std::nullopt;
}

ScheduleEntry entry_of(const JsonValue& value, int stage, int micro_batches) {
  const std::optional<ScheduleEntry> entry = entry_of(value.text(), stage);
  if (!entry) {
    value.refuse(
        R"(is not a pass ("F0", "B0", "W0"), "send F0", "receive B0", or both with a comma)");
  }
  for (const auto& pass : {entry->pass, entry->sends, entry->receives}) {
    if (!pass || pass->micro_step < micro_batches) continue;
    value.refuse(fmt::format("is of micro-batch {}, but the last one is {}", pass->micro_step,
                             micro_batches - 1));
  }
  return *entry;
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

/// Turns a schedule's lists into programs of ranks, and runs these up to where stages are stuck. A
/// pass is a pause of its length and waits for what it reads; an exchange waits for the one before
/// it, and for the pass whose result it sends. Results of each direction are sent and received on
/// lanes of their own, so those that travel by themselves hold up nothing else.
class Examination {
 public:
  explicit Examination(const WrittenSchedule& schedule)
      : schedule_(schedule),
        stage_count_(static_cast<int>(schedule.stages.size())),
        has_messages_(schedule.has_messages()) {
    for (const int direction : {0, 1}) {
      messages_.push_back(
          buffers_.tensor("message", Category::kCommunication, 1, 1, DType::kF32, direction));
    }
    for (const std::vector<ScheduleEntry>& list : schedule.stages) build(list);
  }

  ScheduleFindings run() {
    std::vector<RankProgram> ranks;
    for (const Stage& stage : stages_) {
      ranks.push_back({stage.program, {.pipeline = stage_count_, .rank = stage.number}});
    }
    spans_ = spans_until_stuck(ranks, [&](const Program&, const Node& node) {
      const auto* const pass = op_if<Delay>(node.op);
      return pass == nullptr ? schedule_.times.message : pass->seconds;
    });
    // Where something is missing, what waits for it would only repeat that.
    if (found_.faults.empty() && !check_ranks(ranks).empty()) note_stuck();
    for (const Stage& stage : stages_) {
      place(stage);
      const std::optional<std::size_t> entry = current(stage);
      found_.stuck.emplace_back();
      if (!entry) continue;
      found_.stuck.back() =
          stage.list[*entry].text +
          (*entry < stage.nodes.size() ? ": waits forever" : ": does not belong here");
    }
    const PassTimes& times = schedule_.times;
    const double work = schedule_.micro_batches * (times.forward + times.backward + times.weights);
    found_.waits = found_.step > 0 ? 1 - work / found_.step : 0;
    return std::move(found_);
  }

 private:
  struct Stage {
    int number = 0;
    const std::vector<ScheduleEntry>& list;
    Program program;
    Direction last = Direction::kBackward;   // the passes that compute gradients of weights
    std::vector<std::vector<Wait>> nodes{};  // of each entry, up to one that is out of place
    std::map<std::string, std::vector<Wait>> done{};  // "F0", "receive F0"
    std::vector<Wait> exchange{};                     // the last one
  };

  void add_fault(const Stage& stage, const std::string& why) {
    found_.faults.push_back(fmt::format("stage {}: {}", stage.number, why));
  }

  void build(const std::vector<ScheduleEntry>& list) {
    const auto number = static_cast<int>(stages_.size());
    Stage& stage = stages_.emplace_back(
        Stage{.number = number, .list = list, .program = Program("stage", buffers_)});
    const bool splits = std::ranges::any_of(list, [](const ScheduleEntry& entry) {
      return entry.pass && entry.pass->direction == Direction::kWeights;
    });
    if (splits) stage.last = Direction::kWeights;
    // Results that travel by themselves arrive in the order in which they are computed.
    for (const int sender : {number - 1, number + 1}) {
      if (has_messages_ || sender < 0 || sender == stage_count_) continue;
      for (const ScheduleEntry& entry : at(schedule_.stages, sender)) {
        const auto reader = reader_of(*entry.pass, stage_count_);
        if (reader && reader->stage == number) await(stage, *reader);
      }
    }
    for (const ScheduleEntry& entry : list) {
      if (const std::string fault = fault_of(stage, entry); !fault.empty()) {
        add_fault(stage, fault);
        break;
      }
      stage.nodes.push_back(entry.pass ? add_pass(stage, *entry.pass) : add_exchange(stage, entry));
    }
    count_all(stage);
    check_order(stage);
  }

  /// Why an entry cannot run here; empty if it can.
  [[nodiscard]] std::string fault_of(const Stage& stage, const ScheduleEntry& entry) const {
    const auto& [text, pass, sends, receives] = entry;
    const auto lacks = [&](const std::string& what) { return !stage.done.contains(what); };
    if (pass && pass->direction != Direction::kForward) {
      const auto before = static_cast<Direction>(static_cast<int>(pass->direction) - 1);
      const std::string needed = name_of_pass({before, pass->micro_step, stage.number});
      if (lacks(needed)) return fmt::format("{} runs before {}", text, needed);
    }
    if (pass && has_messages_ && source_of(*pass, stage_count_) && lacks("receive " + text)) {
      return fmt::format("{0} reads what has not been received; 'receive {0}' must come first",
                         text);
    }
    if (sends && !reader_of(*sends, stage_count_)) {
      return fmt::format("'send {}' has no stage to send to", name_of_pass(*sends));
    }
    if (sends && lacks(name_of_pass(*sends))) {
      return fmt::format("'send {0}' sends what {0} has not computed yet", name_of_pass(*sends));
    }
    if (receives && !source_of(*receives, stage_count_)) {
      return fmt::format("'receive {}' has no stage to receive from", name_of_pass(*receives));
    }
    return "";
  }

  /// Every pass and every message must be there once.
  void count_all(const Stage& stage) {
    std::map<std::string, int> counts;
    for (const auto& [text, pass, sends, receives] : stage.list) {
      if (pass) ++counts[text];
      if (sends) ++counts["send " + name_of_pass(*sends)];
      if (receives) ++counts["receive " + name_of_pass(*receives)];
    }
    const auto expect = [&](const std::string& what) {
      const int count = counts[what];
      if (count == 0) add_fault(stage, fmt::format("'{}' is missing", what));
      if (count > 1) add_fault(stage, fmt::format("'{}' is there {} times", what, count));
    };
    for (int number = 0; number < schedule_.micro_batches; ++number) {
      for (int direction = 0; direction <= static_cast<int>(stage.last); ++direction) {
        const ScheduledPass pass{static_cast<Direction>(direction), number, stage.number};
        const std::string name = name_of_pass(pass);
        expect(name);
        if (has_messages_ && source_of(pass, stage_count_)) expect("receive " + name);
        if (has_messages_ && reader_of(pass, stage_count_)) expect("send " + name);
      }
    }
  }

  /// Gradients of weights add up in the order of --accumulate only if theirs is that of the
  /// micro-batches.
  void check_order(const Stage& stage) {
    int expected = 0;
    for (const ScheduleEntry& entry : stage.list) {
      if (!entry.pass || entry.pass->direction != stage.last) continue;
      if (entry.pass->micro_step == expected++ || !found_.other_order.empty()) continue;
      found_.other_order =
          fmt::format("stage {} adds the gradients of {} where micro-batch {} would be next",
                      stage.number, entry.text, expected - 1);
    }
  }

  std::vector<Wait> add_pass(Stage& stage, const ScheduledPass& pass) {
    const auto& [forward, backward, weights, message] = schedule_.times;
    const bool splits = stage.last == Direction::kWeights;
    const std::array seconds = {forward, backward + (splits ? 0 : weights), weights};
    Node node{.op = DeviceOp(Delay{.seconds = at(seconds, static_cast<int>(pass.direction))})};
    if (source_of(pass, stage_count_)) node.waits = await(stage, pass);
    const Wait added{stage.program.add(std::move(node))};
    stage.done[name_of_pass(pass)] = {added};
    if (!has_messages_ && reader_of(pass, stage_count_)) add_part(stage, pass, true, {added});
    return {added};
  }

  std::vector<Wait> add_exchange(Stage& stage, const ScheduleEntry& entry) {
    const auto& [text, pass, sends, receives] = entry;
    std::vector<Wait> waits = std::exchange(stage.exchange, {});
    if (sends) waits.push_back(stage.done.at(name_of_pass(*sends)).front());
    if (sends) stage.exchange.push_back(add_part(stage, *sends, true, waits));
    if (receives) stage.exchange.push_back(add_part(stage, *receives, false, waits));
    if (receives) stage.done["receive " + name_of_pass(*receives)] = stage.exchange;
    return stage.exchange;
  }

  /// The nodes with which arrives what a pass reads: those of its exchange, or one of its own.
  const std::vector<Wait>& await(Stage& stage, const ScheduledPass& pass) {
    std::vector<Wait>& nodes = stage.done["receive " + name_of_pass(pass)];
    if (nodes.empty()) nodes = {add_part(stage, pass, false, {})};
    return nodes;
  }

  Wait add_part(Stage& stage, const ScheduledPass& pass, bool sends, std::vector<Wait> waits) {
    const auto direction = static_cast<int>(pass.direction);
    SendReceive part{.peer = (sends ? reader_of : source_of)(pass, stage_count_)->stage,
                     .name = name_of_pass(pass)};
    (sends ? part.sends : part.receives) = at(messages_, direction);
    return {stage.program.add({.op = Collective(part),
                               .device = direction,
                               .lane = sends ? Lane::kComm : Lane::kCopy,
                               .phase = Phase::kCommunication,
                               .waits = std::move(waits)})};
  }

  [[nodiscard]] const NodeSpan& span_of(const Stage& stage, const Wait& node) const {
    return at(at(spans_, stage.number), node.node);
  }
  [[nodiscard]] bool have_ended(const Stage& stage, const std::vector<Wait>& nodes) const {
    return std::ranges::all_of(
        nodes, [&](const Wait& node) { return std::isfinite(span_of(stage, node).end_s); });
  }

  /// The passes that have run.
  void place(const Stage& stage) {
    std::vector<PlacedEntry>& placed = found_.timeline.emplace_back();
    int& most = found_.kept.emplace_back(0);
    int kept = 0;
    for (std::size_t i = 0; i < stage.nodes.size(); ++i) {
      const ScheduleEntry& entry = stage.list[i];
      if (!entry.pass || !have_ended(stage, stage.nodes[i])) continue;
      const NodeSpan& span = span_of(stage, stage.nodes[i].front());
      placed.push_back({&entry, span.begin_s, span.end_s});
      found_.step = std::max(found_.step, span.end_s);
      if (entry.pass->direction == Direction::kForward) most = std::max(most, ++kept);
      if (entry.pass->direction == stage.last) --kept;
    }
  }

  /// The entry at which a stage stands: an exchange that has begun, a pass, or what is out of
  /// place; nothing if it has ended.
  [[nodiscard]] std::optional<std::size_t> current(const Stage& stage) const {
    std::optional<std::size_t> pass;
    for (std::size_t i = 0; i < stage.nodes.size(); ++i) {
      if (have_ended(stage, stage.nodes[i])) continue;
      if (stage.list[i].pass && !pass) pass = i;
      const auto& awaited = stage.program.node(stage.nodes[i].front().node).waits;
      if (!stage.list[i].pass && have_ended(stage, awaited)) return i;
    }
    if (pass || stage.nodes.size() == stage.list.size()) return pass;
    return stage.nodes.size();
  }

  void note_stuck() {
    for (const Stage& stage : stages_) {
      const std::optional<std::size_t> entry = current(stage);
      if (!entry) continue;
      const Stage& peer = at(stages_, awaited_by(stage, *entry));
      const std::optional<std::size_t> there = current(peer);
      add_fault(stage, fmt::format("'{}' waits forever for stage {}, which {}",
                                   stage.list[*entry].text, peer.number,
                                   there ? fmt::format("is at '{}'", peer.list[*there].text)
                                         : "has ended"));
    }
  }

  /// The stage that a stuck entry waits for.
  [[nodiscard]] int awaited_by(const Stage& stage, std::size_t place) const {
    const ScheduleEntry& entry = stage.list[place];
    if (entry.pass) return source_of(*entry.pass, stage_count_)->stage;
    const bool is_sending = entry.sends && !have_ended(stage, {stage.nodes[place].front()});
    return is_sending ? reader_of(*entry.sends, stage_count_)->stage
                      : source_of(*entry.receives, stage_count_)->stage;
  }

  const WrittenSchedule& schedule_;
  int stage_count_;
  bool has_messages_;
  Buffers buffers_;
  std::vector<Tensor> messages_;  // by direction
  std::deque<Stage> stages_;
  std::vector<std::vector<NodeSpan>> spans_;  // by stage and node
  ScheduleFindings found_;
};

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
    if (!findings.stuck[stage].empty()) row += "| " + findings.stuck[stage];
    text += fmt::format("stage {} {}\n", stage, row);
  }
  return text;
}

/// The step and the memory of this schedule and of the built-in ones.
std::string comparison_text(const WrittenSchedule& schedule, const ScheduleFindings& findings) {
  TextTable table({"Schedule", ">Step", ">Stages wait", "Micro-batches kept, by stage"});
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
      for (const auto& [peer, sends, receives] : between[place]) {
        std::vector<std::string> parts;
        if (sends) parts.push_back("send " + name_of_pass(*sends));
        if (receives) parts.push_back("receive " + name_of_pass(*receives));
        entries.push_back(*entry_of(fmt::format("{}", fmt::join(parts, ", ")), stage));
      }
    };
    add_exchanges();
    for (const ScheduledPass& pass : at(lists, stage)) {
      entries.push_back({.text = name_of_pass(pass), .pass = pass});
      if (pass.direction == Direction::kWeights) continue;
      ++place;
      add_exchanges();
    }
  }
  return written;
}

std::string schedule_json(const PipelineSpec& pipeline) {
  const WrittenSchedule written = built_in_schedule(pipeline, {}, true);
  std::vector<std::string> stages;  // a line for each
  for (const auto& list : written.stages) {
    nlohmann::json entries = nlohmann::json::array();
    for (const ScheduleEntry& entry : list) entries.push_back(entry.text);
    stages.push_back(entries.dump());
  }
  return fmt::format("{{\"micro_batches\": {},\n \"stages\": [\n  {}\n ]}}\n",
                     written.micro_batches, fmt::join(stages, ",\n  "));
}

ScheduleFindings examine(const WrittenSchedule& schedule) {
  return Examination(schedule).run();
}

std::string text_of(const WrittenSchedule& schedule, const ScheduleFindings& findings) {
  const int stages = static_cast<int>(schedule.stages.size());
  std::string text = fmt::format("{} of {}{}\n\n", counted(stages, "stage"),
                                 counted(schedule.micro_batches, "micro-batch"),
                                 schedule.has_messages() ? "" : ", messages travel by themselves");
  for (const std::string& fault : findings.faults) text += fault + "\n";
  if (findings.faults.empty())
    text += "No stage waits forever, and none reads what is not there.\n";
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
       {"schedule", file.string(),
        fmt::format("{}, the first: {}", counted(std::ssize(findings.faults), "fault"),
                    findings.faults.front()),
        "the output shows where stages stand"});
}

}  // namespace barestep
