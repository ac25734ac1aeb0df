#include "data/checkpoint_file.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <new>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "core/input_file.h"
#include "core/json_document.h"

namespace barestep {
namespace {

constexpr const char* kCheckpoint = "checkpoint";
constexpr std::string_view kFormat = "barestep checkpoint 1";

// The checksum of the head stands behind the header's length and what every header begins with.
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

std::string checksum_of(std::string head) {
  head.replace(kChecksumAt, kChecksumDigits, kChecksumDigits, '0');
  return hash_of_bytes(head);
}

void require_whole_head(const SafetensorsReader& file, const std::filesystem::path& path) {
  const auto format = file.metadata().find("format");
  const bool is_ours = format != file.metadata().end() && format->second == kFormat;
  if (!has_checksum(file.head())) {
    if (is_ours) refuse_checkpoint(path, "its header was changed", "use the original");
    refuse_checkpoint(path, "is a safetensors file, but no checkpoint",
                      "name a file that --checkpoint has written");
  }
  if (checksum_of(file.head()) != file.head().substr(kChecksumAt, kChecksumDigits)) {
    refuse_checkpoint(path, "its header has a wrong checksum");
  }
  if (!is_ours) {
    refuse_checkpoint(path,
                      fmt::format("its format is '{}', not '{}'",
                                  format == file.metadata().end() ? "" : format->second, kFormat),
                      "use the version of barestep that wrote it");
  }
}

/// -1 for what is no number of steps.
std::int64_t step_of(const std::string& text) {
  std::int64_t step = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), step);
  return error == std::errc() && end == text.data() + text.size() ? step : -1;
}

}  // namespace

SafetensorsParts checkpoint_parts(const CheckpointImage& image) {
  std::vector<TensorBytes> tensors;
  nlohmann::json checksums = nlohmann::json::object();
  for (const StoredTensor& tensor : image.tensors) {
    tensors.push_back({tensor.name, tensor.dtype, tensor.shape, tensor.bytes});
    checksums[tensor.name] = hash_of_bytes(tensor.bytes);
  }
  SafetensorsParts parts =
      safetensors_parts(tensors, {{"checksum", std::string(kChecksumDigits, '0')},
                                  {"format", std::string(kFormat)},
                                  {"step", std::to_string(image.step)},
                                  {"state", image.state},
                                  {"checksums", checksums.dump()}});
  BARESTEP_REQUIRE(has_checksum(parts.head), "the checksum is the first of the metadata");
  parts.head.replace(kChecksumAt, kChecksumDigits, checksum_of(parts.head));
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
  if (step_ < 0) refuse_checkpoint(path, "its step is no number of steps");
  state_ = text_of("state");
  const JsonDocument checksums(
      text_of("checksums"),
      {.what = kCheckpoint, .name = path.string(), .remedy = "it is damaged; use another one"});
  for (const SafetensorsEntry& entry : file_.tensors()) {
    checksums_.emplace(entry.name, checksums.root().at(entry.name.c_str()).text());
  }
}

std::vector<std::byte> CheckpointReader::read(const SafetensorsEntry& entry) const {
  std::vector<std::byte> bytes(static_cast<std::size_t>(entry.bytes()));
  file_.read(entry, 0, bytes);
  if (hash_of_bytes(bytes) != checksums_.find(entry.name)->second) refuse(entry);
  return bytes;
}

bool CheckpointReader::is_whole(const SafetensorsEntry& entry) const {
  constexpr std::int64_t kPieceBytes = std::int64_t{1} << 20;
  std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(entry.bytes(), kPieceBytes)));
  ByteHash hash;
  for (std::int64_t first = 0; first < entry.bytes(); first += kPieceBytes) {
    const auto piece = std::span(buffer).first(
        static_cast<std::size_t>(std::min(entry.bytes() - first, kPieceBytes)));
    file_.read(entry, first, piece);
    hash.add(piece);
  }
  return hash.text() == checksums_.find(entry.name)->second;
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
                             .remedy = "use a machine with more of it"});
  }
}

}  // namespace barestep
