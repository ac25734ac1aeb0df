// A CUPTI without a GPU. Tests load it as a library, set its answers, and make it deliver
// activities.
#pragma once

#include <cupti.h>

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
  std::uint64_t (*clock)() = nullptr;
  int refused_buffers = 0;  // no buffer was available

  std::uint32_t calls = 0;           // made by call(), and their correlations
  std::vector<std::uint64_t> stack;  // of numbers pushed

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
  void add(const Record& record) {
    std::vector<std::uint8_t> bytes(sizeof record);
    std::memcpy(bytes.data(), &record, sizeof record);
    records.push_back(std::move(bytes));
  }
};

}  // namespace barestep

/// The state of the library; tests look it up by this name.
using FakeCuptiState = barestep::FakeCupti*();
constexpr const char* kFakeCuptiState = "fake_cupti_state";
