// What a device can do at best, measured once and remembered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/addresses.h"
#include "core/config.h"
#include "core/device.h"
#include "core/program.h"

namespace barestep {

/// The roof of the roofline model (Williams, Waterman & Patterson 2009): no op runs faster than its
/// flops at the rate of products, nor than its bytes at the rate of memory.
struct Peaks {
  double flops_per_s = 0;  // of large matrix products in the run's precision
  double bytes_per_s = 0;  // read and written, beyond the caches
  /// Of the time that they were measured in, for how much a thread waited for a core that another
  /// program had. No file keeps it.
  double waited_share = 0;

  /// The least seconds that so much work takes; 0 for none.
  [[nodiscard]] double least_s(const Cost& cost) const;
};

/// Everything that peaks depend on: model, threads, products' library with its
/// version, precision, and a GPU's driver.
std::string peaks_key(const Device& device, Precision precision);

/// The least seconds that the ops of a step take at these peaks, one after the other. Making random
/// input and evaluating are no work of a step's.
double floor_s(const Program& step, const Peaks& peaks);

/// Measures with products of growing extent, in a precision that the device was opened for, and
/// with a copy and an update in place, whichever is faster: of 128 MiB on the CPU, of 1 GiB on a
/// GPU, of as much as the largest cache if that is more, and of at most a quarter of the free
/// memory. Takes about half a second and twice that memory, all given back. Throws Error(kMemory).
/// Blocks.
Peaks measure_peaks(Device& device, Precision precision = Precision::kFp32);

/// $XDG_CACHE_HOME/barestep/peaks.tsv, or in ~/.cache; nothing where neither variable is set.
std::optional<std::filesystem::path> peaks_file();

/// The peaks that `file` keeps under `key`. Nothing where it has none, or is not there. Throws
/// Error for a file that is spoiled, so that it holds no peaks: kNoInput for one that cannot be
/// read, kBadData for lines that are none, or hold rates that no device has.
std::optional<Peaks> load_peaks(const std::filesystem::path& file, const std::string& key);

/// What an earlier run left of this device in peaks_file(); nothing if that is spoiled.
std::optional<Peaks> known_peaks(const Device& device, Precision precision);

/// Keeps them beside those of other keys, without whatever else is in the file; makes the folder.
/// Throws Error as replace_file() does.
void save_peaks(const std::filesystem::path& file, const std::string& key, const Peaks& peaks);

// A stream with its own memory, for timing ops.

/// Buffer 0 is its memory. All of it is given back at the end.
class BenchStream {
 public:
  /// `bytes` of device memory, a multiple of 4, filled with zeros, and the stream's workspace.
  /// `device` must outlive it. Throws Error(kMemory). Blocks.
  BenchStream(Device& device, std::int64_t bytes, std::string_view label);
  ~BenchStream();
  BenchStream(const BenchStream&) = delete;
  BenchStream& operator=(const BenchStream&) = delete;

  [[nodiscard]] const Addresses& addresses() const { return addresses_; }

  /// Queues; the op must be prepared.
  void run(const DeviceOp& op) { device_.run(op, addresses_, *stream_, {}); }
  void synchronize() { stream_->synchronize(); }

  /// Seconds on the device of what queue() queues by run(). Blocks.
  template <class Queue>
  double seconds_of(const Queue& queue) {
    begin_->record(*stream_);
    queue();
    end_->record(*stream_);
    stream_->synchronize();
    return end_->seconds_since(*begin_);
  }

 private:
  Device& device_;
  std::byte* memory_;
  Addresses addresses_;
  std::byte* workspace_ = nullptr;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> begin_, end_;
};

}  // namespace barestep
