// NCCL's names for our element types.
#pragma once

#include <nccl.h>

#include "core/tensor.h"

namespace barestep {

/// Bytes stand for every type that no sum is asked of.
inline ncclDataType_t nccl_type_of(DType dtype) {
  if (dtype == DType::kF32) return ncclFloat32;
  if (dtype == DType::kBF16) return ncclBfloat16;
  return dtype == DType::kI32 ? ncclInt32 : ncclUint8;
}

}  // namespace barestep
