// A CUPTI without a GPU. Tests load it as a library, say what it answers, and have it deliver
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
  std::map<std::string, CUptiResult> status;  // by function; success where there is none
  std::uint32_t version = 130001;
  std::vector<std::vector<std::uint8_t>> records;  // to be delivered by the next flush
  std::size_t records_of_a_buffer = 1000;          // then comes the next one
  bool delivers_backwards = false;                 // the last buffer comes back first
  std::size_t dropped = 0;                         // told with the next buffer
  bool is_subscribed = false;
  std::map<int, int> enabled;         // by kind
  std::vector<std::uint64_t> pushed;  // numbers, in their order
  CUpti_CallbackFunc on_event = nullptr;
  void* user = nullptr;
  std::uint64_t (*clock)() = nullptr;
  int refused_buffers = 0;  // none was to be had

  std::uint32_t calls = 0;           // made by call(), and their correlations
  std::vector<std::uint64_t> stack;  // of numbers pushed

  /// A call of the runtime or of the driver, as CUPTI tells of it: of kinds that are enabled only,
  /// and with the numbers that are pushed only where the call itself is recorded. Returns its
  /// correlation, which the work that it queues carries.
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

  /// Appends a record as CUPTI lays it out, which is packed.
  template <class Record>
  void add(const Record& record) {
    std::vector<std::uint8_t> bytes(sizeof record);
    std::memcpy(bytes.data(), &record, sizeof record);
    records.push_back(std::move(bytes));
  }
};

}  // namespace barestep

/// The state of the library; to be found in it by this name.
using FakeCuptiState = barestep::FakeCupti*();
constexpr const char* kFakeCuptiState = "fake_cupti_state";
