#include "data/array_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <map>
#include <new>
#include <utility>

#include "core/error.h"
#include "core/host.h"
#include "core/index.h"
#include "core/lookup.h"
#include "core/units.h"

namespace barestep {
namespace {

struct TypeInfo {
  std::int64_t bytes;
  std::string_view name;
};

constexpr TypeInfo kTypes[] = {{1, "u8"},  {2, "u16"},  {4, "u32"}, {8, "u64"},
                               {1, "i8"},  {2, "i16"},  {4, "i32"}, {8, "i64"},
                               {2, "f16"}, {2, "bf16"}, {4, "f32"}, {8, "f64"}};

const TypeInfo& info_of(ElementType type) {
  return kTypes[static_cast<std::size_t>(type)];
}

[[noreturn]] void refuse_size(const char* what, const std::filesystem::path& path) {
  fail(ExitCode::kMemory,
       {what, path.string(), "does not fit into this machine's memory", "use fewer samples"});
}

/// Throws std::bad_alloc if less memory is known to be free.
void require_free(std::int64_t bytes) {
  const std::int64_t free_bytes = host_memory().free_bytes;
  if (free_bytes > 0 && bytes > free_bytes) throw std::bad_alloc();
}

void to_host_order(const ArrayHeader& header, std::span<std::byte> elements) {
  if (header.big_endian == (std::endian::native == std::endian::big)) return;
  const auto width = static_cast<std::size_t>(bytes_of(header.type));
  for (std::size_t at = 0; width > 1 && at < elements.size(); at += width) {
    std::reverse(&elements[at], &elements[at] + width);
  }
}

}  // namespace

std::int64_t bytes_of(ElementType type) {
  return info_of(type).bytes;
}

std::string_view name_of(ElementType type) {
  return info_of(type).name;
}

std::int64_t ArrayHeader::cols() const {
  std::int64_t product = 1;
  for (std::size_t d = 1; d < dims.size(); ++d) product *= dims[d];
  return product;
}

std::optional<std::int64_t> ArrayHeader::bytes() const {
  std::int64_t total = bytes_of(type);
  bool is_empty = false;
  for (const std::int64_t extent : dims) {
    is_empty = is_empty || extent == 0;
    // Empty dimensions count as 1, because products of only some dimensions are computed too.
    if (__builtin_mul_overflow(total, std::max<std::int64_t>(extent, 1), &total)) {
      return std::nullopt;
    }
  }
  return is_empty ? 0 : total;
}

std::string shape_of(const ArrayHeader& header) {
  if (header.dims.empty()) return fmt::format("a scalar of {}", name_of(header.type));
  return fmt::format("{} of {}", fmt::join(header.dims, " x "), name_of(header.type));
}

ArrayFile::ArrayFile(std::filesystem::path path, ArrayHeader header,
                     std::vector<std::byte> elements)
    : path_(std::move(path)), header_(std::move(header)) {
  BARESTEP_REQUIRE(static_cast<std::int64_t>(elements.size()) == header_.bytes(),
                   "the elements are those of the header");
  to_host_order(header_, elements);
  elements_ = std::make_shared<const std::vector<std::byte>>(std::move(elements));
  loaded_rows_.push_back({0, rows()});
  rows_before_.push_back(0);
}

ArrayFile::ArrayFile(std::filesystem::path path, ArrayHeader header,
                     std::shared_ptr<InputFile> file)
    : path_(std::move(path)), header_(std::move(header)), file_(std::move(file)) {}

void ArrayFile::load(std::vector<RowRange> ranges) {
  if (is_loaded()) return;
  try {
    std::vector<std::int64_t> before;
    std::int64_t count = 0;
    for (const RowRange& range : ranges) {
      before.push_back(count);
      count += range.count;
    }
    const std::int64_t row_bytes = cols() * bytes_of(type());
    std::vector<std::byte> elements(static_cast<std::size_t>(count * row_bytes));
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      read(ranges[i].first * cols(),
           std::span(elements).subspan(static_cast<std::size_t>(before[i] * row_bytes),
                                       static_cast<std::size_t>(ranges[i].count * row_bytes)));
    }
    elements_ = std::make_shared<const std::vector<std::byte>>(std::move(elements));
    loaded_rows_ = std::move(ranges);
    rows_before_ = std::move(before);
    if (count == rows()) file_.reset();
  } catch (const std::bad_alloc&) {
    refuse_size("data", path_);
  }
}

const std::byte* ArrayFile::row(std::int64_t row) const {
  const auto after =
      std::ranges::upper_bound(loaded_rows_, row, std::ranges::less(), &RowRange::first);
  if (after == loaded_rows_.begin()) return nullptr;
  const auto range = std::prev(after);
  if (row >= range->first + range->count) return nullptr;
  const std::int64_t before = rows_before_[static_cast<std::size_t>(range - loaded_rows_.begin())];
  return elements_->data() + (before + row - range->first) * cols() * bytes_of(type());
}

void ArrayFile::close() {
  if (file_ != nullptr) file_->close();
}

void ArrayFile::read(std::int64_t first, std::span<std::byte> out) const {
  const std::int64_t begin = first * bytes_of(header_.type);
  if (is_loaded()) {
    std::copy_n(elements_->begin() + begin, out.size(), out.begin());
    return;
  }
  file_->read_at(header_.begin_bytes + begin, out);
  to_host_order(header_, out);
}

namespace {

constexpr int kMaxIdxDims = 8;
constexpr std::int64_t kFirstChunkBytes = std::int64_t{1} << 20;
constexpr std::int64_t kMaxChunkBytes = std::int64_t{1} << 28;

/// The element types by their codes in the file.
constexpr std::pair<unsigned, ElementType> kIdxTypes[] = {
    {0x08, ElementType::kU8},  {0x09, ElementType::kI8},  {0x0B, ElementType::kI16},
    {0x0C, ElementType::kI32}, {0x0D, ElementType::kF32}, {0x0E, ElementType::kF64}};

/// Reads a file's bytes, decompressed if they are gzip (RFC 1952), one member or several. Does not
/// use zlib's gzread, which misses a missing checksum if a read ends exactly with the data.
class IdxBytes {
 public:
  explicit IdxBytes(const std::filesystem::path& path)
      : path_(path), file_{InputFile(path, "idx file").release()}, input_(kInputBytes) {
    is_plain_ = !refill() || input_[0] != kMagic || stream_.avail_in < 2 || input_[1] != 0x8B;
    constexpr int kWindowBits = 15 + 16;  // adding 16 selects the gzip format
    if (!is_plain_ && inflateInit2(&stream_, kWindowBits) != Z_OK) throw std::bad_alloc();
  }
  ~IdxBytes() { inflateEnd(&stream_); }  // no effect on an uninitialized stream
  IdxBytes(const IdxBytes&) = delete;
  IdxBytes& operator=(const IdxBytes&) = delete;

  /// Reads up to out.size() bytes; fewer only at the end of the data, or if is_cut().
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

  /// True if gzip data ended too early.
  [[nodiscard]] bool is_cut() const { return is_cut_; }

  [[nodiscard]] bool is_plain() const { return is_plain_; }

  [[noreturn]] void refuse(const std::string& why, const std::string& remedy = kRemedy) const {
    fail(ExitCode::kBadData, {"idx file", path_.string(), why, remedy});
  }

 private:
  struct OpenFile {
    int descriptor;
    ~OpenFile() { ::close(descriptor); }
  };
  static constexpr const char* kRemedy = "it is damaged or not an idx file";
  static constexpr std::size_t kInputBytes = std::size_t{1} << 17;
  static constexpr Bytef kMagic = 0x1F;

  /// Reads the next bytes of the file once all earlier ones are used. False at its end.
  bool refill() {
    ssize_t got = 0;
    do {
      got = ::read(file_.descriptor, input_.data(), input_.size());
    } while (got < 0 && errno == EINTR);
    if (got < 0) {
      fail(ExitCode::kInputOutput, {"reading idx file", path_.string(), std::strerror(errno),
                                    "check the disk and try again"});
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
      // Another member may follow, or zeros that pad the file to whole blocks.
      while ((stream_.avail_in > 0 || refill()) && *stream_.next_in == 0) {
        ++stream_.next_in;
        --stream_.avail_in;
      }
      is_at_end_ = stream_.avail_in == 0;
      if (!is_at_end_ && *stream_.next_in != kMagic) {
        refuse("its gzip data is followed by bytes that are no gzip data");
      }
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
  const auto* const found =
      std::ranges::find(kIdxTypes, number(magic[2]), &std::pair<unsigned, ElementType>::first);
  if (found == std::end(kIdxTypes))
    bytes.refuse(fmt::format("element type 0x{:02x} is unknown", number(magic[2])));
  const auto dims = static_cast<int>(number(magic[3]));
  if (dims < 1 || dims > kMaxIdxDims) {
    bytes.refuse(
        fmt::format("has {}, 1 to {} are allowed", counted(dims, "dimension"), kMaxIdxDims));
  }
  ArrayHeader header{
      .type = found->second, .big_endian = true, .dims = {}, .begin_bytes = 4 + 4 * dims};
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

/// The elements of a compressed file of `file_bytes`.
std::vector<std::byte> read_data(IdxBytes& bytes, const ArrayHeader& header,
                                 std::int64_t file_bytes) {
  const std::int64_t want = data_bytes(bytes, header);
  const auto refuse = [&](const std::string& holds) {
    bytes.refuse(
        fmt::format("its header says {} = {} bytes, it holds {}", shape_of(header), want, holds));
  };
  // Before anything is decompressed. Two bits stand for at most 258 bytes (RFC 1951, 3.2.5).
  if (constexpr std::int64_t kMaxPerByte = 1032; want / kMaxPerByte > file_bytes) {
    refuse(fmt::format("at most {}", kMaxPerByte * file_bytes));
  }
  require_free(want);
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
  // Asking for one more byte makes zlib check the end of the data.
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
      std::vector<std::byte> elements =
          read_data(bytes, header, InputFile(path, "idx file").size_bytes());
      return {path, std::move(header), std::move(elements)};
    }
    const std::int64_t want = data_bytes(bytes, header);
    auto file = std::make_shared<InputFile>(path, "idx file");
    if (const std::int64_t there = file->size_bytes() - header.begin_bytes; there != want) {
      bytes.refuse(
          fmt::format("its header says {} = {} bytes, it holds {}", shape_of(header), want, there));
    }
    return {path, std::move(header), std::move(file)};
  } catch (const std::bad_alloc&) {
    refuse_size("idx file", path);
  }
}

namespace {

constexpr std::size_t kMaxNpyDims = 64;              // NumPy's own limit
constexpr std::int64_t kMaxNpyHeaderBytes = 10'000;  // NumPy's own limit
constexpr std::string_view kMagic = "\x93NUMPY";
constexpr const char* kPlainTypes = "save it as whole numbers, float32 or float64";

[[noreturn]] void refuse_npy(const std::filesystem::path& path, const std::string& why,
                             const std::string& remedy = "it is damaged or not an npy file") {
  fail(ExitCode::kBadData, {"npy file", path.string(), why, remedy});
}

/// Text from a file made safe for a message: shortened, without control characters or trailing
/// spaces.
std::string shown(std::string_view text) {
  text = text.substr(0, text.find_last_not_of(" \n") + 1);
  std::string out(text.substr(0, 40));
  for (char& c : out) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text.size() > 40 ? out + "..." : out;
}

/// Parses the header's dictionary: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
class HeaderText {
 public:
  HeaderText(std::string_view text, const std::filesystem::path& path) : rest_(text), path_(path) {}

  /// Maps each key to its value's text: a string without its quotes, True or False, or the text
  /// between the parentheses of a tuple.
  std::map<std::string, std::string, std::less<>> read() {
    std::map<std::string, std::string, std::less<>> values;
    expect('{');
    while (!next_is('}')) {
      std::string key = quoted();
      expect(':');
      values.insert_or_assign(std::move(key), value());
      if (next_is('}')) break;
      expect(',');
    }
    expect('}');
    skip_space();
    if (!rest_.empty()) wrong("more after its dictionary");
    return values;
  }

 private:
  [[noreturn]] void wrong(const std::string& what) const {
    refuse_npy(path_, fmt::format("its header has {}", what));
  }
  /// And comments.
  void skip_space() {
    const auto skip_to = [this](std::size_t place) {
      rest_.remove_prefix(std::min(place, rest_.size()));
    };
    skip_to(rest_.find_first_not_of(" \t\r\n\f"));
    while (rest_.starts_with('#')) {
      skip_to(rest_.find('\n'));
      skip_to(rest_.find_first_not_of(" \t\r\n\f"));
    }
  }
  bool next_is(char c) {
    skip_space();
    return rest_.starts_with(c);
  }
  void expect(char c) {
    if (!next_is(c)) wrong(fmt::format("'{}' where '{}' belongs", shown(rest_.substr(0, 12)), c));
    rest_.remove_prefix(1);
  }
  /// The text up to the next `end`, which is skipped.
  std::string until(char end) {
    const std::size_t size = rest_.find(end);
    if (size == std::string_view::npos) wrong(fmt::format("no closing {}", end));
    std::string text(rest_.substr(0, size));
    rest_.remove_prefix(size + 1);
    return text;
  }
  /// With or without the prefix of Python 2's unicode strings.
  std::string quoted() {
    if (next_is('u') || next_is('U')) rest_.remove_prefix(1);
    const char quote = next_is('"') ? '"' : '\'';
    expect(quote);
    return until(quote);
  }
  /// The text up to the closing parenthesis, with a space for all space and comments in a place.
  std::string tuple() {
    std::string text;
    for (std::size_t size = rest_.size(); !next_is(')'); size = rest_.size()) {
      if (rest_.empty()) wrong("no closing )");
      if (rest_.size() < size) text += ' ';
      text += rest_.front();
      rest_.remove_prefix(1);
    }
    rest_.remove_prefix(1);
    return text;
  }
  std::string value() {
    for (const char start : {'\'', '"', 'u', 'U'}) {
      if (next_is(start)) return quoted();
    }
    if (next_is('(')) {
      rest_.remove_prefix(1);
      return tuple();
    }
    if (next_is('[')) refuse_npy(path_, "holds elements of a structured type", kPlainTypes);
    for (const std::string_view word : {"True", "False"}) {
      if (!rest_.starts_with(word)) continue;
      rest_.remove_prefix(word.size());
      return std::string(word);
    }
    wrong(fmt::format("'{}' where a value belongs", shown(rest_)));
  }

  std::string_view rest_;
  const std::filesystem::path& path_;
};

/// Parses "3, 4", "3," or an empty text. Python 2 wrote "3L, 4L".
std::vector<std::int64_t> dims_of(std::string_view text, const std::filesystem::path& path) {
  std::vector<std::int64_t> dims;
  const auto wrong = [&] {
    refuse_npy(path, fmt::format("its shape '({})' is not a tuple of whole numbers", shown(text)));
  };
  const char* at = text.data();
  const char* const end = at + text.size();
  const auto skip_space = [&] { at = std::find_if(at, end, [](char c) { return c != ' '; }); };
  for (skip_space(); at != end; skip_space()) {
    std::int64_t extent = 0;
    const auto [stop, error] = std::from_chars(at, end, extent);
    if (error == std::errc::result_out_of_range) {
      refuse_npy(path, fmt::format("its shape ({}) overflows", shown(text)));
    }
    if (error != std::errc() || extent < 0) wrong();
    dims.push_back(extent);
    at = stop;
    skip_space();
    if (at != end && *at == 'L') ++at;
    skip_space();
    if (at == end && dims.size() > 1) break;
    if (at == end || *at != ',') wrong();
    ++at;
  }
  if (dims.size() > kMaxNpyDims) {
    refuse_npy(path, fmt::format("has {} dimensions, {} are allowed", dims.size(), kMaxNpyDims));
  }
  return dims;
}

void set_type(std::string_view descr, ArrayHeader& header, const std::filesystem::path& path) {
  // NumPy's codes, which may follow a byte order, and its words, which may not.
  constexpr std::pair<std::string_view, ElementType> kNpyTypes[] = {
      {"u1", ElementType::kU8},         {"b1", ElementType::kU8},
      {"B", ElementType::kU8},          {"?", ElementType::kU8},
      {"bool", ElementType::kU8},       {"bool_", ElementType::kU8},
      {"uint8", ElementType::kU8},      {"ubyte", ElementType::kU8},
      {"u2", ElementType::kU16},        {"H", ElementType::kU16},
      {"uint16", ElementType::kU16},    {"ushort", ElementType::kU16},
      {"u4", ElementType::kU32},        {"I", ElementType::kU32},
      {"uint32", ElementType::kU32},    {"uintc", ElementType::kU32},
      {"u8", ElementType::kU64},        {"L", ElementType::kU64},
      {"Q", ElementType::kU64},         {"P", ElementType::kU64},
      {"N", ElementType::kU64},         {"uint64", ElementType::kU64},
      {"uint", ElementType::kU64},      {"ulong", ElementType::kU64},
      {"ulonglong", ElementType::kU64}, {"uintp", ElementType::kU64},
      {"i1", ElementType::kI8},         {"b", ElementType::kI8},
      {"int8", ElementType::kI8},       {"byte", ElementType::kI8},
      {"i2", ElementType::kI16},        {"h", ElementType::kI16},
      {"int16", ElementType::kI16},     {"short", ElementType::kI16},
      {"i4", ElementType::kI32},        {"i", ElementType::kI32},
      {"int32", ElementType::kI32},     {"intc", ElementType::kI32},
      {"i8", ElementType::kI64},        {"l", ElementType::kI64},
      {"q", ElementType::kI64},         {"p", ElementType::kI64},
      {"n", ElementType::kI64},         {"int64", ElementType::kI64},
      {"int", ElementType::kI64},       {"int_", ElementType::kI64},
      {"long", ElementType::kI64},      {"longlong", ElementType::kI64},
      {"intp", ElementType::kI64},      {"f2", ElementType::kF16},
      {"e", ElementType::kF16},         {"float16", ElementType::kF16},
      {"half", ElementType::kF16},      {"f4", ElementType::kF32},
      {"f", ElementType::kF32},         {"float32", ElementType::kF32},
      {"single", ElementType::kF32},    {"f8", ElementType::kF64},
      {"d", ElementType::kF64},         {"float64", ElementType::kF64},
      {"double", ElementType::kF64},    {"float", ElementType::kF64}};
  const char order = descr.empty() ? ' ' : descr.front();
  const bool has_order = std::string_view("<>|=").find(order) != std::string_view::npos;
  const std::string_view name = has_order ? descr.substr(1) : descr;
  const ElementType* const found = found_in(kNpyTypes, name);
  if (found == nullptr || (has_order && name.size() > 2)) {
    refuse_npy(path, fmt::format("holds elements of type '{}'", shown(descr)), kPlainTypes);
  }
  header.type = *found;
  // Without '<' or '>', the order is that of this machine.
  header.big_endian = order == '>' || (order != '<' && std::endian::native == std::endian::big);
}

/// Whether column-major elements have the same order as row-major ones.
bool is_in_either_order(const ArrayHeader& header) {
  const auto is_long = [](std::int64_t extent) { return extent > 1; };
  return std::ranges::count_if(header.dims, is_long) <= 1 || header.bytes() == 0;
}

/// Reads the length of the header, and leaves `file` at the header's start.
std::int64_t read_lengths(InputFile& file, const std::filesystem::path& path,
                          std::int64_t& begin_bytes) {
  std::array<char, 12> start{};
  const std::int64_t there = file.size_bytes();
  const auto take = [&](std::size_t first, std::size_t count) {
    if (there < static_cast<std::int64_t>(first + count)) {
      refuse_npy(path, fmt::format("too short: {}, its header needs {}", counted(there, "byte"),
                                   first + count));
    }
    file.read(std::as_writable_bytes(std::span(start).subspan(first, count)));
  };
  take(0, kMagic.size());
  if (std::string_view(start.data(), kMagic.size()) != kMagic) {
    refuse_npy(path, "does not start with \\x93NUMPY");
  }
  take(6, 2);
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(start[i]); };
  if (byte(6) < 1 || byte(6) > 3 || byte(7) != 0) {
    refuse_npy(path,
               fmt::format("its version {}.{} is unknown, 1.0 to 3.0 are known", byte(6), byte(7)),
               "save it with numpy.save");
  }
  const std::size_t width = byte(6) == 1 ? 2 : 4;
  take(8, width);
  std::int64_t header_bytes = 0;
  for (std::size_t i = width; i-- > 0;) header_bytes = header_bytes * 256 + byte(8 + i);
  begin_bytes = 8 + static_cast<std::int64_t>(width) + header_bytes;
  if (header_bytes > kMaxNpyHeaderBytes) {
    refuse_npy(path, fmt::format("states a header of {} bytes, {} are allowed", header_bytes,
                                 kMaxNpyHeaderBytes));
  }
  if (begin_bytes > there) {
    refuse_npy(path, fmt::format("states a header of {}, {} follow", counted(header_bytes, "byte"),
                                 there - 8 - static_cast<std::int64_t>(width)));
  }
  return header_bytes;
}

}  // namespace

ArrayHeader parse_npy_header(std::string_view text, const std::filesystem::path& path) {
  const auto values = HeaderText(text, path).read();
  constexpr std::string_view kKeys[] = {"descr", "fortran_order", "shape"};
  for (const std::string_view key : kKeys) {
    if (!values.contains(key)) refuse_npy(path, fmt::format("its header has no '{}'", key));
  }
  if (values.size() != std::size(kKeys)) {
    refuse_npy(path, fmt::format("its header has {} keys, 3 are known", values.size()));
  }
  ArrayHeader header;
  header.dims = dims_of(values.find("shape")->second, path);
  const std::string& order = values.find("fortran_order")->second;
  if (order != "False" && order != "True") {
    refuse_npy(path, fmt::format("its fortran_order is '{}', not True or False", shown(order)));
  }
  set_type(values.find("descr")->second, header, path);
  header.column_major = order == "True" && !is_in_either_order(header);
  return header;
}

namespace {

/// The elements of a column-major file, row-major.
std::vector<std::byte> rows_of_columns(const InputFile& file, const ArrayHeader& header,
                                       std::int64_t bytes) {
  require_free(bytes);
  const std::int64_t width = bytes_of(header.type);
  std::vector<std::byte> elements(static_cast<std::size_t>(bytes));
  std::vector<std::byte> column(static_cast<std::size_t>(header.rows() * width));
  for (std::int64_t number = 0; number < header.cols(); ++number) {
    file.read_at(header.begin_bytes + number * std::ssize(column), column);
    // Of the dimensions that make a row, the file has the first as the fastest.
    std::int64_t place = 0;
    std::int64_t rest = number;
    for (std::size_t d = 1; d < header.dims.size(); rest /= header.dims[d++]) {
      place = place * header.dims[d] + rest % header.dims[d];
    }
    for (std::int64_t row = 0; row < header.rows(); ++row) {
      std::memcpy(&elements[static_cast<std::size_t>((row * header.cols() + place) * width)],
                  &column[static_cast<std::size_t>(row * width)], static_cast<std::size_t>(width));
    }
  }
  return elements;
}

}  // namespace

ArrayFile open_npy(const std::filesystem::path& path) try {
  auto file = std::make_shared<InputFile>(path, "npy file");
  std::int64_t begin_bytes = 0;
  std::string text(static_cast<std::size_t>(read_lengths(*file, path, begin_bytes)), ' ');
  file->read(std::as_writable_bytes(std::span(text)));
  ArrayHeader header = parse_npy_header(text, path);
  header.begin_bytes = begin_bytes;
  const std::optional<std::int64_t> want = header.bytes();
  if (!want) refuse_npy(path, fmt::format("its size, {}, overflows", shape_of(header)));
  if (const std::int64_t there = file->size_bytes() - begin_bytes; there != *want) {
    refuse_npy(path, fmt::format("its header says {} = {} bytes, it holds {}", shape_of(header),
                                 *want, there));
  }
  if (header.column_major) {
    std::vector<std::byte> elements = rows_of_columns(*file, header, *want);
    return {path, std::move(header), std::move(elements)};
  }
  return {path, std::move(header), std::move(file)};
} catch (const std::bad_alloc&) {
  refuse_size("npy file", path);
}

}  // namespace barestep
