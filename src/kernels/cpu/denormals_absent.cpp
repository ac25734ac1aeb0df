#include "kernels/cpu/denormals.h"

namespace barestep {

DenormalScope::DenormalScope(Denormals /*denormals*/) : before_(0) {}

DenormalScope::~DenormalScope() {
  static_cast<void>(before_);  // there is nothing to restore
}

}  // namespace barestep
