// A fake CUPTI library that needs no GPU, and work for it to report.
#pragma once

#include <dlfcn.h>

#include "core/clock.h"
#include "kernels/make_device.h"
#include "profiler/cupti_activity.h"
#include "profiler/fake_cupti.h"
#include "profiler/profile.h"
#include "support/forwarding_device.h"
#include "support/testing.h"

namespace barestep {

/// A device that presents itself as the GPU with this number.
class Gpu final : public ForwardingDevice {
 public:
  Gpu(Device& inner, int index, int ordinal)
      : ForwardingDevice(inner), index_(index), ordinal_(ordinal) {}
  [[nodiscard]] DeviceKind kind() const override { return DeviceKind::kCuda; }
  [[nodiscard]] int index() const override { return index_; }
  [[nodiscard]] DeviceInfo info() const override {
    DeviceInfo info = inner().info();
    info.ordinal = ordinal_;
    return info;
  }

 private:
  int index_, ordinal_;
};

constexpr std::uint32_t kLaunchKernel = 211, kGraphLaunchCall = 311, kEventRecord = 135;
constexpr std::uint32_t kDriverLaunchKernelEx = 652;  // in the driver's numbering

/// The fake library's state.
std::string fake_cupti_file();

class Cupti : public testing::Test {
 protected:
  Cupti() {
    void* const handle = ::dlopen(fake_cupti_file().c_str(), RTLD_NOW | RTLD_LOCAL);
    fake_ = reinterpret_cast<FakeCuptiState*>(::dlsym(handle, kFakeCuptiState))();
    flush_ = reinterpret_cast<decltype(flush_)>(::dlsym(handle, "cuptiActivityFlushAll"));
    *fake_ = {};
  }
  ~Cupti() override {
    gpu_records_.reset();
    EXPECT_FALSE(fake_->is_subscribed);
    EXPECT_TRUE(fake_->enabled.empty());
    EXPECT_LE(fake_->sessions, 1);
    EXPECT_EQ(fake_->registered_clocks, 0);
    *fake_ = {};
  }

  FakeCupti& fake() { return *fake_; }
  GpuRecords& source() { return *gpu_records_; }
  /// When the GPUs ran each node.
  std::vector<Record> records() { return node_records(*gpu_records_); }

  std::string why_not(const std::vector<std::string>& files = {fake_cupti_file()}) {
    std::string why;
    gpu_records_ = open_cupti({&first_, &second_}, capacity_, files, why);
    EXPECT_EQ(gpu_records_ == nullptr, !why.empty());
    return why;
  }
  void open() { ASSERT_EQ(why_not(), ""); }

  /// The times of records start from here.
  void turn_on() {
    EXPECT_EQ(source().turn(true, true), "");
    start_here();
  }
  void start_here() {
    zero_ns_ = fake().now_ns();
    zero_s_ = now_s();
  }

  /// This many nanoseconds later; 0 is what CUPTI writes if it has no time.
  [[nodiscard]] std::uint64_t at(std::uint64_t ns) const { return ns == 0 ? 0 : zero_ns_ + ns; }
  /// The clocks were compared once, with some error, so that all times are off by the same amount.
  void expect_at(double seconds, std::uint64_t ns) {
    const double off_s = seconds - zero_s_ - static_cast<double>(ns) * 1e-9;
    if (!off_s_) off_s_ = off_s;
    EXPECT_NEAR(off_s, 0, 1e-3);
    EXPECT_NEAR(off_s, *off_s_, 1e-9);
  }

  /// Queues a node and returns the correlation number passed to CUPTI.
  std::uint64_t queue(NodeId node, std::int64_t step = 0, int device = 0) {
    source().begin({.program = 0, .step = step, .node = node}, "op", device);
    source().end();
    return fake().pushed.empty() ? 0 : fake().pushed.back();
  }

  /// Queues a node of one kernel that is launched by this call.
  void launch(NodeId node, CUpti_ActivityKind kind, std::uint32_t call, std::uint64_t start) {
    source().begin({.program = 0, .step = 0, .node = node}, "op", 0);
    add_kernel(fake().call(kind, call, at(start), at(start + 5)), start + 10, start + 20);
    source().end();
  }

  void add_correlation(
      std::uint64_t number, std::uint32_t correlation,
      CUpti_ExternalCorrelationKind kind = CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0) {
    CUpti_ActivityExternalCorrelation record{};
    record.kind = CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION;
    record.externalKind = kind;
    record.externalId = number;
    record.correlationId = correlation;
    fake().add(record);
  }
  void add_kernel(std::uint32_t correlation, std::uint64_t start, std::uint64_t end,
                  std::uint32_t device = 3, std::uint64_t graph_node = 0) {
    CUpti_ActivityKernel8 record{};
    record.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
    record.correlationId = correlation;
    record.start = at(start);
    record.end = at(end);
    record.deviceId = device;
    record.streamId = 13;
    record.graphNodeId = graph_node;
    record.registersPerThread = 40;
    record.staticSharedMemory = 1000;
    record.dynamicSharedMemory = 24;
    record.gridX = 2;
    record.gridY = record.gridZ = record.blockY = record.blockZ = 1;
    record.blockX = 256;
    record.name = "_ZN8barestep4adamEPf";
    fake().add(record);
  }
  void add_call(std::uint32_t id, std::uint32_t correlation, std::uint64_t start,
                std::uint64_t end) {
    CUpti_ActivityAPI record{};
    record.kind = CUPTI_ACTIVITY_KIND_RUNTIME;
    record.cbid = id;
    record.correlationId = correlation;
    record.start = at(start);
    record.end = at(end);
    fake().add(record);
  }
  std::vector<std::string> names() {
    std::vector<std::string> all;
    for (const GpuActivity& activity : source().activities()) all.emplace_back(activity.name);
    return all;
  }

  std::unique_ptr<Device> cpu_ = make_cpu_device({.threads = 1});
  Gpu first_{*cpu_, 0, 3}, second_{*cpu_, 1, 1};
  std::int64_t capacity_ = 1000;
  std::uint64_t zero_ns_ = 0;  // on CUPTI's clock
  double zero_s_ = 0;          // on the host's
  std::optional<double> off_s_{};
  FakeCupti* fake_;
  decltype(&cuptiActivityFlushAll) flush_;
  std::unique_ptr<GpuRecords> gpu_records_;
};

}  // namespace barestep
