#include "train/memory_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/host.h"
#include "core/units.h"

namespace barestep {
namespace {

/// On the CPU, pinned memory comes from the same memory.
bool holds_pinned(const MemoryPool& pool) {
  return pool.is_of_host || pool.kind == DeviceKind::kCpu;
}

std::int64_t needed_bytes(const StepPrograms& programs, const MemoryPool& pool) {
  const MemoryPlan plan(programs.buffers());
  std::int64_t bytes = 0;
  for (const int device : pool.devices) {
    if (device >= plan.devices()) continue;
    if (!pool.is_of_host) bytes += plan.device_bytes(device);
    if (holds_pinned(pool)) bytes += plan.pinned_bytes(device);
  }
  return bytes;
}

/// The part of these bytes from which checkpoints are written.
std::int64_t checkpoint_bytes(const StepPrograms& programs, const MemoryPool& pool) {
  const MemoryPlan plan(programs.buffers());
  if (std::ranges::find(pool.devices, 0) == pool.devices.end()) return 0;
  return holds_pinned(pool) ? plan.pinned_category_bytes(0, Category::kCheckpoint)
                            : plan.category_bytes(0, Category::kCheckpoint);
}

/// Whether it fits with a single batch ahead.
bool fits_with_one_ahead(const StepPrograms& programs, const MemoryPool& pool) {
  StepSpec spec = programs.spec();
  if (spec.batches_ahead() <= 1) return false;
  spec.input.workers_ahead = 1;
  return fits(StepPrograms(spec, programs.scheme()), pool);
}

/// The largest half, quarter, eighth, ... of the batch that fits with at least one row per rank.
std::optional<std::int64_t> fitting_batch(const StepPrograms& programs, const MemoryPool& pool) {
  StepSpec spec = programs.spec();
  while (spec.batch_size / 2 >= spec.mesh.data) {
    spec.batch_size /= 2;
    const StepPrograms smaller(spec, programs.scheme());
    if (fits(smaller, pool)) return spec.batch_size;
  }
  return std::nullopt;
}

/// Whether it fits without the gradients of the separate update.
bool fits_if_fused(const StepPrograms& programs, const MemoryPool& pool) {
  StepSpec spec = programs.spec();
  if (!std::exchange(spec.update.tries_both, false)) return false;
  spec.model.stores_gradients = false;
  return fits(StepPrograms(spec, programs.scheme()), pool);
}

std::string remedy_for(const StepPrograms& programs, const MemoryPool& pool) {
  if (fits_if_fused(programs, pool)) return "--update fused fits";
  if (fits_with_one_ahead(programs, pool)) return "--workers 1 --prefetch 1 fits";
  const auto batch = fitting_batch(programs, pool);
  if (!batch) return "no batch size fits, use a smaller --dim, --depth or --layers";
  const char* const option =
      programs.spec().mesh.ranks() == 1 ? "--batch-size" : "--global-batch-size";
  return fmt::format("{} {} fits", option, *batch);
}

}  // namespace

MemoryPool host_pool(std::vector<int> devices, int sharers) {
  return {.name = "this host",
          .kind = DeviceKind::kCuda,
          .available_bytes = host_memory().free_bytes,
          .sharers = sharers,
          .devices = std::move(devices),
          .is_of_host = true};
}

bool fits(const StepPrograms& programs, const MemoryPool& pool) {
  const std::int64_t share_bytes = pool.available_bytes / pool.sharers - pool.beside_bytes;
  return needed_bytes(programs, pool) <= share_bytes;
}

void require_memory(const StepPrograms& programs, const MemoryPool& pool) {
  if (fits(programs, pool)) return;
  const std::int64_t needed = needed_bytes(programs, pool);
  const std::string remedy = remedy_for(programs, pool);
  std::string who;
  if (const std::int64_t bytes = checkpoint_bytes(programs, pool); bytes > 0) {
    who = fmt::format(" ({} for checkpoints)", human_bytes(bytes));
  }
  if (pool.beside_bytes > 0) {
    who += fmt::format(" and {} for {}", human_bytes(pool.beside_bytes), pool.beside);
  }
  if (pool.sharers > 1) who += fmt::format(" in each of {} ranks", pool.sharers);
  if (pool.devices.size() > 1) who += fmt::format(" for {} devices", pool.devices.size());
  fail(ExitCode::kMemory, {"too little memory", "",
                           fmt::format("needs {}{}, {} has {} free", human_bytes(needed), who,
                                       pool.name, human_bytes(pool.available_bytes)),
                           remedy});
}

void require_memory(const StepPrograms& programs, std::int64_t available_bytes, DeviceKind kind,
                    std::string_view device_name, int sharers) {
  require_memory(programs, {.name = std::string(device_name),
                            .kind = kind,
                            .available_bytes = available_bytes,
                            .sharers = sharers});
}

}  // namespace barestep
