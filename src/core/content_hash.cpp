#include "core/content_hash.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/input_file.h"

namespace barestep {
namespace {

constexpr std::int64_t kPieceBytes = std::int64_t{1} << 20;
constexpr std::int64_t kPieces = 64;

struct FreeHash {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};

}  // namespace

std::string content_hash(const std::filesystem::path& path) {
  const InputFile file(path, "file");
  const std::int64_t size = file.size_bytes();
  const bool whole = size <= kPieces * kPieceBytes;
  const std::int64_t pieces = whole ? (size + kPieceBytes - 1) / kPieceBytes : kPieces;
  const std::unique_ptr<XXH3_state_t, FreeHash> state(XXH3_createState());
  XXH3_128bits_reset(state.get());
  std::vector<std::byte> piece(static_cast<std::size_t>(std::min(size, kPieceBytes)));
  for (std::int64_t i = 0; i < pieces; ++i) {
    // Whole files by pieces in a row; of others the last piece ends where the file does.
    const std::int64_t first = whole ? i * kPieceBytes : (size - kPieceBytes) / (pieces - 1) * i;
    const std::int64_t start = !whole && i + 1 == pieces ? size - kPieceBytes : first;
    const auto bytes =
        std::span(piece).first(static_cast<std::size_t>(std::min(kPieceBytes, size - start)));
    file.read_at(start, bytes);
    XXH3_128bits_update(state.get(), bytes.data(), bytes.size());
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(state.get());
  return fmt::format("{} bytes, hash {:016x}{:016x}", size, hash.high64, hash.low64);
}

}  // namespace barestep
