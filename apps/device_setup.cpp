#include "device_setup.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include "core/error.h"
#include "core/host.h"
#include "core/units.h"
#include "kernels/cuda_device.h"
#include "kernels/make_device.h"
#include "parallel/gpu_places.h"
#include "parallel/local_communicator.h"
#include "parallel/nccl_communicator.h"
#include "parallel/nccl_devices.h"
#include "train/memory_check.h"

namespace barestep {
namespace {

std::vector<std::string> devices_asked(const DeviceConfig& config) {
  if (!config.devices.empty()) return config.devices;
  if (device_kind(config.device) == DeviceKind::kCpu) return {"cpu", "cpu"};
  if (config.device.starts_with("cuda:")) return {config.device};
  // Where there is none, opening the first one says why.
  std::vector<std::string> all;
  for (int i = 0; i < std::max(1, cuda_device_count()); ++i)
    all.push_back(fmt::format("cuda:{}", i));
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

int ordinal_of(const std::string& device) {
  int ordinal = 0;
  const std::size_t colon = device.find(':');
  std::from_chars(device.data() + colon + 1, device.data() + device.size(), ordinal);
  return ordinal;
}

/// The cores that device `place` of `count` gets: equal shares, the first ones one more.
int fair_share(int place, int count) {
  const int cores = usable_cpus();
  return std::max(1, cores / count + (place < cores % count ? 1 : 0));
}

}  // namespace

DeviceSetup::DeviceSetup(const DeviceConfig& config, Transport transport)
    : config_(config), devices_(devices_asked(config)), names_(names_of(devices_)) {
  if (config.graph && size() > 1) {
    fail(ExitCode::kConfiguration,
         {.what = "--graph",
          .why = fmt::format("captures the work of one device, and there are {}", size()),
          .remedy = "leave it out, or give one device"});
  }
  const std::string why = why_no_nccl();
  if (transport == Transport::kNccl && !why.empty()) {
    fail(ExitCode::kConfiguration,
         {.what = "--transport", .value = "nccl", .why = why, .remedy = "use peer or auto"});
  }
  const std::set<std::string> distinct(devices_.begin(), devices_.end());
  const bool each_once = distinct.size() == devices_.size();
  if (distinct.size() > 1) exchanges_ = Exchanges::kPieces;
  // Devices that share a GPU exchange better in their common memory, unless NCCL is asked for.
  const bool wants_nccl =
      transport == Transport::kNccl || (transport == Transport::kAuto && each_once);
  if (size() > 1 && wants_nccl && why.empty()) exchanges_ = Exchanges::kNccl;
}

std::string DeviceSetup::why_no_nccl() const {
  if (kind() == DeviceKind::kCpu) return "joins GPUs, and these are CPU devices";
  if (size() == 1) return "joins several GPUs, and there is one";
  for (const std::string& device : devices_) {
    const auto times = std::ranges::count(devices_, device);
    const std::string why = times > 1 ? why_gpus_are_not_shared() : "";
    if (!why.empty()) return fmt::format("{}, and {} is given {} times", why, device, times);
  }
  return has_nccl() ? "" : "this build has no NCCL";
}

DeviceKind DeviceSetup::kind() const {
  return devices_[0] == "cpu" ? DeviceKind::kCpu : DeviceKind::kCuda;
}

Route DeviceSetup::route() const {
  return exchanges_ == Exchanges::kNccl ? Route::kRing : Route::kStar;
}

std::string DeviceSetup::backend() const {
  if (size() == 1) return "";
  return exchanges_ == Exchanges::kNccl ? "nccl" : "local";
}

void DeviceSetup::require_stated_memory(const StepPrograms& programs,
                                        std::int64_t stated_bytes) const {
  for (int i = 0; i < size(); ++i) {
    const std::string name = size() == 1
                                 ? "the device that --memory states"
                                 : names_[static_cast<std::size_t>(i)] + ", as --memory states,";
    require_memory(programs, {.name = name,
                              .kind = kind(),
                              .available_bytes = stated_bytes,
                              .sharers = 1,
                              .devices = {i}});
  }
}

void DeviceSetup::require_free_memory(const StepPrograms& programs) const {
  std::map<std::string, std::vector<int>> by_memory;
  for (int i = 0; i < static_cast<int>(opened_.size()); ++i) {
    by_memory[devices_[static_cast<std::size_t>(i)]].push_back(i);
  }
  const int ranks = static_cast<int>(opened_.size());
  const std::int64_t of_nccl = exchanges_ == Exchanges::kNccl ? nccl_bytes(ranks) : 0;
  for (const auto& [name, sharers] : by_memory) {
    const Device& device = *opened_[static_cast<std::size_t>(sharers[0])];
    require_memory(programs, {.name = name,
                              .kind = kind(),
                              .available_bytes = device.info().free_bytes,
                              .sharers = 1,
                              .devices = sharers,
                              .beside_bytes = of_nccl * std::ssize(sharers),
                              .beside = "NCCL"});
  }
}

void DeviceSetup::open(int count) {
  for (int i = 0; i < count; ++i) {
    DeviceConfig config = config_;
    config.device = devices_[static_cast<std::size_t>(i)];
    if (!config.threads) config.threads = fair_share(i, count);
    opened_.push_back(make_device(config, i, names_[static_cast<std::size_t>(i)]));
  }
  if (exchanges_ == Exchanges::kPieces) apart_ = enable_peer_access(opened_ordinals());
}

std::vector<int> DeviceSetup::opened_ordinals() const {
  std::vector<int> ordinals;
  for (std::size_t i = 0; i < opened_.size(); ++i) {
    const int ordinal = ordinal_of(devices_[i]);
    if (std::ranges::find(ordinals, ordinal) == ordinals.end()) ordinals.push_back(ordinal);
  }
  return ordinals;
}

std::vector<Device*> DeviceSetup::opened() const {
  std::vector<Device*> all;
  for (const auto& device : opened_) all.push_back(device.get());
  return all;
}

std::unique_ptr<Communicator> DeviceSetup::join(const StepPrograms& programs) const {
  if (exchanges_ != Exchanges::kNccl) {
    return std::make_unique<LocalCommunicator>(opened(), reduce_piece_of(programs.buffers()));
  }
  std::vector<int> ordinals;
  for (const Device* device : opened()) ordinals.push_back(device->info().ordinal);
  return join_devices_by_nccl(ordinals);
}

/// How numbers get from GPU to GPU by peer copies.
std::string DeviceSetup::peers_text() const {
  if (apart_.empty()) return ", directly between all GPUs";
  std::vector<std::string> pairs;
  for (const auto& [one, other] : apart_) {
    pairs.push_back(fmt::format("cuda:{} and cuda:{}", one, other));
  }
  return fmt::format(", by way of the host between {}", fmt::join(pairs, ", "));
}

std::string DeviceSetup::text(const std::vector<Rows>& split) const {
  std::vector<std::string> parts;
  int threads = 0;
  for (std::size_t i = 0; i < names_.size(); ++i) {
    const int own = i < opened_.size() ? opened_[i]->info().threads : 0;
    threads += own;
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
  const int cores = usable_cpus();
  if (threads > cores && opened_.size() > 1) {
    text += fmt::format("\nOversubscribed: {} on {}", counted(threads, "thread"),
                        counted(cores, "core"));
  }
  return text + "\n";
}

}  // namespace barestep
