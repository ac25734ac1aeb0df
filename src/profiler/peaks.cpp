#include "profiler/peaks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <random>
#include <sstream>
#include <system_error>
#include <vector>

#include "core/error.h"
#include "core/host.h"
#include "core/input_file.h"
#include "core/output_file.h"

namespace barestep {

namespace {

/// The least size of the copy that measures the rate of memory: many times the largest caches of
/// most devices, which are 60 MB on current GPUs.
constexpr std::int64_t kCpuCopyBytes = std::int64_t{128} << 20;
constexpr std::int64_t kGpuCopyBytes = std::int64_t{1} << 30;
constexpr std::int64_t kCopyCols = 1024;
constexpr std::int64_t kMaxExtent = 8192;
/// A product that takes this long can be timed reliably.
constexpr double kLongEnoughSeconds = 0.01;
constexpr int kTries = 5;

/// Times ops in memory that is allocated for the measurement.
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
  [[nodiscard]] LostTime lost() const { return watch_.lost(); }

 private:
  Device& device_;
  BenchStream stream_;
  LostTimeWatch watch_;  // of the stream's thread too
};

/// Two such areas exceed the caches and leave half of the free memory to others.
std::int64_t copy_bytes(const Device& device) {
  const DeviceInfo info = device.info();
  constexpr std::int64_t kRowBytes = kCopyCols * bytes_of(DType::kF32);
  const std::int64_t usual = device.kind() == DeviceKind::kCpu ? kCpuCopyBytes : kGpuCopyBytes;
  const std::int64_t bytes = std::min(std::max(usual, info.cache_bytes), info.free_bytes / 4);
  return std::max(kRowBytes, bytes / kRowBytes * kRowBytes);
}

class PeakMeasurement {
 public:
  explicit PeakMeasurement(Device& device) : device_(device) {}

  Peaks measure(DType type) {
    Peaks peaks{.flops_per_s = product_peak(type), .bytes_per_s = memory_peak()};
    peaks.waited_share = waited_share({&lost_, 1});
    return peaks;
  }

 private:
  double product_rate(DType type, std::int64_t extent, int tries) {
    const std::int64_t bytes = extent * extent * bytes_of(type);
    PeakBench bench(device_, 3 * bytes);
    const auto square = [&](std::int64_t number) {
      return Tensor{0, number * bytes, extent, extent, type};
    };
    const DeviceOp op = Gemm{.c = square(0), .a = square(1), .b = square(2)};
    bench.run_once(op);  // the first run may load code or choose algorithms
    const double rate = static_cast<double>(cost_of(op).flops) / bench.best_of(tries, op);
    add(bench.lost());
    return rate;
  }

  /// Enlarges the product until it takes long enough, so that a GPU is not timed on a tiny product
  /// and plain loops do not take minutes. Small products count, too: those of plain loops are the
  /// fastest.
  double product_peak(DType type) {
    std::int64_t extent = 64;
    double rate = product_rate(type, extent, 2);
    const auto seconds = [&] { return 2 * std::pow(static_cast<double>(extent), 3) / rate; };
    double best = rate;
    while (seconds() < kLongEnoughSeconds && extent < kMaxExtent) {
      extent *= 2;
      rate = product_rate(type, extent, 2);
      best = std::max(best, rate);
    }
    return std::max(best, product_rate(type, extent, kTries));
  }

  double memory_peak() {
    const std::int64_t copied = copy_bytes(device_);
    PeakBench bench(device_, 2 * copied);
    const std::int64_t rows = copied / kCopyCols / bytes_of(DType::kF32);
    const Tensor to{0, 0, rows, kCopyCols};
    const Tensor from{0, copied, rows, kCopyCols};
    const DeviceOp copy = Copy{.to = to, .from = from};
    const DeviceOp update =
        BiasActivation{.values = to, .bias = from.row_slice(0, 1), .activation = Activation::kNone};
    const double bytes = 2.0 * static_cast<double>(copied);
    const double rate =
        bytes / std::min(bench.best_of(kTries, copy), bench.best_of(kTries, update));
    add(bench.lost());
    return rate;
  }

  void add(const LostTime& lost) {
    // Other ranks count as other programs: peaks measured next to them are too low as well.
    lost_.waited_s += lost.waited_s;
    lost_.ready_s += lost.ready_s;
    lost_.own_ran_s += lost.own_ran_s;
    lost_.all_ran_s += lost.all_ran_s;
  }

  Device& device_;
  LostTime lost_;  // of all benches
};

constexpr std::int64_t kMaxCacheBytes = 1 << 20;
// No device of the last thirty years is slower, and none in sight is faster.
constexpr double kMinPeak = 1e6;
constexpr double kMaxPeak = 1e18;

bool is_peak(double per_s) {
  return per_s >= kMinPeak && per_s <= kMaxPeak;
}

struct CachedPeaks {
  std::string key;
  Peaks peaks;
};

std::string line_of(const CachedPeaks& cached) {
  return fmt::format("{}\t{:.6g}\t{:.6g}\n", cached.key, cached.peaks.flops_per_s,
                     cached.peaks.bytes_per_s);
}

std::optional<CachedPeaks> parse_peaks(const std::string& line) {
  std::istringstream fields(line);
  CachedPeaks cached;
  std::getline(fields, cached.key, '\t');
  fields >> cached.peaks.flops_per_s >> cached.peaks.bytes_per_s;
  const bool is_whole = static_cast<bool>(fields) && (fields >> std::ws).eof();
  const bool is_sound = is_peak(cached.peaks.flops_per_s) && is_peak(cached.peaks.bytes_per_s);
  if (cached.key.empty() || !is_whole || !is_sound) return std::nullopt;
  return cached;
}

struct PeaksCache {
  std::vector<CachedPeaks> all;
  std::size_t bad_line = 0;  // the first malformed line, from 1; 0: none
};

/// Empty if there is no file. Throws Error(kNoInput) if it cannot be read.
PeaksCache read_peaks(const std::filesystem::path& file) {
  PeaksCache cache;
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) return cache;
  std::istringstream lines(InputFile(file, "peaks' cache").text(kMaxCacheBytes));
  std::size_t number = 1;
  for (std::string line; std::getline(lines, line); ++number) {
    auto cached = parse_peaks(line);
    if (cached) {
      cache.all.push_back(std::move(*cached));
    } else if (cache.bad_line == 0) {
      cache.bad_line = number;
    }
  }
  return cache;
}

constexpr std::int64_t kMaxCopied = 1 << 20;

/// Words that are numbers of moderate size in fp32, and in each half in bf16 and fp16, with random
/// signs and fractions. With zeros a GPU stays cooler and runs faster than with a model's numbers.
std::vector<std::uint32_t> varied_numbers(std::int64_t count) {
  constexpr std::uint32_t kExponents = 0x3C003C00;
  constexpr std::uint32_t kRandomBits = 0x83FF83FF;
  std::vector<std::uint32_t> numbers;
  std::minstd_rand random(1);
  for (std::int64_t i = 0; i < count; ++i) {
    const auto bits = static_cast<std::uint32_t>(random() << 16U ^ random());
    numbers.push_back((bits & kRandomBits) | kExponents);
  }
  return numbers;
}

}  // namespace

double Peaks::min_s(const Cost& cost) const {
  double min_s = 0;
  if (flops_per_s > 0) min_s = static_cast<double>(cost.flops) / flops_per_s;
  if (bytes_per_s > 0) {
    min_s = std::max(min_s, static_cast<double>(cost.bytes) / bytes_per_s);
  }
  return min_s;
}

std::string peaks_key(const Device& device, Precision precision) {
  const DeviceInfo info = device.info();
  std::string key = fmt::format("{}, {} threads, {}, {}", info.model, info.threads,
                                info.product_library, name_of(precision));
  if (!info.driver.empty()) key += ", " + info.driver;
  std::replace_if(
      key.begin(), key.end(), [](char c) { return c == '\t' || c == '\n'; }, ' ');
  return key;
}

double floor_s(const Program& step, const Peaks& peaks) {
  double min_s = 0;
  for (const Node& node : step.nodes()) {
    if (node.phase == Phase::kData || node.phase == Phase::kEvaluate) continue;
    min_s += peaks.min_s(cost_of(node.op));
  }
  return min_s;
}

Peaks measure_peaks(Device& device, Precision precision) {
  return PeakMeasurement(device).measure(type_of(precision));
}

std::optional<std::filesystem::path> peaks_file() {
  const auto folder = cache_folder();
  if (!folder) return std::nullopt;
  return *folder / "peaks.tsv";
}

std::optional<Peaks> load_peaks(const std::filesystem::path& file, const std::string& key) {
  const PeaksCache cache = read_peaks(file);
  const auto found = std::ranges::find(cache.all, key, &CachedPeaks::key);
  if (found != cache.all.end()) return found->peaks;
  if (cache.bad_line == 0) return std::nullopt;
  fail(ExitCode::kBadData, {"peaks' cache", file.string(),
                            fmt::format("line {} is not a device and two rates from {:g} to {:g}",
                                        cache.bad_line, kMinPeak, kMaxPeak)});
}

std::optional<Peaks> known_peaks(const Device& device, Precision precision) {
  const auto file = peaks_file();
  if (!file) return std::nullopt;
  try {
    return load_peaks(*file, peaks_key(device, precision));
  } catch (const Error&) {
    return std::nullopt;  // the next run with --profile reports why and measures
  }
}

void save_peaks(const std::filesystem::path& file, const std::string& key, const Peaks& peaks) {
  std::error_code error;
  std::filesystem::create_directories(file.parent_path(), error);
  if (error) {
    fail(ExitCode::kCannotCreate,
         {"folder", file.parent_path().string(), "cannot be created: " + error.message(),
          "set XDG_CACHE_HOME to one that can"});
  }
  PeaksCache cache;
  try {
    cache = read_peaks(file);
  } catch (const Error&) {
    // An unreadable file is replaced, unless it is not a regular file.
  }
  std::erase_if(cache.all, [&](const CachedPeaks& cached) { return cached.key == key; });
  cache.all.push_back({.key = key, .peaks = peaks});
  std::string text;
  for (const CachedPeaks& cached : cache.all) text += line_of(cached);
  replace_file(file, text);
}

BenchStream::BenchStream(Device& device, std::int64_t bytes, std::string_view label)
    : device_(device),
      memory_(device.allocate(bytes, MemoryKind::kDevice)),
      addresses_(std::vector<std::byte*>{memory_}),
      stream_(device.new_stream(label)),
      begin_(device.new_event(EventUse::kTime)),
      end_(device.new_event(EventUse::kTime)) {
  const std::int64_t scratch = workspace_bytes(device.kind());
  if (scratch > 0) {
    workspace_ = device.allocate(scratch, MemoryKind::kDevice);
    stream_->set_workspace({workspace_, static_cast<std::size_t>(scratch)});
  }
  const std::vector<std::uint32_t> numbers = varied_numbers(std::min(bytes, kMaxCopied) / 4);
  std::int64_t filled = std::min(bytes, kMaxCopied);
  device.copy(memory_, numbers.data(), filled, *stream_);
  std::deque<DeviceOp> copies;  // kept until they are done
  while (filled < bytes) {
    const std::int64_t more = std::min(filled, bytes - filled);
    copies.emplace_back(Copy{.to = {0, filled, 1, more / 4}, .from = {0, 0, 1, more / 4}});
    device.prepare(copies.back());
    run(copies.back());
    filled += more;
  }
  synchronize();
}

std::vector<double> BenchStream::seconds_of_each(std::span<const DeviceOp> ops,
                                                 const Addresses& addresses) {
  while (marks_.size() <= ops.size()) marks_.push_back(device_.new_event(EventUse::kTime));
  marks_.front()->record(*stream_);
  for (std::size_t i = 0; i < ops.size(); ++i) {
    device_.run(ops[i], addresses, *stream_, {});
    marks_[i + 1]->record(*stream_);
  }
  stream_->synchronize();
  std::vector<double> seconds;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    seconds.push_back(marks_[i + 1]->seconds_since(*marks_[i]));
  }
  return seconds;
}

BenchStream::~BenchStream() {
  stream_.reset();
  if (workspace_ != nullptr) device_.release(workspace_, MemoryKind::kDevice);
  device_.release(memory_, MemoryKind::kDevice);
}

}  // namespace barestep
