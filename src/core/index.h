// Indexing without casts: by an enum's values and by signed integers.
#pragma once

#include <array>
#include <cassert>
#include <concepts>
#include <cstddef>
#include <iterator>
#include <string_view>
#include <utility>

namespace barestep {

/// The names of an enum's values, in order, as options, tables and messages write them. Defined
/// next to the enum, whose values count up from 0.
template <class Enum>
inline constexpr std::string_view kNamesOf[] = {""};

template <class Enum>
constexpr std::string_view name_of(Enum value) {
  return kNamesOf<Enum>[static_cast<std::size_t>(value)];
}

/// How many values an enum has.
template <class Enum>
inline constexpr int kCountOf = std::size(kNamesOf<Enum>);

/// All values of an enum, in order.
template <class Enum>
inline constexpr std::array<Enum, kCountOf<Enum>> kValuesOf = [] {
  std::array<Enum, kCountOf<Enum>> values{};
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<Enum>(i);
  return values;
}();

/// A T for each value of a named enum: a std::array indexed by the enum.
template <class Enum, class T>
struct EnumArray : std::array<T, kCountOf<Enum>> {
  static_assert(!kNamesOf<Enum>[0].empty(), "the enum's values have names");

  using std::array<T, kCountOf<Enum>>::operator[];
  constexpr T& operator[](Enum value) { return (*this)[static_cast<std::size_t>(value)]; }
  constexpr const T& operator[](Enum value) const {
    return (*this)[static_cast<std::size_t>(value)];
  }
};

/// container[index] for an index of any integral type: a NodeId, a BufferId, a rank. Debug builds
/// stop if it is out of range.
template <class Container>
constexpr decltype(auto) at(Container&& container, std::integral auto index) {
  assert(std::in_range<std::size_t>(index) &&
         static_cast<std::size_t>(index) < std::size(container));
  return std::forward<Container>(container)[static_cast<std::size_t>(index)];
}

}  // namespace barestep
