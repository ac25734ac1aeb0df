#include "parallel/comm/nccl_devices.h"

#include <nccl.h>

#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <variant>

#include "core/error.h"
#include "parallel/comm/nccl_types.h"

namespace barestep {
namespace {

void must(ncclResult_t result, const char* call) {
  if (result == ncclSuccess) return;
  fail(ExitCode::kTryAgain,
       {.what = "NCCL call",
        .value = call,
        .why = ncclGetErrorString(result),
        .remedy = "run with NCCL_DEBUG=WARN, or build with BARESTEP_NCCL=OFF"});
}

class NcclDevices final : public Communicator {
 public:
  explicit NcclDevices(std::vector<int> ordinals) : ordinals_(std::move(ordinals)) {}
  ~NcclDevices() override {
    for (const auto& [size, clique] : cliques_) {
      for (ncclComm_t comm : clique) ncclCommDestroy(comm);
    }
  }
  NcclDevices(const NcclDevices&) = delete;
  NcclDevices& operator=(const NcclDevices&) = delete;

  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int size() const override { return static_cast<int>(ordinals_.size()); }

  /// A smaller batch may leave the last devices without rows: each number of devices that takes
  /// part has communicators of its own.
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

  void broadcast(std::span<std::byte> /*bytes*/, int /*root*/) override {}
  void all_gather(std::span<const std::byte> bytes, std::span<std::byte> all) override {
    for (std::size_t at = 0; at < all.size(); at += bytes.size()) {
      std::memcpy(all.data() + at, bytes.data(), bytes.size());
    }
  }
  void barrier() override {}

  [[nodiscard]] std::string poll_error() override {
    for (const auto& [size, clique] : cliques_) {
      for (ncclComm_t comm : clique) {
        ncclResult_t state = ncclSuccess;
        const ncclResult_t asked = ncclCommGetAsyncError(comm, &state);
        const ncclResult_t found = asked == ncclSuccess ? state : asked;
        if (found != ncclSuccess) return std::string("NCCL: ") + ncclGetErrorString(found);
      }
    }
    return "";
  }

  void abort(ExitCode /*code*/) noexcept override {
    for (const auto& [size, clique] : cliques_) {
      for (ncclComm_t comm : clique) ncclCommAbort(comm);
    }
    cliques_.clear();
  }

 private:
  static const std::vector<Tensor>& tensors_of(const Collective& collective) {
    return std::visit([](const auto& op) -> const std::vector<Tensor>& { return op.tensors; },
                      collective);
  }

  std::vector<int> ordinals_;
  std::map<std::size_t, std::vector<ncclComm_t>> cliques_;  // by the number of devices
};

}  // namespace

std::unique_ptr<Communicator> join_devices_by_nccl(const std::vector<int>& ordinals) {
  return std::make_unique<NcclDevices>(ordinals);
}

}  // namespace barestep
