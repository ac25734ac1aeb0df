#include "profiler/peaks.h"

#include <sys/stat.h>

#include "core/clock.h"
#include "core/program.h"
#include "kernels/make_device.h"
#include "support/expect_error.h"
#include "support/forwarding_device.h"
#include "support/temp_dir.h"
#include "support/testing.h"
#include "train/step.h"

namespace barestep {
namespace {

TEST(Peaks, LeastTimeIsThatOfTheSlowerOfArithmeticAndMemory) {
  const Peaks peaks{.flops_per_s = 100, .bytes_per_s = 10};
  EXPECT_DOUBLE_EQ(peaks.min_s({.flops = 500, .bytes = 20}), 5);
  EXPECT_DOUBLE_EQ(peaks.min_s({.flops = 100, .bytes = 20}), 2);
  EXPECT_DOUBLE_EQ(peaks.min_s({}), 0);
  EXPECT_DOUBLE_EQ(Peaks{}.min_s({.flops = 100, .bytes = 20}), 0);
}

TEST(Floor, IsWhatTheOpsOfAStepTakeAtThePeaksWithoutTheirInput) {
  TrainConfig config;
  config.model.dim = 256;
  const StepPrograms programs(spec_of(config, DeviceKind::kCpu, nullptr));
  const Program& step = programs.train().program;
  const Price price = price_of(step);
  const auto bytes = static_cast<double>(price.total.bytes - price.by_phase[Phase::kData].bytes);
  EXPECT_GT(price.by_phase[Phase::kData].bytes, 0);
  EXPECT_DOUBLE_EQ(floor_s(step, {.bytes_per_s = 1000}), bytes / 1000);
  EXPECT_EQ(floor_s(step, {}), 0);
}

/// Counts allocations and releases.
class CountingDevice final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  std::byte* allocate(std::int64_t bytes, MemoryKind kind) override {
    ++held;
    return ForwardingDevice::allocate(bytes, kind);
  }
  void release(std::byte* memory, MemoryKind kind) noexcept override {
    --held;
    ForwardingDevice::release(memory, kind);
  }
  int held = 0;
};

/// A GPU with this much free memory; it only records copies and has no real memory.
class PretendedGpu final : public ForwardingDevice {
 public:
  PretendedGpu(Device& inner, std::int64_t free_bytes)
      : ForwardingDevice(inner), free_bytes_(free_bytes) {}
  [[nodiscard]] DeviceKind kind() const override { return DeviceKind::kCuda; }
  [[nodiscard]] DeviceInfo info() const override {
    DeviceInfo info = inner().info();
    info.free_bytes = free_bytes_;
    return info;
  }
  std::byte* allocate(std::int64_t bytes, MemoryKind kind) override {
    max_asked = std::max(max_asked, bytes);
    return inner().allocate(std::min(bytes, kReal), kind);
  }
  void run(const DeviceOp& op, const Addresses& addresses, Stream& stream, Tag tag) override {
    if (const auto* copy = std::get_if<Copy>(&op)) copied = copy->to.bytes();
    for (const Access& access : accesses_of(op)) {
      if (access.tensor.end_bytes() > kReal) return;
    }
    inner().run(op, addresses, stream, tag);
  }

  std::int64_t copied = 0, max_asked = 0;

 private:
  static constexpr std::int64_t kReal = std::int64_t{48} << 20;
  std::int64_t free_bytes_;
};

/// A GPU's caches would hold a large part of 128 MiB.
TEST(Peaks, OfAGpuAreOfAGibibyteOrWhatItsMemoryAllows) {
  const auto cpu = make_cpu_device({.threads = 1});
  PretendedGpu large(*cpu, std::int64_t{100} << 30);
  measure_peaks(large);
  EXPECT_EQ(large.copied, std::int64_t{1} << 30);
  PretendedGpu small(*cpu, (std::int64_t{400} << 20) + 4);
  measure_peaks(small);
  EXPECT_EQ(small.copied, std::int64_t{100} << 20);
  EXPECT_LE(small.max_asked, std::int64_t{200} << 20);
}

TEST(Peaks, AreMeasuredAndLeaveNothingBehind) {
  const auto cpu = make_cpu_device({.threads = 1});
  CountingDevice device(*cpu);
  const Peaks peaks = measure_peaks(device);
  // Every processor of the last twenty years exceeds the lower bound; none comes near the upper
  // one.
  EXPECT_GT(peaks.flops_per_s, 1e7);
  EXPECT_LT(peaks.flops_per_s, 1e15);
  EXPECT_GT(peaks.bytes_per_s, 1e8);
  EXPECT_LT(peaks.bytes_per_s, 1e14);
  EXPECT_EQ(device.held, 0);
}

TEST(PeaksKey, NamesAllThatPeaksDependOn) {
  const auto one = make_cpu_device({.threads = 1, .gemm = GemmProvider::kReference});
  const auto two = make_cpu_device({.threads = 2, .gemm = GemmProvider::kReference});
  EXPECT_NE(peaks_key(*one, Precision::kFp32), peaks_key(*two, Precision::kFp32));
  EXPECT_NE(peaks_key(*one, Precision::kFp32), peaks_key(*one, Precision::kTf32));
  EXPECT_EQ(peaks_key(*one, Precision::kFp32), peaks_key(*one, Precision::kFp32));
  EXPECT_NE(peaks_key(*one, Precision::kFp32).find(one->info().model), std::string::npos);
}

/// Rates measured with an old driver or library do not apply to a new one.
TEST(PeaksKey, ChangesWithDriverAndLibrary) {
  class Changed final : public ForwardingDevice {
   public:
    using ForwardingDevice::ForwardingDevice;
    [[nodiscard]] DeviceInfo info() const override { return answer; }
    DeviceInfo answer{.model = "H200",
                      .threads = 4,
                      .product_library = "cuBLASLt 13.0.1",
                      .driver = "driver for CUDA 13.0, 580.65.06"};
  };
  const auto cpu = make_cpu_device({.threads = 1});
  Changed device(*cpu);
  const auto key = [&] { return peaks_key(device, Precision::kFp32); };
  const std::string first = key();
  const std::vector<std::pair<std::string DeviceInfo::*, std::string>> changes = {
      {&DeviceInfo::driver, "driver for CUDA 13.0, 580.82.07"},
      {&DeviceInfo::product_library, "cuBLASLt 13.1.0"},
      {&DeviceInfo::model, "H100"}};
  for (const auto& [member, value] : changes) {
    const std::string before = device.answer.*member;
    device.answer.*member = value;
    EXPECT_NE(key(), first) << value;
    device.answer.*member = before;
    EXPECT_EQ(key(), first);
  }
  device.answer.threads = 8;
  EXPECT_NE(key(), first);
}

class PeaksFile : public TempDirTest {
 protected:
  std::filesystem::path path_ = folder() / "cache" / "peaks.tsv";
};

TEST_F(PeaksFile, KeepsThePeaksOfSeveralDevices) {
  EXPECT_FALSE(load_peaks(path_, "one"));
  save_peaks(path_, "one", {.flops_per_s = 1.5e12, .bytes_per_s = 3e9});
  save_peaks(path_, "two", {.flops_per_s = 7e6, .bytes_per_s = 8e6});
  save_peaks(path_, "one", {.flops_per_s = 2e12, .bytes_per_s = 4e9});
  const auto one = load_peaks(path_, "one");
  ASSERT_TRUE(one);
  EXPECT_EQ(one->flops_per_s, 2e12);
  EXPECT_EQ(one->bytes_per_s, 4e9);
  EXPECT_EQ(load_peaks(path_, "two")->bytes_per_s, 8e6);
  EXPECT_FALSE(load_peaks(path_, "on"));
  EXPECT_EQ(read_file(path_), "two\t7e+06\t8e+06\none\t2e+12\t4e+09\n");
}

TEST_F(PeaksFile, IsReadAroundWhatIsBroken) {
  std::filesystem::create_directories(path_.parent_path());
  for (const std::string line :
       {"one", "one\t", "one\t5e9", "one\t0\t3e9", "one\t-1\t3e9", "one\tnan\t3e9", "one\tinf\t3e9",
        "one\t1e-300\t3e9", "one\t5e9\t1e300", "one\t5e9\t6e9\t7", "", "\xff\xfe"}) {
    write_file(path_, line + "\n");
    expect_error(ExitCode::kBadData,
                 "peaks.tsv': line 1 is not a device and two rates from 1e+06 to 1e+18",
                 [&] { load_peaks(path_, "one"); });
    write_file(path_, line + "\none\t5e9\t6e9\n");
    ASSERT_TRUE(load_peaks(path_, "one")) << line;
    EXPECT_EQ(load_peaks(path_, "one")->flops_per_s, 5e9);
    save_peaks(path_, "two", {.flops_per_s = 7e6, .bytes_per_s = 8e6});
    EXPECT_EQ(read_file(path_), "one\t5e+09\t6e+09\ntwo\t7e+06\t8e+06\n") << line;
  }
}

TEST_F(PeaksFile, IsReadOnlyWhereItIsRegularAndSmall) {
  std::filesystem::create_directories(path_.parent_path());
  const Peaks peaks{.flops_per_s = 7e6, .bytes_per_s = 8e6};
  write_file(path_, std::string((1 << 20) + 1, 'x'));
  expect_error(ExitCode::kNoInput, "peaks.tsv': is larger than 1 MiB; check the path",
               [&] { load_peaks(path_, "one"); });
  save_peaks(path_, "one", peaks);
  EXPECT_EQ(read_file(path_), "one\t7e+06\t8e+06\n");

  std::filesystem::remove(path_);
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  expect_error(ExitCode::kNoInput, "peaks.tsv': is a FIFO, not a regular file; check the path",
               [&] { load_peaks(path_, "one"); });
  expect_error(ExitCode::kCannotCreate, "No such device or address",
               [&] { save_peaks(path_, "one", peaks); });

  std::filesystem::remove(path_);
  std::filesystem::create_symlink("/dev/zero", path_);
  expect_error(ExitCode::kNoInput, "peaks.tsv': is not a regular file; check the path",
               [&] { load_peaks(path_, "one"); });
}

TEST_F(PeaksFile, SaysWhyItsFolderCannotBeMade) {
  file("cache", "a file");
  expect_error(ExitCode::kCannotCreate, "; set XDG_CACHE_HOME to one that can",
               [&] { save_peaks(path_, "one", {}); });
}

TEST_F(PeaksFile, LiesInTheCacheOfTheUser) {
  const auto with = [](const char* cache, const char* home) {
    const auto set = [](const char* name, const char* value) {
      value != nullptr ? ::setenv(name, value, 1) : ::unsetenv(name);
    };
    const char* const old_home = std::getenv("HOME");
    const std::string kept = old_home != nullptr ? old_home : "";
    set("XDG_CACHE_HOME", cache);
    set("HOME", home);
    const auto path = peaks_file();
    set("XDG_CACHE_HOME", nullptr);
    set("HOME", old_home != nullptr ? kept.c_str() : nullptr);
    return path;
  };
  EXPECT_EQ(with("/c", "/h"), "/c/barestep/peaks.tsv");
  EXPECT_EQ(with("relative", "/h"), "/h/.cache/barestep/peaks.tsv");
  EXPECT_EQ(with(nullptr, "/h"), "/h/.cache/barestep/peaks.tsv");
  EXPECT_EQ(with("", nullptr), std::nullopt);
}

/// With zeros a GPU stays cooler, and its peaks are higher than any model's products reach.
/// On tensors at other addresses than its own.
TEST(BenchStream, TimesEachOfSeveralOps) {
  const auto device = make_device({.device = "cpu"});
  BenchStream bench(*device, 64, "test");
  std::vector<float> values(16, 3);
  const Addresses addresses({reinterpret_cast<std::byte*>(values.data())});
  const std::vector<DeviceOp> ops = {Fill{.out = {0, 0, 1, 4}, .value = 1}, Delay{.seconds = 2e-3},
                                     Copy{.to = {0, 16, 1, 4}, .from = {0, 0, 1, 4}}};
  for (const DeviceOp& op : ops) device->prepare(op);
  for (int again = 0; again < 2; ++again) {
    const double begin_s = now_s();
    const std::vector<double> seconds = bench.seconds_of_each(ops, addresses);
    const double all_s = now_s() - begin_s;
    ASSERT_EQ(seconds.size(), ops.size());
    EXPECT_GE(std::ranges::min(seconds), 0);
    EXPECT_GE(seconds[1], 2e-3);
    EXPECT_LE(seconds[0] + seconds[1] + seconds[2], all_s);
  }
  EXPECT_EQ(values, (std::vector<float>{1, 1, 1, 1, 1, 1, 1, 1, 3, 3, 3, 3, 3, 3, 3, 3}));
}

TEST(BenchStream, HasMemoryOfNumbersThatDiffer) {
  constexpr std::int64_t kWords = 3 << 17;
  const auto device = make_cpu_device({.threads = 1});
  const BenchStream bench(*device, 4 * kWords, "test");
  const float* const numbers = bench.addresses().at({0, 0, 1, kWords});
  std::set<std::uint32_t> different;
  for (std::int64_t i = 0; i < kWords; ++i)
    different.insert(std::bit_cast<std::uint32_t>(numbers[i]));
  EXPECT_GT(different.size(), 100'000U);
  for (const std::uint32_t word : different) {
    const float number = std::bit_cast<float>(word);
    ASSERT_TRUE(std::abs(number) > 1e-3F && std::abs(number) < 4);
    for (const auto half :
         {static_cast<std::uint16_t>(word), static_cast<std::uint16_t>(word >> 16)}) {
      for (const float narrow : {float_of(Bf16{half}), float_of(F16{half})}) {
        ASSERT_TRUE(std::abs(narrow) > 1e-3F && std::abs(narrow) < 4) << half;
      }
    }
  }
}

}  // namespace
}  // namespace barestep
