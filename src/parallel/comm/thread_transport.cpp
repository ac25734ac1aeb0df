#include "parallel/comm/thread_transport.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <limits>
#include <variant>
#include <vector>

#include "core/index.h"
#include "core/tensor.h"

namespace barestep {

/// A barrier with a board where each rank publishes one address to the others.
struct ThreadGroup::Rendezvous {
  explicit Rendezvous(int ranks) : size(ranks), board(static_cast<std::size_t>(ranks)) {}

  /// Blocks until all ranks have arrived; false if the group was aborted.
  bool barrier() {
    std::unique_lock lock(mutex);
    const std::uint64_t mine = round;
    if (++arrived == size) {
      arrived = 0;
      ++round;
      all_here.notify_all();
    } else {
      all_here.wait(lock, [&] { return round != mine || aborted; });
    }
    return !aborted;
  }

  /// Publishes `address`, waits for the others', calls `work` with the board, and waits again, so
  /// that no rank changes data that others still read.
  template <class F>
  bool meet(int rank, void* address, const F& work) {
    at(board, rank) = address;
    if (!barrier()) return false;
    work();
    return barrier();
  }

  /// Ends all waits, now and later.
  void abort() {
    const std::lock_guard lock(mutex);
    aborted = true;
    all_here.notify_all();
  }

  template <class T>
  T* shown_by(int rank) const {
    return static_cast<T*>(at(board, rank));
  }

  const int size;
  std::vector<void*> board;
  std::mutex mutex;
  std::condition_variable all_here;
  int arrived = 0;
  std::uint64_t round = 0;
  bool aborted = false;
};

namespace {

/// The part of n numbers that one rank sums.
struct Share {
  std::int64_t first, last;
};

Share share_of(std::int64_t n, int rank, int ranks) {
  return {n * rank / ranks, n * (rank + 1) / ranks};
}

}  // namespace

class RankInGroup final : public ThreadRank {
 public:
  RankInGroup(ThreadGroup& group, int rank)
      : ThreadRank(rank, group.host_calls_->size),
        group_(group),
        collectives_(*group.collectives_),
        host_(*group.host_calls_),
        rank_(rank) {}

  void broadcast(std::span<std::byte> bytes, int root) override {
    must(host_.meet(rank_, bytes.data(), [&] {
      if (rank_ != root) {
        std::copy_n(host_.shown_by<std::byte>(root), bytes.size(), bytes.data());
      }
    }));
  }

  void all_gather(std::span<const std::byte> bytes, std::span<std::byte> all) override {
    BARESTEP_REQUIRE(all.size() == bytes.size() * static_cast<std::size_t>(size()),
                     "all_gather needs room for every rank");
    // The other ranks only read these bytes.
    void* const shown = const_cast<std::byte*>(bytes.data());
    must(host_.meet(rank_, shown, [&] {
      for (int rank = 0; rank < size(); ++rank) {
        std::copy_n(host_.shown_by<std::byte>(rank), bytes.size(),
                    all.data() + bytes.size() * static_cast<std::size_t>(rank));
      }
    }));
  }

  void barrier() override { must(host_.barrier()); }

  void abort(ExitCode /*code*/) noexcept override { group_.abort(); }

  std::unique_ptr<Transport> split(int color) override {
    const std::vector<int> colors = gather_values(*this, color);
    const auto place = std::count(colors.begin(), colors.begin() + rank_, color);
    const auto ranks = std::ranges::count(colors, color);
    return group_.child(splits_++, color, static_cast<int>(ranks)).join(static_cast<int>(place));
  }

 private:
  void perform(const Collective& collective, const Addresses& addresses) override {
    std::visit([&](const auto& op) { perform_op(op, addresses); }, collective);
  }

  void perform_op(const AllReduce& op, const Addresses& addresses) {
    const Tensor& tensor = op.tensors[0];
    with_number(tensor.dtype, [&](auto zero) {
      using Number = decltype(zero);
      all_reduce(tensor, Contribution<Number>{addresses.at<Number>(tensor), op.scale});
    });
  }

  /// What a rank adds. Scales differ where the ranks' shares of the batch differ.
  template <class Number>
  struct Contribution {
    Number* values;
    float scale;
  };

  /// Each rank sums its own share of the numbers, in rank order, and passes it to all.
  template <class Number>
  void all_reduce(const Tensor& tensor, Contribution<Number> mine) {
    must(collectives_.meet(rank_, &mine, [&] {
      const Share share = share_of(tensor.size(), rank_, size());
      for (std::int64_t i = share.first; i < share.last; ++i) {
        const Number sum = rounded<Number>(sum_at<Number>(i));
        for (int rank = 0; rank < size(); ++rank) {
          collectives_.shown_by<Contribution<Number>>(rank)->values[i] = sum;
        }
      }
    }));
  }

  void perform_op(const Broadcast& op, const Addresses& addresses) {
    const Tensor& tensor = op.tensors[0];
    auto* values = addresses.at<std::byte>(tensor);
    must(collectives_.meet(rank_, values, [&] {
      if (rank_ != op.root) {
        std::memcpy(values, collectives_.shown_by<std::byte>(op.root),
                    static_cast<std::size_t>(tensor.bytes()));
      }
    }));
  }

  void perform_op(const Reduce& op, const Addresses& addresses) {
    const Tensor& tensor = op.tensors[0];
    auto* values = addresses.at(tensor);
    must(collectives_.meet(rank_, values, [&] {
      if (rank_ != op.root) return;
      for (std::int64_t i = 0; i < tensor.size(); ++i) {
        float sum = 0;
        for (int rank = 0; rank < size(); ++rank) sum += collectives_.shown_by<float>(rank)[i];
        values[i] = sum;
      }
    }));
  }

  void perform_op(const ReduceScatter& op, const Addresses& addresses) {
    const Tensor& tensor = op.tensors[0];
    const Rows rows = share_of_rank(tensor.rows, rank_, size());
    Contribution<float> mine{addresses.at(tensor), op.scale};
    // The other ranks read only their own rows of this rank's tensor.
    must(collectives_.meet(rank_, &mine, [&] {
      const std::int64_t last = (rows.first + rows.count) * tensor.cols;
      for (std::int64_t i = rows.first * tensor.cols; i < last; ++i)
        mine.values[i] = sum_at<float>(i);
    }));
    // The other rows are undefined; using them must be noticed.
    for (std::int64_t i = 0; i < tensor.size(); ++i) {
      const bool own = rows.first <= i / tensor.cols && i / tensor.cols < rows.first + rows.count;
      if (!own && mine.values[i] != 0) mine.values[i] = std::numeric_limits<float>::quiet_NaN();
    }
  }

  void perform_op(const AllGather& op, const Addresses& addresses) {
    const Tensor& tensor = op.tensors[0];
    const Tensor own = op.own.empty() ? share_of_rank(tensor, rank_, size()) : op.own[0];
    BARESTEP_REQUIRE(own.rows == share_of_rank(tensor.rows, rank_, size()).count,
                     "a rank's own rows are its share");
    must(collectives_.meet(rank_, addresses.at<std::byte>(own), [&] {
      for (int rank = 0; rank < size(); ++rank) {
        const Tensor share = share_of_rank(tensor, rank, size());
        if (share.rows == 0 || (rank == rank_ && op.own.empty())) continue;
        std::memcpy(addresses.at<std::byte>(share), collectives_.shown_by<std::byte>(rank),
                    static_cast<std::size_t>(share.bytes()));
      }
    }));
  }

  /// What a rank shows to its peer.
  struct Sent {
    const std::byte* bytes;
    std::int64_t count;
  };

  /// Each copies what the other one sends.
  void perform_op(const SendReceive& op, const Addresses& addresses) {
    Sent mine{op.sends ? addresses.at<std::byte>(*op.sends) : nullptr, op.sent_bytes()};
    const int place = rank_ < op.peer ? 0 : 1;
    ThreadGroup::Rendezvous& pair =
        group_.between(std::min(rank_, op.peer), std::max(rank_, op.peer));
    must(pair.meet(place, &mine, [&] {
      const Sent& theirs = *pair.shown_by<Sent>(1 - place);
      BARESTEP_REQUIRE(theirs.count == op.received_bytes(),
                       "a rank receives as many bytes as its peer sends");
      if (op.receives) {
        std::copy_n(theirs.bytes, theirs.count, addresses.at<std::byte>(*op.receives));
      }
    }));
  }

  /// Combines what the ranks publish, in rank order.
  template <class Number>
  [[nodiscard]] float sum_at(std::int64_t i) const {
    float sum = 0;
    for (int rank = 0; rank < size(); ++rank) {
      const auto* other = collectives_.shown_by<Contribution<Number>>(rank);
      sum += other->scale * float_of(other->values[i]);
    }
    return sum;
  }

  static void must(bool met) {
    if (!met) {
      fail(ExitCode::kTryAgain, {"ranks", "", "another rank failed", "see that rank's error"});
    }
  }

  ThreadGroup& group_;
  ThreadGroup::Rendezvous& collectives_;
  ThreadGroup::Rendezvous& host_;
  int rank_;
  int splits_ = 0;
};

ThreadGroup::ThreadGroup(int ranks)
    : collectives_(std::make_unique<Rendezvous>(ranks)),
      host_calls_(std::make_unique<Rendezvous>(ranks)) {}

ThreadGroup::~ThreadGroup() = default;

std::unique_ptr<ThreadRank> ThreadGroup::join(int rank) {
  return std::make_unique<RankInGroup>(*this, rank);
}

ThreadGroup& ThreadGroup::child(int split, int color, int ranks) {
  const std::lock_guard lock(mutex_);
  auto& group = children_[{split, color}];
  if (group == nullptr) {
    group = std::make_unique<ThreadGroup>(ranks);
    if (is_aborted_) group->abort();
  }
  return *group;
}

ThreadGroup::Rendezvous& ThreadGroup::between(int lower, int higher) {
  const std::lock_guard lock(mutex_);
  auto& pair = pairs_[{lower, higher}];
  if (pair == nullptr) {
    pair = std::make_unique<Rendezvous>(2);
    pair->aborted = is_aborted_;
  }
  return *pair;
}

void ThreadGroup::abort() {
  const std::lock_guard lock(mutex_);
  is_aborted_ = true;
  collectives_->abort();
  host_calls_->abort();
  for (const auto& [ranks, pair] : pairs_) pair->abort();
  for (const auto& [key, group] : children_) group->abort();
}

}  // namespace barestep
