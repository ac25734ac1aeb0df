// Makes the bytes of npy files, as numpy.save does.
#pragma once

#include <string>
#include <vector>

namespace barestep {

/// NPY version 1.0, with the header padded to 64 bytes.
inline std::string npy_with_header(std::string header, const std::string& elements) {
  constexpr std::size_t kStart = 10;
  header.resize((kStart + header.size() + 1 + 63) / 64 * 64 - kStart - 1, ' ');
  header += '\n';
  std::string bytes("\x93NUMPY\x01\x00", 8);
  bytes += static_cast<char>(header.size() % 256);
  bytes += static_cast<char>(header.size() / 256);
  return bytes + header + elements;
}

inline std::string npy_header(const std::string& descr, const std::string& shape) {
  return "{'descr': '" + descr + "', 'fortran_order': False, 'shape': (" + shape + "), }";
}

/// `elements` in this machine's byte order.
template <class T>
std::string npy_bytes(const std::string& descr, const std::string& shape,
                      const std::vector<T>& elements) {
  const auto* const first = reinterpret_cast<const char*>(elements.data());
  return npy_with_header(npy_header(descr, shape), {first, first + elements.size() * sizeof(T)});
}

}  // namespace barestep
