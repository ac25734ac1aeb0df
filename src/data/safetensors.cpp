#include "data/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <limits>
#include <new>
#include <numeric>
#include <set>
#include <tuple>

#include "core/error.h"
#include "core/index.h"
#include "core/input_file.h"
#include "core/json_document.h"
#include "core/lookup.h"
#include "core/units.h"

namespace barestep {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
constexpr std::size_t kLengthBytes = sizeof(std::uint64_t);
constexpr const char* kDamaged = "it is damaged or not a safetensors file";

// The JSON header.

using Json = nlohmann::json;

constexpr std::size_t kMaxRank = 8;
constexpr std::size_t kMaxNameBytes = 512;

using Metadata = std::map<std::string, std::string, std::less<>>;

struct DtypeBits {
  std::string_view name;
  std::int64_t bits;
};
/// In the order in which the reference sorts tensors' types: by alignment, then as listed.
constexpr std::array kDtypes = {
    DtypeBits{"BOOL", 8},        DtypeBits{"F4", 4},          DtypeBits{"F6_E2M3", 6},
    DtypeBits{"F6_E3M2", 6},     DtypeBits{"U8", 8},          DtypeBits{"I8", 8},
    DtypeBits{"F8_E5M2", 8},     DtypeBits{"F8_E4M3", 8},     DtypeBits{"F8_E8M0", 8},
    DtypeBits{"F8_E4M3FNUZ", 8}, DtypeBits{"F8_E5M2FNUZ", 8}, DtypeBits{"I16", 16},
    DtypeBits{"U16", 16},        DtypeBits{"F16", 16},        DtypeBits{"BF16", 16},
    DtypeBits{"I32", 32},        DtypeBits{"U32", 32},        DtypeBits{"F32", 32},
    DtypeBits{"C64", 64},        DtypeBits{"F64", 64},        DtypeBits{"I64", 64},
    DtypeBits{"U64", 64},
};

/// kDtypes.end() for an unknown dtype.
const DtypeBits* find_dtype(std::string_view dtype) {
  return std::find_if(kDtypes.begin(), kDtypes.end(),
                      [dtype](const DtypeBits& candidate) { return candidate.name == dtype; });
}

/// 0 for an unknown dtype.
std::int64_t bits_of(std::string_view dtype) {
  const auto* const found = find_dtype(dtype);
  return found == kDtypes.end() ? 0 : found->bits;
}

/// A tensor as the header states it, whose shape, dtype and range agree.
SafetensorsEntry entry_of(const std::string& name, const JsonValue& stated) {
  if (name.size() > kMaxNameBytes) {
    stated.refuse(
        fmt::format("has a name of {} bytes, {} are allowed", name.size(), kMaxNameBytes));
  }
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  const JsonValue dtype = stated.at("dtype"), shape = stated.at("shape");
  const std::vector<JsonValue> offsets = stated.at("data_offsets").items(2);
  SafetensorsEntry entry{.name = name,
                         .dtype = dtype.text(),
                         .shape = {},
                         .begin_bytes = offsets[0].whole(0, kMax),
                         .end_bytes = offsets[1].whole(0, kMax)};
  for (const JsonValue& extent : shape.items()) entry.shape.push_back(extent.whole(0, kMax));
  if (entry.shape.size() > kMaxRank) {
    shape.refuse(fmt::format("has more than {} dimensions", kMaxRank));
  }
  std::int64_t bits = 1;
  bool overflows = false;
  for (const std::int64_t extent : entry.shape) {
    overflows = overflows || __builtin_mul_overflow(bits, extent, &bits);
  }
  if (bits_of(entry.dtype) == 0)
    dtype.refuse(fmt::format("is '{}', which is no type", entry.dtype));
  if (overflows || __builtin_mul_overflow(bits, bits_of(entry.dtype), &bits)) {
    shape.refuse(fmt::format("of {} overflows", entry.dtype));
  }
  if (bits % 8 != 0) {
    stated.refuse(fmt::format("has {} bits, which is not a whole number of bytes", bits));
  }
  if (entry.bytes() != bits / 8) {
    stated.refuse(
        fmt::format("has {} bytes, its shape and dtype need {}", entry.bytes(), bits / 8));
  }
  return entry;
}

struct Header {
  std::vector<SafetensorsEntry> entries;
  Metadata metadata;
};

/// The entries, sorted by their byte ranges, which are contiguous from byte 0.
Header parse_safetensors_header(std::string_view text, JsonSource source) {
  const JsonDocument document(text, std::move(source));
  const JsonValue root = document.root();
  // The parser skips it, but it is not JSON.
  if (text.starts_with("\xEF\xBB\xBF")) root.refuse("begins with a byte order mark");
  Header header;
  for (const auto& [name, value] : root.members()) {
    if (name != "__metadata__") {
      header.entries.push_back(entry_of(name, value));
    } else if (!value.is_null()) {
      for (const auto& [key, of_key] : value.members()) header.metadata[key] = of_key.exact_text();
    }
  }
  const auto place = [](const SafetensorsEntry& entry) {
    return std::tie(entry.begin_bytes, entry.end_bytes, entry.name);
  };
  std::ranges::sort(header.entries, {}, place);
  std::int64_t start = 0;
  for (const SafetensorsEntry& entry : header.entries) {
    if (entry.begin_bytes != start) {
      root.at(entry.name.c_str())
          .refuse(fmt::format(
              "has the data_offsets [{}, {}], which leave a hole or overlap: byte {} is next",
              entry.begin_bytes, entry.end_bytes, start));
    }
    start = entry.end_bytes;
  }
  return header;
}

// Checksums.

// The file's checksum follows the header's length and these first bytes of the header.
constexpr std::string_view kBeforeChecksum = R"({"__metadata__":{"checksum":")";
constexpr std::size_t kChecksumAt = kLengthBytes + kBeforeChecksum.size();
constexpr std::size_t kChecksumDigits = 32;

bool has_checksum(std::string_view head) {
  return head.substr(kLengthBytes, kBeforeChecksum.size()) == kBeforeChecksum &&
         head.size() > kChecksumAt + kChecksumDigits && head[kChecksumAt + kChecksumDigits] == '"';
}

std::string checksum_of_head(std::string head) {
  head.replace(kChecksumAt, kChecksumDigits, kChecksumDigits, '0');
  return hash_of_bytes(head);
}

/// The text of `checksums` in the metadata.
std::string text_of_checksums(std::span<const TensorForm> tensors,
                              std::vector<PieceChecksum> checksums) {
  std::ranges::sort(checksums, {}, [](const PieceChecksum& each) {
    return std::pair(each.tensor, each.first_byte);
  });
  Json json = Json::object();
  std::int64_t place = 0;
  for (auto piece = checksums.begin(); piece != checksums.end(); ++place) {
    const TensorForm& tensor = at(tensors, place);
    std::int64_t bytes = 0;
    Json pieces;
    for (; piece != checksums.end() && piece->tensor == place; ++piece) {
      BARESTEP_REQUIRE(piece->first_byte == bytes, "pieces neither overlap nor leave gaps");
      bytes += piece->bytes;
      const std::string hash(piece->hash.begin(), piece->hash.end());
      pieces.push_back({{"bytes", piece->bytes}, {"hash", hash}});
    }
    BARESTEP_REQUIRE(bytes == tensor.bytes && !pieces.empty(), "the pieces make up the tensors");
    json[tensor.name] = pieces.size() == 1 ? pieces[0]["hash"] : pieces;
  }
  BARESTEP_REQUIRE(place == std::ssize(tensors), "the pieces make up the tensors");
  return json.dump();
}

// The file.

[[noreturn]] void refuse_safetensors(const std::filesystem::path& path, const std::string& what,
                                     const std::string& why) {
  fail(ExitCode::kBadData, {what, path.string(), why, kDamaged});
}

/// Everything before the tensors.
std::string read_head(const InputFile& file, const std::filesystem::path& path,
                      const std::string& what) {
  const auto file_bytes = static_cast<std::uint64_t>(file.size_bytes());
  if (file_bytes < kLengthBytes) {
    refuse_safetensors(
        path, what,
        fmt::format("too short: {}, it needs at least 8", counted(file.size_bytes(), "byte")));
  }
  std::uint64_t header_bytes = 0;
  file.read_at(0, std::as_writable_bytes(std::span(&header_bytes, 1)));
  if (header_bytes > kMaxHeaderBytes) {
    refuse_safetensors(
        path, what,
        fmt::format("states a header of {} bytes, {} are allowed", header_bytes, kMaxHeaderBytes));
  }
  if (header_bytes > file_bytes - kLengthBytes) {
    refuse_safetensors(path, what,
                       fmt::format("states a header of {}, {} follow",
                                   counted(static_cast<std::int64_t>(header_bytes), "byte"),
                                   file_bytes - kLengthBytes));
  }
  std::string head(kLengthBytes + header_bytes, ' ');
  file.read_at(0, std::as_writable_bytes(std::span(head)));
  return head;
}

/// `"name":{...}`, the header's entry for a tensor whose bytes start at `begin`.
std::string member_of_header(const TensorForm& tensor, std::int64_t begin) {
  std::int64_t bits = bits_of(tensor.dtype);
  for (const std::int64_t extent : tensor.shape) bits *= extent;
  BARESTEP_REQUIRE(bits_of(tensor.dtype) != 0 && bits == 8 * tensor.bytes,
                   "the values of '" + tensor.name + "' do not fill its shape");
  const nlohmann::ordered_json stated = {{"dtype", tensor.dtype},
                                         {"shape", tensor.shape},
                                         {"data_offsets", {begin, begin + tensor.bytes}}};
  return Json(tensor.name).dump() + ":" + stated.dump();
}

}  // namespace

std::string difference_of(const std::optional<TensorForm>& stored, const TensorForm& expected) {
  if (!stored) return expected.name + " is missing";
  if (stored->dtype != expected.dtype) {
    return fmt::format("{} is {}, not {}", expected.name, stored->dtype, expected.dtype);
  }
  if (stored->shape == expected.shape) return "";
  return fmt::format("{} is [{}], not [{}]", expected.name, fmt::join(stored->shape, ", "),
                     fmt::join(expected.shape, ", "));
}

std::string text_of_differences(std::span<const std::string> differences) {
  constexpr std::size_t kMaxShown = 3;
  const auto shown = differences.first(std::min(kMaxShown, differences.size()));
  std::string text = fmt::format("{}", fmt::join(shown, ", "));
  if (shown.size() < differences.size()) {
    text += fmt::format(", and {} more", differences.size() - shown.size());
  }
  return text;
}

SafetensorsParts safetensors_parts(std::span<const TensorForm> tensors,
                                   const SafetensorsMetadata& metadata) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, [&](std::size_t a, std::size_t b) {
    const auto* const of_a = find_dtype(tensors[a].dtype);
    const auto* const of_b = find_dtype(tensors[b].dtype);
    return of_a != of_b ? of_a > of_b : tensors[a].name < tensors[b].name;
  });

  std::vector<std::string> members;
  if (!metadata.empty()) {
    nlohmann::ordered_json texts;
    for (const auto& [key, text] : metadata) texts[key] = text;
    members.push_back("\"__metadata__\":" + texts.dump());
  }
  SafetensorsParts parts{.head = {}, .offsets = std::vector<std::int64_t>(tensors.size())};
  std::set<std::string_view> names = {"__metadata__"};
  std::int64_t begin = 0;
  for (const std::size_t place : order) {
    const TensorForm& tensor = tensors[place];
    BARESTEP_REQUIRE(names.insert(tensor.name).second,
                     "'" + tensor.name + "' names two tensors or is reserved");
    members.push_back(member_of_header(tensor, begin));
    parts.offsets[place] = begin;
    begin += tensor.bytes;
  }
  std::string header = fmt::format("{{{}}}", fmt::join(members, ","));
  header.resize((header.size() + 7) / 8 * 8, ' ');
  BARESTEP_REQUIRE(header.size() <= kMaxHeaderBytes, "readers refuse longer headers");
  const std::uint64_t header_bytes = header.size();
  parts.head.resize(kLengthBytes);
  std::memcpy(parts.head.data(), &header_bytes, kLengthBytes);
  parts.head += header;
  for (std::int64_t& offset : parts.offsets) offset += std::ssize(parts.head);
  parts.file_bytes = std::ssize(parts.head) + begin;
  return parts;
}

PieceChecksum checksum_of(const TensorPiece& piece) {
  PieceChecksum checksum{piece.tensor, piece.first_byte, std::ssize(piece.bytes)};
  std::ranges::copy(hash_of_bytes(piece.bytes), checksum.hash.begin());
  return checksum;
}

SafetensorsParts checked_safetensors_parts(std::span<const TensorForm> tensors,
                                           const SafetensorsMetadata& metadata,
                                           std::vector<PieceChecksum> checksums) {
  SafetensorsMetadata all = {{"checksum", std::string(kChecksumDigits, '0')}};
  all.insert(all.end(), metadata.begin(), metadata.end());
  all.emplace_back("checksums", text_of_checksums(tensors, std::move(checksums)));
  SafetensorsParts parts = safetensors_parts(tensors, all);
  BARESTEP_REQUIRE(has_checksum(parts.head), "the checksum is the first of the metadata");
  parts.head.replace(kChecksumAt, kChecksumDigits, checksum_of_head(parts.head));
  return parts;
}

SafetensorsReader::SafetensorsReader(std::filesystem::path path, std::string what)
    : path_(std::move(path)),
      what_(std::move(what)),
      file_(std::make_shared<InputFile>(path_, what_)),
      head_(read_head(*file_, path_, what_)) {
  Header header =
      parse_safetensors_header(std::string_view(head_).substr(kLengthBytes),
                               {.what = what_, .name = path_.string(), .remedy = kDamaged});
  entries_ = std::move(header.entries);
  metadata_ = std::move(header.metadata);
  const std::int64_t stated = entries_.empty() ? 0 : entries_.back().end_bytes;
  const std::int64_t there = file_->size_bytes() - static_cast<std::int64_t>(head_.size());
  if (stated != there) {
    refuse_safetensors(
        path_, what_,
        fmt::format("its tensors have {}, {} follow the header", counted(stated, "byte"), there));
  }
  read_checksums();
}

void SafetensorsReader::read_checksums() {
  const auto found = metadata_.find("checksums");
  const auto format = metadata_.find("format");
  const bool is_ours = found != metadata_.end() ||
                       (format != metadata_.end() && format->second.starts_with("barestep "));
  if (!has_checksums()) {
    if (is_ours) refuse("its header was changed", "use the original");
    return;
  }
  if (checksum_of_head(head_) != head_.substr(kChecksumAt, kChecksumDigits)) {
    refuse("its header has a wrong checksum");
  }
  if (found == metadata_.end()) refuse("has no checksums");
  const JsonDocument checksums(
      found->second,
      {.what = what_, .name = path_.string(), .remedy = "it is damaged; use another one"});
  for (const SafetensorsEntry& entry : entries_) {
    const JsonValue stated = checksums.root().at(entry.name.c_str());
    std::vector<Piece>& pieces = pieces_[entry.name];
    if (!stated.is_array()) {
      pieces.push_back({entry.bytes(), stated.text()});
      continue;
    }
    std::int64_t bytes = 0;
    for (const JsonValue& piece : stated.items()) {
      pieces.push_back(
          {piece.at("bytes").whole(0, entry.bytes() - bytes), piece.at("hash").text()});
      bytes += pieces.back().bytes;
    }
    if (bytes != entry.bytes()) stated.refuse("is not of the whole tensor");
  }
}

bool SafetensorsReader::has_checksums() const {
  return has_checksum(head_);
}

void SafetensorsReader::refuse(const std::string& why, const std::string& remedy) const {
  fail(ExitCode::kBadData, {what_, path_.string(), why, remedy});
}

void SafetensorsReader::refuse_tensor(const SafetensorsEntry& entry) const {
  refuse(fmt::format("tensor '{}' has a wrong checksum", entry.name));
}

const SafetensorsEntry* SafetensorsReader::find(std::string_view name) const {
  const auto entry =
      std::find_if(entries_.begin(), entries_.end(),
                   [name](const SafetensorsEntry& candidate) { return candidate.name == name; });
  return entry == entries_.end() ? nullptr : &*entry;
}

void SafetensorsReader::read(const SafetensorsEntry& entry, std::span<std::byte> out) const {
  BARESTEP_REQUIRE(std::ssize(out) == entry.bytes(), "a tensor is read as a whole");
  file_->read_at(offset_of(entry), out);
  std::span<const std::byte> rest = out;
  for (const Piece& piece : pieces_of(entry)) {
    const auto size = static_cast<std::size_t>(piece.bytes);
    if (hash_of_bytes(rest.first(size)) != piece.hash) refuse_tensor(entry);
    rest = rest.subspan(size);
  }
}

std::span<const SafetensorsReader::Piece> SafetensorsReader::pieces_of(
    const SafetensorsEntry& entry) const {
  const auto found = pieces_.find(entry.name);
  return found == pieces_.end() ? std::span<const Piece>() : found->second;
}

bool SafetensorsReader::is_whole(const SafetensorsEntry& entry) const {
  constexpr std::int64_t kMaxBytes = std::int64_t{1} << 20;
  std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(entry.bytes(), kMaxBytes)));
  std::int64_t next = offset_of(entry);
  for (const Piece& piece : pieces_of(entry)) {
    ByteHash hash;
    for (const std::int64_t end = next + piece.bytes; next < end;) {
      const auto bytes =
          std::span(buffer).first(static_cast<std::size_t>(std::min(end - next, kMaxBytes)));
      file_->read_at(next, bytes);
      hash.add(bytes);
      next += std::ssize(bytes);
    }
    if (hash.text() != piece.hash) return false;
  }
  return true;
}

void SafetensorsReader::require_whole(const SafetensorsEntry& entry) const {
  if (!is_whole(entry)) refuse_tensor(entry);
}

ArrayFile open_safetensors(const std::filesystem::path& path, std::string_view name) {
  constexpr std::pair<std::string_view, ElementType> kTypes[] = {
      {"U8", ElementType::kU8},   {"BOOL", ElementType::kU8},   {"U16", ElementType::kU16},
      {"U32", ElementType::kU32}, {"U64", ElementType::kU64},   {"I8", ElementType::kI8},
      {"I16", ElementType::kI16}, {"I32", ElementType::kI32},   {"I64", ElementType::kI64},
      {"F16", ElementType::kF16}, {"BF16", ElementType::kBF16}, {"F32", ElementType::kF32},
      {"F64", ElementType::kF64}};
  const SafetensorsReader reader(path);
  const std::span<const SafetensorsEntry> entries = reader.tensors();
  const SafetensorsEntry* const entry = reader.find(name);
  if (entry == nullptr) {
    std::vector<std::string_view> names;
    for (const SafetensorsEntry& there : entries) names.push_back(there.name);
    if (names.size() > 3) names.resize(3);
    fail(ExitCode::kBadData,
         {"safetensors file", path.string(),
          names.empty() ? fmt::format("has no tensor '{}', nor any other", name)
                        : fmt::format("has no tensor '{}', but {}{}", name, fmt::join(names, ", "),
                                      entries.size() > 3 ? ", ..." : ""),
          "name the samples 'x' and their labels or targets 'y'"});
  }
  const ElementType* const type = found_in(kTypes, entry->dtype);
  if (type == nullptr) {
    fail(ExitCode::kBadData,
         {"safetensors file", path.string(), fmt::format("tensor '{}' is {}", name, entry->dtype),
          "save it as whole numbers, F32 or F64"});
  }
  ArrayHeader header{
      .type = *type,
      .big_endian = false,
      .dims = entry->shape,
      .begin_bytes = static_cast<std::int64_t>(reader.head().size()) + entry->begin_bytes};
  reader.require_whole(*entry);
  return {path, std::move(header), reader.file()};
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) try
    : path_(path), reader_(path) {
  for (const SafetensorsEntry& entry : tensors()) {
    if (entry.dtype != "F32") {
      reader_.require_whole(entry);
      continue;
    }
    std::vector<float> values(static_cast<std::size_t>(entry.bytes()) / sizeof(float));
    reader_.read(entry, std::as_writable_bytes(std::span(values)));
    values_.emplace(entry.name, std::move(values));
  }
} catch (const std::bad_alloc&) {
  fail(ExitCode::kMemory, {"safetensors file", path.string(),
                           "does not fit into this machine's memory", "use a smaller model"});
}

std::span<const float> SafetensorsFile::f32(std::string_view name) const {
  if (const auto found = values_.find(name); found != values_.end()) return found->second;
  const SafetensorsEntry* const entry = find(name);
  const std::string why = entry == nullptr
                              ? fmt::format("has no tensor '{}'", name)
                              : fmt::format("tensor '{}' is {}, not F32", name, entry->dtype);
  fail(ExitCode::kBadData, {"safetensors file", path_.string(), why,
                            "save the weights again in F32 under the model's names"});
}

}  // namespace barestep
