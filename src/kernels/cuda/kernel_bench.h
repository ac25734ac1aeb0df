// Times work on a GPU for a choice, under a step's conditions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/device.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda/stream.h"

namespace barestep {

/// The stream, memory and events of measurements.
class KernelBench {
 public:
  /// If not `cached`, the L2 cache is emptied before each run. Allocates: Error(kMemory).
  KernelBench(CudaContext& context, bool cached)
      : context_(context),
        flushed_bytes_(cached ? 0 : 2 * cache_bytes()),
        stream_(context),
        begin_(new_event()),
        end_(new_event()),
        workspace_(allocate(workspace_bytes(DeviceKind::kCuda))),
        flush_(allocate(flushed_bytes_)) {
    stream_.set_workspace(
        {workspace_.get(), static_cast<std::size_t>(workspace_bytes(DeviceKind::kCuda))});
  }

  [[nodiscard]] CudaDeviceStream& stream() { return stream_; }

  OwnedDeviceMemory allocate(std::int64_t bytes) {
    if (bytes == 0) return {};
    void* memory = nullptr;
    context_.require(cudaMalloc(&memory, static_cast<std::size_t>(bytes)), "cudaMalloc", bytes);
    OwnedDeviceMemory owned(static_cast<std::byte*>(memory));
    // Small floats, not zeros: with zeros a GPU stays cooler and runs faster.
    constexpr int kByte = 0x3C;
    require(cudaMemsetAsync(memory, kByte, static_cast<std::size_t>(bytes), stream_.handle()),
            "cudaMemsetAsync");
    return owned;
  }

  /// The best of a few runs of what queue() queues on stream(), in milliseconds; infinity if
  /// queue() returns the name of a failure, which failure() then has, and not null.
  template <class Queue>
  float milliseconds(const Queue& queue) {
    constexpr int kRuns = 5;  // the first also loads the kernel
    float best = std::numeric_limits<float>::infinity();
    for (int run = 0; run < kRuns; ++run) {
      if (flushed_bytes_ > 0) {
        require(cudaMemsetAsync(flush_.get(), 0, static_cast<std::size_t>(flushed_bytes_),
                                stream_.handle()),
                "cudaMemsetAsync");
      }
      require(cudaEventRecord(begin_.get(), stream_.handle()), "cudaEventRecord");
      if (const char* const name = queue(); name != nullptr) {
        failure_ = name;
        static_cast<void>(cudaGetLastError());  // of a launch that was refused
        return std::numeric_limits<float>::infinity();
      }
      require(cudaEventRecord(end_.get(), stream_.handle()), "cudaEventRecord");
      require(cudaEventSynchronize(end_.get()), "cudaEventSynchronize");
      float milliseconds = 0;
      require(cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()),
              "cudaEventElapsedTime");
      best = std::min(best, milliseconds);
    }
    return best;
  }

  [[nodiscard]] const char* failure() const { return failure_; }

 private:
  void require(cudaError_t status, const char* call) { context_.require(status, call); }

  std::int64_t cache_bytes() {
    int bytes = 0;
    require(cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, context_.ordinal()),
            "cudaDeviceGetAttribute");
    return std::max(bytes, 1 << 20);
  }

  OwnedEvent new_event() {
    cudaEvent_t event = nullptr;
    require(cudaEventCreateWithFlags(&event, cudaEventDefault), "cudaEventCreateWithFlags");
    return OwnedEvent(event);
  }

  CudaContext& context_;
  std::int64_t flushed_bytes_;  // written before each run, to empty the cache
  CudaDeviceStream stream_;
  OwnedEvent begin_, end_;
  OwnedDeviceMemory workspace_, flush_;
  const char* failure_ = "";
};

}  // namespace barestep
