#include "core/gzip.h"

#include <zlib.h>

#include <algorithm>
#include <limits>
#include <new>

namespace barestep {

std::vector<std::byte> gzip_of(std::string_view text) {
  constexpr int kWindowBits = 15 + 16;  // 16 asks for gzip's frame
  constexpr int kMemoryLevel = 8;
  constexpr std::size_t kMostAtOnce = std::numeric_limits<uInt>::max() / 2;
  z_stream stream{};
  if (deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, kWindowBits, kMemoryLevel,
                   Z_DEFAULT_STRATEGY) != Z_OK) {
    throw std::bad_alloc();
  }
  std::vector<std::byte> out;
  std::vector<std::byte> piece(1 << 18);
  int status = Z_OK;
  while (status != Z_STREAM_END) {
    if (stream.avail_in == 0) {
      const std::size_t count = std::min(text.size(), kMostAtOnce);
      // zlib only reads from it.
      stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
      stream.avail_in = static_cast<uInt>(count);
      text.remove_prefix(count);
    }
    stream.next_out = reinterpret_cast<Bytef*>(piece.data());
    stream.avail_out = static_cast<uInt>(piece.size());
    status = deflate(&stream, text.empty() ? Z_FINISH : Z_NO_FLUSH);
    out.insert(out.end(), piece.begin(), piece.end() - stream.avail_out);
  }
  deflateEnd(&stream);
  return out;
}

}  // namespace barestep
