// What a device can do at best, measured once and remembered.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "core/config.h"
#include "core/device.h"
#include "core/program.h"

namespace barestep {

/// The roof of the roofline model (Williams, Waterman & Patterson 2009): no op runs faster than its
/// flops at the rate of products, nor than its bytes at the rate of memory.
struct Peaks {
  double flops_per_s = 0;  // of large matrix products in the run's precision
  double bytes_per_s = 0;  // read and written, beyond the caches

  /// The least seconds that so much work takes; 0 for none.
  [[nodiscard]] double least_s(const Cost& cost) const;
};

/// Everything that peaks depend on: model, threads, products' library with its
/// version, precision, and a GPU's driver.
std::string peaks_key(const Device& device, Precision precision);

/// The least seconds that the ops of a step take at these peaks, one after the other. Making random
/// input and evaluating are no work of a step's.
double floor_s(const Program& step, const Peaks& peaks);

/// Measures with products of growing extent, and with a copy and an update in place, whichever is
/// faster: of 128 MiB on the CPU, and of 1 GiB on a GPU, or a quarter of its free memory if that is
/// less. Takes about half a second and twice that memory, all given back. Throws Error(kMemory).
/// Blocks.
Peaks measure_peaks(Device& device);

/// $XDG_CACHE_HOME/barestep/peaks.tsv, or in ~/.cache; nothing where neither variable is set.
std::optional<std::filesystem::path> peaks_file();

/// The peaks that `file` keeps under `key`. Nothing where it has none, or is not there. Throws
/// Error for a file that is spoiled, so that it cannot tell: kNoInput for one that cannot be read,
/// kBadData for lines that are none, or hold rates that no device has.
std::optional<Peaks> load_peaks(const std::filesystem::path& file, const std::string& key);

/// What an earlier run left of this device in peaks_file(); nothing if that is spoiled.
std::optional<Peaks> known_peaks(const Device& device, Precision precision);

/// Keeps them beside those of other keys, without whatever else is in the file; makes the folder.
/// Throws Error as replace_file() does.
void save_peaks(const std::filesystem::path& file, const std::string& key, const Peaks& peaks);

}  // namespace barestep
