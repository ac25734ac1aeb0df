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
  std::size_t depth = 0;              // of pushes without a pop
  CUpti_CallbackFunc on_event = nullptr;
  void* user = nullptr;
  std::uint64_t (*clock)() = nullptr;
  int refused_buffers = 0;  // none was to be had

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
