// The address table: binds unbound tensors to memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "core/error.h"
#include "core/index.h"
#include "core/tensor.h"

namespace barestep {

/// One base address per buffer. A runner keeps one table per slot, so each step sees the addresses
/// of its own slots. Owns no memory; must outlive the work queued with it.
class Addresses {
 public:
  Addresses() = default;
  explicit Addresses(std::vector<std::byte*> base) : base_(std::move(base)) {}

  /// The address of the tensor's first element, a T. Throws Error(kBug) if the tensor's buffer is
  /// not bound or its type differs from T.
  template <class T = float>
  [[nodiscard]] T* at(const Tensor& tensor) const {
    BARESTEP_REQUIRE(holds<T>(tensor.dtype), "the tensor's numbers are of another type");
    BARESTEP_REQUIRE(tensor.buffer >= 0 && tensor.buffer < static_cast<int>(base_.size()) &&
                         barestep::at(base_, tensor.buffer) != nullptr,
                     "the tensor's buffer is not bound");
    return reinterpret_cast<T*>(barestep::at(base_, tensor.buffer) + tensor.offset_bytes);
  }

 private:
  /// Any tensor holds bytes. Data other than numbers, such as a generator's state, is raw bytes.
  template <class T>
  static constexpr bool holds(DType dtype) {
    if constexpr (std::is_same_v<T, std::byte>) return true;
    if constexpr (std::is_same_v<T, float>) return dtype == DType::kF32;
    if constexpr (std::is_same_v<T, Bf16>) return dtype == DType::kBF16;
    if constexpr (std::is_same_v<T, F16>) return dtype == DType::kF16;
    if constexpr (std::is_same_v<T, std::int32_t>) return dtype == DType::kI32;
    if constexpr (std::is_same_v<T, std::int8_t>) return dtype == DType::kI8;
    return dtype == DType::kU8;
  }

  std::vector<std::byte*> base_;
};

}  // namespace barestep
