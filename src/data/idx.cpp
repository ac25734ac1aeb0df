#include "data/idx.h"

#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <memory>
#include <new>
#include <span>

#include "core/error.h"
#include "core/input_file.h"
#include "core/units.h"

namespace barestep {
namespace {

constexpr int kMaxIdxDims = 8;
constexpr std::int64_t kFirstChunkBytes = std::int64_t{1} << 20;
constexpr std::int64_t kMaxChunkBytes = std::int64_t{1} << 28;

/// The element types, numbered as in the file.
std::optional<ElementType> type_of(unsigned code) {
  switch (code) {
    case 0x08:
      return ElementType::kU8;
    case 0x09:
      return ElementType::kI8;
    case 0x0B:
      return ElementType::kI16;
    case 0x0C:
      return ElementType::kI32;
    case 0x0D:
      return ElementType::kF32;
    case 0x0E:
      return ElementType::kF64;
    default:
      return std::nullopt;
  }
}

/// The bytes of a file, decompressed if they are gzip (RFC 1952), one member or several. Not by
/// zlib's gzread: it does not tell where data end, without a checksum, just where a read has ended.
class IdxBytes {
 public:
  explicit IdxBytes(const std::filesystem::path& path)
      : path_(path), file_{InputFile(path, "idx file").release()}, input_(kInputBytes) {
    is_plain_ = !refill() || input_[0] != kMagic || stream_.avail_in < 2 || input_[1] != 0x8B;
    constexpr int kWindowBits = 15 + 16;  // 16 asks for gzip's frame
    if (!is_plain_ && inflateInit2(&stream_, kWindowBits) != Z_OK) throw std::bad_alloc();
  }
  ~IdxBytes() { inflateEnd(&stream_); }  // does nothing to a stream that was not begun
  IdxBytes(const IdxBytes&) = delete;
  IdxBytes& operator=(const IdxBytes&) = delete;

  /// Reads up to out.size() bytes; fewer only where the data ends, or is_cut().
  std::int64_t read(std::span<std::byte> out) {
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    stream_.avail_out = static_cast<uInt>(out.size());
    while (stream_.avail_out > 0 && !is_at_end_) {
      if (stream_.avail_in == 0 && !refill()) {
        is_at_end_ = true;
        is_cut_ = !is_plain_;
      } else if (is_plain_) {
        copy();
      } else {
        decompress();
      }
    }
    return static_cast<std::int64_t>(out.size() - stream_.avail_out);
  }

  /// True when gzip data stopped before its end.
  [[nodiscard]] bool is_cut() const { return is_cut_; }

  [[nodiscard]] bool is_plain() const { return is_plain_; }

  [[noreturn]] void refuse(const std::string& why, const std::string& remedy = kRemedy) const {
    fail(ExitCode::kBadData,
         {.what = "idx file", .value = path_.string(), .why = why, .remedy = remedy});
  }

 private:
  struct OpenFile {
    int descriptor;
    ~OpenFile() { ::close(descriptor); }
  };
  static constexpr const char* kRemedy = "it is damaged or no idx file";
  static constexpr std::size_t kInputBytes = std::size_t{1} << 17;
  static constexpr Bytef kMagic = 0x1F;

  /// The next bytes of the file, all before them being used. False where it ends.
  bool refill() {
    ssize_t got = 0;
    do {
      got = ::read(file_.descriptor, input_.data(), input_.size());
    } while (got < 0 && errno == EINTR);
    if (got < 0) {
      fail(ExitCode::kInputOutput, {.what = "reading idx file",
                                    .value = path_.string(),
                                    .why = std::strerror(errno),
                                    .remedy = "check the disk and try again"});
    }
    stream_.next_in = input_.data();
    stream_.avail_in = static_cast<uInt>(got);
    return got > 0;
  }

  void copy() {
    const uInt count = std::min(stream_.avail_in, stream_.avail_out);
    std::memcpy(stream_.next_out, stream_.next_in, count);
    stream_.next_out += count;
    stream_.avail_out -= count;
    stream_.next_in += count;
    stream_.avail_in -= count;
  }

  void decompress() {
    const int status = inflate(&stream_, Z_NO_FLUSH);
    if (status == Z_STREAM_END) {
      // Another member may follow; what else does is no part of the data.
      const bool more = stream_.avail_in > 0 || refill();
      is_at_end_ = !more || *stream_.next_in != kMagic;
      if (!is_at_end_) inflateReset(&stream_);
    } else if (status == Z_MEM_ERROR) {
      throw std::bad_alloc();
    } else if (status != Z_OK) {
      refuse(fmt::format("its gzip data is corrupt: {}",
                         stream_.msg != nullptr ? stream_.msg : zError(status)));
    }
  }

  std::filesystem::path path_;
  OpenFile file_;
  std::vector<Bytef> input_;
  z_stream stream_{};
  bool is_plain_ = false;
  bool is_at_end_ = false;
  bool is_cut_ = false;
};

void read_exactly(IdxBytes& bytes, std::span<std::byte> out, std::int64_t position) {
  const std::int64_t got = bytes.read(out);
  if (got == static_cast<std::int64_t>(out.size())) return;
  bytes.refuse(fmt::format("too short: {}{}, its header needs {}", counted(position + got, "byte"),
                           bytes.is_cut() ? " before its gzip data is cut off" : "",
                           position + static_cast<std::int64_t>(out.size())));
}

ArrayHeader read_header(IdxBytes& bytes) {
  std::array<std::byte, 4> magic{};
  read_exactly(bytes, magic, 0);
  const auto number = [](std::byte b) { return std::to_integer<unsigned>(b); };
  if (number(magic[0]) != 0 || number(magic[1]) != 0) {
    bytes.refuse(fmt::format("starts with bytes {:02x} {:02x}, an idx file starts with 00 00",
                             number(magic[0]), number(magic[1])));
  }
  const std::optional<ElementType> type = type_of(number(magic[2]));
  if (!type) bytes.refuse(fmt::format("element type 0x{:02x} is unknown", number(magic[2])));
  const auto dims = static_cast<int>(number(magic[3]));
  if (dims < 1 || dims > kMaxIdxDims) {
    bytes.refuse(
        fmt::format("has {}, 1 to {} are allowed", counted(dims, "dimension"), kMaxIdxDims));
  }
  ArrayHeader header{.type = *type, .big_endian = true, .dims = {}, .begin_bytes = 4 + 4 * dims};
  std::array<std::byte, std::size_t{4} * kMaxIdxDims> raw{};
  read_exactly(bytes, std::span(raw).first(4 * static_cast<std::size_t>(dims)), 4);
  for (std::size_t d = 0; d < static_cast<std::size_t>(dims); ++d) {
    std::int64_t extent = 0;
    for (std::size_t i = 0; i < 4; ++i) extent = extent * 256 + number(raw[4 * d + i]);
    header.dims.push_back(extent);
  }
  return header;
}

std::int64_t data_bytes(const IdxBytes& bytes, const ArrayHeader& header) {
  const std::optional<std::int64_t> total = header.bytes();
  if (!total) bytes.refuse(fmt::format("its size, {}, overflows", shape_of(header)));
  return *total;
}

/// The elements of a compressed file.
std::vector<std::byte> read_data(IdxBytes& bytes, const ArrayHeader& header) {
  const std::int64_t want = data_bytes(bytes, header);
  const auto refuse = [&](const std::string& holds) {
    bytes.refuse(
        fmt::format("its header says {} = {} bytes, it holds {}", shape_of(header), want, holds));
  };
  std::vector<std::byte> data;
  std::int64_t have = 0;
  while (have < want) {
    const std::int64_t chunk =
        std::min({want - have, std::max(have, kFirstChunkBytes), kMaxChunkBytes});
    data.resize(static_cast<std::size_t>(have + chunk));
    const std::int64_t got = bytes.read(std::span(data).last(static_cast<std::size_t>(chunk)));
    have += got;
    if (got == chunk) continue;
    refuse(fmt::format("{}{}", have, bytes.is_cut() ? " before its gzip data is cut off" : ""));
  }
  // One byte more: makes zlib check the end of the data.
  std::byte extra{};
  if (bytes.read(std::span(&extra, 1)) != 0) refuse("more than that");
  if (bytes.is_cut()) {
    bytes.refuse(fmt::format("its gzip data is cut off after byte {} of {}", want, want));
  }
  return data;
}

}  // namespace

ArrayFile open_idx(const std::filesystem::path& path) {
  try {
    IdxBytes bytes(path);
    ArrayHeader header = read_header(bytes);
    if (!bytes.is_plain()) {
      std::vector<std::byte> elements = read_data(bytes, header);
      return {path, std::move(header), std::move(elements)};
    }
    const std::int64_t want = data_bytes(bytes, header);
    auto file = std::make_shared<const InputFile>(path, "idx file");
    if (const std::int64_t there = file->size_bytes() - header.begin_bytes; there != want) {
      bytes.refuse(
          fmt::format("its header says {} = {} bytes, it holds {}", shape_of(header), want, there));
    }
    return {path, std::move(header), std::move(file)};
  } catch (const std::bad_alloc&) {
    fail(ExitCode::kMemory, {.what = "idx file",
                             .value = path.string(),
                             .why = "does not fit into this machine's memory",
                             .remedy = "use fewer samples"});
  }
}

}  // namespace barestep
