// GPU records from CUPTI.
//
// Work is assigned to a node by external correlation: a number is pushed before the node is queued,
// and CUPTI attaches it to every call of this thread until it is popped. A graph's work is
// identified by the graph node alone, which CUPTI reports while the program's node is captured; the
// step by its time. Correlations of graphs are wrong in versions before 13.1.1 if records were
// enabled before, so they are enabled only once.
//
// Times are CUPTI's own and are converted. A clock that the host registers makes versions from
// 12.6.2 to 13.0 lose times, and later ones too if it is registered twice.
#pragma once

#include <cupti.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "profiler/cupti_activity.h"
#include "profiler/cupti_library.h"
#include "profiler/gpu_records.h"

namespace barestep {

/// A fixed number of buffers, allocated at once. CUPTI's threads take empty ones and return full
/// ones, in any order, without a lock. One other thread reads the full ones.
class CuptiBuffers {
 public:
  static constexpr std::size_t kCount = 16;
  static constexpr std::size_t kBytes = std::size_t{2} << 20;

  CuptiBuffers();
  /// Buffers that CUPTI still uses are not freed.
  ~CuptiBuffers();
  CuptiBuffers(const CuptiBuffers&) = delete;
  CuptiBuffers& operator=(const CuptiBuffers&) = delete;

  /// Null if all are in use; CUPTI then drops records and counts them.
  [[nodiscard]] std::uint8_t* take() noexcept;
  void return_full(std::uint8_t* buffer, std::size_t valid_bytes) noexcept;

  /// Calls read(buffer, bytes) for each returned buffer, and then marks it empty.
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

  std::unique_ptr<std::uint64_t[]> memory_;  // CUPTI requires 8-byte alignment
  std::array<Buffer, kCount> buffers_;
};

/// What to add to CUPTI's times at a time of the host, and how far off that may be.
struct CuptiClock {
  std::int64_t offset_ns = 0;
  std::uint64_t host_ns = 0;
  std::int64_t error_ns = 0;
};

/// Only one per process, since CUPTI has only one subscriber.
class CuptiRecords final : public GpuRecords {
 public:
  CuptiRecords(std::unique_ptr<const CuptiLibrary> library, const std::vector<Device*>& devices,
               std::int64_t capacity);
  ~CuptiRecords() override;

  /// Returns why CUPTI cannot be used; empty if it can.
  std::string subscribe();

  [[nodiscard]] std::string source() const override;
  std::string turn(bool on, bool keeps) override;
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
  static void CUPTIAPI receive_full_buffer(CUcontext context, std::uint32_t stream,
                                           std::uint8_t* buffer, std::size_t bytes,
                                           std::size_t valid_bytes);
  static void CUPTIAPI on_resource(void* self, CUpti_CallbackDomain domain, CUpti_CallbackId id,
                                   const void* data);
  void note_graph_node(CUpti_CallbackId id, const CUpti_GraphData& graph);

  /// Stores the first failure after subscribe(), which is reported with the source.
  void keep(const std::string& trouble);
  bool check(const char* call, CUptiResult status);
  std::string enable_all();
  void disable_all();
  /// Compares the clocks. Returns why that failed.
  std::string read_clock(CuptiClock& clock) const;
  void correct_drift();
  void resolve();
  [[nodiscard]] const Record* queued_of(const GpuActivity& activity) const;
  /// The launches of graphs, of input too, by their program and slot, in order.
  using Launches = std::map<std::pair<int, std::size_t>, std::vector<Record>>;
  [[nodiscard]] Launches launches() const;
  /// Sets the tag of work in a graph, if it is of a node.
  void resolve_graph_work(GpuActivity& activity, const Launches& launches) const;
  [[nodiscard]] int device_of(const GpuActivity& activity, int queued_for) const;

  static std::atomic<CuptiRecords*> active;  // the one that provides CUPTI's buffers

  std::unique_ptr<const CuptiLibrary> library_;
  std::vector<int> ordinals_;  // the devices' ordinals
  CuptiBuffers buffers_;
  CuptiReader reader_;
  CUpti_SubscriberHandle subscriber_ = nullptr;
  std::vector<Record> queued_;  // by pushed number, minus one
  std::size_t depth_ = 0;       // of pushed numbers
  std::map<std::uint64_t, Record> graph_nodes_;
  Record capturing_node_{};
  bool is_capturing_node_ = false;
  CuptiClock clock_;  // when records were enabled
  bool on_ = false;
  bool was_on_ = false;
  bool keeps_ = false;
  bool capturing_ = false;
  bool finished_ = false;
  std::int64_t not_noted_ = 0;  // nodes for which no number was left
  std::atomic<std::int64_t> dropped_by_cupti_{0};
  std::string trouble_;
};

}  // namespace barestep
