#include "data/checkpoint_file.h"

#include <fmt/format.h>

#include <charconv>
#include <new>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/error.h"

namespace barestep {
namespace {

constexpr const char* kCheckpoint = "checkpoint";
constexpr std::string_view kFormat = "barestep checkpoint 1";

[[noreturn]] void refuse_checkpoint(const std::filesystem::path& path, const std::string& why,
                                    const std::string& remedy = "it is damaged; use another one") {
  fail(ExitCode::kBadData, {kCheckpoint, path.string(), why, remedy});
}

void require_format(const SafetensorsReader& file, const std::filesystem::path& path) {
  const auto found = file.metadata().find("format");
  const std::string_view format =
      found == file.metadata().end() ? "" : std::string_view(found->second);
  if (!file.has_checksums() || !format.starts_with("barestep ")) {
    refuse_checkpoint(path, "is a safetensors file, but not a checkpoint",
                      "name a file that --checkpoint has written");
  }
  if (format != kFormat) {
    refuse_checkpoint(path, fmt::format("its format is '{}', not '{}'", format, kFormat),
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

SafetensorsParts checkpoint_parts(const CheckpointForm& form,
                                  std::vector<PieceChecksum> checksums) {
  return checked_safetensors_parts(form.tensors,
                                   {{"format", std::string(kFormat)},
                                    {"step", std::to_string(form.step)},
                                    {"state", form.state}},
                                   std::move(checksums));
}

CheckpointReader::CheckpointReader(const std::filesystem::path& path) : file_(path, kCheckpoint) {
  require_format(file_, path);
  const auto text_of = [&](const char* key) {
    const auto found = file_.metadata().find(key);
    if (found == file_.metadata().end()) refuse_checkpoint(path, fmt::format("has no {}", key));
    return found->second;
  };
  step_ = step_of(text_of("step"));
  if (step_ < 0) refuse_checkpoint(path, "its step is not a number of steps");
  state_ = text_of("state");
}

std::vector<std::byte> CheckpointReader::read(const SafetensorsEntry& entry) const {
  std::vector<std::byte> bytes(static_cast<std::size_t>(entry.bytes()));
  file_.read(entry, bytes);
  return bytes;
}

void CheckpointReader::require_whole() const {
  for (const SafetensorsEntry& entry : tensors()) file_.require_whole(entry);
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
    fail(ExitCode::kMemory, {kCheckpoint, path.string(), "does not fit into this machine's memory",
                             "use a machine with more memory"});
  }
}

}  // namespace barestep
