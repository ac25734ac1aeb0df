#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/input_file.h"
#include "lab/predict/machine_card.h"

namespace barestep {
namespace {

constexpr std::int64_t kMaxCardBytes = std::int64_t{16} << 20;

std::filesystem::path cards_folder() {
  return installed_file(BARESTEP_LAB, "cards");
}

}  // namespace

std::vector<std::string> card_names() {
  return installed_names(cards_folder(), ".json");
}

std::filesystem::path card_file(const std::string& name_or_file) {
  return given_or_installed("machine card", name_or_file, cards_folder(), card_names(), ".json");
}

MachineCard load_card(const std::string& name_or_file) {
  const JsonDocument document(card_file(name_or_file), kMaxCardBytes, "machine card",
                              "see src/lab/cards for valid cards");
  MachineCard card = card_from(document.root());
  document.require_known();
  return card;
}

}  // namespace barestep
