// What is made of the table: each a loop over its rows.
#include "options/options.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace barestep {
namespace {

using OrderedJson = nlohmann::ordered_json;

/// The value as JSON writes it; a flag's `text` is empty where it is not set.
OrderedJson json_of_value(JsonKind kind, const std::string& text) {
  switch (kind) {
    case JsonKind::kBoolean:
      return !text.empty();
    case JsonKind::kString:
      return text;
    case JsonKind::kNumbers:
      return OrderedJson::parse("[" + text + "]");
    case JsonKind::kNumber:
    case JsonKind::kNumberOrString:
    case JsonKind::kNumberOrNumbers:
      break;
  }
  return OrderedJson::parse(text.find(',') == std::string::npos ? text : "[" + text + "]");
}

}  // namespace

std::vector<std::string_view> names_of_options(TrainerKind trainer) {
  std::vector<std::string_view> names;
  for (const Option& option : options_of(trainer)) names.push_back(option.name);
  return names;
}

std::string help_of(const Option& option) {
  std::string help = option.help;
  const std::string usual = option.value.text({}).value_or(option.unset);
  if (!is_flag(option) && !usual.empty()) help += fmt::format(" (default: {})", usual);
  if (!option.value.allowed.empty()) help += fmt::format(";\n{}", option.value.allowed);
  return help;
}

std::vector<std::string> arguments_of(const TrainConfig& config, TrainerKind trainer) {
  std::vector<std::string> arguments;
  for (const Option& option : options_of(trainer)) {
    const std::optional<std::string> text = option.value.text(config);
    if (!text || text == option.value.text({})) continue;
    arguments.push_back(fmt::format("--{}", option.name));
    if (!is_flag(option)) arguments.push_back(*text);
  }
  return arguments;
}

namespace {

OrderedJson configuration_of(const TrainConfig& config, TrainerKind trainer) {
  OrderedJson all = OrderedJson::object();
  for (const Option& option : options_of(trainer)) {
    const std::optional<std::string> text = option.value.text(config);
    if (!text && !is_flag(option)) continue;
    all[std::string(option.name)] = json_of_value(option.value.json, text.value_or(""));
  }
  return all;
}

std::string json_line_of(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace

std::string json_of(const TrainConfig& config, TrainerKind trainer) {
  return json_line_of(configuration_of(config, trainer));
}

std::string configuration_record(const TrainConfig& config, TrainerKind trainer) {
  return json_line_of({{"configuration", configuration_of(config, trainer)}});
}

std::vector<std::pair<std::string, std::string>> shared_settings(const TrainConfig& config) {
  const TrainConfig defaults;
  std::vector<std::pair<std::string, std::string>> settings;
  for (const Option& option : options_of(TrainerKind::kDdp)) {
    if (option.agreement == Agreement::kNothing) continue;
    const std::optional<std::string> text = option.value.text(config);
    const bool is_told = option.agreement == Agreement::kValue && !is_flag(option);
    const bool is_given = text && (is_told || text != option.value.text(defaults));
    settings.emplace_back(fmt::format("--{}", option.name), !is_given ? "not given"
                                                            : is_told ? *text
                                                                      : "given");
  }
  return settings;
}

}  // namespace barestep
