#include "train/chunk_sums.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/index.h"

namespace barestep {
namespace {

/// sum += other.
DeviceOp add_to(const Tensor& sum, const Tensor& other) {
  return SumRows{.out = sum, .in = other, .beta = 1};
}

Tensor all_in_a_row(const Tensor& tensor) {
  return tensor.flat_slice(0, tensor.size());
}

}  // namespace

int TreeStack::push(TreeNode node) {
  int additions = 0;
  for (;;) {
    const bool is_root = node.number == 0 && (std::int64_t{1} << node.level) >= chunks_;
    const bool is_left = node.number % 2 == 0;
    const TreeNode sibling{node.level, is_left ? node.number + 1 : node.number - 1};
    const bool has_sibling = (sibling.number << node.level) < chunks_;
    const bool meets = !is_left && !nodes_.empty() && nodes_.back() == sibling;
    if (is_root || (has_sibling && !meets)) break;
    if (meets) {
      nodes_.pop_back();
      ++additions;
    }
    node = {node.level + 1, node.number / 2};
  }
  nodes_.push_back(node);
  return additions;
}

ChunkSums::ChunkSums(Draft& draft)
    : draft_(draft), chunks_(draft.spec().chunks_of(draft.rows())), sums_{}, steps_{} {
  draft.require_stored_gradients();
  const StepSpec& spec = draft.spec();
  for (int rank = 0; rank < spec.mesh.data; ++rank) {
    const Rows own = share_of_rank(chunks_, rank, spec.mesh.data);
    TreeStack stack(chunks_);
    for (std::int64_t chunk = own.first; chunk < own.first + own.count; ++chunk) {
      const int place = static_cast<int>(stack.nodes().size());
      const int additions = stack.push({0, chunk});
      if (rank == spec.mesh.data_rank()) steps_.push_back({place, additions});
    }
    sums_.push_back(stack.nodes());
  }
  // Passes without samples leave zeros where no sum is.
  const int free = static_cast<int>(at(sums_, spec.mesh.data_rank()).size());
  const std::int64_t most = share_of_rank(chunks_, 0, spec.mesh.data).count;
  while (std::ssize(steps_) < std::max<std::int64_t>(most, 1)) steps_.push_back({.place = free});
}

BufferId ChunkSums::flat(int place) const {
  if (place == 0) return draft_.require_gradients();
  return draft_.buffers().get(fmt::format("gradients.{}", place), Category::kGradients,
                              draft_.parameters().bytes());
}

PassHooks ChunkSums::hooks(PassHooks more) {
  more.gradient = [this](ParameterId id) {
    return draft_.parameters().in(flat(at(steps_, completed_[id]).place), id);
  };
  more.overwrites_gradients = true;
  more.complete = [this, then = std::move(more.complete)](const Pass& pass, ParameterId id) {
    add_chunk(pass, id);
    if (then) then(pass, id);
  };
  return more;
}

void ChunkSums::add_chunk(const Pass& pass, ParameterId id) {
  const std::string& name = draft_.parameters()[id].name;
  const auto in_place = [&](int place) {
    return all_in_a_row(draft_.parameters().in(flat(place), id));
  };
  const auto [place, additions] = at(steps_, completed_[id]++);
  for (int newest = place; newest > place - additions; --newest) {
    pass.add(add_to(in_place(newest - 1), in_place(newest)), name.substr(0, name.rfind('.')));
  }
}

void ChunkSums::all_reduce(const FlatRange& lines, const std::string& name) {
  reduce_scatter(lines, name);
  all_gather(lines, name);
}

void ChunkSums::all_gather(const FlatRange& lines, const std::string& name) {
  if (draft_.spec().mesh.data == 1) return;
  const Tensor all = lines.of(flat(0));
  draft_.exchange(
      AllGather{.tensors = {{all.buffer, all.offset_bytes, all.cols / kLineNumbers, kLineNumbers}},
                .axis = draft_.data_axis(),
                .name = name + ", gathered"});
}

void ChunkSums::reduce_scatter(const FlatRange& lines, const std::string& name) {
  const Mesh& mesh = draft_.spec().mesh;
  if (mesh.data == 1) return;
  // In each round every rank has one peer, or none, and every two ranks meet once.
  for (int round = 0; round < mesh.data; ++round) {
    const int peer = (round - mesh.data_rank() + mesh.data) % mesh.data;
    if (peer != mesh.data_rank()) exchange_with(peer, lines, name);
  }
  add_all_ranks(share_of_lines(lines, mesh.data_rank(), mesh.data));
}

void ChunkSums::exchange_with(int peer, const FlatRange& lines, const std::string& name) {
  const Mesh& mesh = draft_.spec().mesh;
  const int own = mesh.data_rank();
  const FlatRange share = share_of_lines(lines, own, mesh.data);
  const FlatRange share_of_peer = share_of_lines(lines, peer, mesh.data);
  const auto sent = std::ssize(at(sums_, own)), received_sums = std::ssize(at(sums_, peer));
  for (int number = 0; number < std::max(sent, received_sums); ++number) {
    SendReceive exchange{.peer = peer, .axis = draft_.data_axis()};
    exchange.name =
        fmt::format("{}, ranks {} and {}", name, std::min(own, peer), std::max(own, peer));
    if (number > 0) exchange.name += fmt::format(", part {}", number + 1);
    if (number < sent && share_of_peer.count > 0) exchange.sends = share_of_peer.of(flat(number));
    if (number < received_sums && share.count > 0) {
      exchange.receives = received(peer, number, share);
    }
    if (exchange.sends || exchange.receives) draft_.exchange(std::move(exchange));
  }
}

Tensor ChunkSums::received(int rank, int number, const FlatRange& share) const {
  const int own = draft_.spec().mesh.data_rank();
  std::int64_t before = number;
  std::int64_t all = 0;
  for (int other = 0; other < std::ssize(sums_); ++other) {
    const auto sums = other == own ? 0 : std::ssize(at(sums_, other));
    if (other < rank) before += sums;
    all += sums;
  }
  const BufferId buffer = draft_.buffers().get("received_gradients", Category::kCommunication,
                                               all * share.count * bytes_of(DType::kF32));
  return FlatRange{before * share.count, share.count}.of(buffer);
}

void ChunkSums::add_all_ranks(const FlatRange& share) {
  if (share.count == 0) return;
  const int own = draft_.spec().mesh.data_rank();
  const auto add = [&](DeviceOp op) {
    draft_.add({.op = std::move(op), .lane = Lane::kComm, .phase = Phase::kCommunication});
  };
  const Tensor result = share.of(flat(0));
  TreeStack stack(chunks_);
  std::vector<Tensor> sums;
  for (int rank = 0; rank < std::ssize(sums_); ++rank) {
    for (int number = 0; number < std::ssize(at(sums_, rank)); ++number) {
      sums.push_back(rank == own ? share.of(flat(number)) : received(rank, number, share));
      for (int left = stack.push(at(at(sums_, rank), number)); left > 0; --left) {
        Tensor newest = sums.back();
        sums.pop_back();
        // The result is where this rank's first sum is.
        if (newest == result) std::swap(newest, sums.back());
        add(add_to(sums.back(), newest));
      }
    }
  }
  if (sums.front() != result) add(Copy{.to = result, .from = sums.front()});
}

}  // namespace barestep
