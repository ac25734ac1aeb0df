// Finding by name.
#pragma once

#include <iterator>
#include <optional>
#include <string_view>

#include "core/index.h"

namespace barestep {

/// The value with this name, if there is one.
template <class Enum>
constexpr std::optional<Enum> value_named(std::string_view name) {
  for (const Enum value : kValuesOf<Enum>) {
    if (name_of(value) == name) return value;
  }
  return std::nullopt;
}

/// What a table of pairs has for a key; null if it has no such pair.
template <class Table>
constexpr auto* found_in(const Table& table, std::string_view key) {
  for (const auto& [name, value] : table) {
    if (name == key) return &value;
  }
  return static_cast<decltype(&std::begin(table)->second)>(nullptr);
}

}  // namespace barestep
