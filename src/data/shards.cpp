#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "data/dataset.h"

namespace barestep {
namespace {

/// Bytes of a row that are read from a file at a time.
constexpr std::int64_t kChunkBytes = 8192;

/// The bytes may not be aligned for T.
template <class T>
void convert(const std::byte* from, std::int64_t count, float divisor, float* out) {
  for (std::int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, from + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
    out[i] = divisor == 1 ? static_cast<float>(value) : static_cast<float>(value) / divisor;
  }
}

void convert(ElementType type, const std::byte* from, std::int64_t count, float divisor,
             float* out) {
  switch (type) {
    case ElementType::kU8:
      return convert<std::uint8_t>(from, count, divisor, out);
    case ElementType::kI8:
      return convert<std::int8_t>(from, count, divisor, out);
    case ElementType::kI16:
      return convert<std::int16_t>(from, count, divisor, out);
    case ElementType::kI32:
      return convert<std::int32_t>(from, count, divisor, out);
    case ElementType::kI64:
      return convert<std::int64_t>(from, count, divisor, out);
    case ElementType::kF32:
      return convert<float>(from, count, divisor, out);
    case ElementType::kF64:
      return convert<double>(from, count, divisor, out);
  }
}

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& why,
                         const char* remedy) {
  fail(ExitCode::kBadData, {.what = "data", .value = path.string(), .why = why, .remedy = remedy});
}

}  // namespace

Shards::Shards(std::vector<ArrayFile> files) : files_(std::move(files)), first_rows_{0} {
  BARESTEP_REQUIRE(!files_.empty(), "there is at least one array");
  for (const ArrayFile& file : files_) {
    if (file.type() != type() || file.cols() != cols()) {
      refuse(file.path(),
             fmt::format("has {} of {} per sample, '{}' has {} of {}", file.cols(),
                         name_of(file.type()), files_.front().path().string(), cols(),
                         name_of(type())),
             "use files that belong together");
    }
    first_rows_.push_back(first_rows_.back() + file.rows());
  }
}

std::int64_t Shards::bytes() const {
  std::int64_t sum = 0;
  for (const ArrayFile& file : files_) sum += file.bytes();
  return sum;
}

void Shards::load() {
  for (ArrayFile& file : files_) file.load();
}

void Shards::read(std::int64_t row, float divisor, float* out) const {
  const auto behind = std::upper_bound(first_rows_.begin(), first_rows_.end(), row);
  const auto shard = static_cast<std::size_t>(behind - first_rows_.begin()) - 1;
  const ArrayFile& file = files_[shard];
  const std::int64_t width = bytes_of(file.type());
  const std::int64_t first = (row - first_rows_[shard]) * cols();
  if (file.is_loaded()) {
    return convert(file.type(), file.elements().data() + first * width, cols(), divisor, out);
  }
  std::array<std::byte, kChunkBytes> chunk;
  for (std::int64_t done = 0; done < cols();) {
    const std::int64_t count = std::min(cols() - done, kChunkBytes / width);
    file.read(first + done, std::span(chunk).first(static_cast<std::size_t>(count * width)));
    convert(file.type(), chunk.data(), count, divisor, out + done);
    done += count;
  }
  if (!is_float(file.type())) return;
  const float* const wrong =
      std::find_if(out, out + cols(), [](float x) { return !std::isfinite(x); });
  if (wrong == out + cols()) return;
  refuse(file.path(),
         fmt::format("row {}, column {} is not a finite 32-bit number", row - first_rows_[shard],
                     wrong - out),
         "remove or replace such samples");
}

}  // namespace barestep
