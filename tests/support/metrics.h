// What --metrics wrote.
#pragma once

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <sstream>
#include <string>
#include <vector>

namespace barestep {

/// The configuration that a --metrics file begins with.
inline nlohmann::json configuration_of(const std::string& metrics) {
  const nlohmann::json first = nlohmann::json::parse(metrics.substr(0, metrics.find('\n')));
  EXPECT_EQ(first.size(), 1U);
  return first.at("configuration");
}

/// The records after it.
inline std::vector<nlohmann::json> records_of(const std::string& metrics) {
  EXPECT_TRUE(configuration_of(metrics).is_object());
  std::vector<nlohmann::json> records;
  std::istringstream lines(metrics);
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line)) records.push_back(nlohmann::json::parse(line));
  return records;
}

}  // namespace barestep
