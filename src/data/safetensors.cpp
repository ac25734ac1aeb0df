#include "data/safetensors.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <iterator>
#include <memory>
#include <new>
#include <utility>

#include "core/error.h"
#include "core/input_file.h"
#include "core/output_file.h"
#include "core/units.h"
#include "data/safetensors_header.h"

namespace barestep {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

constexpr std::uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;
constexpr std::size_t kLengthBytes = sizeof(std::uint64_t);

[[noreturn]] void refuse_safetensors(const std::filesystem::path& path, const std::string& why) {
  fail(ExitCode::kBadData, {.what = "safetensors file",
                            .value = path.string(),
                            .why = why,
                            .remedy = "it is damaged or no safetensors file"});
}

/// The header's text; the file then stands at the first tensor.
std::string read_header(InputFile& file, const std::filesystem::path& path) {
  const auto file_bytes = static_cast<std::uint64_t>(file.size_bytes());
  if (file_bytes < kLengthBytes) {
    refuse_safetensors(path, fmt::format("too short: {}, it needs at least 8",
                                         counted(file.size_bytes(), "byte")));
  }
  std::uint64_t header_bytes = 0;
  file.read(std::as_writable_bytes(std::span(&header_bytes, 1)));
  if (header_bytes > kMaxSafetensorsHeaderBytes) {
    refuse_safetensors(path, fmt::format("states a header of {} bytes, {} are allowed",
                                         header_bytes, kMaxSafetensorsHeaderBytes));
  }
  if (header_bytes > file_bytes - kLengthBytes) {
    refuse_safetensors(path, fmt::format("states a header of {}, {} follow",
                                         counted(static_cast<std::int64_t>(header_bytes), "byte"),
                                         file_bytes - kLengthBytes));
  }
  std::string header(header_bytes, ' ');
  file.read(std::as_writable_bytes(std::span(header)));
  return header;
}

std::vector<SafetensorsEntry> read_entries(InputFile& file, const std::filesystem::path& path) {
  const std::string header = read_header(file, path);
  std::vector<SafetensorsEntry> entries;
  try {
    entries = parse_safetensors_header(header);
  } catch (const HeaderProblem& problem) {
    refuse_safetensors(path, "its header: " + problem.why);
  }
  const std::int64_t stated = entries.empty() ? 0 : entries.back().end_bytes;
  const std::int64_t there =
      file.size_bytes() - static_cast<std::int64_t>(kLengthBytes + header.size());
  if (stated != there) {
    refuse_safetensors(path, fmt::format("its tensors have {}, {} follow the header",
                                         counted(stated, "byte"), there));
  }
  return entries;
}

}  // namespace

void save_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors) {
  std::vector<const NamedTensor*> sorted;
  for (const NamedTensor& tensor : tensors) sorted.push_back(&tensor);
  std::sort(sorted.begin(), sorted.end(),
            [](const NamedTensor* a, const NamedTensor* b) { return a->name < b->name; });

  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  std::int64_t begin = 0;
  for (const NamedTensor* tensor : sorted) {
    std::int64_t size = 1;
    for (const std::int64_t extent : tensor->shape) size *= extent;
    BARESTEP_REQUIRE(size == static_cast<std::int64_t>(tensor->values.size()),
                     "the values of '" + tensor->name + "' do not fill its shape");
    BARESTEP_REQUIRE(!json.contains(tensor->name) && tensor->name != "__metadata__",
                     "'" + tensor->name + "' names two tensors or is reserved");
    const auto end = begin + static_cast<std::int64_t>(tensor->values.size_bytes());
    json[tensor->name] = {
        {"dtype", "F32"}, {"shape", tensor->shape}, {"data_offsets", {begin, end}}};
    begin = end;
  }
  std::string header = json.dump();
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const std::uint64_t header_bytes = header.size();

  std::vector<std::span<const std::byte>> parts = {std::as_bytes(std::span(&header_bytes, 1)),
                                                   std::as_bytes(std::span(header))};
  for (const NamedTensor* tensor : sorted) parts.push_back(std::as_bytes(tensor->values));
  replace_file(path, parts);
}

ArrayFile open_safetensors(const std::filesystem::path& path, std::string_view name) {
  constexpr std::pair<std::string_view, ElementType> kTypes[] = {
      {"U8", ElementType::kU8},   {"BOOL", ElementType::kU8}, {"I8", ElementType::kI8},
      {"I16", ElementType::kI16}, {"I32", ElementType::kI32}, {"I64", ElementType::kI64},
      {"F32", ElementType::kF32}, {"F64", ElementType::kF64}};
  auto file = std::make_shared<InputFile>(path, "safetensors file");
  const std::vector<SafetensorsEntry> entries = read_entries(*file, path);
  const auto entry = std::find_if(entries.begin(), entries.end(),
                                  [name](const auto& candidate) { return candidate.name == name; });
  if (entry == entries.end()) {
    std::vector<std::string_view> names;
    for (const SafetensorsEntry& there : entries) names.push_back(there.name);
    if (names.size() > 3) names.resize(3);
    fail(ExitCode::kBadData,
         {.what = "safetensors file",
          .value = path.string(),
          .why = names.empty()
                     ? fmt::format("has no tensor '{}', nor any other", name)
                     : fmt::format("has no tensor '{}', but {}{}", name, fmt::join(names, ", "),
                                   entries.size() > 3 ? ", ..." : ""),
          .remedy = "name the samples 'x' and their labels or targets 'y'"});
  }
  const auto* const type =
      std::find_if(std::begin(kTypes), std::end(kTypes),
                   [&](const auto& pair) { return pair.first == entry->dtype; });
  if (type == std::end(kTypes)) {
    fail(ExitCode::kBadData, {.what = "safetensors file",
                              .value = path.string(),
                              .why = fmt::format("tensor '{}' is {}", name, entry->dtype),
                              .remedy = "save it as U8, I8, I16, I32, I64, F32 or F64"});
  }
  const std::int64_t tensors_bytes = entries.back().end_bytes;
  ArrayHeader header{.type = type->second,
                     .big_endian = false,
                     .dims = entry->shape,
                     .begin_bytes = file->size_bytes() - tensors_bytes + entry->begin_bytes};
  return {path, std::move(header), std::move(file)};
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : path_(path) {
  try {
    InputFile file(path, "safetensors file");
    entries_ = read_entries(file, path);
    for (const SafetensorsEntry& entry : entries_) {
      const std::int64_t bytes = entry.end_bytes - entry.begin_bytes;
      if (entry.dtype != "F32") {
        file.skip(bytes);
        continue;
      }
      std::vector<float> values(static_cast<std::size_t>(bytes) / sizeof(float));
      file.read(std::as_writable_bytes(std::span(values)));
      values_.emplace(entry.name, std::move(values));
    }
  } catch (const std::bad_alloc&) {
    fail(ExitCode::kMemory, {.what = "safetensors file",
                             .value = path.string(),
                             .why = "does not fit into this machine's memory",
                             .remedy = "use a smaller model"});
  }
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  const auto entry =
      std::find_if(entries_.begin(), entries_.end(),
                   [name](const SafetensorsEntry& candidate) { return candidate.name == name; });
  return entry == entries_.end() ? nullptr : &*entry;
}

std::span<const float> SafetensorsFile::f32(std::string_view name) const {
  if (const auto found = values_.find(name); found != values_.end()) return found->second;
  const SafetensorsEntry* entry = find(name);
  const std::string why = entry == nullptr
                              ? fmt::format("has no tensor '{}'", name)
                              : fmt::format("tensor '{}' is {}, not F32", name, entry->dtype);
  fail(ExitCode::kBadData, {.what = "safetensors file",
                            .value = path_.string(),
                            .why = why,
                            .remedy = "save the weights again in F32 under the model's names"});
}

}  // namespace barestep
