// Elementwise kernels: bias, activation and its gradient, dropout, casts, fill, the sum of a row
// and another.
#pragma once

#include "kernels/cuda/grid.cuh"
#include "kernels/cuda/packs.cuh"
#include "kernels/formulas.h"
#include "kernels/loop_ops.h"

namespace barestep {

struct FillElement {
  float* out;
  float value;

  BARESTEP_HD void operator()(std::int64_t i) const { out[i] = value; }
};

/// Runs an element for kCount neighboring numbers from `first` on: all loads before the first
/// store, with 16-byte accesses. There is an overload for each element whose arrays are flat.
template <int kCount>
__device__ void apply_pack(const FillElement& element, std::int64_t first) {
  Pack<float, kCount> pack;
#pragma unroll
  for (float& number : pack.of) number = element.value;
  store_pack(element.out + first, pack);
}

template <int kCount, class Formula, class Number>
__device__ void apply_pack(const ActivationElement<Formula, Number>& element, std::int64_t first,
                           Pack<Number, kCount> pack) {
  if (element.keeps_input()) store_pack(element.pre_activation + first, pack);
#pragma unroll
  for (Number& number : pack.of) number = element.of(number);
  store_pack(element.values + first, pack);
}

template <int kCount, class Formula, class Number>
__device__ void apply_pack(const ActivateElement<Formula, Number>& element, std::int64_t first) {
  const auto& activation = element.activation;
  apply_pack(activation, first, load_pack<kCount>(activation.values + first));
}

template <int kCount, class Formula, class Number>
__device__ void apply_pack(const ActivationGradElement<Formula, Number>& element,
                           std::int64_t first) {
  auto grad = load_pack<kCount>(element.grad + first);
  const auto from = load_pack<kCount>(element.from + first);
#pragma unroll
  for (int i = 0; i < kCount; ++i) grad.of[i] = element.of(grad.of[i], from.of[i]);
  store_pack(element.grad + first, grad);
}

template <int kCount, class To, class From>
__device__ void apply_pack(const CastElement<To, From>& element, std::int64_t first) {
  const auto from = load_pack<kCount>(element.from + first);
  Pack<To, kCount> to{};
  if (element.beta != 0.0F) to = load_pack<kCount>(element.to + first);
#pragma unroll
  for (int i = 0; i < kCount; ++i) to.of[i] = element.of(from.of[i], to.of[i]);
  store_pack(element.to + first, to);
}

template <int kCount, class Number>
__device__ void apply_pack(const AddElement<Number>& element, std::int64_t first) {
  auto sum = load_pack<kCount>(element.a + first);
  const auto b = load_pack<kCount>(element.b + first);
#pragma unroll
  for (int i = 0; i < kCount; ++i) sum.of[i] += float_of(b.of[i]);
  store_pack(element.out + first, sum);
}

/// Calls element for [0, n): `packs` times kCount numbers with 16-byte accesses, the rest one by
/// one.
template <int kCount, class Element>
__global__ void __launch_bounds__(kBlockThreads)
    each_element(std::int64_t n, std::int64_t packs, Element element) {
  begin_kernel();
  for (std::int64_t i = grid_thread(); i < packs; i += grid_threads())
    apply_pack<kCount>(element, kCount * i);
#pragma unroll 1
  for (std::int64_t i = kCount * packs + grid_thread(); i < n; i += grid_threads()) element(i);
}

/// The size of a block's tile in each_of_rows and sum_rows: a warp reads neighboring columns.
constexpr int kTileCols = kWarpThreads;
constexpr int kTileRows = kBlockWarps;

/// Calls element(row, col) for the whole matrix. Every thread stays in its column, so no division
/// is needed to find it. Grid: column tiles by row tiles.
template <class Element>
__global__ void __launch_bounds__(kBlockThreads)
    each_of_rows(std::int64_t rows, std::int64_t cols, Element element) {
  begin_kernel();
  const std::int64_t col = std::int64_t{blockIdx.x} * kTileCols + threadIdx.x;
  if (col >= cols) return;
  const std::int64_t step = std::int64_t{gridDim.y} * kTileRows;
  for (std::int64_t row = std::int64_t{blockIdx.y} * kTileRows + threadIdx.y; row < rows;
       row += step) {
    element(row, col);
  }
}

/// Applies a row's element to the kCount columns of a pack; for each_of_rows over packs.
template <int kCount, class Formula>
struct BiasActivationPack {
  BiasActivationElement<Formula> element;

  __device__ void operator()(std::int64_t row, std::int64_t pack) const {
    const std::int64_t first = row * element.cols + kCount * pack;
    auto values = load_pack<kCount>(element.activation.values + first);
    const auto bias = load_pack<kCount>(element.bias + kCount * pack);
#pragma unroll
    for (int i = 0; i < kCount; ++i) values.of[i] += bias.of[i];
    apply_pack(element.activation, first, values);
  }
};

/// kCount groups: four runs of neighboring columns.
template <int kCount, class Number>
struct DropoutPack {
  DropoutElement<Number> element;

  __device__ void operator()(std::int64_t row, std::int64_t pack) const {
    const std::int64_t group = kCount * pack;
    Number* const numbers = element.values + row * element.cols + group;
    const auto words = element.template draw<kCount>(row, group);
    Pack<Number, kCount> packs[4];
#pragma unroll
    for (int word = 0; word < 4; ++word)
      packs[word] = load_pack<kCount>(numbers + word * element.groups);
#pragma unroll
    for (std::size_t word = 0; word < 4; ++word) {
#pragma unroll
      for (std::size_t i = 0; i < kCount; ++i) {
        Number& number = packs[word].of[i];
        number = element.of(number, words[word][i] >= element.first_kept, element.scale);
      }
      store_pack(numbers + static_cast<std::int64_t>(word) * element.groups, packs[word]);
    }
  }
};

}  // namespace barestep
