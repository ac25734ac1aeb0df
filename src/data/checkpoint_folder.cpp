#include "data/checkpoint_folder.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>

#include "core/error.h"
#include "core/output_file.h"

namespace barestep {
namespace {
std::vector<std::filesystem::path> files_in(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> all;
  std::error_code e;
  for (const auto& x : std::filesystem::directory_iterator(folder, e))
    if (x.path().filename().string().starts_with("step-")) all.push_back(x.path());
  std::sort(all.rbegin(), all.rend());
  return all;
}
}  // namespace
CheckpointFolder::CheckpointFolder(std::filesystem::path folder, int keep)
    : folder_((make_folder(folder), std::move(folder))), keep_(keep), lock_(folder_, "--checkpoint") {}
void CheckpointFolder::write(const CheckpointImage& image) {
  make_folder(folder_);
  nlohmann::json h = {{"state", image.state}, {"step", image.step}, {"t", nlohmann::json::array()}};
  for (const auto& t : image.tensors)
    h["t"].push_back({{"n", t.name}, {"d", t.dtype}, {"s", t.shape}, {"b", t.bytes.size()}});
  const std::string text = h.dump() + "\n";
  std::vector<std::span<const std::byte>> parts = {std::as_bytes(std::span(text))};
  for (const auto& t : image.tensors) parts.push_back(t.bytes);
  replace_file(folder_ / fmt::format("step-{:09}.safetensors", image.step), parts);
  auto all = files_in(folder_);
  for (std::size_t i = static_cast<std::size_t>(keep_); i < all.size(); ++i)
    std::filesystem::remove(all[i]);
}
std::vector<std::int64_t> checkpoint_steps(const std::filesystem::path& folder) {
  std::vector<std::int64_t> steps;
  for (const auto& f : files_in(folder)) steps.push_back(std::stoll(f.filename().string().substr(5)));
  std::sort(steps.begin(), steps.end());
  return steps;
}
std::optional<FoundCheckpoint> newest_whole_checkpoint(
    const std::filesystem::path& folder_,
    const std::function<void(const std::string& line)>& skipped) {
  const auto all = files_in(folder_);
  for (const auto& f : all) {
    try {
      return FoundCheckpoint{f, read_checkpoint(f)};
    } catch (const Error& e) {
      skipped(e.what());
    }
  }
  if (all.empty()) return std::nullopt;
  fail(ExitCode::kBadData, {.what = "--resume",
                            .value = folder_.string(),
                            .why = "holds no whole checkpoint",
                            .remedy = "x"});
}
CheckpointImage read_checkpoint(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::string line;
  if (!in)
    fail(ExitCode::kNoInput,
         {.what = "checkpoint", .value = file.string(), .why = "cannot be read"});
  std::getline(in, line);
  try {
    const auto h = nlohmann::json::parse(line);
    CheckpointImage image{.step = h["step"], .state = h["state"], .tensors = {}};
    for (const auto& t : h["t"]) {
      auto& made = image.tensors.emplace_back();
      made.name = t["n"];
      made.dtype = t["d"];
      made.shape = t["s"].get<std::vector<std::int64_t>>();
      made.bytes.resize(t["b"]);
      in.read(reinterpret_cast<char*>(made.bytes.data()),
              static_cast<std::streamsize>(made.bytes.size()));
    }
    if (!in) throw std::runtime_error("short");
    return image;
  } catch (const std::exception& e) {
    fail(ExitCode::kBadData, {.what = "checkpoint", .value = file.string(), .why = "bad"});
  }
}
}  // namespace barestep
