#include "kernels/make_device.h"
#include "session/outputs.h"
#include "session/place.h"
#include "train/memory_check.h"
#include "train/trainer.h"

namespace barestep {
namespace {

class OneDevice final : public Place {
 public:
  void resolve_config(TrainConfig& config) override {
    device_.reset();
    takes_any_ = config.device.device == "auto";
    kind_ = device_kind(config.device.device);
  }
  [[nodiscard]] DeviceKind kind() const override { return kind_; }
  [[nodiscard]] bool takes_any_kind() const override { return takes_any_; }

  void require_outputs(const TrainConfig& config) const override {
    barestep::require_outputs(config, trace_files(config.output.trace, "device", 1));
  }

  [[nodiscard]] int cpus() const override { return usable_cpus(); }
  [[nodiscard]] std::vector<Placement> placements(const TrainConfig& config) const override {
    const bool on_gpu = kind_ == DeviceKind::kCuda;
    const int threads = on_gpu ? 0 : config.device.threads.value_or(cpus());
    return {placement_of(config.device, threads, 0, 1,
                         device_ == nullptr ? "" : device_->info().pci_bus_id)};
  }

  void open(TrainConfig& config, const StepPrograms& programs) override {
    const std::vector<Placement> placed = placements(config);
    if (kind_ == DeviceKind::kCpu) bind_process(placed);
    device_ = make_device(config.device, 0, "cpu", placed.front().threads);
    if (kind_ == DeviceKind::kCuda) bind_process(placements(config));
    if (!config.output.memory) {
      require_memory(programs, device_->info().free_bytes, kind_, device_->name());
    }
    if (kind_ == DeviceKind::kCuda) require_memory(programs, host_pool({0}));
    if (kind_ == DeviceKind::kCpu) config.device.threads = device_->info().threads;
  }

  [[nodiscard]] std::vector<Device*> devices() const override { return {device_.get()}; }
  [[nodiscard]] ProfilingScope profiling_scope() const override {
    return {.program = "mlp_single", .devices = devices()};
  }
  [[nodiscard]] MonitorScope monitor_scope() const override { return {.devices = {device_.get()}}; }

 private:
  DeviceKind kind_ = DeviceKind::kCpu;
  bool takes_any_ = false;
  std::unique_ptr<Device> device_;
};

}  // namespace

std::unique_ptr<Place> one_device() {
  return std::make_unique<OneDevice>();
}

}  // namespace barestep
