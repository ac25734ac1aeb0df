// The address table: binds unbound tensors to memory.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/tensor.h"

namespace barestep {

/// One base address per buffer. A runner keeps one table per slot, so a step sees the addresses of
/// its own slots. Owns no memory; must outlive the work queued with it.
class Addresses {
 public:
  Addresses() = default;
  explicit Addresses(std::vector<std::byte*> base) : base_(std::move(base)) {}

  /// The address of the tensor's first element.
  template <class T = float>
  [[nodiscard]] T* at(const Tensor& tensor) const {
    BARESTEP_REQUIRE(tensor.buffer >= 0 && tensor.buffer < static_cast<int>(base_.size()) &&
                         base_[static_cast<std::size_t>(tensor.buffer)] != nullptr,
                     "the tensor's buffer is not bound");
    return reinterpret_cast<T*>(base_[static_cast<std::size_t>(tensor.buffer)] +
                                tensor.offset_bytes);
  }

 private:
  std::vector<std::byte*> base_;
};

}  // namespace barestep
