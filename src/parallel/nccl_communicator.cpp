#include "parallel/nccl_communicator.h"

#include <fmt/format.h>
#include <nccl.h>

#include <chrono>
#include <exception>
#include <map>
#include <span>
#include <string>
#include <thread>
#include <variant>

#include "core/error.h"
#include "parallel/nccl_types.h"
#include "train/rank_rows.h"

namespace barestep {
namespace {

[[noreturn]] void refuse(ncclResult_t result, const char* call, ncclComm_t comm) {
  std::string why = ncclGetErrorString(result);
  const char* const detail = comm == nullptr ? nullptr : ncclGetLastError(comm);
  if (detail != nullptr && *detail != '\0') why += std::string(": ") + detail;
  fail(ExitCode::kTryAgain, {.what = "NCCL call",
                             .value = call,
                             .why = why,
                             .remedy = "run with NCCL_DEBUG=WARN, or use --transport mpi"});
}

class NcclCommunicator final : public Communicator {
 public:
  explicit NcclCommunicator(Communicator& host) : host_(host) {
    ncclUniqueId id{};
    if (host.rank() == 0) must(ncclGetUniqueId(&id), "ncclGetUniqueId");
    host.broadcast(std::as_writable_bytes(std::span(&id, 1)), 0);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    must(ncclCommInitRankConfig(&comm_, host.size(), id, host.rank(), &config),
         "ncclCommInitRankConfig");
  }
  /// While an exception is on its way other ranks may never come: what is under way is given up.
  ~NcclCommunicator() override {
    if (comm_ == nullptr) return;
    for (const auto& [collective, sum] : sums_) ncclRedOpDestroy(sum, comm_);
    if (std::uncaught_exceptions() > 0) {
      ncclCommAbort(comm_);
      return;
    }
    ncclCommFinalize(comm_);
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress && ncclCommGetAsyncError(comm_, &state) == ncclSuccess) {
      std::this_thread::yield();
    }
    ncclCommDestroy(comm_);
  }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  [[nodiscard]] int rank() const override { return host_.rank(); }
  [[nodiscard]] int size() const override { return host_.size(); }

  void prepare(const Collective& collective) override {
    std::visit(
        [](const auto& op) { BARESTEP_REQUIRE(op.tensors.size() == 1, "a rank has one device"); },
        collective);
    float scale = 1;
    if (const auto* op = std::get_if<AllReduce>(&collective)) scale = op->scale;
    if (const auto* op = std::get_if<ReduceScatter>(&collective)) scale = op->scale;
    if (scale == 1 || sums_.contains(&collective)) return;
    // Each rank multiplies its own numbers by its own factor, before the sum.
    ncclRedOp_t sum = ncclSum;
    must(ncclRedOpCreatePreMulSum(&sum, &scale, ncclFloat32, ncclScalarHostImmediate, comm_),
         "ncclRedOpCreatePreMulSum");
    sums_.emplace(&collective, sum);
  }

  void run(const Collective& collective, const Addresses& addresses,
           std::span<Stream* const> streams, Tag /*tag*/) override {
    auto* const stream = static_cast<cudaStream_t>(streams[0]->native());
    const auto sum = sums_.find(&collective);
    const ncclRedOp_t op = sum == sums_.end() ? ncclSum : sum->second;
    std::visit([&](const auto& each) { queue(each, addresses, op, stream); }, collective);
  }

  void broadcast(std::span<std::byte> bytes, int root) override { host_.broadcast(bytes, root); }
  void all_gather(std::span<const std::byte> bytes, std::span<std::byte> all) override {
    host_.all_gather(bytes, all);
  }
  void barrier() override { host_.barrier(); }

  [[nodiscard]] std::string poll_error() override {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
    const ncclResult_t found = asked == ncclSuccess ? state : asked;
    if (found == ncclSuccess || found == ncclInProgress) return "";
    return std::string("NCCL: ") + ncclGetErrorString(found);
  }

  void abort(ExitCode code) noexcept override {
    if (comm_ != nullptr) ncclCommAbort(comm_);
    comm_ = nullptr;
    host_.abort(code);
  }

 private:
  void queue(const AllReduce& op, const Addresses& addresses, ncclRedOp_t sum,
             cudaStream_t stream) {
    const Tensor& tensor = op.tensors[0];
    void* const values = addresses.at<std::byte>(tensor);
    must(ncclAllReduce(values, values, count(tensor), nccl_type_of(tensor.dtype), sum, comm_,
                       stream),
         "ncclAllReduce");
  }
  void queue(const Broadcast& op, const Addresses& addresses, ncclRedOp_t /*sum*/,
             cudaStream_t stream) {
    const Tensor& tensor = op.tensors[0];
    void* const values = addresses.at<std::byte>(tensor);
    must(ncclBroadcast(values, values, count(tensor), nccl_type_of(tensor.dtype), op.root, comm_,
                       stream),
         "ncclBroadcast");
  }
  void queue(const Reduce& op, const Addresses& addresses, ncclRedOp_t sum, cudaStream_t stream) {
    const Tensor& tensor = op.tensors[0];
    void* const values = addresses.at<std::byte>(tensor);
    must(ncclReduce(values, values, count(tensor), nccl_type_of(tensor.dtype), sum, op.root, comm_,
                    stream),
         "ncclReduce");
  }

  void queue(const ReduceScatter& op, const Addresses& addresses, ncclRedOp_t sum,
             cudaStream_t stream) {
    const Tensor& tensor = op.tensors[0];
    BARESTEP_REQUIRE(tensor.rows % size() == 0, "NCCL scatters equal shares");
    const Tensor share = share_of_rank(tensor, rank(), size());
    must(ncclReduceScatter(addresses.at(tensor), addresses.at(share), count(share), ncclFloat32,
                           sum, comm_, stream),
         "ncclReduceScatter");
  }
  void queue(const AllGather& op, const Addresses& addresses, ncclRedOp_t /*sum*/,
             cudaStream_t stream) {
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

  static std::size_t count(const Tensor& tensor) { return static_cast<std::size_t>(tensor.size()); }

  /// A communicator that does not block answers "in progress" until a call is really queued; only
  /// then may events be recorded behind it.
  void must(ncclResult_t result, const char* call) {
    while (result == ncclInProgress) {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
      const ncclResult_t asked = ncclCommGetAsyncError(comm_, &result);
      if (asked != ncclSuccess) result = asked;
    }
    if (result != ncclSuccess) refuse(result, call, comm_);
  }

  Communicator& host_;
  ncclComm_t comm_ = nullptr;
  std::map<const Collective*, ncclRedOp_t> sums_;
};

}  // namespace

bool has_nccl() {
  return true;
}

std::string nccl_version() {
  int version = 0;
  if (const ncclResult_t result = ncclGetVersion(&version); result != ncclSuccess) {
    refuse(result, "ncclGetVersion", nullptr);
  }
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::unique_ptr<Communicator> join_nccl(Communicator& host) {
  return std::make_unique<NcclCommunicator>(host);
}

}  // namespace barestep
