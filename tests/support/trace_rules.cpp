#include "support/trace_rules.h"

#include <nlohmann/json.hpp>

#include "support/pattern.h"
#include "support/testing.h"

namespace barestep {
namespace {

using OrderedJson = nlohmann::ordered_json;
using Row = std::pair<std::string, std::string>;  // pid, tid

const std::set<std::string> kCategories = {
    "cpu_op",           "user_annotation", "gpu_user_annotation",  "gpu_memcpy", "gpu_memset",
    "kernel",           "cuda_runtime",    "cuda_driver",          "overhead",   "cuda_sync",
    "cuda_event",       "Trace",           "external_correlation", "ac2g",       "fwdbwd",
    "cpu_instant_event"};
const std::set<std::string> kDeviceCategories = {"kernel", "gpu_memcpy", "gpu_memset"};
const std::set<std::string> kCopies = {
    "Memcpy HtoD (Pinned -> Device)", "Memcpy DtoH (Device -> Pinned)",
    "Memcpy DtoD (Device -> Device)", "Memcpy PtoP (Device -> Device)"};
const std::set<std::string> kCalls = {"cudaLaunchKernel", "cudaLaunchKernelExC", "cudaMemcpyAsync",
                                      "cudaMemsetAsync", "cudaGraphLaunch"};

std::int64_t ns_of(const OrderedJson& number) {
  return std::llround(number.get<double>() * 1e3);
}

Row row_of(const OrderedJson& event) {
  return {event.at("pid").dump(), event.at("tid").dump()};
}

struct Slice {
  std::int64_t begin_ns, end_ns;
  std::string name;
};

class Check {
 public:
  Check(const std::string& text, bool merged) : text_(text), merged_(merged) {}

  std::vector<std::string> broken() {
    try {
      trace_ = OrderedJson::parse(text_);
    } catch (const OrderedJson::exception& error) {
      return {std::string("not JSON: ") + error.what()};
    }
    try {
      check_top();
      for (const OrderedJson& event : trace_.at("traceEvents")) check_event(event);
      check_device_events();
      check_arrows();
      check_nesting();
      check_names();
      check_steps();
      check_phases();
      check_end();
    } catch (const OrderedJson::exception& error) {
      report(std::string("a member is missing or of another type: ") + error.what());
    }
    return broken_;
  }

 private:
  void report(std::string what) { broken_.push_back(std::move(what)); }
  void require(bool kept, const std::string& what) {
    if (!kept) report(what);
  }

  void check_top() {
    std::vector<std::string> keys;
    for (const auto& [key, value] : trace_.items()) keys.push_back(key);
    const auto at = [&](const char* key) { return std::ranges::find(keys, key) - keys.begin(); };
    require(keys.front() == "schemaVersion" && trace_.at("schemaVersion") == 1,
            "schemaVersion 1 comes first");
    for (const char* key : {"displayTimeUnit", "baseTimeNanoseconds", "traceEvents", "traceName"}) {
      require(trace_.contains(key), std::string("no ") + key);
    }
    require(trace_.at("displayTimeUnit") == "ms", "displayTimeUnit is not ms");
    require(trace_.at("baseTimeNanoseconds").is_number_integer(), "base time is no whole number");
    if (merged_) return;
    for (const char* key : {"deviceProperties", "distributedInfo"}) {
      require(trace_.contains(key), std::string("no ") + key);
    }
    require(at("deviceProperties") < at("distributedInfo") &&
                at("distributedInfo") < at("displayTimeUnit") &&
                at("displayTimeUnit") < at("baseTimeNanoseconds") &&
                at("baseTimeNanoseconds") < at("traceEvents") &&
                at("traceEvents") < at("traceName") && keys.back() == "traceName",
            "members are not in Kineto's order");
    // HolisticTraceAnalysis searches the text for this to find the rank.
    require(!first_match(text_, "\n\"rank\":\\s+(\\d+)").empty(),
            "the rank does not stand on a line of its own after a blank");
    for (const OrderedJson& device : trace_.at("deviceProperties")) {
      for (const char* key : {"id", "name", "totalGlobalMem", "computeMajor", "numSms"}) {
        require(device.contains(key), std::string("deviceProperties has no ") + key);
      }
    }
  }

  void check_event(const OrderedJson& event) {
    const std::string phase = event.at("ph");
    require(std::string("XMsfCi").find(phase) != std::string::npos, "unknown phase " + phase);
    require(event.at("ts").is_number(), "ts is no number");
    require(std::abs(event.at("ts").get<double>()) < 1e12, "ts is not small");
    if (event.contains("cat")) {
      const std::string category = event.at("cat");
      require(kCategories.contains(category), "unknown category " + category);
    }
    if (phase == "M") named_.insert({event.at("name"), row_of(event)});
    if (phase == "C") {
      for (const auto& [key, value] : event.at("args").items()) {
        require(value.is_number(), "counter " + key + " is no number");
      }
    }
    if (phase == "i" && event.at("name") == "[memory]") check_memory(event);
    if (phase == "s" || phase == "f") arrows_[event.at("id")].push_back(&event);
    if (phase == "X") check_slice(event);
  }

  void check_memory(const OrderedJson& event) {
    require(event.at("s") == "t" && event.at("cat") == "cpu_instant_event",
            "[memory] is an instant of a thread");
    for (const char* key : {"Total Reserved", "Total Allocated", "Bytes", "Addr", "Device Id",
                            "Device Type", "Ev Idx"}) {
      require(event.at("args").contains(key), std::string("[memory] has no ") + key);
    }
  }

  void check_slice(const OrderedJson& event) {
    require(event.at("dur").is_number() && event.at("dur") >= 0, "a slice without duration");
    const std::string category = event.at("cat");
    const std::int64_t begin = ns_of(event.at("ts"));
    const Slice slice{begin, begin + ns_of(event.at("dur")), event.at("name")};
    slices_[row_of(event)].push_back(slice);
    if (kDeviceCategories.contains(category)) work_.push_back(&event);
    if (category == "cuda_runtime" || category == "cuda_driver") {
      const std::int64_t correlation = event.at("args").at("correlation");
      require(calls_.emplace(correlation, &event).second,
              "two calls of the host with correlation " + std::to_string(correlation));
      require(kCalls.contains(slice.name), "unknown call " + slice.name);
    }
  }

  void check_device_events() {
    for (const OrderedJson* event : work_) {
      const OrderedJson& args = event->at("args");
      const std::string name = event->at("name");
      const std::string category = event->at("cat");
      // In a merged trace, the processes of each rank are numbered above those of lower ranks.
      const std::int64_t pid = event->at("pid");
      require((merged_ ? pid % 10'000'000 : pid) == args.at("device"),
              name + ": pid is not its device");
      require(event->at("tid") == args.at("stream"), name + ": tid is not its stream");
      require(args.at("stream") > 0, name + ": stream is not above 0");
      const std::int64_t correlation = args.at("correlation");
      require(correlation > 0, name + ": correlation is not above 0");
      // HolisticTraceAnalysis stores event numbers in the type that it uses for correlations.
      require(correlation <= 0 || correlation > 32767, name + ": correlation fits 16 bits");
      const auto call = calls_.find(correlation);
      require(call != calls_.end(), name + ": no call of the host queued it");
      if (call != calls_.end()) {
        require(ns_of(call->second->at("ts")) <= ns_of(event->at("ts")),
                name + ": it runs before it was queued");
      }
      if (category == "gpu_memcpy") {
        require(kCopies.contains(name), "unknown copy " + name);
        const double bandwidth = args.at("memory bandwidth (GB/s)");
        const auto ns = static_cast<double>(std::max<std::int64_t>(1, ns_of(event->at("dur"))));
        require(std::abs(bandwidth - args.at("bytes").get<double>() / ns) < 1e-3 * (1 + bandwidth),
                name + ": bandwidth is not bytes / ns");
      } else {
        check_kernel(name, args);
      }
    }
  }

  /// Readers distinguish work by its name.
  void check_kernel(const std::string& name, const OrderedJson& args) {
    for (const char* word : {"Memcpy", "Memset", "dma", "Sync"}) {
      require(name.find(word) == std::string::npos, name + ": a kernel's name holds " + word);
    }
    const bool communicates = name.find("nccl") != std::string::npos;
    require(communicates == args.contains("Collective name"),
            name + ": communication is named and described as such, and nothing else");
    if (!communicates) return;
    for (const char* key : {"In msg nelems", "Out msg nelems", "Group size", "dtype",
                            "In split size", "Process Group Ranks"}) {
      require(args.contains(key), name + " has no " + key);
    }
    bool has_params = false;
    for (const OrderedJson& event : trace_.at("traceEvents")) {
      has_params |= event.at("name") == "record_param_comms" &&
                    event.at("args").at("External id") == args.at("External id");
    }
    // In a graph, the graph launch queues it, and a launch is not a collective.
    const auto call = calls_.find(args.at("correlation"));
    const bool in_graph = call != calls_.end() && call->second->at("name") == "cudaGraphLaunch";
    require(has_params || in_graph, name + ": no record_param_comms has its External id");
  }

  /// Whether a slice of the row is open at that time.
  [[nodiscard]] bool is_open(const Row& row, std::int64_t ns) const {
    const auto at = slices_.find(row);
    return at != slices_.end() && std::ranges::any_of(at->second, [&](const Slice& slice) {
             return slice.begin_ns <= ns && ns <= slice.end_ns;
           });
  }

  void check_arrows() {
    for (const auto& [id, ends] : arrows_) {
      const std::string arrow = "arrow " + std::to_string(id);
      int starts = 0;
      for (const OrderedJson* end : ends) {
        const bool is_start = end->at("ph") == "s";
        starts += is_start ? 1 : 0;
        require(end->at("cat") == ends.front()->at("cat"), arrow + " is of two categories");
        require(end->at("name") == end->at("cat"), arrow + " is not named after its category");
        require(is_start || (end->contains("bp") && end->at("bp") == "e"), arrow + " has no bp e");
        require(is_open(row_of(*end), ns_of(end->at("ts"))), arrow + " touches no slice");
      }
      require(starts >= 1 && static_cast<std::size_t>(starts) < ends.size(),
              arrow + " lacks an end");
    }
  }

  /// Perfetto drops slices of a row that overlap without being nested.
  void check_nesting() {
    for (auto& [row, slices] : slices_) {
      std::ranges::stable_sort(slices, [](const Slice& a, const Slice& b) {
        return std::pair(a.begin_ns, -a.end_ns) < std::pair(b.begin_ns, -b.end_ns);
      });
      std::vector<const Slice*> open;
      for (const Slice& slice : slices) {
        while (!open.empty() && open.back()->end_ns <= slice.begin_ns) open.pop_back();
        require(open.empty() || slice.end_ns <= open.back()->end_ns,
                slice.name + " overlaps " + (open.empty() ? "" : open.back()->name));
        open.push_back(&slice);
      }
    }
  }

  void check_names() {
    for (const auto& [row, slices] : slices_) {
      if (row.first.starts_with('"')) continue;
      for (const char* name : {"process_name", "process_labels", "process_sort_index"}) {
        require(named_.contains({name, {row.first, "0"}}), "no " + (name + (" of " + row.first)));
      }
      for (const char* name : {"thread_name", "thread_sort_index"}) {
        require(named_.contains({name, row}), "no " + (name + (" of " + row.second)));
      }
    }
  }

  void check_steps() {
    std::map<Row, std::int64_t> next;
    for (const OrderedJson& event : trace_.at("traceEvents")) {
      const std::string name = event.at("name");
      if (!name.starts_with("ProfilerStep#")) continue;
      std::int64_t& expected = next.try_emplace(row_of(event), -1).first->second;
      require(event.at("cat") == "user_annotation", name + " is no user_annotation");
      const std::int64_t number = std::stoll(name.substr(13));
      require(expected < 0 || number == expected, name + " does not follow the step before");
      expected = number + 1;
    }
    require(!next.empty(), "no ProfilerStep");
  }

  /// A phase begins a nanosecond before its first work and ends one after its last, or at the same
  /// time if there is no room.
  void check_phases() {
    for (const OrderedJson& event : trace_.at("traceEvents")) {
      if (!event.contains("cat") || event.at("cat") != "gpu_user_annotation") continue;
      const std::int64_t begin = ns_of(event.at("ts"));
      const std::int64_t end = begin + ns_of(event.at("dur"));
      bool begins = false;
      bool ends = false;
      for (const OrderedJson* work : work_) {
        if (row_of(*work) != row_of(event)) continue;
        const std::int64_t first = ns_of(work->at("ts"));
        begins |= first == begin + 1 || first == begin;
        const std::int64_t last = first + ns_of(work->at("dur"));
        ends |= last == end || last == end - 1;
      }
      require(begins && ends,
              "phase " + event.at("name").get<std::string>() + " is not its work's");
    }
  }

  void check_end() {
    std::set<std::string> names;
    for (const OrderedJson& event : trace_.at("traceEvents")) names.insert(event.at("name"));
    for (const char* name :
         {"PyTorch Profiler (0)", "Iteration Start: PyTorch Profiler", "Record Window End"}) {
      require(names.contains(name), std::string("no ") + name);
    }
  }

  const std::string& text_;
  bool merged_;
  OrderedJson trace_;
  std::vector<std::string> broken_;
  std::map<Row, std::vector<Slice>> slices_;
  std::map<std::int64_t, const OrderedJson*> calls_;
  std::map<std::int64_t, std::vector<const OrderedJson*>> arrows_;
  std::vector<const OrderedJson*> work_;
  std::set<std::pair<std::string, Row>> named_;
};

}  // namespace

std::vector<std::string> broken_rules(const std::string& text) {
  return Check(text, false).broken();
}

std::vector<std::string> broken_rules_of_merged(const std::string& text) {
  return Check(text, true).broken();
}

}  // namespace barestep
