// The memory that CUPTI writes activities to.
#pragma once

#include <cupti.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace barestep {

/// A fixed number of buffers, allocated at once. CUPTI's threads take empty ones and hand back full
/// ones, in any order, without a lock; one other thread reads these.
class CuptiBuffers {
 public:
  static constexpr std::size_t kCount = 16;
  static constexpr std::size_t kBytes = std::size_t{2} << 20;

  CuptiBuffers();
  /// Buffers that CUPTI still has are left to it.
  ~CuptiBuffers();
  CuptiBuffers(const CuptiBuffers&) = delete;
  CuptiBuffers& operator=(const CuptiBuffers&) = delete;

  /// Null where all are in use: CUPTI drops and counts what it has no room for.
  [[nodiscard]] std::uint8_t* take() noexcept;
  void hand_back(std::uint8_t* buffer, std::size_t valid_bytes) noexcept;

  /// Calls read(buffer, bytes) for each that was handed back, which is empty then.
  template <class F>
  void read_all(const F& read) {
    for (Buffer& buffer : buffers_) {
      if (buffer.state.load(std::memory_order_acquire) != State::kFull) continue;
      read(buffer.memory, buffer.valid_bytes);
      buffer.state.store(State::kEmpty, std::memory_order_release);
    }
  }

 private:
  enum class State { kEmpty, kTaken, kFull };
  struct Buffer {
    std::uint8_t* memory = nullptr;
    std::size_t valid_bytes = 0;
    std::atomic<State> state{State::kEmpty};
  };

  std::unique_ptr<std::uint64_t[]> memory_;  // CUPTI wants it aligned to eight bytes
  std::array<Buffer, kCount> buffers_;
};

}  // namespace barestep
