#include "kernels/cuda/timed_kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "core/error.h"
#include "kernels/cuda/kernel_bench.h"

namespace barestep {
namespace {

/// Ops to be timed, in memory of their own, as far apart in each buffer as in a step.
class OpBench {
 public:
  /// Allocates: Error(kMemory).
  OpBench(std::span<const DeviceOp* const> ops, CudaContext& context, bool cached)
      : bench_(context, cached) {
    std::map<BufferId, std::pair<std::int64_t, std::int64_t>> used;  // begin and end
    for (const DeviceOp* const op : ops) {
      for (const Access& access : accesses_of(Op(*op))) {
        const Tensor& tensor = access.tensor;
        // As far from a multiple of 256 bytes as in its buffer.
        const std::int64_t first = tensor.offset_bytes / 256 * 256;
        const auto [found, is_new] = used.try_emplace(tensor.buffer, first, tensor.end_bytes());
        if (is_new) continue;
        auto& [begin, end] = found->second;
        begin = std::min(begin, first);
        end = std::max(end, tensor.end_bytes());
      }
    }
    std::vector<std::byte*> starts;
    for (const auto& [buffer, range] : used) {
      starts.resize(static_cast<std::size_t>(buffer) + 1);
      memory_.push_back(bench_.allocate(std::max<std::int64_t>(range.second - range.first, 1)));
      starts.back() = memory_.back().get() - range.first;
    }
    addresses_ = Addresses(std::move(starts));
  }

  /// The time of queue(addresses, stream), which returns the CUDA error; infinity after one.
  /// Blocks.
  template <class Queue>
  double us(const Queue& queue) {
    return 1e3 * static_cast<double>(bench_.milliseconds([&]() -> const char* {
             const auto status = static_cast<cudaError_t>(queue(addresses_, bench_.stream()));
             return status == cudaSuccess ? nullptr : cudaGetErrorName(status);
           }));
  }

 private:
  KernelBench bench_;
  std::vector<OwnedDeviceMemory> memory_{};
  Addresses addresses_{};
};

template <class AttentionOp>
AttentionKind kind_of(const AttentionOp& op) {
  return {.heads = op.shape.heads,
          .length = op.shape.length,
          .width = op.out.cols / op.shape.heads,
          .causal = op.shape.causal,
          .gradient = std::is_same_v<AttentionOp, AttentionGrad>,
          .type = op.qkv.dtype};
}

std::string work_of(const AttentionKind& kind) {
  return fmt::format("attention{} {} x {} x {}{} {} on tensor cores",
                     kind.gradient ? " gradient" : "", kind.heads, kind.length, kind.width,
                     kind.causal ? " causal" : "", name_of(kind.type));
}

ProductSize extents_of(const LinearAdam& op) {
  return {op.weight.rows, op.weight.cols, op.x.rows};
}

std::string work_of(const LinearAdam& op) {
  return fmt::format("update {} x {} of {} rows {}", op.weight.rows, op.weight.cols, op.x.rows,
                     name_of(op.x.dtype));
}

/// Of work that has the same bits either way.
const char* at_place(bool cached) {
  return cached ? " in the cache" : "";
}

}  // namespace

std::string TimedKernels::text() const {
  return on_tensor_cores_.empty() ? "" : ", attention on tensor cores, which is faster here";
}

template <class Usual, class Other>
std::optional<KernelTimes> TimedKernels::times_of(const std::string& work,
                                                  std::span<const DeviceOp* const> ops, bool cached,
                                                  CudaProduct::Bits bits, const Usual& usual,
                                                  const Other& other) {
  ProductChoices* const choices = product_.kept_choices();
  if (choices == nullptr) return std::nullopt;
  std::optional<KernelTimes> times = choices->find_kernels(work);
  double flop = 0;
  for (const DeviceOp* const op : ops) flop += static_cast<double>(flops_of(*op));
  if (!times && product_.times(flop, bits)) {
    BARESTEP_REQUIRE(!context_.capturing, "kernels are timed before a capture");
    context_.use();
    try {
      OpBench bench(ops, context_, cached);
      times = KernelTimes{.usual_us = bench.us(usual)};
      if (const double us = bench.us(other); !std::isinf(us)) times->other_us = us;
    } catch (const Error& error) {
      if (!product_.may_lack_memory() || error.code() != ExitCode::kMemory) throw;
    }
    if (times && std::isinf(times->usual_us)) times.reset();
    if (times) choices->add_kernels(work, *times);
  }
  return times;
}

template <class AttentionOp>
bool TimedKernels::is_on_tensor_cores(const AttentionOp* op) const {
  return op != nullptr && on_tensor_cores_.contains(kind_of(*op)) &&
         runs_on_tensor_cores(*op, target_);
}

void TimedKernels::prepare(const DeviceOp& op, bool cached) {
  const DeviceOp* const ops[] = {&op};
  const auto usual = [&](const Addresses& addresses, const CudaDeviceStream& stream) {
    return barestep::launch(op, addresses, stream.launch_memory(), target_, stream.handle());
  };
  const auto prepare_attention = [&](const auto* attention) {
    if (attention == nullptr || attention->out.size() == 0 ||
        !runs_on_tensor_cores(*attention, target_)) {
      return;
    }
    const auto other = [&](const Addresses& addresses, const CudaDeviceStream& stream) {
      return launch_on_tensor_cores(*attention, product_.rounds(), addresses,
                                    {stream.handle(), nullptr});
    };
    const AttentionKind kind = kind_of(*attention);
    const auto times =
        times_of(work_of(kind), ops, cached, CudaProduct::Bits::kOther, usual, other);
    if (times && times->prefers_other()) on_tensor_cores_.insert(kind);
  };
  prepare_attention(std::get_if<Attention>(&op));
  prepare_attention(std::get_if<AttentionGrad>(&op));
  if (const auto* const update = std::get_if<LinearAdam>(&op)) prepare(*update, op, cached);
}

void TimedKernels::prepare(const LinearAdam& update, const DeviceOp& op, bool cached) {
  const DeviceOp* const ops[] = {&op};
  double best_us = std::numeric_limits<double>::infinity();
  for (const UpdateTiles tiles : other_tiles(update, target_)) {
    const auto in = [&](UpdateTiles chosen) {
      return [&, chosen](const Addresses& addresses, const CudaDeviceStream& stream) {
        KernelTarget target = target_;
        target.tiles = chosen;
        return barestep::launch(op, addresses, stream.launch_memory(), target, stream.handle());
      };
    };
    const char* const how =
        tiles == UpdateTiles::kTall ? " in tall tiles" : " in tiles that keep x";
    const auto times = times_of(work_of(update) + how + at_place(cached), ops, cached,
                                CudaProduct::Bits::kSame, in(UpdateTiles::kUsual), in(tiles));
    if (!times || !times->prefers_other() || *times->other_us >= best_us) continue;
    best_us = *times->other_us;
    tiles_[extents_of(update)] = tiles;
  }
}

std::size_t TimedKernels::joins(std::span<const DeviceOp* const> ops, bool cached) {
  std::size_t count = apart_.contains(ops.front()) ? 0 : updates_of_one_launch(ops, target_);
  std::string work;
  if (const auto* const gemm = std::get_if<Gemm>(ops.front())) {
    // The same splits in both ways, so the same bits.
    const std::optional<SkinnyProduct> own = product_.own(*gemm);
    if (!own || !skinny_includes(*gemm, *ops[1])) return 1;
    count = 2;
    work = fmt::format("product {} in {} splits with {}", text_of(shape_of(*gemm)), own->splits,
                       label_of(*ops[1]));
  } else if (count > 1) {
    for (const DeviceOp* const op : ops.first(count)) {
      work += (work.empty() ? "" : " + ") + work_of(std::get<LinearAdam>(*op));
    }
  } else {
    return 1;
  }
  const std::span<const DeviceOp* const> joined = ops.first(count);
  const auto apart = [&](const Addresses& addresses, const CudaDeviceStream& stream) {
    int status = 0;
    for (const DeviceOp* const op : joined) {
      const std::span<const DeviceOp* const> one(&op, 1);
      if (status == 0) status = launch(one, addresses, stream);
    }
    return status;
  };
  const auto together = [&](const Addresses& addresses, const CudaDeviceStream& stream) {
    return launch(joined, addresses, stream);
  };
  const auto times = times_of(work + " in one launch" + at_place(cached), joined, cached,
                              CudaProduct::Bits::kSame, apart, together);
  if (times && times->prefers_other()) return count;
  apart_.insert(joined.begin(), joined.end());  // fewer of them are not tried
  return 1;
}

int TimedKernels::launch(const DeviceOp& op, const Addresses& addresses,
                         const CudaDeviceStream& stream, bool* follows_kernel) const {
  const auto* const forward = std::get_if<Attention>(&op);
  const auto* const backward = std::get_if<AttentionGrad>(&op);
  const KernelQueue queue{stream.handle(), follows_kernel};
  if (is_on_tensor_cores(forward)) {
    return launch_on_tensor_cores(*forward, product_.rounds(), addresses, queue);
  }
  if (is_on_tensor_cores(backward)) {
    return launch_on_tensor_cores(*backward, product_.rounds(), addresses, queue);
  }
  KernelTarget target = target_;
  target.follows_kernel = follows_kernel;
  const auto* const update = std::get_if<LinearAdam>(&op);
  const auto tiles = update == nullptr ? tiles_.end() : tiles_.find(extents_of(*update));
  if (tiles != tiles_.end()) target.tiles = tiles->second;
  return barestep::launch(op, addresses, stream.launch_memory(), target, stream.handle());
}

int TimedKernels::launch(std::span<const DeviceOp* const> ops, const Addresses& addresses,
                         const CudaDeviceStream& stream, bool* follows_kernel) const {
  const KernelQueue queue{stream.handle(), follows_kernel};
  const auto* const gemm = std::get_if<Gemm>(ops.front());
  if (gemm == nullptr && ops.size() == 1) return launch(*ops[0], addresses, stream, follows_kernel);
  if (gemm == nullptr) return launch_updates(ops, addresses, target_, queue);
  return launch_skinny(*gemm, *product_.own(*gemm), product_.rounds(), addresses,
                       stream.launch_memory(), queue, ops.size() == 1 ? nullptr : ops[1]);
}

}  // namespace barestep
