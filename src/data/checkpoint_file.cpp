#include "data/checkpoint_file.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <new>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "core/index.h"
#include "core/input_file.h"
#include "core/json_document.h"

namespace barestep {
namespace {

constexpr const char* kCheckpoint = "checkpoint";
constexpr std::string_view kFormat = "barestep checkpoint 1";

// The checksum follows the header's length and these first bytes of every header.
constexpr std::string_view kBeforeChecksum = R"({"__metadata__":{"checksum":")";
constexpr std::size_t kChecksumAt = sizeof(std::uint64_t) + kBeforeChecksum.size();
constexpr std::size_t kChecksumDigits = 32;

[[noreturn]] void refuse_checkpoint(const std::filesystem::path& path, const std::string& why,
                                    const std::string& remedy = "it is damaged; use another one") {
  fail(ExitCode::kBadData,
       {.what = kCheckpoint, .value = path.string(), .why = why, .remedy = remedy});
}

bool has_checksum(const std::string& head) {
  const auto begin = sizeof(std::uint64_t);
  return std::string_view(head).substr(begin, kBeforeChecksum.size()) == kBeforeChecksum &&
         head.size() > kChecksumAt + kChecksumDigits && head[kChecksumAt + kChecksumDigits] == '"';
}

std::string checksum_of_head(std::string head) {
  head.replace(kChecksumAt, kChecksumDigits, kChecksumDigits, '0');
  return hash_of_bytes(head);
}

void require_whole_head(const SafetensorsReader& file, const std::filesystem::path& path) {
  const auto format = file.metadata().find("format");
  const bool is_ours = format != file.metadata().end() && format->second == kFormat;
  if (!has_checksum(file.head())) {
    if (is_ours) refuse_checkpoint(path, "its header was changed", "use the original");
    refuse_checkpoint(path, "is a safetensors file, but not a checkpoint",
                      "name a file that --checkpoint has written");
  }
  if (checksum_of_head(file.head()) != file.head().substr(kChecksumAt, kChecksumDigits)) {
    refuse_checkpoint(path, "its header has a wrong checksum");
  }
  if (!is_ours) {
    refuse_checkpoint(path,
                      fmt::format("its format is '{}', not '{}'",
                                  format == file.metadata().end() ? "" : format->second, kFormat),
                      "use the version of barestep that wrote it");
  }
}

/// -1 if the text is not a number of steps.
std::int64_t step_of(const std::string& text) {
  std::int64_t step = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), step);
  return error == std::errc() && end == text.data() + text.size() ? step : -1;
}

}  // namespace

PieceChecksum checksum_of(const CheckpointPiece& piece) {
  PieceChecksum checksum{piece.tensor, piece.first_byte, std::ssize(piece.bytes)};
  std::ranges::copy(hash_of_bytes(piece.bytes), checksum.hash.begin());
  return checksum;
}

SafetensorsParts checkpoint_parts(const CheckpointForm& form,
                                  std::vector<PieceChecksum> checksums) {
  std::ranges::sort(checksums, {}, [](const PieceChecksum& each) {
    return std::pair(each.tensor, each.first_byte);
  });
  nlohmann::json json = nlohmann::json::object();
  std::int64_t place = 0;
  for (auto piece = checksums.begin(); piece != checksums.end(); ++place) {
    const TensorForm& tensor = at(form.tensors, place);
    std::int64_t bytes = 0;
    nlohmann::json pieces;
    for (; piece != checksums.end() && piece->tensor == place; ++piece) {
      BARESTEP_REQUIRE(piece->first_byte == bytes, "pieces neither overlap nor leave gaps");
      bytes += piece->bytes;
      const std::string hash(piece->hash.begin(), piece->hash.end());
      pieces.push_back({{"bytes", piece->bytes}, {"hash", hash}});
    }
    BARESTEP_REQUIRE(bytes == tensor.bytes && !pieces.empty(), "the pieces make up the tensors");
    json[tensor.name] = pieces.size() == 1 ? pieces[0]["hash"] : pieces;
  }
  BARESTEP_REQUIRE(place == std::ssize(form.tensors), "the pieces make up the tensors");
  SafetensorsParts parts =
      safetensors_parts(form.tensors, {{"checksum", std::string(kChecksumDigits, '0')},
                                       {"format", std::string(kFormat)},
                                       {"step", std::to_string(form.step)},
                                       {"state", form.state},
                                       {"checksums", json.dump()}});
  BARESTEP_REQUIRE(has_checksum(parts.head), "the checksum is the first of the metadata");
  parts.head.replace(kChecksumAt, kChecksumDigits, checksum_of_head(parts.head));
  return parts;
}

CheckpointReader::CheckpointReader(const std::filesystem::path& path)
    : path_(path), file_(path, kCheckpoint) {
  require_whole_head(file_, path);
  const auto text_of = [&](const char* key) {
    const auto found = file_.metadata().find(key);
    if (found == file_.metadata().end()) refuse_checkpoint(path, fmt::format("has no {}", key));
    return found->second;
  };
  step_ = step_of(text_of("step"));
  if (step_ < 0) refuse_checkpoint(path, "its step is not a number of steps");
  state_ = text_of("state");
  const JsonDocument checksums(
      text_of("checksums"),
      {.what = kCheckpoint, .name = path.string(), .remedy = "it is damaged; use another one"});
  for (const SafetensorsEntry& entry : file_.tensors()) {
    pieces_.emplace(entry.name, pieces_of(entry, checksums.root().at(entry.name.c_str())));
  }
}

std::vector<CheckpointReader::Piece> CheckpointReader::pieces_of(const SafetensorsEntry& entry,
                                                                 const JsonValue& checksum) {
  if (!checksum.is_array()) return {{entry.bytes(), checksum.text()}};
  std::vector<Piece> pieces;
  std::int64_t bytes = 0;
  for (const JsonValue& piece : checksum.items()) {
    pieces.push_back({piece.at("bytes").whole(0, entry.bytes() - bytes), piece.at("hash").text()});
    bytes += pieces.back().bytes;
  }
  if (bytes != entry.bytes()) checksum.refuse("is not of the whole tensor");
  return pieces;
}

std::vector<std::byte> CheckpointReader::read(const SafetensorsEntry& entry) const {
  std::vector<std::byte> bytes(static_cast<std::size_t>(entry.bytes()));
  file_.read(entry, 0, bytes);
  std::span<const std::byte> rest = bytes;
  for (const Piece& piece : pieces_.find(entry.name)->second) {
    const auto size = static_cast<std::size_t>(piece.bytes);
    if (hash_of_bytes(rest.first(size)) != piece.hash) refuse(entry);
    rest = rest.subspan(size);
  }
  return bytes;
}

bool CheckpointReader::is_whole(const SafetensorsEntry& entry) const {
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 20;
  std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(entry.bytes(), kMostBytes)));
  std::int64_t first = 0;
  for (const Piece& piece : pieces_.find(entry.name)->second) {
    ByteHash hash;
    for (const std::int64_t end = first + piece.bytes; first < end;) {
      const auto bytes =
          std::span(buffer).first(static_cast<std::size_t>(std::min(end - first, kMostBytes)));
      file_.read(entry, first, bytes);
      hash.add(bytes);
      first += std::ssize(bytes);
    }
    if (hash.text() != piece.hash) return false;
  }
  return true;
}

void CheckpointReader::require_whole() const {
  for (const SafetensorsEntry& entry : tensors()) {
    if (!is_whole(entry)) refuse(entry);
  }
}

void CheckpointReader::refuse(const SafetensorsEntry& entry) const {
  refuse_checkpoint(path_, fmt::format("tensor '{}' has a wrong checksum", entry.name));
}

CheckpointImage read_checkpoint(const std::filesystem::path& path) {
  try {
    const CheckpointReader file(path);
    CheckpointImage image{.step = file.step(), .state = file.state(), .tensors = {}};
    for (const SafetensorsEntry& entry : file.tensors()) {
      image.tensors.push_back({entry.name, entry.dtype, entry.shape, file.read(entry)});
    }
    return image;
  } catch (const std::bad_alloc&) {
    fail(ExitCode::kMemory, {.what = kCheckpoint,
                             .value = path.string(),
                             .why = "does not fit into this machine's memory",
                             .remedy = "use a machine with more memory"});
  }
}

}  // namespace barestep
