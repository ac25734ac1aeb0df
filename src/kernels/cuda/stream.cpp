#include "kernels/cuda/stream.h"

#include <fmt/format.h>

#include "kernels/cuda/launch.h"

namespace barestep {
namespace {

/// "gemm of 64x1024, 64x1024, 1024x1024": the op and its tensors, written ones first.
std::string text_of(const DeviceOp& op) {
  std::string text(label_of(op));
  const char* separator = " of ";
  for (const Access& access : accesses_of(op)) {
    text += fmt::format("{}{}x{}", separator, access.tensor.rows, access.tensor.cols);
    separator = ", ";
  }
  return text;
}

cudaStream_t handle_of(Stream& stream) {
  return static_cast<CudaDeviceStream&>(stream).handle();
}

}  // namespace

CudaContext::CudaContext(int ordinal) : ordinal_(ordinal), name_(fmt::format("cuda:{}", ordinal)) {
  use();
  int major = 0;
  int minor = 0;
  require(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal),
          "cudaDeviceGetAttribute");
  require(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal),
          "cudaDeviceGetAttribute");
  architecture_ = 10 * major + minor;
  is_open_ = true;
}

void CudaContext::use() {
  const cudaError_t status = cudaSetDevice(ordinal_);
  if (status != cudaSuccess) require(status, "cudaSetDevice");
}

void CudaContext::queueing(const DeviceOp& op) {
  const std::lock_guard lock(mutex_);
  last_op_ = op;
}

CudaFacts CudaContext::facts(const char* call, std::int64_t requested_bytes) const {
  CudaFacts facts = facts_of_process();
  facts.call = call;
  facts.device = name_;
  facts.is_open = is_open_;
  if (last_op_) facts.last_op = text_of(*last_op_);
  facts.requested_bytes = requested_bytes;
  facts.architecture = architecture_;
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  if (cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess) {
    facts.free_bytes = static_cast<std::int64_t>(free_bytes);
    facts.total_bytes = static_cast<std::int64_t>(total_bytes);
  }
  // Clears the error, which is reported here and nowhere else.
  static_cast<void>(cudaGetLastError());
  return facts;
}

void CudaContext::keep(const CudaFailure& failure, bool final_error) {
  final_error_ = final_error_ || final_error;
  if (!error_) error_.emplace(failure.code, failure.problem);
}

void CudaContext::require(cudaError_t status, const char* call, std::int64_t requested_bytes) {
  if (status == cudaSuccess) return;
  const std::lock_guard lock(mutex_);
  if (final_error_) throw Error(*error_);
  const CudaFailure failure = explain_status(status, facts(call, requested_bytes));
  if (is_final(status)) keep(failure, true);
  fail(failure.code, failure.problem);
}

void CudaContext::require(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  const cudaError_t pending = cudaPeekAtLastError();
  if (pending != cudaSuccess) require(pending, call);
  const std::lock_guard lock(mutex_);
  const CudaFailure failure = explain_status(status, cudaSuccess, facts(call, 0));
  fail(failure.code, failure.problem);
}

void CudaContext::note(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  const std::lock_guard lock(mutex_);
  if (error_) return;
  keep(explain_status(status, facts(call, 0)), is_final(status));
}

void CudaContext::note(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  const cudaError_t pending = cudaPeekAtLastError();
  if (pending != cudaSuccess) return note(pending, call);
  const std::lock_guard lock(mutex_);
  if (error_) return;
  keep(explain_status(status, cudaSuccess, facts(call, 0)), false);
}

bool CudaContext::failed() const {
  const std::lock_guard lock(mutex_);
  return error_.has_value();
}

void CudaContext::check() {
  const std::lock_guard lock(mutex_);
  if (!error_) return;
  const Error error = *error_;
  if (!final_error_) error_.reset();
  throw Error(error);
}

CudaDeviceEvent::CudaDeviceEvent(CudaContext& context, EventUse use)
    : context_(context), use_(use) {
  context.use();
  cudaEvent_t event = nullptr;
  const unsigned flags = use == EventUse::kOrder ? cudaEventDisableTiming : cudaEventDefault;
  context.require(cudaEventCreateWithFlags(&event, flags), "cudaEventCreateWithFlags");
  handle_.reset(event);
}

void CudaDeviceEvent::record(Stream& stream) {
  // In a capture, a plain recording only marks a point for the capture's other streams. An external
  // recording is a node that timestamps the event at every launch.
  const bool stamps = context_.capturing && use_ == EventUse::kTime;
  const unsigned flags = stamps ? cudaEventRecordExternal : cudaEventRecordDefault;
  if (stamps) static_cast<CudaDeviceStream&>(stream).follows_kernel = false;
  context_.note(cudaEventRecordWithFlags(handle_.get(), handle_of(stream), flags),
                "cudaEventRecordWithFlags");
  recorded_ = true;
}

bool CudaDeviceEvent::reached() const {
  // Any thread may ask; without this call it could open another GPU.
  context_.note(cudaSetDevice(context_.ordinal()), "cudaSetDevice");
  const cudaError_t status = cudaEventQuery(handle_.get());
  if (status == cudaErrorNotReady) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  // After a failure nothing more happens on the device, so nothing must wait for it.
  context_.note(status, "cudaEventQuery");
  return true;
}

void CudaDeviceEvent::synchronize() const {
  context_.note(cudaEventSynchronize(handle_.get()), "cudaEventSynchronize");
}

double CudaDeviceEvent::seconds_since(const Event& earlier) const {
  float milliseconds = 0;
  context_.require(
      cudaEventElapsedTime(
          &milliseconds, static_cast<const CudaDeviceEvent&>(earlier).handle_.get(), handle_.get()),
      "cudaEventElapsedTime");
  return static_cast<double>(milliseconds) * 1e-3;
}

CudaDeviceStream::CudaDeviceStream(CudaContext& context, StreamRole role)
    : context_(context), role_(role) {
  context.use();
  int min = 0;
  int greatest = 0;
  context.require(cudaDeviceGetStreamPriorityRange(&min, &greatest),
                  "cudaDeviceGetStreamPriorityRange");
  cudaStream_t stream = nullptr;
  const int priority = role == StreamRole::kFirst ? greatest : min;
  context.require(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority),
                  "cudaStreamCreateWithPriority");
  handle_.reset(stream);
  constexpr std::size_t kBytes = kLaunchWorkspaceBytes + kLaunchCounts * sizeof(unsigned);
  void* scratch = nullptr;
  context.require(cudaMalloc(&scratch, kBytes), "cudaMalloc", static_cast<std::int64_t>(kBytes));
  scratch_.reset(static_cast<std::byte*>(scratch));
  context.require(cudaMemsetAsync(scratch, 0, kBytes, stream), "cudaMemsetAsync");
  // A graph runs the work of this stream on another one.
  context.require(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  workspace_ = {scratch_.get(), kLaunchWorkspaceBytes};
}

CudaDeviceStream::~CudaDeviceStream() {
  static_cast<void>(cudaStreamSynchronize(handle_.get()));
}

void CudaDeviceStream::wait(const Event& event) {
  const auto& awaited = static_cast<const CudaDeviceEvent&>(event);
  BARESTEP_REQUIRE(awaited.recorded_, "a stream waits for an event that was never recorded");
  BARESTEP_REQUIRE(!context_.capturing || awaited.use_ == EventUse::kOrder,
                   "inside a capture only events made for order can be waited for");
  follows_kernel = false;
  context_.note(cudaStreamWaitEvent(handle_.get(), awaited.handle_.get(), cudaEventWaitDefault),
                "cudaStreamWaitEvent");
}

void CudaDeviceStream::call(void (*function)(void*), void* argument) {
  if (context_.failed()) return;
  follows_kernel = false;
  context_.note(cudaLaunchHostFunc(handle_.get(), function, argument), "cudaLaunchHostFunc");
}

void CudaDeviceStream::synchronize() {
  context_.note(cudaStreamSynchronize(handle_.get()), "cudaStreamSynchronize");
  context_.check();
}

}  // namespace barestep
