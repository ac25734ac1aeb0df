// A CUPTI without a GPU. Tests load it as a library, set its answers, and make it deliver
// activities. It has the faults of NVIDIA's versions up to 13.1.
#pragma once

#include <cupti.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace barestep {

struct FakeCupti {
  std::map<std::string, CUptiResult> status;  // by function; success if absent
  std::uint32_t version = 130001;
  std::vector<std::vector<std::uint8_t>> records;  // delivered by the next flush
  std::size_t records_of_a_buffer = 1000;          // then a new buffer begins
  bool delivers_backwards = false;                 // the last buffer returns first
  std::size_t dropped = 0;                         // reported with the next buffer
  bool is_subscribed = false;
  std::map<int, int> enabled;         // by kind
  std::vector<std::uint64_t> pushed;  // numbers, in order
  CUpti_CallbackFunc on_event = nullptr;
  void* user = nullptr;
  int sessions = 0;                           // how often records were enabled
  int registered_clocks = 0;                  // by cuptiActivityRegisterTimestampCallback
  std::int64_t ahead_ns = 1'000'000'000'000;  // of the host's clock
  int refused_buffers = 0;                    // no buffer was available

  std::uint32_t calls = 0;           // made by call(), and their correlations
  std::vector<std::uint64_t> stack;  // of numbers pushed

  /// CUPTI's clock.
  [[nodiscard]] std::uint64_t now_ns() const {
    const auto host = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(host).count() + ahead_ns);
  }

  /// Versions from 12.6.2 to 13.0 write no times of kernels if the host has registered a clock; the
  /// others, if it has registered one twice.
  [[nodiscard]] bool loses_times() const {
    const bool is_broken = version >= 120602 && version < 130100;
    return registered_clocks > (is_broken ? 0 : 1);
  }

  /// The correlation of a graph's work, which from the second session on is not that of its launch
  /// before 13.1.1.
  [[nodiscard]] std::uint32_t correlation_in_graph(std::uint32_t launch) const {
    return sessions > 1 && version < 130101 ? launch + 1000 : launch;
  }

  /// A call of the runtime or of the driver, as reported by CUPTI: only for enabled kinds, and with
  /// the pushed numbers only if the call itself is recorded. Returns its correlation, which is also
  /// that of the work it queues.
  std::uint32_t call(CUpti_ActivityKind kind, std::uint32_t id, std::uint64_t start,
                     std::uint64_t end) {
    const std::uint32_t correlation = ++calls;
    if (!enabled.contains(kind)) return correlation;
    if (!stack.empty() && enabled.contains(CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION)) {
      CUpti_ActivityExternalCorrelation external{};
      external.kind = CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION;
      external.externalKind = CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0;
      external.externalId = stack.back();
      external.correlationId = correlation;
      add(external);
    }
    CUpti_ActivityAPI made{};
    made.kind = kind;
    made.cbid = id;
    made.correlationId = correlation;
    made.start = start;
    made.end = end;
    add(made);
    return correlation;
  }

  /// Appends a record in CUPTI's packed layout.
  template <class Record>
  void add(Record record) {
    if constexpr (requires { record.registersPerThread; }) {
      if (record.graphNodeId != 0)
        record.correlationId = correlation_in_graph(record.correlationId);
      if (loses_times()) record.start = record.end = 0;
    }
    std::vector<std::uint8_t> bytes(sizeof record);
    std::memcpy(bytes.data(), &record, sizeof record);
    records.push_back(std::move(bytes));
  }
};

}  // namespace barestep

/// The state of the library; tests look it up by this name.
using FakeCuptiState = barestep::FakeCupti*();
constexpr const char* kFakeCuptiState = "fake_cupti_state";
