#include "kernels/pause.h"

namespace barestep {

void pause_briefly() {
  __builtin_ia32_pause();
}

}  // namespace barestep
