#include "parallel/comm/mpi_transport.h"

#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/host.h"
#include "core/tensor.h"
#include "parallel/comm/host_transport.h"
#include "parallel/job/launcher.h"

namespace barestep {
namespace {

/// Pieces of 1 MiB: on one host, an all-reduce of 64 MiB in one call takes three times as long.
constexpr std::int64_t kPieceNumbers = std::int64_t{1} << 18;

void must(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  fail(ExitCode::kTryAgain, {"MPI call", call, std::string(text, static_cast<std::size_t>(length)),
                             "see the errors of the other ranks"});
}

/// MPI reports a message that is too long, but not one that is too short.
void require_all_received(const MPI_Status& status, int peer, int bytes) {
  int received = 0;
  must(MPI_Get_count(&status, MPI_BYTE, &received), "MPI_Get_count");
  if (received == bytes) return;
  fail(ExitCode::kTryAgain,
       {fmt::format("message from rank {}", peer), fmt::format("{} bytes", received),
        fmt::format("{} were expected", bytes),
        "start every rank with the same program and options"});
}

/// One call per piece of at most kPieceNumbers, since MPI's counts are ints.
template <class F>
void for_pieces(std::int64_t size, const F& f) {
  for (std::int64_t first = 0; first < size; first += kPieceNumbers) {
    f(first, static_cast<int>(std::min(kPieceNumbers, size - first)));
  }
}

/// Gathers more than a piece by broadcasts, which are in pieces. False if there is less.
bool gather_by_broadcasts(Group& ranks, std::span<const std::byte> bytes,
                          std::span<std::byte> all) {
  BARESTEP_REQUIRE(std::ssize(all) == std::ssize(bytes) * ranks.size(),
                   "all_gather needs room for every rank");
  if (std::ssize(all) <= kPieceNumbers) return false;
  const auto part = [&](int rank) {
    return all.subspan(static_cast<std::size_t>(rank) * bytes.size(), bytes.size());
  };
  std::ranges::copy(bytes, part(ranks.rank()).begin());
  for (int rank = 0; rank < ranks.size(); ++rank) ranks.broadcast(part(rank), rank);
  return true;
}

bool is_running() {
  int started = 0;
  int ended = 0;
  MPI_Initialized(&started);
  MPI_Finalized(&ended);
  return started != 0 && ended == 0;
}

/// Throws std::system_error if the system does not allow the threads that MPI starts, and the
/// daemon of a process without mpirun. Open MPI would end the process with many lines of its own.
void require_threads_for_mpi() {
  struct Threads {
    std::atomic<bool> end{false};
    std::vector<std::thread> all{};
    ~Threads() {
      end = true;
      end.notify_all();
      for (std::thread& thread : all) thread.join();
    }
  } threads;
  constexpr int kThreadsOfMpi = 8;
  for (int i = 0; i < kThreadsOfMpi; ++i) {
    threads.all.emplace_back([&threads] { threads.end.wait(false); });
  }
}

/// Holds MPI between MPI_Init and MPI_Finalize.
class Mpi {
 public:
  Mpi() {
    require_threads_for_mpi();
    // A process that no launcher started needs no daemon; Open MPI would start one, if ssh is
    // there.
    ::setenv("OMPI_MCA_ess_singleton_isolated", "1", 0);
    // With less, both directions of an exchange over TCP take turns (docs/launching.md).
    ::setenv("OMPI_MCA_btl_tcp_eager_limit", "1048576", 0);
    int provided = MPI_THREAD_SINGLE;
    must(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (provided < MPI_THREAD_MULTIPLE) {
      fail(ExitCode::kConfiguration, {"MPI", "", "does not allow calls from several threads",
                                      "use an MPI built with MPI_THREAD_MULTIPLE"});
    }
  }
  /// During stack unwinding, other ranks may be inside a collective that this one will never join,
  /// and MPI_Finalize would wait for them forever. The end of the program aborts instead.
  ~Mpi() {
    if (std::uncaught_exceptions() == 0) MPI_Finalize();
  }
  Mpi(const Mpi&) = delete;
  Mpi& operator=(const Mpi&) = delete;
};

/// A group of ranks with its own messages.
class MpiComm {
 public:
  /// The ranks of `of`.
  static MpiComm same(MPI_Comm of) {
    MpiComm group;
    must(MPI_Comm_dup(of, &group.comm_), "MPI_Comm_dup");
    return group;
  }
  /// Those that give the same color, in the order of their ranks.
  static MpiComm of_color(MPI_Comm of, int color) {
    MpiComm group;
    must(MPI_Comm_split(of, color, 0, &group.comm_), "MPI_Comm_split");
    return group;
  }
  static MpiComm of_host() {
    MpiComm group;
    must(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &group.comm_),
         "MPI_Comm_split_type");
    return group;
  }
  ~MpiComm() {
    if (comm_ != MPI_COMM_NULL && std::uncaught_exceptions() == 0) MPI_Comm_free(&comm_);
  }
  MpiComm(MpiComm&& other) noexcept : comm_(std::exchange(other.comm_, MPI_COMM_NULL)) {}
  MpiComm(const MpiComm&) = delete;
  MpiComm& operator=(const MpiComm&) = delete;

  [[nodiscard]] MPI_Comm get() const { return comm_; }
  [[nodiscard]] int rank() const {
    int rank = 0;
    MPI_Comm_rank(comm_, &rank);
    return rank;
  }
  [[nodiscard]] int size() const {
    int size = 1;
    MPI_Comm_size(comm_, &size);
    return size;
  }

 private:
  MpiComm() = default;

  MPI_Comm comm_ = MPI_COMM_NULL;
};

/// Sums in 16 bits: each addition of two numbers is computed in fp32 and rounded before it is sent
/// on.
template <class Number>
class NarrowSum {
 public:
  NarrowSum() { must(MPI_Op_create(&add, 1, &sum_), "MPI_Op_create"); }
  ~NarrowSum() {
    if (std::uncaught_exceptions() == 0) MPI_Op_free(&sum_);
  }
  NarrowSum(const NarrowSum&) = delete;
  NarrowSum& operator=(const NarrowSum&) = delete;

  [[nodiscard]] MPI_Op get() const { return sum_; }

 private:
  static void add(void* from, void* to, int* count, MPI_Datatype* /*type*/) {
    const auto* const addends = static_cast<const Number*>(from);
    auto* const sums = static_cast<Number*>(to);
    for (int i = 0; i < *count; ++i) {
      sums[i] = rounded<Number>(float_of(addends[i]) + float_of(sums[i]));
    }
  }

  MPI_Op sum_ = MPI_OP_NULL;
};

/// The host calls of the run's thread.
class MpiGroup final : public Group {
 public:
  MpiGroup(std::shared_ptr<Mpi> mpi, MpiComm comm, FlightRecord* record)
      : Group(comm.rank(), comm.size()),
        mpi_(std::move(mpi)),
        comm_(std::move(comm)),
        record_(record) {}

  void broadcast(std::span<std::byte> bytes, int root) override {
    const FlightScope scope(record_, Activity::kHostBroadcast, std::ssize(bytes));
    for_pieces(static_cast<std::int64_t>(bytes.size()), [&](std::int64_t first, int count) {
      must(MPI_Bcast(bytes.data() + first, count, MPI_BYTE, root, comm_.get()), "MPI_Bcast");
    });
  }

  void all_gather(std::span<const std::byte> bytes, std::span<std::byte> all) override {
    if (gather_by_broadcasts(*this, bytes, all)) return;
    const FlightScope scope(record_, Activity::kHostAllGather, std::ssize(all));
    const int count = static_cast<int>(bytes.size());
    must(MPI_Allgather(bytes.data(), count, MPI_BYTE, all.data(), count, MPI_BYTE, comm_.get()),
         "MPI_Allgather");
  }

  void barrier() override {
    const FlightScope scope(record_, Activity::kBarrier);
    must(MPI_Barrier(comm_.get()), "MPI_Barrier");
  }

  void abort(ExitCode code) noexcept override { end_all_ranks(code); }

 private:
  std::shared_ptr<Mpi> mpi_;  // the first member: MPI ends after all communicators
  MpiComm comm_;
  FlightRecord* record_;
};

/// Collectives run on the comm lane's thread. They have a communicator of their own, so their
/// messages never mix with those of host calls.
class MpiTransport final : public HostTransport {
 public:
  MpiTransport(std::shared_ptr<Mpi> mpi, MpiComm comm)
      : HostTransport(comm.rank(), comm.size()), mpi_(std::move(mpi)), comm_(std::move(comm)) {}

  /// From the thread that makes host calls, while no collective runs.
  std::unique_ptr<Transport> split(int color) override {
    auto part = std::make_unique<MpiTransport>(mpi_, MpiComm::of_color(comm_.get(), color));
    part->set_flight_record(flight_record());
    return part;
  }

 private:
  void perform(const Collective& collective, const Addresses& addresses) override {
    std::visit([&](const auto& op) { perform_op(op, addresses); }, collective);
  }

  void perform_op(const AllReduce& op, const Addresses& addresses) {
    if (op.tensors[0].dtype == DType::kBF16) return add_up(bf16_sum_, op.tensors[0], addresses);
    if (op.tensors[0].dtype == DType::kF16) return add_up(f16_sum_, op.tensors[0], addresses);
    float* const values = addresses.at(op.tensors[0]);
    for_pieces(op.tensors[0].size(), [&](std::int64_t first, int count) {
      float* const piece = values + first;
      if (op.scale != 1) {
        std::for_each(piece, piece + count, [&](float& value) { value *= op.scale; });
      }
      must(MPI_Allreduce(MPI_IN_PLACE, piece, count, MPI_FLOAT, MPI_SUM, comm_.get()),
           "MPI_Allreduce");
    });
  }

  template <class Number>
  void add_up(const NarrowSum<Number>& sum, const Tensor& tensor, const Addresses& addresses) {
    auto* const values = addresses.at<Number>(tensor);
    for_pieces(tensor.size(), [&](std::int64_t first, int count) {
      must(MPI_Allreduce(MPI_IN_PLACE, values + first, count, MPI_UINT16_T, sum.get(), comm_.get()),
           "MPI_Allreduce");
    });
  }

  void perform_op(const Broadcast& op, const Addresses& addresses) {
    broadcast_from(op.root, op.tensors[0], addresses);
  }

  void broadcast_from(int root, const Tensor& tensor, const Addresses& addresses) {
    auto* const bytes = addresses.at<std::byte>(tensor);
    for_pieces(tensor.bytes(), [&](std::int64_t first, int count) {
      must(MPI_Bcast(bytes + first, count, MPI_BYTE, root, comm_.get()), "MPI_Bcast");
    });
  }

  void perform_op(const Reduce& op, const Addresses& addresses) {
    reduce_to(op.root, op.tensors[0], addresses);
  }

  /// All ranks send each rank its rows, which it adds up in the order of the ranks. So the bits of
  /// a sum do not depend on what else is scattered with it.
  void perform_op(const ReduceScatter& op, const Addresses& addresses) {
    const Tensor& tensor = op.tensors[0];
    if (op.scale != 1) {
      float* const values = addresses.at(tensor);
      std::for_each(values, values + tensor.size(), [&](float& value) { value *= op.scale; });
    }
    // The first rank has the most rows.
    for_pieces(share_of_rank(tensor, 0, size()).size(), [&](std::int64_t first, int count) {
      add_up_shares(tensor, first, count, addresses);
    });
  }

  /// Up to `count` numbers of each rank's share, from number `first` on.
  void add_up_shares(const Tensor& tensor, std::int64_t first, int count,
                     const Addresses& addresses) {
    const auto piece_of = [&](int owner) {
      const Tensor share = share_of_rank(tensor, owner, size());
      const std::int64_t numbers =
          std::clamp(share.size() - first, std::int64_t{0}, std::int64_t{count});
      return std::span(numbers > 0 ? addresses.at(share) + first : nullptr,
                       static_cast<std::size_t>(numbers));
    };
    const int here = rank();
    const std::span<float> own = piece_of(here);
    received_.resize(static_cast<std::size_t>(size()) * own.size());
    const auto from = [&](int source) {
      return source == here ? own
                            : std::span(received_).subspan(
                                  static_cast<std::size_t>(source) * own.size(), own.size());
    };
    std::vector<MPI_Request> requests;
    for (int other = 0; other < size(); ++other) {
      if (other == here) continue;
      must(MPI_Irecv(from(other).data(), static_cast<int>(own.size()), MPI_FLOAT, other,
                     kExchangeTag, comm_.get(), &requests.emplace_back()),
           "MPI_Irecv");
      const std::span<float> sent = piece_of(other);
      must(MPI_Isend(sent.data(), static_cast<int>(sent.size()), MPI_FLOAT, other, kExchangeTag,
                     comm_.get(), &requests.emplace_back()),
           "MPI_Isend");
    }
    must(MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE),
         "MPI_Waitall");
    for (std::size_t i = 0; i < own.size(); ++i) {
      float sum = 0;
      for (int source = 0; source < size(); ++source) sum += from(source)[i];
      own[i] = sum;
    }
  }

  void perform_op(const AllGather& op, const Addresses& addresses) {
    const Tensor& tensor = op.tensors[0];
    if (!op.own.empty()) {
      const Tensor place = share_of_rank(tensor, rank(), size());
      BARESTEP_REQUIRE(place.rows == op.own[0].rows, "a rank's own rows are its share");
      if (place.rows > 0) {
        std::memcpy(addresses.at<std::byte>(place), addresses.at<std::byte>(op.own[0]),
                    static_cast<std::size_t>(place.bytes()));
      }
    }
    for (int rank = 0; rank < size(); ++rank) {
      broadcast_from(rank, share_of_rank(tensor, rank, size()), addresses);
    }
  }

  /// All pieces of both directions at once.
  void perform_op(const SendReceive& op, const Addresses& addresses) {
    std::vector<MPI_Request> requests;
    if (op.receives) {
      auto* const bytes = addresses.at<std::byte>(*op.receives);
      for_pieces(op.received_bytes(), [&](std::int64_t first, int count) {
        must(MPI_Irecv(bytes + first, count, MPI_BYTE, op.peer, kExchangeTag, comm_.get(),
                       &requests.emplace_back()),
             "MPI_Irecv");
      });
    }
    if (op.sends) {
      const auto* const bytes = addresses.at<std::byte>(*op.sends);
      for_pieces(op.sent_bytes(), [&](std::int64_t first, int count) {
        must(MPI_Isend(bytes + first, count, MPI_BYTE, op.peer, kExchangeTag, comm_.get(),
                       &requests.emplace_back()),
             "MPI_Isend");
      });
    }
    std::vector<MPI_Status> statuses(requests.size());
    must(MPI_Waitall(static_cast<int>(requests.size()), requests.data(), statuses.data()),
         "MPI_Waitall");
    if (!op.receives) return;
    auto status = statuses.begin();  // the receives were started first
    for_pieces(op.received_bytes(), [&](std::int64_t /*first*/, int count) {
      require_all_received(*status++, op.peer, count);
    });
  }

  void reduce_to(int root, const Tensor& tensor, const Addresses& addresses) {
    float* const values = addresses.at(tensor);
    for_pieces(tensor.size(), [&](std::int64_t first, int count) {
      float* const piece = values + first;
      const bool is_root = rank() == root;
      must(MPI_Reduce(is_root ? MPI_IN_PLACE : piece, is_root ? piece : nullptr, count, MPI_FLOAT,
                      MPI_SUM, root, comm_.get()),
           "MPI_Reduce");
    });
  }

  static constexpr int kExchangeTag = 0;  // messages of two ranks arrive in their order

  std::shared_ptr<Mpi> mpi_;  // the first member: MPI ends after all communicators
  NarrowSum<Bf16> bf16_sum_;
  NarrowSum<F16> f16_sum_;
  MpiComm comm_;
  std::vector<float> received_;  // of other ranks, to be added up
};

/// Host calls of a background thread, which polls at intervals until they are done.
class MpiBackground final : public Group {
 public:
  explicit MpiBackground(MpiComm comm) : Group(comm.rank(), comm.size()), comm_(std::move(comm)) {}

  void broadcast(std::span<std::byte> bytes, int root) override {
    for_pieces(static_cast<std::int64_t>(bytes.size()), [&](std::int64_t first, int count) {
      MPI_Request request = MPI_REQUEST_NULL;
      must(MPI_Ibcast(bytes.data() + first, count, MPI_BYTE, root, comm_.get(), &request),
           "MPI_Ibcast");
      wait(request);
    });
  }

  void all_gather(std::span<const std::byte> bytes, std::span<std::byte> all) override {
    if (gather_by_broadcasts(*this, bytes, all)) return;
    const int count = static_cast<int>(bytes.size());
    MPI_Request request = MPI_REQUEST_NULL;
    must(MPI_Iallgather(bytes.data(), count, MPI_BYTE, all.data(), count, MPI_BYTE, comm_.get(),
                        &request),
         "MPI_Iallgather");
    wait(request);
  }

  void barrier() override {
    MPI_Request request = MPI_REQUEST_NULL;
    must(MPI_Ibarrier(comm_.get(), &request), "MPI_Ibarrier");
    wait(request);
  }

  void abort(ExitCode code) noexcept override { end_all_ranks(code); }

 private:
  static void wait(MPI_Request& request) {
    for (int is_done = 0;;) {
      must(MPI_Test(&request, &is_done, MPI_STATUS_IGNORE), "MPI_Test");
      if (is_done != 0) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  MpiComm comm_;
};

/// The CPUs of each rank of this host. Every rank of the host calls it.
std::vector<CpuSet> local_cpu_sets(const MpiComm& local, const CpuSet& mine) {
  static_assert(std::is_trivially_copyable_v<CpuSet>);
  std::vector<CpuSet> sets(static_cast<std::size_t>(local.size()));
  must(MPI_Allgather(&mine, sizeof mine, MPI_BYTE, sets.data(), sizeof mine, MPI_BYTE, local.get()),
       "MPI_Allgather");
  return sets;
}

/// The first part of the library's version text: "Open MPI v4.1.4".
std::string library_name() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string_view whole(text, static_cast<std::size_t>(length));
  return std::string(whole.substr(0, whole.find_first_of(",\n")));
}

}  // namespace

bool has_mpi() {
  return true;
}

MpiRank join_mpi(FlightRecord* record) {
  auto mpi = std::make_shared<Mpi>();
  const auto all_ranks = [] { return MpiComm::same(MPI_COMM_WORLD); };
  auto transport = std::make_unique<MpiTransport>(mpi, all_ranks());
  transport->set_flight_record(record);
  require_joined(launched_rank(), transport->size());
  const MpiComm local = MpiComm::of_host();
  const std::vector<CpuSet> sets = local_cpu_sets(local, allowed_cpus());
  const std::vector<CpuSet> given = local_cpu_sets(local, cpus_at_start());
  const CpuSet& own = given[static_cast<std::size_t>(local.rank())];
  CpuSet all;
  for (const CpuSet& each : sets) all |= each;
  const std::optional<double> quota = cpu_quota();
  return {.group = std::make_unique<MpiGroup>(std::move(mpi), all_ranks(), record),
          .transport = std::move(transport),
          .background = std::make_unique<MpiBackground>(all_ranks()),
          .local_rank = local.rank(),
          .local_size = static_cast<int>(sets.size()),
          .sharer = static_cast<int>(std::count(given.begin(), given.begin() + local.rank(), own)),
          .sharers = static_cast<int>(std::ranges::count(given, own)),
          .cpus = share_of_cpus(sets, static_cast<std::size_t>(local.rank()), quota),
          .local_cpus = cpus_within(all, quota),
          .library = library_name()};
}

void end_all_ranks(ExitCode code) noexcept {
  if (is_running()) {
    // MPI_Abort may hang, for example while MPI is shutting down.
    std::thread([code] {
      std::this_thread::sleep_for(std::chrono::seconds(3));
      std::_Exit(static_cast<int>(code));
    }).detach();
    MPI_Abort(MPI_COMM_WORLD, static_cast<int>(code));
  }
  std::_Exit(static_cast<int>(code));
}

}  // namespace barestep
