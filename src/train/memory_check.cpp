#include "train/memory_check.h"

#include <fmt/format.h>

#include <optional>

#include "core/error.h"
#include "core/plan.h"
#include "core/units.h"

namespace barestep {
namespace {

std::int64_t needed_bytes(const StepSpec& spec, DeviceKind kind) {
  const StepPrograms programs(spec);
  const MemoryPlan plan(programs.buffers());
  return plan.device_bytes(0) + (kind == DeviceKind::kCpu ? plan.pinned_bytes(0) : 0);
}

/// The largest half, quarter, eighth, ... of the batch that fits.
std::optional<std::int64_t> fitting_batch(StepSpec spec, std::int64_t available_bytes,
                                          DeviceKind kind) {
  while (spec.batch_size > 1) {
    spec.batch_size /= 2;
    if (needed_bytes(spec, kind) <= available_bytes) return spec.batch_size;
  }
  return std::nullopt;
}

}  // namespace

void require_memory(const StepSpec& spec, const MemoryPlan& plan, std::int64_t available_bytes,
                    DeviceKind kind, std::string_view device_name) {
  // On the CPU, pinned memory comes out of the same memory.
  const std::int64_t needed =
      plan.device_bytes(0) + (kind == DeviceKind::kCpu ? plan.pinned_bytes(0) : 0);
  if (needed <= available_bytes) return;
  const auto batch = fitting_batch(spec, available_bytes, kind);
  fail(ExitCode::kMemory,
       {.what = "too little memory",
        .value = "",
        .why = fmt::format("needs {}, {} has {} free", human_bytes(needed), device_name,
                           human_bytes(available_bytes)),
        .remedy = batch ? fmt::format("--batch-size {} fits", *batch)
                        : "no batch size fits, use a smaller --dim, --depth or --layers"});
}

}  // namespace barestep
