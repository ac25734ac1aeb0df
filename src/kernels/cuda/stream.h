// Streams, events and graphs of a CUDA device, and what they share: where they run and what failed.
//
// A call that fails while work is queued does not throw: its error is noted for check() and
// synchronize(), and until one of them has thrown it, all streams of the device skip their work.
// After an error that ends the device for this process every check throws the first one again.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "core/device.h"
#include "kernels/cuda/status.h"

namespace barestep {

class CudaContext {
 public:
  /// Opens GPU number `ordinal`. Throws Error: kNoDevice, kMemory.
  explicit CudaContext(int ordinal);

  [[nodiscard]] int ordinal() const { return ordinal_; }
  [[nodiscard]] const std::string& name() const { return name_; }  // "cuda:0"

  /// Makes it the calling thread's device; before every call that depends on that.
  void use();

  /// What messages call the last op. Copies, for the op may be gone when the failure shows.
  void queueing(const DeviceOp& op);

  /// Throws if the call failed; the first error, if one ended the device. Names are static text.
  void require(cudaError_t status, const char* call, std::int64_t asked_bytes = 0);
  void require(cublasStatus_t status, const char* call);

  /// Notes the error if the call failed. `status` may stand for something that failed earlier.
  void note(cudaError_t status, const char* call);
  void note(cublasStatus_t status, const char* call);

  /// True from a noted error until check() has thrown it.
  [[nodiscard]] bool failed() const;
  void check();

  /// Set while a capture is on.
  bool capturing = false;

 private:
  [[nodiscard]] CudaFacts facts(const char* call, std::int64_t asked_bytes) const;
  void keep(const CudaFailure& failure, bool final_error);

  int ordinal_;
  std::string name_;
  int architecture_ = 0;
  bool is_open_ = false;

  mutable std::mutex mutex_;  // guards what follows
  std::optional<DeviceOp> last_op_;
  std::optional<Error> error_;
  bool final_error_ = false;
};

class CudaDeviceEvent final : public Event {
 public:
  /// `context` must outlive the event.
  CudaDeviceEvent(CudaContext& context, EventUse use);

  void record(Stream& stream) override;
  [[nodiscard]] bool reached() const override;
  void synchronize() const override;
  [[nodiscard]] double seconds_since(const Event& earlier) const override;

 private:
  friend class CudaDeviceStream;
  CudaContext& context_;
  EventUse use_;
  OwnedEvent handle_;
  bool recorded_ = false;
};

/// How a stream's work stands to that of the others.
enum class StreamRole {
  kEqual,
  kFirst,   // its blocks are placed before those of other streams that wait
  kShares,  // its kernels leave room beside them
};

class CudaDeviceStream final : public Stream {
 public:
  /// `context` must outlive the stream. Allocates scratch for our kernels, which set_workspace()
  /// replaces.
  explicit CudaDeviceStream(CudaContext& context, StreamRole role = StreamRole::kEqual);
  /// Finishes what is queued.
  ~CudaDeviceStream() override;
  CudaDeviceStream(const CudaDeviceStream&) = delete;
  CudaDeviceStream& operator=(const CudaDeviceStream&) = delete;

  void wait(const Event& event) override;
  void call(void (*function)(void*), void* argument) override;
  void synchronize() override;
  void check() override;
  void set_workspace(std::span<std::byte> memory) override { workspace_ = memory; }
  [[nodiscard]] void* native() const override { return handle_.get(); }

  [[nodiscard]] cudaStream_t handle() const { return handle_.get(); }
  [[nodiscard]] std::span<std::byte> workspace() const { return workspace_; }
  [[nodiscard]] StreamRole role() const { return role_; }
  /// Whether the last work of a capture is a kernel of ours, after which another one may be
  /// launched ahead. Whoever queues something else sets it to false.
  bool follows_kernel = false;

 private:
  CudaContext& context_;
  StreamRole role_;
  OwnedStream handle_;
  OwnedDeviceMemory scratch_;
  std::span<std::byte> workspace_;
};

class CudaDeviceGraph final : public Graph {
 public:
  explicit CudaDeviceGraph(OwnedGraphExec exec) : exec_(std::move(exec)) {}
  [[nodiscard]] cudaGraphExec_t handle() const { return exec_.get(); }

 private:
  OwnedGraphExec exec_;
};

}  // namespace barestep
