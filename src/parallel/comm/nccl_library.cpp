// Loads NCCL at its first call, as kernels/cuda/blas_lt.cpp loads cuBLASLt: functions with its
// names forward calls to it, and the linker finds these.
#include <fmt/format.h>
#include <nccl.h>

#include <array>
#include <string>

#include "core/error.h"
#include "core/shared_library.h"
#include "parallel/comm/nccl_transport.h"

namespace barestep {
namespace {

struct LoadedNccl {
  std::string why;
  void* library = load_library(
      std::array{std::string("libnccl.so.2"), std::string(BARESTEP_NCCL_LIBRARY)}, why);
};

const LoadedNccl& loaded_nccl() {
  static const LoadedNccl loaded;
  return loaded;
}

void* function_of_nccl(const char* name) {
  const auto& [why, library] = loaded_nccl();
  void* const function = library == nullptr ? nullptr : function_of(library, name);
  if (function != nullptr) return function;
  fail(ExitCode::kConfiguration,
       {"NCCL", "",
        library == nullptr ? why : fmt::format("the library that was found has no {}", name),
        "install libnccl2, name its folder in LD_LIBRARY_PATH, or use --transport mpi or "
        "peer"});
}

template <auto* kDeclared, class... Arguments>
auto forward(const char* name, Arguments... arguments) {
  static auto* const call = reinterpret_cast<decltype(kDeclared)>(function_of_nccl(name));
  return call(arguments...);
}

}  // namespace

std::string why_no_nccl() {
  return loaded_nccl().why;
}

}  // namespace barestep

using barestep::forward;

// NOLINTBEGIN(readability-identifier-naming): the library's names.

ncclResult_t ncclGetVersion(int* version) {
  return forward<ncclGetVersion>("ncclGetVersion", version);
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  return forward<ncclGetUniqueId>("ncclGetUniqueId", id);
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  return forward<ncclCommInitRankConfig>("ncclCommInitRankConfig", comm, ranks, id, rank, config);
}
ncclResult_t ncclCommInitAll(ncclComm_t* comms, int count, const int* devices) {
  return forward<ncclCommInitAll>("ncclCommInitAll", comms, count, devices);
}
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* part,
                           ncclConfig_t* config) {
  return forward<ncclCommSplit>("ncclCommSplit", comm, color, key, part, config);
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  return forward<ncclCommFinalize>("ncclCommFinalize", comm);
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  return forward<ncclCommDestroy>("ncclCommDestroy", comm);
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  return forward<ncclCommAbort>("ncclCommAbort", comm);
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  return forward<ncclCommGetAsyncError>("ncclCommGetAsyncError", comm, error);
}
ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  return forward<ncclCommCount>("ncclCommCount", comm, count);
}
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  return forward<ncclCommUserRank>("ncclCommUserRank", comm, rank);
}
const char* ncclGetErrorString(ncclResult_t result) {
  return forward<ncclGetErrorString>("ncclGetErrorString", result);
}
const char* ncclGetLastError(ncclComm_t comm) {
  return forward<ncclGetLastError>("ncclGetLastError", comm);
}
ncclResult_t ncclGroupStart() {
  return forward<ncclGroupStart>("ncclGroupStart");
}
ncclResult_t ncclGroupEnd() {
  return forward<ncclGroupEnd>("ncclGroupEnd");
}
ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return forward<ncclAllReduce>("ncclAllReduce", from, to, count, type, op, comm, stream);
}
ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return forward<ncclBroadcast>("ncclBroadcast", from, to, count, type, root, comm, stream);
}
ncclResult_t ncclReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  return forward<ncclReduce>("ncclReduce", from, to, count, type, op, root, comm, stream);
}
ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return forward<ncclReduceScatter>("ncclReduceScatter", from, to, count, type, op, comm, stream);
}
ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return forward<ncclAllGather>("ncclAllGather", from, to, count, type, comm, stream);
}
ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return forward<ncclSend>("ncclSend", from, count, type, peer, comm, stream);
}
ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return forward<ncclRecv>("ncclRecv", to, count, type, peer, comm, stream);
}

// NOLINTEND(readability-identifier-naming)
