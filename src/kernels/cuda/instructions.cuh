// Instructions that CUDA C++ has no functions for. Tests on the host replace this header through
// the include path; their version follows the layouts of the PTX ISA.
//
// GPUs before sm_80 lack asynchronous copies, which become plain copies there, and tf32.
#pragma once

#include <nv/target>

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "core/tensor.h"
#include "kernels/host_device.h"

namespace barestep {

/// The first statement of every kernel of ours. A kernel that is launched early (KernelQueue) gets
/// this far while the kernel before it still runs. Here it waits until that one and all earlier
/// ones have finished and their writes are visible; then the next kernel may get this far. Does
/// nothing before sm_90, or in a kernel that is launched after the previous one.
__device__ __forceinline__ void begin_kernel() {
  NV_IF_TARGET(NV_PROVIDES_SM_90, (asm volatile("griddepcontrol.wait;" ::
                                                    : "memory");
                                   asm volatile("griddepcontrol.launch_dependents;");))
}

/// The dynamic shared memory of the launch, as a T.
template <class T>
__device__ __forceinline__ T& dynamic_shared() {
  extern __shared__ __align__(16) char bytes[];
  return *reinterpret_cast<T*>(bytes);
}

/// A Vector of neighboring numbers in shared memory, aligned to its size.
template <class Vector, class Number>
__device__ __forceinline__ Vector load_shared(const Number* from) {
  return *reinterpret_cast<const Vector*>(from);
}

template <class Vector, class Number>
__device__ __forceinline__ void store_shared(Number* to, const Vector& vector) {
  *reinterpret_cast<Vector*>(to) = vector;
}

/// Starts moving the 128 bytes around `from` from memory into the L2 cache.
__device__ __forceinline__ void prefetch(const void* from) {
  NV_IF_TARGET(NV_IS_DEVICE, (asm volatile("prefetch.global.L2 [%0];" ::"l"(from));))
}

/// Starts copying kBytes (2, 4, 8 or 16) to shared memory, or writing zeros if `valid` is false;
/// both addresses are aligned to the size of the copy. commit_copies() groups the copies that this
/// thread has started since the last group; wait_for_copies() blocks until all its groups are
/// complete. The smallest asynchronous copy is 4 bytes; copies of 2 bytes complete at once.
template <int kBytes>
__device__ __forceinline__ void copy_async(void* to, const void* from, bool valid) {
  static_assert(kBytes == 2 || kBytes == 4 || kBytes == 8 || kBytes == 16);
  if constexpr (kBytes == 2) {
    *static_cast<std::uint16_t*>(to) = valid ? *static_cast<const std::uint16_t*>(from) : 0;
  } else {
    NV_IF_ELSE_TARGET(
        NV_PROVIDES_SM_80,
        (
            const auto shared = static_cast<unsigned>(__cvta_generic_to_shared(to));
            const int bytes = valid ? kBytes : 0; if constexpr (kBytes == 16) {
              asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(from),
                           "r"(bytes)
                           : "memory");
            } else {
              asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(shared), "l"(from),
                           "r"(bytes), "n"(kBytes)
                           : "memory");
            }),
        (for (int i = 0; i < kBytes / 4; ++i) static_cast<std::uint32_t*>(to)[i] =
             valid ? static_cast<const std::uint32_t*>(from)[i] : 0;))
  }
}

__device__ __forceinline__ void commit_copies() {
  NV_IF_TARGET(NV_PROVIDES_SM_80, (asm volatile("cp.async.commit_group;" ::: "memory");))
}

__device__ __forceinline__ void wait_for_copies() {
  NV_IF_TARGET(NV_PROVIDES_SM_80, (asm volatile("cp.async.wait_group 0;" ::: "memory");))
}

/// sums += a * b, computed by a warp: a 16 x 8, b 8 x 8, sums 16 x 8. Lane 4g + q holds
///   a: (g, q), (g + 8, q), (g, q + 4), (g + 8, q + 4)    b: (q, g), (q + 4, g)
///   sums: (g, 2q), (g, 2q + 1), (g + 8, 2q), (g + 8, 2q + 1)
/// (PTX ISA, matrix fragments for mma.m16n8k8, .tf32). The low 13 bits of a and b are ignored.
__device__ __forceinline__ void mma_tf32(float (&sums)[4], const std::uint32_t (&a)[4],
                                         const std::uint32_t (&b)[2]) {
  NV_IF_ELSE_TARGET(NV_PROVIDES_SM_80,
                    (asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
                         "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                         : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));),
                    (__trap();))
}

/// The same of 16-bit numbers, Bf16 or F16: a 16 x 16, b 16 x 8. Lane 4g + q holds
///   a: (g, 2q), (g + 8, 2q), (g, 2q + 8), (g + 8, 2q + 8)    b: (2q, g), (2q + 8, g)
/// each in the lower half of a register, with the next in depth in the upper half
/// (PTX ISA, matrix fragments for mma.m16n8k16, .bf16 and .f16).
template <class Number>
__device__ __forceinline__ void mma_16_bits(float (&sums)[4], const std::uint32_t (&a)[4],
                                            const std::uint32_t (&b)[2]) {
  if constexpr (std::is_same_v<Number, Bf16>) {
    NV_IF_ELSE_TARGET(NV_PROVIDES_SM_80,
                      (asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                           "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                           : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                           : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));),
                      (__trap();))
  } else {
    static_assert(std::is_same_v<Number, F16>);
    NV_IF_ELSE_TARGET(NV_PROVIDES_SM_80,
                      (asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                           "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                           : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                           : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));),
                      (__trap();))
  }
}

__device__ __forceinline__ std::uint32_t bits_of(float x) {
  return __float_as_uint(x);
}

/// 1 / x, accurate to one ulp; subnormal numbers count as zeros.
BARESTEP_HD inline float approximate_reciprocal(float x) {
  NV_IF_ELSE_TARGET(NV_IS_DEVICE,
                    (float r; asm("rcp.approx.ftz.f32 %0, %1;"
                                  : "=f"(r)
                                  : "f"(x));
                     return r;),
                    (return 1 / x;))
}

/// 1 / sqrt(x), accurate to two ulps; subnormal numbers count as zeros.
BARESTEP_HD inline float approximate_root_reciprocal(float x) {
  NV_IF_ELSE_TARGET(NV_IS_DEVICE,
                    (float r; asm("rsqrt.approx.ftz.f32 %0, %1;"
                                  : "=f"(r)
                                  : "f"(x));
                     return r;),
                    (return 1 / std::sqrt(x);))
}

}  // namespace barestep
