// A device's peak rates, measured once and stored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/addresses.h"
#include "core/config.h"
#include "core/device.h"
#include "core/program.h"

namespace barestep {

/// The roof of the roofline model (Williams, Waterman & Patterson 2009): no op takes less time than
/// its flops take at the rate of products, or its bytes at the rate of memory.
struct Peaks {
  double flops_per_s = 0;  // of large matrix products in the run's precision
  double bytes_per_s = 0;  // read plus written, beyond the caches
  /// While they were measured, the share of time that a thread waited for a core that another
  /// program used. Not stored in a file.
  double waited_share = 0;

  /// The minimum seconds for this work; 0 for none.
  [[nodiscard]] double min_s(const Cost& cost) const;
};

/// Everything that the peaks depend on: model, threads, the product library with its version,
/// precision, and a GPU's driver.
std::string peaks_key(const Device& device, Precision precision);

/// The minimum seconds for the ops of a step at these peaks, one after another. Does not count
/// random input and evaluation as a step's work.
double floor_s(const Program& step, const Peaks& peaks);

/// Measures with products of growing size, in a precision that the device was opened for; and with
/// a copy and an in-place update, whichever is faster, of 128 MiB on the CPU or 1 GiB on a GPU (the
/// size of the largest cache if that is more, a quarter of the free memory if that is less). Takes
/// about half a second and twice that memory, and frees all of it. Throws Error(kMemory). Blocks.
Peaks measure_peaks(Device& device, Precision precision = Precision::kFp32);

/// $XDG_CACHE_HOME/barestep/peaks.tsv, or in ~/.cache; nothing if neither variable is set.
std::optional<std::filesystem::path> peaks_file();

/// The peaks stored in `file` under `key`. Nothing if they or the file do not exist. Throws Error
/// if the file is damaged: kNoInput if it cannot be read, kBadData for malformed lines or
/// impossible rates.
std::optional<Peaks> load_peaks(const std::filesystem::path& file, const std::string& key);

/// The peaks that an earlier run stored in peaks_file() for this device; nothing if the file is
/// damaged.
std::optional<Peaks> known_peaks(const Device& device, Precision precision);

/// Stores peaks together with those of other keys, dropping anything else in the file; creates the
/// folder. Throws Error as replace_file() does.
void save_peaks(const std::filesystem::path& file, const std::string& key, const Peaks& peaks);

// A stream with its own memory, for timing ops.

/// Buffer 0 is its memory. The destructor frees everything.
class BenchStream {
 public:
  /// Allocates `bytes` of device memory, a multiple of 4, filled with numbers of any type, and the
  /// stream's workspace. `device` must outlive it. Throws Error(kMemory). Blocks.
  BenchStream(Device& device, std::int64_t bytes, std::string_view label);
  ~BenchStream();
  BenchStream(const BenchStream&) = delete;
  BenchStream& operator=(const BenchStream&) = delete;

  [[nodiscard]] const Addresses& addresses() const { return addresses_; }

  /// Queues; the op must have been prepared.
  void run(const DeviceOp& op) { device_.run(op, addresses_, *stream_, {}); }
  void synchronize() { stream_->synchronize(); }

  /// Seconds on the device for the ops that queue() queues through run(). Blocks.
  template <class Queue>
  double seconds_of(const Queue& queue) {
    begin_->record(*stream_);
    queue();
    end_->record(*stream_);
    stream_->synchronize();
    return end_->seconds_since(*begin_);
  }

  /// Seconds on the device of each of these prepared ops, which run one after the other on tensors
  /// at `addresses`. Blocks.
  std::vector<double> seconds_of_each(std::span<const DeviceOp> ops, const Addresses& addresses);

 private:
  Device& device_;
  std::byte* memory_;
  Addresses addresses_;
  std::byte* workspace_ = nullptr;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> begin_, end_;
  std::vector<std::unique_ptr<Event>> marks_;  // between the ops of seconds_of_each()
};

}  // namespace barestep
