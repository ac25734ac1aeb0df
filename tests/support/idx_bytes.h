// Makes the bytes of idx files.
#pragma once

#include <zlib.h>

#include "support/testing.h"

namespace barestep {

/// `value` with its most significant byte first.
template <class T>
std::string big_endian(T value) {
  using Bits = std::conditional_t<
      sizeof(T) == 1, std::uint8_t,
      std::conditional_t<sizeof(T) == 2, std::uint16_t,
                         std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>>>;
  Bits bits;
  std::memcpy(&bits, &value, sizeof(T));
  std::string bytes;
  for (std::size_t i = sizeof(T); i-- > 0;) bytes += static_cast<char>((bits >> (8 * i)) & 0xFF);
  return bytes;
}

inline std::string idx_header(int type, const std::vector<std::uint32_t>& dims) {
  std::string bytes{0, 0, static_cast<char>(type), static_cast<char>(dims.size())};
  for (const std::uint32_t extent : dims) bytes += big_endian(extent);
  return bytes;
}

template <class T>
std::string idx_bytes(int type, const std::vector<std::uint32_t>& dims,
                      const std::vector<T>& elements) {
  std::string bytes = idx_header(type, dims);
  for (const T element : elements) bytes += big_endian(element);
  return bytes;
}

/// `bytes` as a single gzip member.
inline std::string gzipped(std::string_view bytes) {
  z_stream stream{};
  constexpr int kGzip = 15 + 16;
  deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, kGzip, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, bytes.size()) + 32, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

}  // namespace barestep
