// Parses the output of --metrics.
#pragma once

#include <nlohmann/json.hpp>

#include "support/testing.h"

namespace barestep {

/// The configuration at the beginning of a --metrics file.
inline nlohmann::json configuration_of(const std::string& metrics) {
  const nlohmann::json first = nlohmann::json::parse(metrics.substr(0, metrics.find('\n')));
  EXPECT_EQ(first.size(), 1U);
  return first.at("configuration");
}

/// The records after the configuration, except those of the time that ranks lost to others.
inline std::vector<nlohmann::json> records_of(const std::string& metrics) {
  EXPECT_TRUE(configuration_of(metrics).is_object());
  std::vector<nlohmann::json> records;
  std::istringstream lines(metrics);
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line)) {
    const nlohmann::json record = nlohmann::json::parse(line);
    if (!record.contains("lost_time")) records.push_back(record);
  }
  return records;
}

/// The time that each rank lost to others, by rank: the fields of LostTime.
inline std::vector<nlohmann::json> lost_times_of(const std::string& metrics) {
  std::vector<nlohmann::json> ranks;
  std::istringstream lines(metrics);
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json record = nlohmann::json::parse(line);
    if (!record.contains("lost_time")) continue;
    EXPECT_EQ(record.at("rank"), ranks.size());
    ranks.push_back(record.at("lost_time"));
  }
  return ranks;
}

}  // namespace barestep
