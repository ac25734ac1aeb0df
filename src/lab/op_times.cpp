#include "lab/op_times.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "core/json_document.h"

namespace barestep {

std::vector<OpTime> op_times_of_trace(std::string_view trace, const std::string& name) {
  constexpr double kMostUs = 1e12;
  constexpr std::int64_t kMostLayers = 1 << 30;
  std::map<std::tuple<std::string, std::string, int>, double> us;
  int steps = 0;
  const JsonDocument document(trace,
                              {.what = "trace", .name = name, .remedy = "run the study again"});
  const JsonValue events = document.root().at("traceEvents");
  for (const JsonValue& event : events.items()) {
    const std::string category = event.has("cat") ? event.at("cat").text() : "";
    steps += category == "user_annotation" && event.at("name").text().starts_with("ProfilerStep#");
    if (category != "kernel" && !category.starts_with("gpu_mem")) continue;
    const JsonValue facts = event.at("args");
    const auto layer = static_cast<int>(facts.at("layer").whole(-1, kMostLayers));
    us[{event.at("name").text(), facts.at("phase").text(), layer}] +=
        event.at("dur").number(0, kMostUs);
  }
  if (steps == 0) events.refuse("show no profiled step");
  std::vector<OpTime> times;
  for (const auto& [key, sum] : us) {
    times.push_back({std::get<0>(key), std::get<1>(key), std::get<2>(key), 1e-6 * sum / steps});
  }
  std::ranges::sort(times, std::ranges::greater{}, &OpTime::seconds);
  return times;
}

}  // namespace barestep
