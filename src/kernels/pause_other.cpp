#include <atomic>

#include "kernels/pause.h"

namespace barestep {

void pause_briefly() {
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

}  // namespace barestep
