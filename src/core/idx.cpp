#include "core/idx.h"

#include <fmt/format.h>
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

namespace barestep {
namespace {

constexpr int kMaxDims = 8;
constexpr std::int64_t kFirstChunkBytes = std::int64_t{1} << 20;
constexpr std::int64_t kMaxChunkBytes = std::int64_t{1} << 28;

bool is_known(IdxType type) {
  switch (type) {
    case IdxType::kU8:
    case IdxType::kI8:
    case IdxType::kI16:
    case IdxType::kI32:
    case IdxType::kF32:
    case IdxType::kF64:
      return true;
  }
  return false;
}

/// The bytes of a file, decompressed if they are gzip; zlib passes other files through.
class IdxBytes {
 public:
  explicit IdxBytes(const std::filesystem::path& path) : path_(path) {
    InputFile file(path, "idx file");
    file_bytes_ = file.size_bytes();
    const int descriptor = file.release();
    gz_.reset(gzdopen(descriptor, "rb"));
    BARESTEP_REQUIRE(gz_ != nullptr, "zlib takes a descriptor just opened for reading");
    gzbuffer(gz_.get(), 1U << 17);
  }

  /// Reads up to out.size() bytes; fewer only where the data ends, or is_cut().
  std::int64_t read(std::span<std::byte> out) {
    const int got = gzread(gz_.get(), out.data(), static_cast<unsigned>(out.size()));
    if (got < 0) fail_reading();
    return got;
  }

  /// True when gzip data stopped before its end.
  [[nodiscard]] bool is_cut() const { return status() == Z_BUF_ERROR; }

  /// How many bytes lie behind the header, where that is known without reading on.
  [[nodiscard]] std::string size_text(std::int64_t header_bytes) const {
    return is_plain() ? std::to_string(file_bytes_ - header_bytes) : "more than that";
  }

  [[nodiscard]] std::int64_t file_bytes() const { return file_bytes_; }
  [[nodiscard]] bool is_plain() const { return gzdirect(gz_.get()) != 0; }

  [[noreturn]] void refuse(const std::string& why, const std::string& remedy = kRemedy) const {
    fail(ExitCode::kBadData,
         {.what = "idx file", .value = path_.string(), .why = why, .remedy = remedy});
  }

 private:
  struct Close {
    void operator()(gzFile file) const { gzclose_r(file); }
  };
  static constexpr const char* kRemedy = "it is damaged or no idx file";

  [[nodiscard]] int status() const {
    int code = Z_OK;
    gzerror(gz_.get(), &code);
    return code;
  }

  [[noreturn]] void fail_reading() const {
    const int system_error = errno;
    int code = Z_OK;
    std::string_view text = gzerror(gz_.get(), &code);
    if (code == Z_ERRNO) {
      fail(ExitCode::kInputOutput, {.what = "reading idx file",
                                    .value = path_.string(),
                                    .why = std::strerror(system_error),
                                    .remedy = "check the disk and try again"});
    }
    if (code == Z_MEM_ERROR) throw std::bad_alloc();
    // zlib puts "<fd:3>: " in front.
    if (const auto at = text.find(">: "); at != std::string_view::npos) text.remove_prefix(at + 3);
    refuse(fmt::format("its gzip data is corrupt: {}", text));
  }

  std::filesystem::path path_;
  std::unique_ptr<gzFile_s, Close> gz_;
  std::int64_t file_bytes_ = 0;
};

void read_header(IdxBytes& bytes, std::span<std::byte> out, std::int64_t position) {
  const std::int64_t got = bytes.read(out);
  if (got == static_cast<std::int64_t>(out.size())) return;
  bytes.refuse(fmt::format("too short: {} bytes{}, its header needs {}", position + got,
                           bytes.is_cut() ? " before its gzip data is cut off" : "",
                           position + static_cast<std::int64_t>(out.size())));
}

/// Type and dims. Returns the header's size in bytes.
std::int64_t read_type_and_dims(IdxBytes& bytes, IdxArray& array) {
  std::array<std::byte, 4> magic{};
  read_header(bytes, magic, 0);
  const auto number = [](std::byte b) { return std::to_integer<unsigned>(b); };
  if (number(magic[0]) != 0 || number(magic[1]) != 0) {
    bytes.refuse(fmt::format("starts with bytes {:02x} {:02x}, an idx file starts with 00 00",
                             number(magic[0]), number(magic[1])));
  }
  array.type = static_cast<IdxType>(magic[2]);
  if (!is_known(array.type)) {
    bytes.refuse(fmt::format("element type 0x{:02x} is unknown", number(magic[2])));
  }
  const auto dims = static_cast<int>(number(magic[3]));
  if (dims < 1 || dims > kMaxDims) {
    bytes.refuse(fmt::format("has {} dimensions, 1 to {} are allowed", dims, kMaxDims));
  }
  std::array<std::byte, std::size_t{4} * kMaxDims> raw{};
  read_header(bytes, std::span(raw).first(4 * static_cast<std::size_t>(dims)), 4);
  for (std::size_t d = 0; d < static_cast<std::size_t>(dims); ++d) {
    std::int64_t extent = 0;
    for (std::size_t i = 0; i < 4; ++i) extent = extent * 256 + number(raw[4 * d + i]);
    array.dims.push_back(extent);
  }
  return 4 + 4 * dims;
}

std::int64_t data_bytes(const IdxBytes& bytes, const IdxArray& array) {
  std::int64_t total = bytes_of(array.type);
  bool is_empty = false;
  for (const std::int64_t extent : array.dims) {
    is_empty = is_empty || extent == 0;
    // An empty dimension does not excuse the others: products of some of them are taken too.
    if (__builtin_mul_overflow(total, std::max<std::int64_t>(extent, 1), &total)) {
      bytes.refuse(fmt::format("its size, {}, overflows", shape_of(array)));
    }
  }
  return is_empty ? 0 : total;
}

void read_data(IdxBytes& bytes, IdxArray& array, std::int64_t header_bytes) {
  const std::int64_t want = data_bytes(bytes, array);
  if (bytes.is_plain()) {
    array.data.reserve(static_cast<std::size_t>(std::min(want, bytes.file_bytes())));
  }
  std::int64_t have = 0;
  while (have < want) {
    const std::int64_t chunk =
        std::min({want - have, std::max(have, kFirstChunkBytes), kMaxChunkBytes});
    array.data.resize(static_cast<std::size_t>(have + chunk));
    const std::int64_t got =
        bytes.read(std::span(array.data).last(static_cast<std::size_t>(chunk)));
    have += got;
    if (got == chunk) continue;
    bytes.refuse(fmt::format("its header says {} = {} bytes, it holds {}{}", shape_of(array), want,
                             have, bytes.is_cut() ? " before its gzip data is cut off" : ""));
  }
  // One byte more: tells longer files, and makes zlib check the end of gzip data.
  std::byte extra{};
  if (bytes.read(std::span(&extra, 1)) != 0) {
    bytes.refuse(fmt::format("its header says {} = {} bytes, it holds {}", shape_of(array), want,
                             bytes.size_text(header_bytes)));
  }
  if (bytes.is_cut()) {
    bytes.refuse(fmt::format("its gzip data is cut off behind byte {} of {}", want, want));
  }
}

void to_host_order(std::vector<std::byte>& data, std::size_t width) {
  if constexpr (std::endian::native == std::endian::big) return;
  for (std::size_t at = 0; width > 1 && at < data.size(); at += width) {
    std::reverse(&data[at], &data[at] + width);
  }
}

}  // namespace

std::int64_t bytes_of(IdxType type) {
  switch (type) {
    case IdxType::kU8:
    case IdxType::kI8:
      return 1;
    case IdxType::kI16:
      return 2;
    case IdxType::kI32:
    case IdxType::kF32:
      return 4;
    case IdxType::kF64:
      return 8;
  }
  return 0;
}

std::string_view name_of(IdxType type) {
  switch (type) {
    case IdxType::kU8:
      return "u8";
    case IdxType::kI8:
      return "i8";
    case IdxType::kI16:
      return "i16";
    case IdxType::kI32:
      return "i32";
    case IdxType::kF32:
      return "f32";
    case IdxType::kF64:
      return "f64";
  }
  return "?";
}

std::int64_t IdxArray::cols() const {
  std::int64_t product = 1;
  for (std::size_t d = 1; d < dims.size(); ++d) product *= dims[d];
  return product;
}

std::string shape_of(const IdxArray& array) {
  return fmt::format("{} of {}", fmt::join(array.dims, " x "), name_of(array.type));
}

IdxArray read_idx(const std::filesystem::path& path) {
  try {
    IdxBytes bytes(path);
    IdxArray array;
    const std::int64_t header_bytes = read_type_and_dims(bytes, array);
    read_data(bytes, array, header_bytes);
    to_host_order(array.data, static_cast<std::size_t>(bytes_of(array.type)));
    return array;
  } catch (const std::bad_alloc&) {
    fail(ExitCode::kMemory, {.what = "idx file",
                             .value = path.string(),
                             .why = "does not fit into this machine's memory",
                             .remedy = "use fewer samples"});
  }
}

}  // namespace barestep
