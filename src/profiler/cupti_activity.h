// Reads the activity records in CUPTI's buffers.
#pragma once

#include <cupti.h>

#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "profiler/cupti_library.h"
#include "profiler/gpu_records.h"

namespace barestep {

/// The correlation number of work that belongs to no node.
constexpr std::uint64_t kNoCorrelatedNode = 0;

/// The number of buffers that CUPTI fills.
constexpr std::size_t kCuptiBuffers = 16;

/// Reads records and stores the data needed, in memory that is allocated at once.
class CuptiReader {
 public:
  /// `capacity` is the largest number stored of each kind.
  CuptiReader(const CuptiLibrary& library, std::int64_t capacity);

  /// What to add to CUPTI's times to get those of the host, in nanoseconds. Initially 0.
  void set_clock_offset(std::int64_t ns) { offset_ns_ = ns; }

  /// Stores only activities that begin between these two host times, in nanoseconds; initially
  /// none.
  void keep_from(std::uint64_t ns) {
    from_ns_ = ns;
    until_ns_ = std::numeric_limits<std::uint64_t>::max();
  }
  void keep_until(std::uint64_t ns) { until_ns_ = ns; }

  /// Reads all records of a buffer. Returns why it could not be read to its end; empty if it was.
  std::string read(std::uint8_t* buffer, std::size_t bytes);

  /// In the order of the buffers. Devices have CUDA's numbers, and no tag is set.
  [[nodiscard]] std::vector<GpuActivity>& activities() { return activities_; }
  [[nodiscard]] const std::vector<GpuActivity>& activities() const { return activities_; }

  /// Sorts the records read. Call before tag_number().
  void finish();
  /// The number that was pushed when work with this correlation was queued; kNoCorrelatedNode if
  /// none was.
  [[nodiscard]] std::uint64_t tag_number(std::int64_t correlation) const;

  /// Records without a time, or for which there was no room.
  [[nodiscard]] std::int64_t dropped() const { return dropped_; }

 private:
  struct Correlation {
    std::int64_t correlation;
    std::uint64_t number;
  };

  void read_record(const CUpti_Activity& record);
  void read_call(const CUpti_Activity& record, CUpti_CallbackDomain domain);
  void read_correlation(const CUpti_Activity& record);
  void add(const GpuActivity& activity, std::uint64_t start_ns, std::uint64_t end_ns);
  /// A copy of the text that lives as long as the reader.
  std::string_view kept(std::string text);
  /// In CUDA's spelling; empty for calls that queue no work.
  std::string_view call_name(CUpti_CallbackDomain domain, CUpti_CallbackId id);

  const CuptiLibrary& library_;
  std::size_t capacity_;
  std::int64_t offset_ns_ = 0;
  std::uint64_t from_ns_ = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t until_ns_ = std::numeric_limits<std::uint64_t>::max();
  std::vector<GpuActivity> activities_;
  std::vector<Correlation> correlations_;
  std::set<std::string> names_;
  // Each domain has its own numbering of calls.
  std::map<std::pair<CUpti_CallbackDomain, CUpti_CallbackId>, std::string_view> call_names_;
  std::int64_t dropped_ = 0;
};

}  // namespace barestep
