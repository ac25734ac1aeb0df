// The kinds of option values: how a member of the configuration is parsed from text and written as
// text. For use by the table only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "options/options.h"

namespace barestep {

/// The section of `Config` that contains a member.
template <class Section, class Config>
auto& section_of(Config& config) {
  if constexpr (std::is_same_v<Section, ModelConfig>) {
    return config.model;
  } else if constexpr (std::is_same_v<Section, DataConfig>) {
    return config.data;
  } else if constexpr (std::is_same_v<Section, TrainingConfig>) {
    return config.training;
  } else if constexpr (std::is_same_v<Section, OptimizerConfig>) {
    return config.optimizer;
  } else if constexpr (std::is_same_v<Section, DeviceConfig>) {
    return config.device;
  } else if constexpr (std::is_same_v<Section, ParallelConfig>) {
    return config.parallel;
  } else if constexpr (std::is_same_v<Section, InjectedConfig>) {
    return config.injected;
  } else if constexpr (std::is_same_v<Section, CheckpointConfig>) {
    return config.checkpoint;
  } else {
    return config.output;
  }
}

/// A member that may be unset is an optional, or is empty if unset.
template <class T>
struct Settable {
  using Type = T;
  static const T* value_of(const T& member) {
    if constexpr (requires { member.empty(); }) return member.empty() ? nullptr : &member;
    return &member;
  }
};
template <class T>
struct Settable<std::optional<T>> {
  using Type = T;
  static const T* value_of(const std::optional<T>& member) { return member ? &*member : nullptr; }
};

/// Any member, with functions to read and write its type.
template <class Section, class Member, class Read, class Write>
OptionValue value_at(Member Section::*member, JsonKind json, std::string argument,
                     std::string allowed, Read read, Write write) {
  return {json, std::move(argument), std::move(allowed),
          [=](const RawValue& given, TrainConfig& config) {
            section_of<Section>(config).*member = read(given);
          },
          [=](const TrainConfig& config) -> std::optional<std::string> {
            const auto* const value =
                Settable<Member>::value_of(section_of<Section>(config).*member);
            if (value == nullptr) return std::nullopt;
            return write(*value);
          }};
}

template <class Section, class Member>
OptionValue number(Member Section::*member, const Range& range, std::string argument = "N") {
  using Whole = typename Settable<Member>::Type;
  return value_at(
      member, JsonKind::kNumber, std::move(argument), text_of(range),
      [=](const RawValue& given) { return static_cast<Whole>(whole_number(given, range)); },
      [](std::int64_t value) { return text_of_number(value); });
}

template <class Section, class Member>
OptionValue number(Member Section::*member, const RealRange& range, std::string argument = "X") {
  return value_at(
      member, JsonKind::kNumber, std::move(argument), text_of(range),
      [=](const RawValue& given) { return real_number(given, range); },
      [](double value) { return text_of_number(value); });
}

/// Presence sets the member to `given`: true for "--graph", false for "--no-pin".
template <class Section>
OptionValue flag(bool Section::*member, bool given = true) {
  return {JsonKind::kBoolean, "", "",
          [=](const RawValue& text, TrainConfig& config) {
            no_value(text);
            section_of<Section>(config).*member = given;
          },
          [=](const TrainConfig& config) -> std::optional<std::string> {
            if (section_of<Section>(config).*member != given) return std::nullopt;
            return "true";
          }};
}

/// A list of values of an enum, by name; an empty list means all.
template <class Section, class Member, class Enum = typename Settable<Member>::Type>
OptionValue one_of(Member Section::*member, std::vector<Enum> values = {},
                   std::string argument = "") {
  std::vector<std::string_view> names;
  if (values.empty()) values.assign(kValuesOf<Enum>.begin(), kValuesOf<Enum>.end());
  for (const Enum value : values) names.push_back(name_of(value));
  if (argument.empty()) argument = joined(names, "|");
  return value_at(
      member, JsonKind::kString, std::move(argument), "",
      [=](const RawValue& given) { return values[choice(given, names)]; },
      [](Enum value) { return std::string(name_of(value)); });
}

/// A bool with two names, the default's first.
template <class Section>
OptionValue either(bool Section::*member, std::string_view usual, std::string_view other) {
  const TrainConfig defaults;
  const bool is_usual = section_of<Section>(defaults).*member;
  const std::vector<std::string_view> names = {usual, other};
  return value_at(
      member, JsonKind::kString, joined(names, "|"), "",
      [=](const RawValue& given) { return (choice(given, names) == 0) == is_usual; },
      [=](bool value) { return std::string(value == is_usual ? usual : other); });
}

template <class Section>
OptionValue file(std::filesystem::path Section::*member, std::string argument = "FILE") {
  return value_at(member, JsonKind::kString, std::move(argument), "", &file_path,
                  [](const std::filesystem::path& path) { return path.string(); });
}

}  // namespace barestep
