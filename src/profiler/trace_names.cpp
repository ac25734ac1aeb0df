#include "profiler/trace_names.h"

#include <fmt/format.h>

#include <variant>

#include "core/overloaded.h"

namespace barestep {
namespace {

bool is_pinned(const TimedOp& op, const Tensor& tensor) {
  return op.program->buffers()[tensor.buffer].pinned;
}

std::string copy_name(const TimedOp& op, const Copy& copy) {
  const Buffers& buffers = op.program->buffers();
  if (is_pinned(op, copy.from)) return "Memcpy HtoD (Pinned -> Device)";
  if (is_pinned(op, copy.to)) return "Memcpy DtoH (Device -> Pinned)";
  if (buffers[copy.from.buffer].device != buffers[copy.to.buffer].device) {
    return "Memcpy PtoP (Device -> Device)";
  }
  return "Memcpy DtoD (Device -> Device)";
}

}  // namespace

CollectiveNames names_of(const Collective& collective) {
  return std::visit(
      Overloaded{
          [](const AllReduce& all_reduce) {
            const bool is_bf16 = all_reduce.tensors.front().dtype == DType::kBF16;
            return CollectiveNames{
                is_bf16 ? "ncclDevKernel_AllReduce_Sum_bf16" : "ncclDevKernel_AllReduce_Sum_f32",
                "nccl:all_reduce", "allreduce"};
          },
          [](const Broadcast&) {
            return CollectiveNames{"ncclDevKernel_Broadcast_f32", "nccl:broadcast", "broadcast"};
          },
          [](const Reduce&) {
            return CollectiveNames{"ncclDevKernel_Reduce_Sum_f32", "nccl:reduce", "reduce"};
          },
          [](const ReduceScatter&) {
            return CollectiveNames{"ncclDevKernel_ReduceScatter_Sum_f32", "nccl:reduce_scatter",
                                   "reduce_scatter"};
          },
          [](const AllGather&) {
            return CollectiveNames{"ncclDevKernel_AllGather", "nccl:all_gather", "allgather"};
          }},
      collective);
}

Named named(const TimedOp& op) {
  if (const auto* collective = std::get_if<Collective>(&op.node->op)) {
    return {"kernel", names_of(*collective).kernel, "cudaLaunchKernelExC"};
  }
  const auto& device_op = std::get<DeviceOp>(op.node->op);
  if (const auto* copy = std::get_if<Copy>(&device_op)) {
    return {"gpu_memcpy", copy_name(op, *copy), "cudaMemcpyAsync"};
  }
  return {"kernel", std::string(label_of(op.node->op)), "cudaLaunchKernel"};
}

std::string dims_of(const Node& node) {
  std::string dims;
  for (const Access& access : accesses_of(node.op)) {
    dims +=
        fmt::format("{}[{}, {}]", dims.empty() ? "" : ", ", access.tensor.rows, access.tensor.cols);
  }
  return dims;
}

std::string types_of(const Node& node) {
  std::string types;
  for (const Access& access : accesses_of(node.op)) {
    const char* const type = access.tensor.dtype == DType::kF32    ? "float"
                             : access.tensor.dtype == DType::kBF16 ? "c10::BFloat16"
                             : access.tensor.dtype == DType::kI32  ? "int"
                                                                   : "unsigned char";
    types += fmt::format("{}\"{}\"", types.empty() ? "" : ", ", type);
  }
  return types;
}

std::string collective_args(const TimedOp& op, const Collective& collective,
                            const TraceContext& context) {
  const DType dtype = parts_of(collective).front().front().tensor.dtype;
  const std::int64_t numbers = op.cost.message_bytes / bytes_of(dtype);
  std::string ranks;
  for (int rank = 0; rank < context.world; ++rank) {
    ranks += fmt::format("{}{}", rank == 0 ? "" : ", ", rank);
  }
  return fmt::format(
      R"("Collective name": "{}", "In msg nelems": {}, "Out msg nelems": {}, "Group size": {}, )"
      R"("dtype": "{}", "In split size": "[]", "Out split size": "[]", )"
      R"("Process Group Name": "0", "Process Group Description": "default_pg", )"
      R"("Process Group Ranks": "[{}]")",
      names_of(collective).collective, numbers, numbers, context.world,
      dtype == DType::kBF16 ? "BFloat16" : "Float", ranks);
}

}  // namespace barestep
