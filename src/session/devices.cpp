
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/host.h"
#include "core/index.h"
#include "core/units.h"
#include "kernels/make_device.h"
#include "parallel/comm/gpu_places.h"
#include "parallel/comm/local_transport.h"
#include "parallel/comm/nccl_transport.h"
#include "parallel/job/watchdog.h"
#include "parallel/schemes/data_parallel.h"
#include "parallel/schemes/scheme_of.h"
#include "profiler/data_parallel_account.h"
#include "profiler/pipeline_account.h"
#include "session/job.h"
#include "session/outputs.h"
#include "session/place.h"
#include "train/memory_check.h"
#include "train/trainer.h"

namespace barestep {
namespace {

std::vector<std::string> requested_devices(const DeviceConfig& config, std::size_t stages) {
  if (!config.devices.empty()) return config.devices;
  if (device_kind(config.device) == DeviceKind::kCpu) {
    return std::vector<std::string>(std::max<std::size_t>(stages, 2), "cpu");
  }
  if (config.device.starts_with("cuda:")) return {config.device};
  // If there is none, opening the first one reports why.
  std::vector<std::string> all;
  for (int i = 0; i < std::max(1, cuda_device_count()); ++i)
    all.push_back(fmt::format("cuda:{}", i));
  if (stages > 1 && all.size() > stages) all.resize(stages);
  return all;
}

std::vector<std::string> names_of(const std::vector<std::string>& devices) {
  std::map<std::string, int> seen;
  std::vector<std::string> names;
  for (const std::string& device : devices) {
    const int place = seen[device]++;
    const bool alone = std::ranges::count(devices, device) == 1;
    const char* const mark = device == "cpu" ? ":" : "#";
    names.push_back(alone ? device : fmt::format("{}{}{}", device, mark, place));
  }
  return names;
}

/// The number of cores for device `place` of `count`: equal shares, with one more for the first
/// ones.
int fair_share(int place, int count) {
  const int cores = usable_cpus();
  return std::max(1, cores / count + (place < cores % count ? 1 : 0));
}

/// How data move between devices.
enum class Exchanges {
  kOneMemory,  // each device can read the others' memory
  kPieces,     // between GPUs: peer copies; gradients are summed in pieces
  kNccl,       // between GPUs, each listed once unless NCCL can share one
};

/// A pipeline's account or DataParallel's, as an observer.
template <class Account>
class AccountOfDevices final : public Observer {
 public:
  explicit AccountOfDevices(Account account) : account_(std::move(account)) {}

  void on_step(const StepFigures& step) override { account_.add(step.report); }
  [[nodiscard]] std::string text() const override { return account_.text(); }

 private:
  Account account_;
};

template <class Account>
std::unique_ptr<Observer> observer_of(Account account) {
  return std::make_unique<AccountOfDevices<Account>>(std::move(account));
}

class SeveralDevices final : public Place {
 public:
  void resolve_config(TrainConfig& config) override {
    takes_any_ = config.device.devices.empty() && config.device.device == "auto";
    const auto stages = static_cast<std::size_t>(config.parallel.pipeline);
    is_pipeline_ = stages > 1;
    devices_ = requested_devices(config.device, stages);
    names_ = names_of(devices_);
    choose_exchanges(config.parallel.transport);
    config.device.device = "auto";
    config.device.devices = devices_;
  }
  [[nodiscard]] DeviceKind kind() const override {
    return devices_[0] == "cpu" ? DeviceKind::kCpu : DeviceKind::kCuda;
  }
  [[nodiscard]] int ranks() const override { return size(); }
  [[nodiscard]] bool takes_any_kind() const override { return takes_any_; }

  void require_outputs(const TrainConfig& config) const override {
    barestep::require_outputs(config, trace_files(config.output.trace, "device", size()),
                              {{"--metrics", flight_file(config.output.metrics)}});
  }

  [[nodiscard]] std::unique_ptr<Scheme> new_scheme(const TrainConfig& config) const override {
    return scheme_of(config, {.devices = size(), .adds_by_pieces = adds_by_pieces()});
  }

  [[nodiscard]] std::vector<MemoryPool> stated_memory(std::int64_t bytes) const override {
    std::vector<MemoryPool> pools;
    for (int i = 0; i < size(); ++i) {
      const std::string name =
          size() == 1 ? "the device that --memory states" : at(names_, i) + ", as --memory states,";
      pools.push_back({.name = name, .kind = kind(), .available_bytes = bytes, .devices = {i}});
    }
    return pools;
  }

  [[nodiscard]] int cpus() const override { return fair_share(0, size()); }
  [[nodiscard]] std::vector<Placement> placements(const TrainConfig& config) const override {
    std::vector<Placement> all;
    for (int i = 0; i < size(); ++i) {
      if (kind() == DeviceKind::kCuda) {
        const bool is_open = i < std::ssize(opened_);
        all.push_back(
            placement_of(config.device, 0, 0, 1, is_open ? at(opened_, i)->info().pci_bus_id : ""));
      } else {
        const int threads = config.device.threads.value_or(fair_share(i, size()));
        all.push_back(placement_of(config.device, threads, i, size()));
      }
    }
    return all;
  }

  /// Opens the devices that the programs use. The CPU's cores are divided. From now on, GPUs that
  /// exchange by peer copies reach each other directly if they can.
  void open(TrainConfig& config, const StepPrograms& programs) override {
    const int count = MemoryPlan(programs.buffers()).devices();
    const std::vector<Placement> placed = placements(config);
    if (kind() == DeviceKind::kCpu) bind_process(placed);
    for (int i = 0; i < count; ++i) {
      DeviceConfig of_one = config.device;
      of_one.device = at(devices_, i);
      if (!of_one.threads) of_one.threads = fair_share(i, count);
      opened_.push_back(make_device(of_one, i, at(names_, i), at(placed, i).threads));
    }
    if (kind() == DeviceKind::kCuda) bind_process(placements(config));
    // NCCL's devices scatter and gather by copies too.
    if (kind() == DeviceKind::kCuda) apart_ = enable_peer_access(opened_ordinals());
    if (!config.output.memory) require_free_memory(programs);
    if (kind() == DeviceKind::kCuda) {
      std::vector<int> all(opened_.size());
      std::iota(all.begin(), all.end(), 0);
      require_memory(programs, host_pool(std::move(all)));
    }
    batch_size_ = programs.spec().batch_size;
    width_ = programs.spec().model.inputs();
  }

  void join(const TrainConfig& /*config*/, const StepPrograms& programs) override {
    // Stages exchange by copies.
    if (size() == 1 || is_pipeline_) return;
    if (exchanges_ != Exchanges::kNccl) {
      transport_ = std::make_unique<LocalTransport>(devices(), reduce_piece_of(programs.buffers()));
      return;
    }
    std::vector<int> ordinals;
    for (const Device* device : devices()) ordinals.push_back(device->info().ordinal);
    transport_ = join_devices_by_nccl(ordinals);
  }

  [[nodiscard]] std::vector<Device*> devices() const override {
    std::vector<Device*> all;
    for (const auto& device : opened_) all.push_back(device.get());
    return all;
  }

  [[nodiscard]] std::vector<std::string> names() const override { return names_; }
  [[nodiscard]] Transport* transport() const override { return transport_.get(); }
  [[nodiscard]] ProfilingScope profiling_scope() const override {
    std::string backend;
    if (size() > 1) backend = exchanges_ == Exchanges::kNccl ? "nccl" : "local";
    return {.program = "mlp_dp", .devices = devices(), .backend = backend};
  }
  [[nodiscard]] MonitorScope monitor_scope() const override {
    const std::vector<Device*> all = devices();
    return {.devices = {all.begin(), all.end()}};
  }

  [[nodiscard]] std::string text(const TrainConfig& /*config*/,
                                 const StepPrograms& programs) const override {
    std::string text = is_pipeline_ ? stages_text(programs) : rows_text(programs);
    int threads = 0;
    for (const auto& device : opened_) threads += device->info().threads;
    const int cores = usable_cpus();
    if (threads > cores && opened_.size() > 1) {
      text += fmt::format("Oversubscribed: {} on {}\n", counted(threads, "thread"),
                          counted(cores, "core"));
    }
    return text;
  }

  [[nodiscard]] std::string split_lines(std::int64_t step_rows) const override {
    std::string lines;
    for (std::int64_t first = 0; first < step_rows; first += batch_size_) {
      const auto split = scheme().split(std::min(batch_size_, step_rows - first));
      for (std::size_t i = 0; i < split.size(); ++i) {
        // The line that the PyTorch model of the course (docs/sheets.md) prints in its forward
        // pass.
        lines += fmt::format("Inside model on device {}, shape: [{}, {}]\n", names_[i],
                             split[i].count, width_);
      }
    }
    return lines;
  }

  [[nodiscard]] std::unique_ptr<Observer> new_account(const StepPrograms& programs,
                                                      std::int64_t /*steps*/) const override {
    if (is_pipeline_) return observer_of(PipelineAccount(programs, names_));
    const Route route = exchanges_ == Exchanges::kNccl ? Route::kRing : Route::kStar;
    return observer_of(DataParallelAccount(programs, scheme().split(batch_size_), names_, route));
  }

 private:
  [[nodiscard]] int size() const { return static_cast<int>(devices_.size()); }
  [[nodiscard]] bool adds_by_pieces() const { return exchanges_ == Exchanges::kPieces; }
  [[nodiscard]] DataParallel scheme() const { return DataParallel(size(), adds_by_pieces()); }
  /// Why NCCL cannot connect them; empty if it can.
  [[nodiscard]] std::string why_no_nccl() const {
    if (kind() == DeviceKind::kCpu) return "joins GPUs";
    if (size() == 1) return "joins several GPUs, and there is one";
    for (const std::string& device : devices_) {
      const auto times = std::ranges::count(devices_, device);
      const std::string why = times > 1 ? why_gpus_are_not_shared() : "";
      if (!why.empty()) return fmt::format("{}, and {} is given {} times", why, device, times);
    }
    return barestep::why_no_nccl();
  }

  void choose_exchanges(TransportKind transport) {
    const std::string why = why_no_nccl();
    if (transport == TransportKind::kNccl && kind() == DeviceKind::kCuda && !why.empty()) {
      fail(ExitCode::kConfiguration, {"--transport", "nccl", why, "use peer or auto"});
    }
    const std::set<std::string> distinct(devices_.begin(), devices_.end());
    const bool each_once = distinct.size() == devices_.size();
    exchanges_ = distinct.size() > 1 ? Exchanges::kPieces : Exchanges::kOneMemory;
    // Devices that share a GPU exchange faster through its memory, unless NCCL was requested.
    const bool wants_nccl =
        transport == TransportKind::kNccl || (transport == TransportKind::kAuto && each_once);
    if (size() > 1 && wants_nccl && why.empty()) exchanges_ = Exchanges::kNccl;
  }

  /// Throws Error(kMemory) if the programs need more memory than is free.
  void require_free_memory(const StepPrograms& programs) const {
    std::map<std::string, std::vector<int>> by_memory;
    for (int i = 0; i < static_cast<int>(opened_.size()); ++i) {
      by_memory[at(devices_, i)].push_back(i);
    }
    const int ranks = static_cast<int>(opened_.size());
    const std::int64_t of_nccl = exchanges_ == Exchanges::kNccl ? nccl_bytes(ranks) : 0;
    for (const auto& [name, sharers] : by_memory) {
      const Device& device = *at(opened_, sharers[0]);
      require_memory(programs, {.name = name,
                                .kind = kind(),
                                .available_bytes = device.info().free_bytes,
                                .sharers = 1,
                                .devices = sharers,
                                .beside_bytes = of_nccl * std::ssize(sharers),
                                .beside = "NCCL"});
    }
  }

  /// The ordinals of the GPUs, each once.
  [[nodiscard]] std::vector<int> opened_ordinals() const {
    std::vector<int> ordinals;
    for (std::size_t i = 0; i < opened_.size(); ++i) {
      const int ordinal = ordinal_of(devices_[i]);
      if (std::ranges::find(ordinals, ordinal) == ordinals.end()) ordinals.push_back(ordinal);
    }
    return ordinals;
  }

  /// How data move between GPUs by peer copies.
  [[nodiscard]] std::string peers_text() const {
    if (apart_.empty()) return ", directly between all GPUs";
    std::vector<std::string> pairs;
    for (const auto& [one, other] : apart_) {
      pairs.push_back(fmt::format("cuda:{} and cuda:{}", one, other));
    }
    return fmt::format(", by way of the host between {}", fmt::join(pairs, ", "));
  }

  /// Which layers each device has.
  [[nodiscard]] std::string stages_text(const StepPrograms& programs) const {
    const PipelineSpec& pipeline = programs.spec().pipeline;
    const std::vector<LayerRange> layers = layers_of_stages(programs.spec().model, pipeline.stages);
    std::vector<std::string> parts;
    for (int stage = 0; stage < pipeline.stages; ++stage) {
      const LayerRange& own = at(layers, stage);
      parts.push_back(fmt::format("{} {}", at(names_, stage), counted(own.size(), "layer")));
    }
    return fmt::format("A pipeline of {} stages: {}\nSchedule {}, {} micro-batches a step\n",
                       pipeline.stages, fmt::join(parts, ", "), name_of(pipeline.schedule),
                       pipeline.micro_batches);
  }

  /// Which rows each device has, and how they exchange.
  [[nodiscard]] std::string rows_text(const StepPrograms& programs) const {
    const std::vector<Rows> split = scheme().split(programs.spec().batch_size);
    std::vector<std::string> parts;
    for (std::size_t i = 0; i < names_.size(); ++i) {
      const int own = i < opened_.size() ? opened_[i]->info().threads : 0;
      std::string part =
          fmt::format("{} {}", names_[i], counted(i < split.size() ? split[i].count : 0, "row"));
      if (own > 0) part += " on " + counted(own, "thread");
      parts.push_back(std::move(part));
    }
    std::string text = fmt::format("{}: {}", counted(size(), "device"), fmt::join(parts, ", "));
    if (split.size() > 1) {
      constexpr std::string_view kHow[] = {"copies and sums in their common memory",
                                           "peer copies, gradients summed piece by piece", "NCCL"};
      text += fmt::format("\nExchange by {}", kHow[static_cast<std::size_t>(exchanges_)]);
      if (exchanges_ == Exchanges::kPieces) text += peers_text();
    }
    return text + "\n";
  }

  bool takes_any_ = false;
  std::vector<std::string> devices_;  // as --devices lists them: cpu, cuda:0, ...
  // As given; numbered cpu:0, cpu:1, ... or cuda:0#0, cuda:0#1, ... if one device is given several
  // times.
  std::vector<std::string> names_;
  Exchanges exchanges_ = Exchanges::kOneMemory;
  std::vector<std::pair<int, int>> apart_;  // GPUs whose peer copies pass through the host
  std::vector<std::unique_ptr<Device>> opened_;
  std::unique_ptr<Transport> transport_;
  bool is_pipeline_ = false;
  std::int64_t batch_size_ = 0;
  std::int64_t width_ = 0;  // features of a sample
};

/// A single process with a watchdog.
class WatchedJob final : public Job {
 public:
  WatchedJob(const char* program, const TrainConfig& config)
      : watchdog_(board_, {.program = program,
                           .limit_s = config.parallel.timeout_s,
                           .ranks = 1,
                           .record_file = flight_file(config.output.metrics),
                           .end_all = [](ExitCode code) { std::_Exit(static_cast<int>(code)); },
                           .continued_s = &continued_s}) {
    board_.mine().begin(Track::kPhase, Activity::kSetUp);
  }

  void enter(Activity activity, std::int64_t step) override {
    board_.mine().begin(Track::kPhase, activity, step);
  }

 private:
  FlightBoard board_{"", 0, 0};
  Watchdog watchdog_;
};

}  // namespace

std::unique_ptr<Place> several_devices() {
  return std::make_unique<SeveralDevices>();
}

std::unique_ptr<Job> watched_job(const char* program, const TrainConfig& config) {
  return std::make_unique<WatchedJob>(program, config);
}

}  // namespace barestep
