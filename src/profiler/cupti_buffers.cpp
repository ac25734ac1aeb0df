#include "profiler/cupti_buffers.h"

#include <algorithm>

namespace barestep {

CuptiBuffers::CuptiBuffers()
    : memory_(std::make_unique<std::uint64_t[]>(kCount * kBytes / sizeof(std::uint64_t))) {
  auto* memory = reinterpret_cast<std::uint8_t*>(memory_.get());
  for (Buffer& buffer : buffers_) {
    buffer.memory = memory;
    memory += kBytes;
  }
}

CuptiBuffers::~CuptiBuffers() {
  const bool all_back = std::ranges::none_of(
      buffers_, [](const Buffer& buffer) { return buffer.state == State::kTaken; });
  if (!all_back) static_cast<void>(memory_.release());
}

std::uint8_t* CuptiBuffers::take() noexcept {
  for (Buffer& buffer : buffers_) {
    State expected = State::kEmpty;
    if (buffer.state.compare_exchange_strong(expected, State::kTaken)) return buffer.memory;
  }
  return nullptr;
}

void CuptiBuffers::hand_back(std::uint8_t* buffer, std::size_t valid_bytes) noexcept {
  for (Buffer& mine : buffers_) {
    if (mine.memory != buffer) continue;
    mine.valid_bytes = std::min(valid_bytes, kBytes);
    mine.state.store(State::kFull, std::memory_order_release);
  }
}

}  // namespace barestep
