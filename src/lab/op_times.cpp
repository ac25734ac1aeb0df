#include "lab/op_times.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <tuple>

#include "core/error.h"

namespace barestep {

std::vector<OpTime> op_times_of_trace(std::string_view trace, const std::string& name) {
  using nlohmann::json;
  std::map<std::tuple<std::string, std::string, int>, double> us;
  int steps = 0;
  try {
    const json whole = json::parse(trace);
    for (const json& event : whole.at("traceEvents")) {
      const std::string category = event.value("cat", "");
      steps += category == "user_annotation" &&
               event.at("name").get<std::string>().starts_with("ProfilerStep#");
      if (category != "kernel" && !category.starts_with("gpu_mem")) continue;
      const json& facts = event.at("args");
      us[{event.at("name"), facts.at("phase"), facts.at("layer")}] += event.at("dur").get<double>();
    }
    if (steps == 0) throw std::invalid_argument("it shows no profiled step");
  } catch (const std::exception& error) {
    fail(ExitCode::kBadData,
         {.what = "trace", .value = name, .why = error.what(), .remedy = "run the study again"});
  }
  std::vector<OpTime> times;
  for (const auto& [key, sum] : us) {
    times.push_back({std::get<0>(key), std::get<1>(key), std::get<2>(key), 1e-6 * sum / steps});
  }
  std::ranges::sort(times, std::ranges::greater{}, &OpTime::seconds);
  return times;
}

}  // namespace barestep
