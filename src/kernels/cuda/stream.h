// Streams, events and graphs of a CUDA device, and their shared state: the device and its errors.
//
// A call that fails while work is queued does not throw. Its error is stored for check() and
// synchronize(); until one of them has thrown it, all streams of the device skip their work. After
// an error that ends the device for this process, every check throws that first error again.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "core/device.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/status.h"

namespace barestep {

class CudaContext {
 public:
  /// Opens GPU number `ordinal`. Throws Error: kNoDevice, kMemory.
  explicit CudaContext(int ordinal);

  [[nodiscard]] int ordinal() const { return ordinal_; }
  [[nodiscard]] const std::string& name() const { return name_; }  // "cuda:0"

  /// Makes this the calling thread's device. Call before every call that depends on it.
  void use();

  /// Sets the op that messages name as the last one. Copies it, since the op may no longer exist
  /// when the failure is detected.
  void queueing(const DeviceOp& op);

  /// Throws if the call failed; throws the first error if one ended the device. Names are static
  /// text.
  void require(cudaError_t status, const char* call, std::int64_t requested_bytes = 0);
  void require(cublasStatus_t status, const char* call);

  /// Stores the error if the call failed. `status` may belong to earlier work.
  void note(cudaError_t status, const char* call);
  void note(cublasStatus_t status, const char* call);

  /// True from the time an error is stored until check() has thrown it.
  [[nodiscard]] bool failed() const;
  void check();

  /// True during a capture.
  bool capturing = false;

 private:
  [[nodiscard]] CudaFacts facts(const char* call, std::int64_t requested_bytes) const;
  void keep(const CudaFailure& failure, bool final_error);

  int ordinal_;
  std::string name_;
  int architecture_ = 0;
  bool is_open_ = false;

  mutable std::mutex mutex_;  // guards all below
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

/// A stream's priority relative to the others.
enum class StreamRole {
  kEqual,
  kFirst,  // its waiting blocks are placed before those of other streams
};

class CudaDeviceStream final : public Stream {
 public:
  /// `context` must outlive the stream. Allocates memory for our kernels; set_workspace() replaces
  /// its workspace.
  explicit CudaDeviceStream(CudaContext& context, StreamRole role = StreamRole::kEqual);
  /// Finishes all queued work.
  ~CudaDeviceStream() override;
  CudaDeviceStream(const CudaDeviceStream&) = delete;
  CudaDeviceStream& operator=(const CudaDeviceStream&) = delete;

  void wait(const Event& event) override;
  void call(void (*function)(void*), void* argument) override;
  void synchronize() override;
  /// Every call that waits stores its error.
  void check() override { context_.check(); }
  void set_workspace(std::span<std::byte> memory) override { workspace_ = memory; }
  [[nodiscard]] void* native() const override { return handle_.get(); }

  [[nodiscard]] cudaStream_t handle() const { return handle_.get(); }
  [[nodiscard]] std::span<std::byte> workspace() const { return workspace_; }
  [[nodiscard]] LaunchMemory launch_memory() const {
    return {workspace_.data(), reinterpret_cast<unsigned*>(scratch_.get() + kLaunchWorkspaceBytes)};
  }
  [[nodiscard]] StreamRole role() const { return role_; }
  /// Whether the last work of a capture is a kernel of ours, so that another may be launched before
  /// it ends. Code that queues anything else sets it to false.
  bool follows_kernel = false;

 private:
  CudaContext& context_;
  StreamRole role_;
  OwnedStream handle_;
  OwnedDeviceMemory scratch_;  // a workspace, and LaunchMemory's counts of blocks
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
