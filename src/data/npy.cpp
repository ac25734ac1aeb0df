#include "data/npy.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/units.h"

namespace barestep {
namespace {

constexpr std::size_t kMaxNpyDims = 8;
constexpr std::int64_t kMaxNpyHeaderBytes = 10'000;  // NumPy's own limit
constexpr std::string_view kMagic = "\x93NUMPY";
constexpr const char* kPlainTypes =
    "save it as uint8, int8, int16, int32, int64, float32 or float64";

[[noreturn]] void refuse_npy(const std::filesystem::path& path, const std::string& why,
                             const std::string& remedy = "it is damaged or no npy file") {
  fail(ExitCode::kBadData,
       {.what = "npy file", .value = path.string(), .why = why, .remedy = remedy});
}

/// Text from a file, so that it can stand in a message: cut short, without control characters and
/// the spaces at its end.
std::string shown(std::string_view text) {
  text = text.substr(0, text.find_last_not_of(" \n") + 1);
  std::string out(text.substr(0, 40));
  for (char& c : out) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text.size() > 40 ? out + "..." : out;
}

/// The header's dictionary: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
class HeaderText {
 public:
  HeaderText(std::string_view text, const std::filesystem::path& path) : rest_(text), path_(path) {}

  /// Each key with its value's text: a string without its quotes, True or False, or what stands
  /// between the parentheses of a tuple.
  std::map<std::string, std::string, std::less<>> read() {
    std::map<std::string, std::string, std::less<>> values;
    expect('{');
    while (!next_is('}')) {
      std::string key = quoted();
      expect(':');
      if (!values.emplace(key, value()).second) wrong(fmt::format("'{}' twice", shown(key)));
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
  void skip_space() {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t\r\n\f"), rest_.size()));
  }
  bool next_is(char c) {
    skip_space();
    return rest_.starts_with(c);
  }
  void expect(char c) {
    if (!next_is(c)) wrong(fmt::format("'{}' where '{}' belongs", shown(rest_.substr(0, 12)), c));
    rest_.remove_prefix(1);
  }
  /// What stands before the next `end`, which is skipped.
  std::string until(char end) {
    const std::size_t size = rest_.find(end);
    if (size == std::string_view::npos) wrong(fmt::format("no closing {}", end));
    std::string text(rest_.substr(0, size));
    rest_.remove_prefix(size + 1);
    return text;
  }
  std::string quoted() {
    const char quote = next_is('"') ? '"' : '\'';
    expect(quote);
    return until(quote);
  }
  std::string value() {
    if (next_is('\'') || next_is('"')) return quoted();
    if (next_is('(')) {
      rest_.remove_prefix(1);
      return until(')');
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

/// "3, 4" or "3," or nothing at all.
std::vector<std::int64_t> dims_of(std::string_view text, const std::filesystem::path& path) {
  std::vector<std::int64_t> dims;
  const auto wrong = [&] {
    refuse_npy(path, fmt::format("its shape '({})' is no tuple of whole numbers", shown(text)));
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
  constexpr std::pair<std::string_view, ElementType> kNpyTypes[] = {
      {"u1", ElementType::kU8},  {"b1", ElementType::kU8},  {"i1", ElementType::kI8},
      {"i2", ElementType::kI16}, {"i4", ElementType::kI32}, {"i8", ElementType::kI64},
      {"f4", ElementType::kF32}, {"f8", ElementType::kF64}};
  // '=' is the writer's own order, which NumPy never writes.
  const bool has_order =
      !descr.empty() && std::string_view("<>|").find(descr.front()) != std::string_view::npos;
  for (const auto& [name, type] : kNpyTypes) {
    if (!has_order || descr.substr(1) != name) continue;
    if (descr.front() == '|' && bytes_of(type) > 1) break;
    header.type = type;
    header.big_endian = descr.front() == '>';
    return;
  }
  refuse_npy(path, fmt::format("holds elements of type '{}'", shown(descr)), kPlainTypes);
}

/// The length of the header, behind which `file` stands then.
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
  if (order == "True") {
    refuse_npy(path, "is column-major (fortran_order is True)",
               "save numpy.ascontiguousarray() of the array");
  }
  if (order != "False") {
    refuse_npy(path, fmt::format("its fortran_order is '{}', not True or False", shown(order)));
  }
  set_type(values.find("descr")->second, header, path);
  return header;
}

ArrayFile open_npy(const std::filesystem::path& path) {
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
  return {path, std::move(header), std::move(file)};
}

}  // namespace barestep
