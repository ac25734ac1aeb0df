#include "train/verification.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <tuple>
#include <utility>

#include "core/error.h"
#include "core/index.h"
#include "core/units.h"
#include "train/training_state.h"

namespace barestep {
namespace {

/// What a rank found: where, and whether that is a collective, which brings other ranks' faults.
struct FirstDifference {
  std::int64_t node = -1;
  bool is_collective = false;
};

}  // namespace

void require_flip(const Flip& flip, const StepPrograms& programs, std::int64_t steps) {
  const auto refuse = [&](const std::string& why, const std::string& remedy) {
    fail(ExitCode::kConfiguration, {"--flip", text_of(flip), why, remedy});
  };
  if (flip.step >= steps) {
    refuse(fmt::format("the run has the steps 0 to {}", steps - 1), "give one of them");
  }
  const Mesh& mesh = programs.spec().mesh;
  if (mesh.ranks() > 1 && mesh.rank != flip.rank) return;
  const Buffers& buffers = programs.buffers();
  const int device = mesh.ranks() > 1 ? 0 : static_cast<int>(flip.rank);
  const BufferId buffer = buffers.find(flip.buffer, device);
  if (buffer == kNoBuffer) refuse("there is no such buffer", "--explain shows the names");
  if (const std::int64_t words = buffers[buffer].bytes / 4; flip.word >= words) {
    refuse(fmt::format("the buffer has {}", counted(words, "word")),
           fmt::format("give at most {}", words - 1));
  }
  if (const int nodes = programs.train().program.size(); flip.node && *flip.node >= nodes) {
    refuse(fmt::format("a step has {}", counted(nodes, "node")),
           fmt::format("give at most {}", nodes - 1));
  }
}

Verification::Verification(const TrainConfig& config, const StepPrograms& programs, Runner& runner,
                           const std::vector<Device*>& devices, Group* ranks)
    : config_(config), programs_(programs), runner_(runner), devices_(devices), ranks_(ranks) {}

bool Verification::verifies(const Batch& batch) const {
  const auto& every = config_.output.verify_every;
  return every && !batch.evaluates && (batch.number + 1) % *every == 0;
}

bool Verification::flips(const Batch& batch) const {
  const auto& flip = config_.injected.flip;
  const Mesh& mesh = programs_.spec().mesh;
  return flip && !batch.evaluates && batch.number == flip->step &&
         (mesh.ranks() == 1 || mesh.rank == flip->rank);
}

bool Verification::watches(const Batch& batch) const {
  return verifies(batch) || flips(batch);
}

void Verification::set_step(const Batch& batch, bool ends_alike) {
  batch_ = batch;
  ends_alike_ = ends_alike;
}

void Verification::begin() {
  addresses_ = &runner_.addresses(runner_.finished());
  is_second_ = false;
  different_.reset();
  hashes_.assign(static_cast<std::size_t>(batch_.program->program.size()), "");
  // A fault in the state is there before the state is kept.
  if (flips(batch_) && !config_.injected.flip->node) flip_bit();
  if (verifies(batch_)) keep_state();
}

void Verification::after(NodeId node) {
  if (!is_second_ && flips(batch_) && config_.injected.flip->node == node) flip_bit();
  if (!verifies(batch_)) return;
  ByteHash hash;
  for (const auto& [tensor, writes] : accesses_of(batch_.program->program.node(node).op)) {
    if (writes) add_to(hash, tensor, is_second_ ? again_ : *addresses_);
  }
  if (!is_second_) {
    at(hashes_, node) = hash.text();
  } else if (!different_ && at(hashes_, node) != hash.text()) {
    different_ = node;
  }
}

void Verification::end() {
  if (!verifies(batch_)) return;
  is_second_ = true;
  runner_.run_again(again_);
  compare_runs();
  if (ranks_ != nullptr && ends_alike_) compare_states();
  verified_steps_ = batch_.number + 1;
}

void Verification::prepare() {
  addresses_ = &runner_.addresses(0);
  if (config_.output.verify_every) keep_state();
}

/// If the step before was verified, what its second run left is the same state and stays.
void Verification::keep_state() {
  const Buffers& buffers = programs_.buffers();
  const bool is_kept = batch_.number > 0 && batch_.number == verified_steps_;
  std::vector<std::byte*> places;
  for (BufferId id = 0; id < buffers.size(); ++id) {
    places.push_back(addresses_->at<std::byte>({id, 0, 1, 0, DType::kU8}));
  }
  for (const Tensor& tensor : programs_.verified_state()) {
    const Tensor room = programs_.room_for_kept(tensor.buffer);
    std::byte* const kept = addresses_->at<std::byte>(room);
    std::byte*& place = at(places, tensor.buffer);
    // All of a buffer, as a step may also read what it does not change, such as padding.
    if (!is_kept && place != kept) copy(kept, place, room.bytes(), buffers[room.buffer].device);
    place = kept;
  }
  again_ = Addresses(std::move(places));
  if (!is_kept) return;
  std::string changed;
  for (const Tensor& tensor : programs_.verified_state()) {
    if (changed.empty() && hash_of(tensor, again_) != hash_of(tensor, *addresses_)) {
      changed = buffers[tensor.buffer].name;
    }
  }
  const std::vector<std::string> all = of_all(changed);
  const auto first = std::ranges::find_if(all, [](const auto& name) { return !name.empty(); });
  if (first == all.end()) return;
  refuse(on(first - all.begin()), "the buffer " + *first + " has changed since the step before");
}

void Verification::copy(void* to, const void* from, std::int64_t bytes, int device) const {
  Stream& stream = runner_.stream({device, Lane::kCompute});
  at(devices_, device)->copy(to, from, bytes, stream);
  stream.synchronize();
}

void Verification::flip_bit() {
  const Flip& flip = *config_.injected.flip;
  const int device = programs_.spec().mesh.ranks() > 1 ? 0 : static_cast<int>(flip.rank);
  const BufferId buffer = programs_.buffers().find(flip.buffer, device);
  std::byte* const word = addresses_->at<std::byte>({buffer, 4 * flip.word, 1, 4, DType::kU8});
  std::uint32_t bits = 0;
  copy(&bits, word, sizeof(bits), device);
  bits ^= std::uint32_t{1} << flip.bit;
  copy(word, &bits, sizeof(bits), device);
}

void Verification::add_to(ByteHash& hash, const Tensor& tensor, const Addresses& table) const {
  constexpr std::int64_t kPiece = std::int64_t{1} << 24;
  const std::byte* const bytes = table.at<std::byte>(tensor);
  const int device = programs_.buffers()[tensor.buffer].device;
  std::vector<std::byte> host;
  for (std::int64_t first = 0; first < tensor.bytes(); first += kPiece) {
    const std::int64_t count = std::min(kPiece, tensor.bytes() - first);
    const std::byte* piece = bytes + first;
    if (at(devices_, device)->kind() != DeviceKind::kCpu) {
      host.resize(static_cast<std::size_t>(count));
      copy(host.data(), piece, count, device);
      piece = host.data();
    }
    hash.add({piece, static_cast<std::size_t>(count)});
  }
}

std::string Verification::hash_of(const Tensor& tensor, const Addresses& table) const {
  ByteHash hash;
  add_to(hash, tensor, table);
  return hash.text();
}

std::string Verification::name_of_node(NodeId id) const {
  const Program& program = batch_.program->program;
  const Node& node = program.node(id);
  std::string text = fmt::format("{} {}", name_of(node.phase), label_of(node.op));
  if (const auto* collective = std::get_if<Collective>(&node.op)) {
    text += fmt::format(" of {}", name_of(*collective));
  }
  text += node.of_block();
  const StepSpec& spec = programs_.spec();
  const std::int64_t steps =
      spec.chunk_rows > 0 ? spec.own_chunks(batch_.program->rows).count : spec.accumulate;
  // Every micro-step has the same nodes.
  std::int64_t before = 0, all = 0;
  for (NodeId other = 0; other < program.size(); ++other) {
    const Node& each = program.node(other);
    if (each.phase != node.phase || each.block != node.block ||
        label_of(each.op) != label_of(node.op)) {
      continue;
    }
    ++all;
    if (other < id) ++before;
  }
  if (node.micro_batch) return fmt::format("{} in micro-step {}", text, *node.micro_batch);
  if (steps <= 1 || all < steps) return text;
  return fmt::format("{} in micro-step {}", text, before / (all / steps));
}

std::vector<std::string> Verification::of_all(const std::string& own) const {
  return ranks_ == nullptr ? std::vector{own} : gather_lists(*ranks_, own);
}

std::string Verification::on(std::int64_t rank) const {
  return ranks_ == nullptr ? "" : fmt::format(", rank {}", rank);
}

void Verification::refuse(const std::string& where, const std::string& why) const {
  fail(ExitCode::kCorrupted, {fmt::format("step {}{}", batch_.number, where), "", why});
}

void Verification::compare_runs() const {
  FirstDifference own;
  std::string where, name;
  if (different_) {
    const Node& node = batch_.program->program.node(*different_);
    own = {*different_, std::holds_alternative<Collective>(node.op)};
    name = name_of_node(*different_);
    if (devices_.size() > 1) where = fmt::format(", device {}", node.device);
  }
  const std::vector<FirstDifference> all =
      ranks_ == nullptr ? std::vector{own} : gather_values(*ranks_, own);
  const std::vector<std::string> names = of_all(name);
  // A fault reaches other ranks through collectives, and these come later.
  const auto first = std::ranges::min_element(all, {}, [](const FirstDifference& each) {
    return std::tuple(each.node < 0, each.is_collective, each.node);
  });
  if (first->node < 0) return;
  const auto rank = first - all.begin();
  refuse(where + on(rank), at(names, rank) + " gave other bits when it ran again");
}

/// Of the ranks that share the batch, each of which must have all of it.
std::string Verification::difference_of_states() const {
  using Text = std::array<char, 32>;
  std::vector<Text> own;
  std::vector<std::string> names;
  for (const StatePart& part : state_parts(programs_)) {
    if (!part.own) continue;
    const Tensor& tensor = part.own->tensor;
    if (programs_.is_shared_out(tensor.buffer) || programs_.is_own(tensor.buffer)) continue;
    std::ranges::copy(hash_of(tensor, *addresses_), own.emplace_back().begin());
    names.push_back(part.name);
  }
  const std::vector<std::vector<Text>> all = gather_lists(*ranks_, own);
  const std::vector<int> group = programs_.spec().mesh.ranks_on(Axis::kData);
  for (std::size_t part = 0; part < own.size(); ++part) {
    const auto of = [&](int rank) { return at(all, rank)[part]; };
    std::vector<int> few;  // no more than have others; of two ranks both
    std::ranges::copy_if(group, std::back_inserter(few), [&](int rank) {
      return 2 * std::ranges::count(group, of(rank), of) <= std::ssize(group);
    });
    if (few.empty()) continue;
    return fmt::format("the bits of {} on {} {} are not those of the others", names[part],
                       noun_for(std::ssize(few), "rank"), fmt::join(few, ", "));
  }
  return "";
}

void Verification::compare_states() const {
  for (const std::string& text : of_all(difference_of_states())) {
    if (!text.empty()) refuse("", text);
  }
}

}  // namespace barestep
