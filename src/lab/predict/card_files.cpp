#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/input_file.h"
#include "lab/predict/machine_card.h"

namespace barestep {
namespace {

constexpr std::int64_t kMaxCardBytes = std::int64_t{16} << 20;

std::filesystem::path cards_folder() {
  return installed_file(BARESTEP_LAB, "cards");
}

std::filesystem::path file_of_card(const std::string& name) {
  return cards_folder() / (name + ".json");
}

}  // namespace

std::vector<std::string> card_names() {
  return installed_names(cards_folder(), ".json");
}

std::filesystem::path card_file(const std::string& name_or_file) {
  if (name_or_file.ends_with(".json")) return name_or_file;
  std::filesystem::path file = file_of_card(name_or_file);
  if (std::filesystem::exists(file)) return file;
  const std::vector<std::string> names = card_names();
  require_installed("machine card", name_or_file, cards_folder(), names);
  const std::vector<std::string_view> views(names.begin(), names.end());
  const std::string_view near = nearest(name_or_file, views);
  fail(ExitCode::kUsage,
       {.what = "machine card",
        .value = name_or_file,
        .why = "there is no such card",
        .remedy = near.empty()
                      ? fmt::format("name one of {}, or a file in .json", fmt::join(names, ", "))
                      : fmt::format("did you mean '{}'? a file's name ends in .json", near)});
}

MachineCard load_card(const std::string& name_or_file) {
  const JsonDocument document(card_file(name_or_file), kMaxCardBytes, "machine card",
                              "see src/lab/cards for valid cards");
  MachineCard card = card_from(document.root());
  document.require_known();
  return card;
}

}  // namespace barestep
