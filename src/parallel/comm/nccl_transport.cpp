#include "parallel/comm/nccl_transport.h"

#include <fmt/format.h>
#include <nccl.h>

#include <array>
#include <exception>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <utility>
#include <variant>

#include "core/error.h"

namespace barestep {

namespace {

/// NCCL's names of our element types. Types that are never summed travel as bytes.
ncclDataType_t nccl_type_of(DType dtype) {
  if (dtype == DType::kF32) return ncclFloat32;
  if (dtype == DType::kBF16) return ncclBfloat16;
  if (dtype == DType::kF16) return ncclFloat16;
  return dtype == DType::kI32 ? ncclInt32 : ncclUint8;
}

[[noreturn]] void refuse(ncclResult_t result, const char* call, ncclComm_t comm) {
  std::string why = ncclGetErrorString(result);
  const char* const detail = comm == nullptr ? nullptr : ncclGetLastError(comm);
  if (detail != nullptr && *detail != '\0') why += std::string(": ") + detail;
  fail(ExitCode::kTryAgain,
       {"NCCL call", call, why, "run with NCCL_DEBUG=WARN, or use --transport mpi"});
}

/// Records in a flight record which of the queued collectives the GPU has reached. Any thread may
/// poll it.
class QueuedCollectives {
 public:
  QueuedCollectives(Device& device, FlightRecord& record) : record_(record) {
    for (Queued& each : queued_) each.done = device.new_event(EventUse::kOrder);
  }
  ~QueuedCollectives() { record_.end(Track::kCollective); }
  QueuedCollectives(const QueuedCollectives&) = delete;
  QueuedCollectives& operator=(const QueuedCollectives&) = delete;

  /// Call it right after the collective is queued on the stream. If there is no room, the
  /// collective is not tracked: the older ones say more.
  void add(const Collective& collective, Tag tag, Stream& stream) {
    const std::lock_guard lock(mutex_);
    if (added_ - done_ == queued_.size()) return;
    Queued& last = queued_[added_++ % queued_.size()];
    last.activity = activity_of(collective);
    last.step = tag.step;
    last.bytes = cost_of(collective).message_bytes;
    last.done->record(stream);
    if (added_ - done_ == 1) enter();
  }

  void poll() {
    const std::lock_guard lock(mutex_);
    const std::size_t before = done_;
    while (done_ < added_ && queued_[done_ % queued_.size()].done->reached()) ++done_;
    if (done_ == before) return;
    if (done_ == added_) return record_.end(Track::kCollective);
    enter();
  }

 private:
  struct Queued {
    std::unique_ptr<Event> done;
    Activity activity = Activity::kAllReduce;
    std::int64_t step = -1;
    std::int64_t bytes = -1;
  };

  void enter() {
    const Queued& oldest = queued_[done_ % queued_.size()];
    record_.begin(Track::kCollective, oldest.activity, oldest.step, oldest.bytes);
  }

  FlightRecord& record_;
  std::mutex mutex_;  // guards the members below
  std::array<Queued, 64> queued_{};
  std::size_t added_ = 0, done_ = 0;
};

class NcclTransport final : public Transport {
 public:
  NcclTransport(Group& ranks, Device& device, FlightRecord* record)
      : Transport(ranks.rank(), ranks.size()), device_(device) {
    ncclUniqueId id{};
    if (rank() == 0) must(ncclGetUniqueId(&id), "ncclGetUniqueId");
    ranks.broadcast(std::as_writable_bytes(std::span(&id, 1)), 0);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;  // even if NCCL_COMM_BLOCKING says otherwise
    must(ncclCommInitRankConfig(&comm_, size(), id, rank(), &config), "ncclCommInitRankConfig");
    if (record != nullptr) queued_ = std::make_shared<QueuedCollectives>(device, *record);
  }
  /// The place in a group of the ranks of `all`.
  struct Place {
    ncclComm_t comm = nullptr;
    int rank = 0, size = 0;
  };
  /// Its collectives are queued on the same stream, and recorded together.
  NcclTransport(const NcclTransport& all, const Place& place)
      : Transport(place.rank, place.size),
        device_(all.device_),
        comm_(place.comm),
        queued_(all.queued_) {}
  /// During stack unwinding, other ranks may never join, so collectives in flight are aborted.
  ~NcclTransport() override {
    if (comm_ == nullptr) return;
    if (std::uncaught_exceptions() > 0) {
      ncclCommAbort(comm_);
      return;
    }
    ncclCommFinalize(comm_);
    ncclCommDestroy(comm_);
  }
  NcclTransport(const NcclTransport&) = delete;
  NcclTransport& operator=(const NcclTransport&) = delete;

  void prepare(const Collective& collective) override {
    BARESTEP_REQUIRE(parts_of(collective).size() == 1, "a rank has one device");
    if (const auto* op = std::get_if<AllReduce>(&collective)) {
      prepare_scaling(collective, op->tensors[0], op->scale);
    } else if (const auto* scatter = std::get_if<ReduceScatter>(&collective)) {
      prepare_scaling(collective, scatter->tensors[0], scatter->scale);
    } else if (const auto* exchange = std::get_if<SendReceive>(&collective)) {
      connect(exchange->peer);
    }
  }

  void run(const Collective& collective, const Addresses& addresses,
           std::span<Stream* const> streams, Tag tag) override {
    const auto scaling = scalings_.find(&collective);
    if (scaling != scalings_.end()) {
      device_.run(scaling->second, addresses, *streams[0], {tag.program, tag.step, kPartOfNode});
    }
    auto* const stream = static_cast<cudaStream_t>(streams[0]->native());
    std::visit([&](const auto& each) { queue(each, addresses, stream); }, collective);
    if (queued_) queued_->add(collective, tag, *streams[0]);
  }

  [[nodiscard]] std::string poll_error() override {
    if (queued_) queued_->poll();
    ncclResult_t state = ncclSuccess;
    const ncclResult_t status = ncclCommGetAsyncError(comm_, &state);
    const ncclResult_t found = status == ncclSuccess ? state : status;
    return found == ncclSuccess ? "" : std::string("NCCL: ") + ncclGetErrorString(found);
  }

  std::unique_ptr<Transport> split(int color) override {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    Place place;
    must(ncclCommSplit(comm_, color, rank(), &place.comm, &config), "ncclCommSplit");
    must(ncclCommUserRank(place.comm, &place.rank), "ncclCommUserRank");
    must(ncclCommCount(place.comm, &place.size), "ncclCommCount");
    return std::make_unique<NcclTransport>(*this, place);
  }

 private:
  /// Multiplies a rank's numbers by its scale, rounded once. Left out where it would change
  /// nothing.
  void prepare_scaling(const Collective& collective, const Tensor& tensor, float scale) {
    scalings_.erase(&collective);
    if (scale == 1) return;
    const Tensor flat{tensor.buffer, tensor.offset_bytes, 1, tensor.size(), tensor.dtype};
    Tensor no_rows = flat;
    no_rows.rows = 0;
    const DeviceOp scaling = SumRows{.out = flat, .in = no_rows, .beta = scale};
    device_.prepare(scaling);
    scalings_.insert_or_assign(&collective, scaling);
  }

  /// NCCL connects two ranks in their first exchange, which would block the host in a step: sends
  /// nothing there and back. The peer connects in the same place of its program.
  void connect(int peer) {
    if (!connected_.insert(peer).second) return;
    const std::unique_ptr<Stream> once = device_.new_stream("connect");
    auto* const stream = static_cast<cudaStream_t>(once->native());
    must(ncclGroupStart(), "ncclGroupStart");
    must(ncclSend(nullptr, 0, ncclUint8, peer, comm_, stream), "ncclSend");
    must(ncclRecv(nullptr, 0, ncclUint8, peer, comm_, stream), "ncclRecv");
    must(ncclGroupEnd(), "ncclGroupEnd");
    once->synchronize();
  }

  void queue(const AllReduce& op, const Addresses& addresses, cudaStream_t stream) {
    const Tensor& tensor = op.tensors[0];
    void* const values = addresses.at<std::byte>(tensor);
    must(ncclAllReduce(values, values, count(tensor), nccl_type_of(tensor.dtype), ncclSum, comm_,
                       stream),
         "ncclAllReduce");
  }
  void queue(const Broadcast& op, const Addresses& addresses, cudaStream_t stream) {
    const Tensor& tensor = op.tensors[0];
    void* const values = addresses.at<std::byte>(tensor);
    must(ncclBroadcast(values, values, count(tensor), nccl_type_of(tensor.dtype), op.root, comm_,
                       stream),
         "ncclBroadcast");
  }
  void queue(const Reduce& op, const Addresses& addresses, cudaStream_t stream) {
    const Tensor& tensor = op.tensors[0];
    void* const values = addresses.at<std::byte>(tensor);
    must(ncclReduce(values, values, count(tensor), nccl_type_of(tensor.dtype), ncclSum, op.root,
                    comm_, stream),
         "ncclReduce");
  }

  void queue(const ReduceScatter& op, const Addresses& addresses, cudaStream_t stream) {
    const Tensor& tensor = op.tensors[0];
    if (tensor.rows % size() == 0) {
      const Tensor share = share_of_rank(tensor, rank(), size());
      must(ncclReduceScatter(addresses.at(tensor), addresses.at(share), count(share), ncclFloat32,
                             ncclSum, comm_, stream),
           "ncclReduceScatter");
      return;
    }
    must(ncclGroupStart(), "ncclGroupStart");
    for (int root = 0; root < size(); ++root) {
      const Tensor share = share_of_rank(tensor, root, size());
      if (share.size() == 0) continue;
      must(ncclReduce(addresses.at(share), addresses.at(share), count(share), ncclFloat32, ncclSum,
                      root, comm_, stream),
           "ncclReduce");
    }
    must(ncclGroupEnd(), "ncclGroupEnd");
  }
  void queue(const AllGather& op, const Addresses& addresses, cudaStream_t stream) {
    const Tensor& tensor = op.tensors[0];
    const Tensor share = share_of_rank(tensor, rank(), size());
    const Tensor& own = op.own.empty() ? share : op.own[0];
    BARESTEP_REQUIRE(own.rows == share.rows, "a rank's own rows are its share");
    const ncclDataType_t type = nccl_type_of(tensor.dtype);
    if (tensor.rows % size() == 0) {
      must(ncclAllGather(addresses.at<std::byte>(own), addresses.at<std::byte>(tensor), count(own),
                         type, comm_, stream),
           "ncclAllGather");
      return;
    }
    must(ncclGroupStart(), "ncclGroupStart");
    for (int root = 0; root < size(); ++root) {
      const Tensor rows = share_of_rank(tensor, root, size());
      const Tensor& from = root == rank() ? own : rows;
      must(ncclBroadcast(addresses.at<std::byte>(from), addresses.at<std::byte>(rows), count(rows),
                         type, root, comm_, stream),
           "ncclBroadcast");
    }
    must(ncclGroupEnd(), "ncclGroupEnd");
  }

  void queue(const SendReceive& op, const Addresses& addresses, cudaStream_t stream) {
    must(ncclGroupStart(), "ncclGroupStart");
    if (const auto& sent = op.sends) {
      must(ncclSend(addresses.at<std::byte>(*sent), count(*sent), nccl_type_of(sent->dtype),
                    op.peer, comm_, stream),
           "ncclSend");
    }
    if (const auto& received = op.receives) {
      must(ncclRecv(addresses.at<std::byte>(*received), count(*received),
                    nccl_type_of(received->dtype), op.peer, comm_, stream),
           "ncclRecv");
    }
    must(ncclGroupEnd(), "ncclGroupEnd");
  }

  static std::size_t count(const Tensor& tensor) { return static_cast<std::size_t>(tensor.size()); }

  void must(ncclResult_t result, const char* call) {
    if (result != ncclSuccess) refuse(result, call, comm_);
  }

  Device& device_;
  ncclComm_t comm_ = nullptr;
  std::map<const Collective*, DeviceOp> scalings_;
  std::set<int> connected_;                    // peers
  std::shared_ptr<QueuedCollectives> queued_;  // null: not recorded
};

}  // namespace

int nccl_version_code() {
  int version = 0;
  if (!why_no_nccl().empty()) return version;
  if (const ncclResult_t result = ncclGetVersion(&version); result != ncclSuccess) {
    refuse(result, "ncclGetVersion", nullptr);
  }
  return version;
}

std::string nccl_version() {
  const int version = nccl_version_code();
  if (version == 0) return "";
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::unique_ptr<Transport> join_nccl(Group& ranks, Device& device, FlightRecord* record) {
  return std::make_unique<NcclTransport>(ranks, device, record);
}

namespace {

void must(ncclResult_t result, const char* call) {
  if (result == ncclSuccess) return;
  fail(ExitCode::kTryAgain, {"NCCL call", call, ncclGetErrorString(result),
                             "run with NCCL_DEBUG=WARN, or build with BARESTEP_NCCL=OFF"});
}

class NcclDevices final : public Transport {
 public:
  explicit NcclDevices(std::vector<int> ordinals)
      : Transport(0, static_cast<int>(ordinals.size())), ordinals_(std::move(ordinals)) {}
  ~NcclDevices() override {
    for (const auto& [size, clique] : cliques_) {
      for (ncclComm_t comm : clique) ncclCommDestroy(comm);
    }
  }
  NcclDevices(const NcclDevices&) = delete;
  NcclDevices& operator=(const NcclDevices&) = delete;

  /// A smaller batch may leave the last devices without rows, so each number of participating
  /// devices has its own communicators.
  void prepare(const Collective& collective) override {
    BARESTEP_REQUIRE(
        std::holds_alternative<Broadcast>(collective) || std::holds_alternative<Reduce>(collective),
        "devices of one process broadcast and reduce");
    const std::size_t parts = tensors_of(collective).size();
    BARESTEP_REQUIRE(parts <= ordinals_.size(), "a collective has a device for each tensor");
    if (cliques_.contains(parts)) return;
    std::vector<ncclComm_t> comms(parts);
    must(ncclCommInitAll(comms.data(), static_cast<int>(parts), ordinals_.data()),
         "ncclCommInitAll");
    cliques_.emplace(parts, std::move(comms));
  }

  void run(const Collective& collective, const Addresses& addresses,
           std::span<Stream* const> streams, Tag /*tag*/) override {
    const std::vector<Tensor>& tensors = tensors_of(collective);
    const std::vector<ncclComm_t>& clique = cliques_.at(tensors.size());
    must(ncclGroupStart(), "ncclGroupStart");
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const Tensor& tensor = tensors[i];
      auto* const values = addresses.at<std::byte>(tensor);
      const auto count = static_cast<std::size_t>(tensor.size());
      auto* const stream = static_cast<cudaStream_t>(streams[i]->native());
      if (const auto* broadcast = std::get_if<Broadcast>(&collective)) {
        must(ncclBroadcast(values, values, count, nccl_type_of(tensor.dtype), broadcast->root,
                           clique[i], stream),
             "ncclBroadcast");
      } else {
        must(ncclReduce(values, values, count, nccl_type_of(tensor.dtype), ncclSum,
                        std::get<Reduce>(collective).root, clique[i], stream),
             "ncclReduce");
      }
    }
    must(ncclGroupEnd(), "ncclGroupEnd");
  }

  [[nodiscard]] std::string poll_error() override {
    for (const auto& [size, clique] : cliques_) {
      for (ncclComm_t comm : clique) {
        ncclResult_t state = ncclSuccess;
        const ncclResult_t status = ncclCommGetAsyncError(comm, &state);
        const ncclResult_t found = status == ncclSuccess ? state : status;
        if (found != ncclSuccess) return std::string("NCCL: ") + ncclGetErrorString(found);
      }
    }
    return "";
  }

 private:
  static const std::vector<Tensor>& tensors_of(const Collective& collective) {
    const auto* const broadcast = std::get_if<Broadcast>(&collective);
    return broadcast != nullptr ? broadcast->tensors : std::get<Reduce>(collective).tensors;
  }

  std::vector<int> ordinals_;
  std::map<std::size_t, std::vector<ncclComm_t>> cliques_;  // by the number of devices
};

}  // namespace

std::unique_ptr<Transport> join_devices_by_nccl(const std::vector<int>& ordinals) {
  return std::make_unique<NcclDevices>(ordinals);
}

}  // namespace barestep
