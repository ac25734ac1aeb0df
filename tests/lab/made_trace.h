// Traces made by hand, in the format of PyTorch's profiler.
#pragma once

#include <nlohmann/json.hpp>

#include "support/testing.h"

namespace barestep {

/// Events of a made-up trace. Times are in microseconds.
class MadeTrace {
 public:
  MadeTrace& event(const char* category, const std::string& name, int pid, int tid, double at,
                   double duration, nlohmann::json args = nlohmann::json::object()) {
    events_.push_back({{"ph", "X"},
                       {"cat", category},
                       {"name", name},
                       {"pid", pid},
                       {"tid", tid},
                       {"ts", at + shift_us_},
                       {"dur", duration},
                       {"args", std::move(args)}});
    return *this;
  }
  MadeTrace& on_host(const char* category, const std::string& name, double at, double duration) {
    return event(category, name, 100, 1, at, duration);
  }
  /// A call of 2 us, and the work that it queues.
  MadeTrace& work(int correlation, double called, int stream, const std::string& name, double begin,
                  double end, const nlohmann::json& more = nlohmann::json::object()) {
    nlohmann::json args = {{"correlation", correlation}, {"stream", stream}};
    args.update(more);
    event("cuda_runtime", "cudaLaunchKernel", 100, 1, called, 2, {{"correlation", correlation}});
    return event(name.starts_with("Memcpy") ? "gpu_memcpy" : "kernel", name, device_, stream, begin,
                 end - begin, args);
  }
  /// Of the work that follows.
  MadeTrace& device(int device) {
    device_ = device;
    return *this;
  }
  MadeTrace& shifted(double us) {
    shift_us_ = us;
    return *this;
  }
  [[nodiscard]] std::string text(int rank = 0) const { return text_of_job({{"rank", rank}}); }
  [[nodiscard]] std::string text_of_job(const nlohmann::json& job) const {
    return nlohmann::json{{"distributedInfo", job},
                          {"baseTimeNanoseconds", 1790857026000000000},
                          {"traceEvents", events_}}
        .dump();
  }

 private:
  nlohmann::json events_ = nlohmann::json::array();
  double shift_us_ = 0;
  int device_ = 0;
};

inline const nlohmann::json kAllReduced = {{"Collective name", "allreduce"},
                                           {"In msg nelems", 1000000},
                                           {"Out msg nelems", 1000000},
                                           {"Group size", 2},
                                           {"dtype", "Float"},
                                           {"Process Group Name", "0"}};
inline constexpr const char* kAllReduceKernel = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclArgs)";

}  // namespace barestep
