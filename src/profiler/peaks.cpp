#include "profiler/peaks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <span>
#include <sstream>
#include <system_error>
#include <vector>

#include "core/bench_stream.h"
#include "core/error.h"
#include "core/output_file.h"

namespace barestep {
namespace {

/// What is copied to learn the rate of memory: many times the largest caches, which are 60 MB on a
/// GPU of today.
constexpr std::int64_t kCpuCopyBytes = std::int64_t{128} << 20;
constexpr std::int64_t kGpuCopyBytes = std::int64_t{1} << 30;
constexpr std::int64_t kCopyCols = 1024;
constexpr std::int64_t kMostExtent = 8192;
/// A product that takes so long is long enough to be timed.
constexpr double kLongEnoughSeconds = 0.01;
constexpr int kTries = 5;

/// Seconds of ops, in memory for the time of a measurement.
class PeakBench {
 public:
  PeakBench(Device& device, std::int64_t bytes)
      : device_(device), stream_(device, bytes, "peaks") {}

  /// Seconds of the op on the device.
  double run_once(const DeviceOp& op) {
    device_.prepare(op);
    return stream_.seconds_of([&] { stream_.run(op); });
  }
  double best_of(int tries, const DeviceOp& op) {
    double best_s = run_once(op);
    for (int i = 1; i < tries; ++i) best_s = std::min(best_s, run_once(op));
    return best_s;
  }

 private:
  Device& device_;
  BenchStream stream_;
};

double product_rate(Device& device, std::int64_t extent, int tries) {
  const std::int64_t bytes = extent * extent * bytes_of(DType::kF32);
  PeakBench bench(device, 3 * bytes);
  const auto square = [&](std::int64_t number) {
    return Tensor{0, number * bytes, extent, extent};
  };
  const DeviceOp op = Gemm{.c = square(0), .a = square(1), .b = square(2)};
  bench.run_once(op);  // the first one may still load or choose something
  return static_cast<double>(cost_of(op).flops) / bench.best_of(tries, op);
}

/// Grows the product until it is long enough, so that neither a GPU is timed on a trifle nor plain
/// loops for minutes.
double product_peak(Device& device) {
  std::int64_t extent = 256;
  double rate = product_rate(device, extent, 2);
  const auto seconds = [&] { return 2 * std::pow(static_cast<double>(extent), 3) / rate; };
  double best = rate;
  while (seconds() < kLongEnoughSeconds && extent < kMostExtent) {
    extent *= 2;
    rate = product_rate(device, extent, 2);
    best = std::max(best, rate);
  }
  return std::max(best, product_rate(device, extent, kTries));
}

/// Two such areas leave half of what is free to others.
std::int64_t copy_bytes(const Device& device) {
  if (device.kind() == DeviceKind::kCpu) return kCpuCopyBytes;
  constexpr std::int64_t kRowBytes = kCopyCols * bytes_of(DType::kF32);
  const std::int64_t bytes = std::min(kGpuCopyBytes, device.info().free_bytes / 4);
  return std::max(kRowBytes, bytes / kRowBytes * kRowBytes);
}

double memory_peak(Device& device) {
  const std::int64_t copied = copy_bytes(device);
  PeakBench bench(device, 2 * copied);
  const std::int64_t rows = copied / kCopyCols / bytes_of(DType::kF32);
  const Tensor to{0, 0, rows, kCopyCols};
  const Tensor from{0, copied, rows, kCopyCols};
  const DeviceOp copy = Copy{.to = to, .from = from};
  const DeviceOp update = BiasRelu{.values = to, .bias = from.row_slice(0, 1), .relu = false};
  const double bytes = 2.0 * static_cast<double>(copied);
  return bytes / std::min(bench.best_of(kTries, copy), bench.best_of(kTries, update));
}

std::string line_of(const std::string& key, const Peaks& peaks) {
  return fmt::format("{}\t{:.6g}\t{:.6g}\n", key, peaks.flops_per_s, peaks.bytes_per_s);
}

bool has_key(const std::string& line, const std::string& key) {
  return line.starts_with(key + "\t");
}

}  // namespace

double Peaks::least_s(const Cost& cost) const {
  double least_s = 0;
  if (flops_per_s > 0) least_s = static_cast<double>(cost.flops) / flops_per_s;
  if (bytes_per_s > 0) {
    least_s = std::max(least_s, static_cast<double>(cost.bytes) / bytes_per_s);
  }
  return least_s;
}

std::string peaks_key(const Device& device, Precision precision) {
  const DeviceInfo info = device.info();
  std::string key =
      fmt::format("{}, {} threads, {}, {}", info.model, info.threads, info.product_library,
                  precision == Precision::kFp32 ? "fp32" : "tf32");
  if (!info.driver.empty()) key += ", " + info.driver;
  std::replace_if(
      key.begin(), key.end(), [](char c) { return c == '\t' || c == '\n'; }, ' ');
  return key;
}

double floor_s(const Program& step, const Peaks& peaks) {
  double least_s = 0;
  for (const Node& node : step.nodes()) {
    if (node.phase == Phase::kData || node.phase == Phase::kEvaluate) continue;
    least_s += peaks.least_s(cost_of(node.op));
  }
  return least_s;
}

Peaks measure_peaks(Device& device) {
  return {.flops_per_s = product_peak(device), .bytes_per_s = memory_peak(device)};
}

std::optional<std::filesystem::path> peaks_file() {
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  const char* const home = std::getenv("HOME");
  std::filesystem::path folder;
  if (cache != nullptr && *cache == '/') {
    folder = cache;
  } else if (home != nullptr && *home == '/') {
    folder = std::filesystem::path(home) / ".cache";
  } else {
    return std::nullopt;
  }
  return folder / "barestep" / "peaks.tsv";
}

std::optional<Peaks> load_peaks(const std::filesystem::path& file, const std::string& key) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    if (!has_key(line, key)) continue;
    std::istringstream numbers(line.substr(key.size() + 1));
    Peaks peaks;
    const bool read = static_cast<bool>(numbers >> peaks.flops_per_s >> peaks.bytes_per_s);
    const bool sound = std::isfinite(peaks.flops_per_s) && std::isfinite(peaks.bytes_per_s) &&
                       peaks.flops_per_s > 0 && peaks.bytes_per_s > 0;
    if (read && sound) return peaks;
  }
  return std::nullopt;
}

std::optional<Peaks> known_peaks(const Device& device, Precision precision) {
  const auto file = peaks_file();
  return file ? load_peaks(*file, peaks_key(device, precision)) : std::nullopt;
}

void save_peaks(const std::filesystem::path& file, const std::string& key, const Peaks& peaks) {
  std::error_code error;
  std::filesystem::create_directories(file.parent_path(), error);
  if (error) {
    fail(ExitCode::kCannotCreate, {.what = "folder",
                                   .value = file.parent_path().string(),
                                   .why = "cannot be created: " + error.message(),
                                   .remedy = "set XDG_CACHE_HOME to one that can"});
  }
  std::string text;
  std::ifstream old(file);
  for (std::string line; std::getline(old, line);) {
    if (!has_key(line, key)) text += line + "\n";
  }
  old.close();
  text += line_of(key, peaks);
  const auto bytes = std::as_bytes(std::span(text));
  replace_file(file, std::span(&bytes, 1));
}

}  // namespace barestep
