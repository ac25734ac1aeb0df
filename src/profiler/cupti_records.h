// Records of GPUs from CUPTI.
//
// Work is assigned to a node by external correlation: a number is pushed before the node is
// queued, and CUPTI notes it with every call of this thread until it is popped. The work of a graph
// belongs to its launch; which node it is of is known from the graph's nodes, which CUPTI reports
// while the node is captured.
#pragma once

#include <cupti.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "profiler/cupti_activity.h"
#include "profiler/cupti_library.h"
#include "profiler/gpu_records.h"

namespace barestep {

/// A fixed number of buffers, allocated at once. CUPTI's threads take empty ones and hand back full
/// ones, in any order, without a lock; one other thread reads these.
class CuptiBuffers {
 public:
  static constexpr std::size_t kCount = 16;
  static constexpr std::size_t kBytes = std::size_t{2} << 20;

  CuptiBuffers();
  /// Buffers that CUPTI still has are left to it.
  ~CuptiBuffers();
  CuptiBuffers(const CuptiBuffers&) = delete;
  CuptiBuffers& operator=(const CuptiBuffers&) = delete;

  /// Null where all are in use: CUPTI drops and counts what it has no room for.
  [[nodiscard]] std::uint8_t* take() noexcept;
  void hand_back(std::uint8_t* buffer, std::size_t valid_bytes) noexcept;

  /// Calls read(buffer, bytes) for each that was handed back, which is empty then.
  template <class F>
  void read_all(const F& read) {
    for (Buffer& buffer : buffers_) {
      if (buffer.state.load(std::memory_order_acquire) != State::kFull) continue;
      read(buffer.memory, buffer.valid_bytes);
      buffer.state.store(State::kEmpty, std::memory_order_release);
    }
  }

 private:
  enum class State { kEmpty, kTaken, kFull };
  struct Buffer {
    std::uint8_t* memory = nullptr;
    std::size_t valid_bytes = 0;
    std::atomic<State> state{State::kEmpty};
  };

  std::unique_ptr<std::uint64_t[]> memory_;  // CUPTI wants it aligned to eight bytes
  std::array<Buffer, kCount> buffers_;
};

/// One at a time in a process, as CUPTI has one subscriber.
class CuptiRecords final : public GpuRecords {
 public:
  CuptiRecords(std::unique_ptr<const CuptiLibrary> library, const std::vector<Device*>& devices,
               std::int64_t capacity);
  ~CuptiRecords() override;

  /// Returns why CUPTI cannot be used; empty if it can.
  std::string subscribe();

  [[nodiscard]] std::string source() const override;
  void turn(bool on, bool keeps) override;
  void capture(bool on) override { capturing_ = on; }
  void begin(const Tag& tag, std::string_view label, int device) override;
  void end() override;
  void collect() override;
  void finish() override;
  [[nodiscard]] std::span<const GpuActivity> activities() const override;
  [[nodiscard]] std::span<const Record> queued() const override { return queued_; }
  [[nodiscard]] std::int64_t dropped() const override;

 private:
  static void CUPTIAPI take_buffer(std::uint8_t** buffer, std::size_t* bytes, std::size_t* records);
  static void CUPTIAPI get_buffer_back(CUcontext context, std::uint32_t stream,
                                       std::uint8_t* buffer, std::size_t bytes,
                                       std::size_t valid_bytes);
  static void CUPTIAPI on_resource(void* self, CUpti_CallbackDomain domain, CUpti_CallbackId id,
                                   const void* data);
  void note_graph_node(CUpti_CallbackId id, const CUpti_GraphData& graph);

  /// The first failure after subscribe() is kept and reported with the source.
  void keep(const std::string& trouble);
  bool check(const char* call, CUptiResult status);
  std::string enable_all();
  void disable_all();
  void resolve();
  [[nodiscard]] const Record* queued_of(const GpuActivity& activity) const;
  [[nodiscard]] int device_of(const GpuActivity& activity, int queued_for) const;

  static std::atomic<CuptiRecords*> active;  // whose buffers CUPTI gets

  std::unique_ptr<const CuptiLibrary> library_;
  std::vector<int> ordinals_;  // of the devices
  CuptiBuffers buffers_;
  CuptiReader reader_;
  CUpti_SubscriberHandle subscriber_ = nullptr;
  std::vector<Record> queued_;  // by the number that was pushed, less one
  std::size_t depth_ = 0;       // of numbers pushed
  std::map<std::uint64_t, Record> graph_nodes_;
  Record capturing_node_{};
  bool is_capturing_node_ = false;
  bool on_ = false;
  bool keeps_ = false;
  bool capturing_ = false;
  bool finished_ = false;
  std::int64_t not_noted_ = 0;  // nodes for which there was no number
  std::atomic<std::int64_t> dropped_by_cupti_{0};
  std::string trouble_;
};

}  // namespace barestep
