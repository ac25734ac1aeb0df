#include "profiler/cupti_activity.h"

#include <cxxabi.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>

namespace barestep {
namespace {

// The versions of the first CUDA 12; later versions append members to these.
using KernelRecord = CUpti_ActivityKernel8;
using CopyRecord = CUpti_ActivityMemcpy5;
using PeerCopyRecord = CUpti_ActivityMemcpyPtoP4;
using SetRecord = CUpti_ActivityMemset4;
using CallRecord = CUpti_ActivityAPI;
using OverheadRecord = CUpti_ActivityOverhead;
using CorrelationRecord = CUpti_ActivityExternalCorrelation;

/// Every call for a node has one: of the runtime, of the driver below it, and calls that queue
/// nothing, such as a library's queries to the driver.
constexpr std::size_t kCorrelationsOfWork = 4;

template <class Record>
const Record& as(const CUpti_Activity& record) {
  return reinterpret_cast<const Record&>(record);
}

std::string readable(const char* name) {
  if (name == nullptr) return "kernel";
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(name, nullptr, nullptr, &status), &std::free);
  return status == 0 && text != nullptr ? text.get() : name;
}

using NameOfKind = std::pair<int, const char*>;

constexpr NameOfKind kMemories[] = {{CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE, "Pageable"},
                                    {CUPTI_ACTIVITY_MEMORY_KIND_PINNED, "Pinned"},
                                    {CUPTI_ACTIVITY_MEMORY_KIND_DEVICE, "Device"},
                                    {CUPTI_ACTIVITY_MEMORY_KIND_DEVICE_STATIC, "Device"},
                                    {CUPTI_ACTIVITY_MEMORY_KIND_MANAGED, "Managed"},
                                    {CUPTI_ACTIVITY_MEMORY_KIND_MANAGED_STATIC, "Managed"}};

constexpr NameOfKind kDirections[] = {{CUPTI_ACTIVITY_MEMCPY_KIND_HTOD, "HtoD"},
                                      {CUPTI_ACTIVITY_MEMCPY_KIND_DTOH, "DtoH"},
                                      {CUPTI_ACTIVITY_MEMCPY_KIND_DTOD, "DtoD"},
                                      {CUPTI_ACTIVITY_MEMCPY_KIND_HTOH, "HtoH"},
                                      {CUPTI_ACTIVITY_MEMCPY_KIND_PTOP, "PtoP"}};

// The headers of CUDA 12.0 have no names for the numbers.
constexpr NameOfKind kOverheads[] = {
    {CUPTI_ACTIVITY_OVERHEAD_DRIVER_COMPILER, "Driver Compiler"},
    {CUPTI_ACTIVITY_OVERHEAD_CUPTI_BUFFER_FLUSH, "Buffer Flush"},
    {CUPTI_ACTIVITY_OVERHEAD_CUPTI_INSTRUMENTATION, "Instrumentation"},
    {CUPTI_ACTIVITY_OVERHEAD_CUPTI_RESOURCE, "Resource"},
    {4 << 16, "Runtime Triggered Module Loading"},
    {5 << 16, "Lazy Function Loading"},
    {6 << 16, "Command Buffer Full"},
    {7 << 16, "Activity Buffer Request"}};

const char* name_in(std::span<const NameOfKind> names, int kind, const char* other) {
  const auto found = std::ranges::find(names, kind, &NameOfKind::first);
  return found != names.end() ? found->second : other;
}

/// In Kineto's format: "Memcpy HtoD (Pinned -> Device)".
std::string copy_text(std::uint8_t kind, std::uint8_t from, std::uint8_t to) {
  return fmt::format("Memcpy {} ({} -> {})", name_in(kDirections, kind, ""),
                     name_in(kMemories, from, "Unknown"), name_in(kMemories, to, "Unknown"));
}

}  // namespace

CuptiReader::CuptiReader(const CuptiLibrary& library, std::int64_t capacity)
    : library_(library), capacity_(static_cast<std::size_t>(capacity)) {
  activities_.reserve(capacity_);
  correlations_.reserve(kCorrelationsOfWork * capacity_);
}

std::string_view CuptiReader::kept(std::string text) {
  return *names_.insert(std::move(text)).first;
}

std::string_view CuptiReader::call_name(CUpti_CallbackDomain domain, CUpti_CallbackId id) {
  const auto [at, is_new] = call_names_.try_emplace({domain, id});
  if (!is_new) return at->second;
  const char* name = nullptr;
  const CUptiResult status = library_.callback_name.function(domain, id, &name);
  if (status != CUPTI_SUCCESS || name == nullptr) return "";
  std::string text = name;
  // Without the version of its interface: cudaLaunchKernel_v7000.
  const std::size_t version = text.rfind("_v");
  if (version != std::string::npos &&
      text.find_first_not_of("0123456789", version + 2) == std::string::npos) {
    text.resize(version);
  }
  const std::string_view prefix = domain == CUPTI_CB_DOMAIN_DRIVER_API ? "cu" : "cuda";
  if (!text.starts_with(prefix)) return "";
  for (const char* queues : {"Launch", "Memcpy", "Memset", "GraphLaunch"}) {
    if (text.compare(prefix.size(), std::strlen(queues), queues) == 0) at->second = kept(text);
  }
  return at->second;
}

void CuptiReader::add(const GpuActivity& activity, std::uint64_t start_ns, std::uint64_t end_ns) {
  // CUPTI writes 0 if it does not know the time.
  const bool has_time = start_ns != 0 && end_ns >= start_ns;
  start_ns += static_cast<std::uint64_t>(offset_ns_);
  end_ns += static_cast<std::uint64_t>(offset_ns_);
  if (has_time && (start_ns < from_ns_ || start_ns >= until_ns_)) return;
  if (!has_time || activities_.size() >= capacity_) {
    ++dropped_;
    return;
  }
  activities_.push_back(activity);
  activities_.back().start_s = static_cast<double>(start_ns) * 1e-9;
  activities_.back().end_s = static_cast<double>(end_ns) * 1e-9;
}

void CuptiReader::read_call(const CUpti_Activity& record, CUpti_CallbackDomain domain) {
  const auto& of = as<CallRecord>(record);
  const std::string_view name = call_name(domain, of.cbid);
  if (name.empty()) return;
  add({.kind = GpuActivity::Kind::kCall,
       .name = name,
       .correlation = of.correlationId,
       .call_id = static_cast<int>(of.cbid)},
      of.start, of.end);
}

void CuptiReader::read_correlation(const CUpti_Activity& record) {
  const auto& of = as<CorrelationRecord>(record);
  if (of.externalKind != CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0) return;  // another tool's
  if (of.externalId == kNoCorrelatedNode) return;
  if (correlations_.size() >= kCorrelationsOfWork * capacity_) {
    ++dropped_;
  } else {
    correlations_.push_back({of.correlationId, of.externalId});
  }
}

void CuptiReader::read_record(const CUpti_Activity& record) {
  using Kind = GpuActivity::Kind;
  const auto add_work = [&](const auto& of, Kind kind, std::string name, std::uint64_t bytes) {
    add({.kind = kind,
         .name = kept(std::move(name)),
         .device = static_cast<int>(of.deviceId),
         .correlation = of.correlationId,
         .stream = of.streamId,
         .bytes = static_cast<std::int64_t>(bytes),
         .graph_node = static_cast<std::int64_t>(of.graphNodeId)},
        of.start, of.end);
  };
  switch (record.kind) {
    case CUPTI_ACTIVITY_KIND_KERNEL:
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
      const auto& of = as<KernelRecord>(record);
      const std::size_t before = activities_.size();
      add_work(of, Kind::kKernel, readable(of.name), 0);
      if (activities_.size() == before) return;
      GpuActivity& kernel = activities_.back();
      kernel.registers = of.registersPerThread;
      kernel.shared_bytes = std::int64_t{of.staticSharedMemory} + of.dynamicSharedMemory;
      kernel.grid = {of.gridX, of.gridY, of.gridZ};
      kernel.block = {of.blockX, of.blockY, of.blockZ};
      return;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
      const auto& of = as<CopyRecord>(record);
      return add_work(of, Kind::kCopy, copy_text(of.copyKind, of.srcKind, of.dstKind), of.bytes);
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY2: {
      const auto& of = as<PeerCopyRecord>(record);
      return add_work(of, Kind::kCopy, copy_text(of.copyKind, of.srcKind, of.dstKind), of.bytes);
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
      const auto& of = as<SetRecord>(record);
      return add_work(of, Kind::kSet, "Memset (Device)", of.bytes);
    }
    case CUPTI_ACTIVITY_KIND_RUNTIME:
      return read_call(record, CUPTI_CB_DOMAIN_RUNTIME_API);
    case CUPTI_ACTIVITY_KIND_DRIVER:
      return read_call(record, CUPTI_CB_DOMAIN_DRIVER_API);
    case CUPTI_ACTIVITY_KIND_OVERHEAD: {
      const auto& of = as<OverheadRecord>(record);
      return add({.kind = Kind::kOverhead,
                  .name = name_in(kOverheads, of.overheadKind, "Unknown Overhead")},
                 of.start, of.end);
    }
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION:
      return read_correlation(record);
    default:
      return;  // not a requested kind
  }
}

std::string CuptiReader::read(std::uint8_t* buffer, std::size_t bytes) {
  for (CUpti_Activity* record = nullptr; bytes > 0;) {
    const CUptiResult status = library_.next_record.function(buffer, bytes, &record);
    if (status == CUPTI_ERROR_MAX_LIMIT_REACHED) break;  // the end of the buffer
    if (status != CUPTI_SUCCESS) return library_.failure(library_.next_record.name, status);
    read_record(*record);
  }
  return "";
}

void CuptiReader::finish() {
  std::ranges::stable_sort(correlations_, {}, &Correlation::correlation);
  std::ranges::stable_sort(activities_, {}, &GpuActivity::start_s);
}

std::uint64_t CuptiReader::tag_number(std::int64_t correlation) const {
  const auto at =
      std::ranges::lower_bound(correlations_, correlation, {}, &Correlation::correlation);
  return at == correlations_.end() || at->correlation != correlation ? kNoCorrelatedNode
                                                                     : at->number;
}

}  // namespace barestep
