// Our code allocates nothing inside a step: neither from the heap, on any thread, nor from a
// device.
//
// This program replaces the global operator new to count allocations. It uses plain loops for
// products, because libraries may allocate as they like.

#include <new>

#include "support/file_runs.h"
#include "support/forwarding_device.h"
#include "support/testing.h"
#include "support/trainer_harness.h"

namespace {

std::atomic<std::int64_t> heap_allocations{0};

void* allocate(std::size_t bytes, std::size_t alignment) {
  heap_allocations.fetch_add(1, std::memory_order_relaxed);
  const std::size_t rounded = (bytes + alignment) / alignment * alignment;
  void* const memory = std::aligned_alloc(alignment, rounded);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

// The standard library's other forms call these, but for a sanitizer's own form without exceptions.
// Not inlined, because the compiler would report a free() in place of a delete as a mistake.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  return allocate(bytes, alignof(std::max_align_t));
}
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  heap_allocations.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(bytes);
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t /*bytes*/) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t /*alignment*/) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t /*bytes*/,
                                       std::align_val_t /*a*/) noexcept {
  std::free(memory);
}

namespace barestep {
namespace {

/// Counts the device's allocations and their bytes.
class CountingDevice final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  std::byte* allocate(std::int64_t bytes, MemoryKind kind) override {
    ++allocations;
    (kind == MemoryKind::kDevice ? device_bytes : pinned_bytes) += bytes;
    return ForwardingDevice::allocate(bytes, kind);
  }
  int allocations = 0;
  std::int64_t device_bytes = 0;
  std::int64_t pinned_bytes = 0;
};

/// Records the number of allocations after every step and every evaluation.
class AllocationLog final : public TrainObserver {
 public:
  AllocationLog() { counts.reserve(4096); }
  void on_step(const StepReport&) override { note(); }
  void on_evaluation(const EvaluationReport&) override { note(); }

  /// The allocations since the first `first` records.
  [[nodiscard]] std::int64_t since(std::size_t first) const {
    return counts.back() - counts.at(first - 1);
  }
  std::vector<std::int64_t> counts;

 private:
  void note() { counts.push_back(heap_allocations.load()); }
};

/// A complete run; after `warm_up` reports, nothing may be allocated.
void expect_no_allocations(const TrainConfig& config, std::size_t warm_up) {
  TrainerHarness harness(config);
  CountingDevice device(*harness.device);
  {
    Trainer trainer(harness.config, *harness.programs, {&device}, {},
                    harness.dataset ? &*harness.dataset : nullptr);
    EXPECT_EQ(device.allocations, 2) << "device and pinned memory, each once";
    EXPECT_EQ(device.device_bytes, trainer.plan().device_bytes(0));
    EXPECT_EQ(device.pinned_bytes, trainer.plan().pinned_bytes(0));
    AllocationLog log;
    trainer.run(log);
    ASSERT_GE(log.counts.size(), warm_up + 10);
    EXPECT_EQ(log.since(warm_up), 0);
    EXPECT_EQ(device.allocations, 2);
    EXPECT_EQ(trainer.runner().arenas()[0].high_water_bytes(), trainer.plan().device_bytes(0));
  }
}

TrainConfig random_run() {
  TrainConfig config;
  config.model.dim = 40;
  config.model.depth = 3;
  config.data.batch_size = 16;
  config.training.steps = 13;
  config.device.threads = 2;
  config.device.gemm = GemmProvider::kReference;
  return config;
}

TEST(Allocation, IsCounted) {
  const std::int64_t before = heap_allocations.load();
  const auto number = std::make_unique<int>(3);
  const std::vector<int> numbers(100);
  EXPECT_EQ(heap_allocations.load() - before, 2);
}

TEST(Allocation, EndsAfterThreeStepsOfRandomData) {
  expect_no_allocations(random_run(), 3);
  TrainConfig other = random_run();
  other.device.fusion = false;
  other.training.zero_grad = false;
  expect_no_allocations(other, 3);
}

TEST(Allocation, EndsAfterThreeStepsOfAGraph) {
  TrainConfig config = random_run();
  config.device.graph = true;
  expect_no_allocations(config, 3);
}

class AllocationOfFiles : public TempDirTest {};

TEST_F(AllocationOfFiles, EndsAfterThreeStepsOfFiles) {
  TrainConfig config = class_run(folder());
  config.data.batch_size = 2;  // 15 steps per epoch
  config.data.test_split = 0;
  config.training.epochs.reset();
  config.training.steps = 13;
  expect_no_allocations(config, 3);
}

/// Includes new epochs, smaller batches and evaluations, once each program has run in both slots.
TEST_F(AllocationOfFiles, EndsAfterTwoEpochs) {
  TrainConfig config = class_run(folder());
  config.training.epochs = 6;
  expect_no_allocations(config, 10);
  config.device.graph = true;
  expect_no_allocations(config, 10);
  TrainConfig numbers = number_run(folder());
  numbers.training.epochs = 6;
  expect_no_allocations(numbers, 10);
}

}  // namespace
}  // namespace barestep
