#include "core/json_document.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <functional>
#include <limits>
#include <map>
#include <set>

#include "core/error.h"
#include "core/input_file.h"

namespace barestep {

struct JsonTree {
  JsonSource source;
  nlohmann::json json{};
  std::map<const void*, std::set<std::string, std::less<>>> known{};  // keys, by object
  std::set<const void*> whole{};  // objects and arrays of which everything is known

  [[noreturn]] void refuse(const std::string& why, const std::string& remedy = "") const {
    fail(ExitCode::kBadData,
         {source.what, source.name, why, remedy.empty() ? source.remedy : remedy});
  }
};

namespace {

const nlohmann::json& json_of(const void* json) {
  return *static_cast<const nlohmann::json*>(json);
}

/// "[json.exception...] parse error at line 1, column 2: syntax error ...": removes the brackets.
std::string reason_of(const nlohmann::json::exception& error) {
  const std::string text = error.what();
  const std::size_t end = text.find("] ");
  return end == std::string::npos ? text : text.substr(end + 2);
}

/// The value as messages show it.
std::string shown_value(const nlohmann::json& value) {
  constexpr std::size_t kMaxBytes = 40;
  if (value.is_object()) return "an object";
  if (value.is_array()) return "an array";
  const std::string text = value.dump(-1, ' ', true);  // ASCII, so it can be cut anywhere
  return text.size() <= kMaxBytes ? text : text.substr(0, kMaxBytes) + "...";
}

/// Notes the path of the first member that an object has twice. Of such members, some parsers take
/// the first and some the last.
class KeysOnce {
 public:
  explicit KeysOnce(std::string& twice) : twice_(twice) {}

  bool operator()(int /*depth*/, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
    using Event = nlohmann::json::parse_event_t;
    if (event == Event::object_start) open_.emplace_back();
    if (event == Event::object_end) open_.pop_back();
    if (event != Event::key) return true;
    open_.back().at = parsed.get<std::string>();
    if (!open_.back().keys.insert(open_.back().at).second && twice_.empty()) twice_ = path();
    return true;
  }

 private:
  struct Object {
    std::set<std::string> keys;
    std::string at;
  };

  [[nodiscard]] std::string path() const {
    std::string text;
    for (const Object& each : open_) text += (text.empty() ? "" : ".") + each.at;
    return text;
  }

  std::string& twice_;
  std::vector<Object> open_;  // the objects around
};

bool is_within(const nlohmann::json& value, double min, double max) {
  return value.is_number() && value.get<double>() >= min && value.get<double>() <= max;
}

}  // namespace

bool is_shallow_json(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;  // an escaped character ends no string
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxJsonDepth) return false;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return true;
}

JsonValue JsonValue::member(const char* key, const void* json) const {
  return {json, *tree_, path_.empty() ? key : fmt::format("{}.{}", path_, key)};
}

JsonValue JsonValue::item(std::size_t index, const void* json) const {
  return {json, *tree_, fmt::format("{}[{}]", path_, index)};
}

bool JsonValue::has(const char* key) const {
  if (!json_of(json_).is_object()) refuse_kind("an object");
  tree_->known[json_].insert(key);
  return json_of(json_).contains(key);
}

JsonValue JsonValue::at(const char* key) const {
  if (!has(key)) member(key, nullptr).refuse("is missing");
  return member(key, &json_of(json_)[key]);
}

std::vector<std::pair<std::string, JsonValue>> JsonValue::members() const {
  if (!json_of(json_).is_object()) refuse_kind("an object");
  std::vector<std::pair<std::string, JsonValue>> all;
  for (const auto& [key, value] : json_of(json_).items()) {
    tree_->known[json_].insert(key);
    all.emplace_back(on_one_line(key), member(key.c_str(), &value));
  }
  return all;
}

std::vector<JsonValue> JsonValue::items() const {
  if (!json_of(json_).is_array()) refuse_kind("an array");
  std::vector<JsonValue> all;
  for (const nlohmann::json& each : json_of(json_)) all.push_back(item(all.size(), &each));
  return all;
}

std::vector<JsonValue> JsonValue::items(std::size_t count) const {
  std::vector<JsonValue> all = items();
  if (all.size() != count) refuse(fmt::format("has {} items, not {}", all.size(), count));
  return all;
}

bool JsonValue::is_null() const {
  return json_of(json_).is_null();
}

bool JsonValue::is_array() const {
  return json_of(json_).is_array();
}

bool JsonValue::is_number() const {
  return json_of(json_).is_number();
}

double JsonValue::number(double min, double max) const {
  if (!is_within(json_of(json_), min, max)) {
    refuse_kind(fmt::format("a number from {} to {}", min, max));
  }
  return json_of(json_).get<double>();
}

std::vector<double> JsonValue::numbers(double min, double max) const {
  if (!json_of(json_).is_array()) refuse_kind("an array");
  std::vector<double> all;
  all.reserve(json_of(json_).size());
  for (const nlohmann::json& each : json_of(json_)) {
    // The path is needed only for a value that is refused.
    all.push_back(is_within(each, min, max) ? each.get<double>()
                                            : item(all.size(), &each).number(min, max));
  }
  return all;
}

std::int64_t JsonValue::whole(std::int64_t min, std::int64_t max) const {
  const nlohmann::json& json = json_of(json_);
  constexpr auto kMaxSigned = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  const bool is_signed = json.is_number_integer() &&
                         (!json.is_number_unsigned() || json.get<std::uint64_t>() <= kMaxSigned);
  if (!is_signed || json.get<std::int64_t>() < min || json.get<std::int64_t>() > max) {
    refuse_kind(fmt::format("a whole number from {} to {}", min, max));
  }
  return json.get<std::int64_t>();
}

bool JsonValue::boolean() const {
  if (!json_of(json_).is_boolean()) refuse_kind("true or false");
  return json_of(json_).get<bool>();
}

std::string JsonValue::text() const {
  return on_one_line(exact_text());
}

std::string JsonValue::exact_text() const {
  if (!json_of(json_).is_string()) refuse_kind("a string");
  return json_of(json_).get<std::string>();
}

std::vector<std::string> JsonValue::texts() const {
  std::vector<std::string> all;
  for (const JsonValue& each : items()) all.push_back(each.text());
  return all;
}

std::string JsonValue::json() const {
  tree_->whole.insert(json_);
  return json_of(json_).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void JsonValue::ignore(std::initializer_list<const char*> keys) const {
  for (const char* const key : keys) {
    if (has(key)) tree_->whole.insert(at(key).json_);
  }
}

void JsonValue::require_known() const {
  const nlohmann::json& json = json_of(json_);
  if (!json.is_structured() || tree_->whole.contains(json_)) return;
  if (json.is_array()) {
    for (const nlohmann::json& each : json) {
      if (each.is_structured())
        item(static_cast<std::size_t>(&each - &json[0]), &each).require_known();
    }
    return;
  }
  const auto& known = tree_->known[json_];
  const std::vector<std::string_view> keys(known.begin(), known.end());
  for (const auto& [key, value] : json.items()) {
    if (!known.contains(key)) {
      const std::string_view meant = nearest(key, keys);
      tree_->refuse(fmt::format("{} is not known", member(key.c_str(), &value).path_),
                    meant.empty() ? "" : fmt::format("did you mean '{}'?", meant));
    }
    member(key.c_str(), &value).require_known();
  }
}

void JsonValue::refuse(const std::string& why) const {
  tree_->refuse(fmt::format("{} {}", path_.empty() ? "the whole of it" : path_, why));
}

void JsonValue::refuse_kind(const std::string& expected) const {
  refuse(fmt::format("is {}, not {}", shown_value(json_of(json_)), expected));
}

JsonDocument::JsonDocument(std::string_view text, JsonSource source)
    : tree_(new JsonTree{.source = std::move(source)}, [](JsonTree* tree) { delete tree; }) {
  if (!is_shallow_json(text)) {
    tree_->refuse(fmt::format("is nested deeper than {} arrays and objects", kMaxJsonDepth));
  }
  // The parser would take it as the end.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
    tree_->refuse(fmt::format("is not JSON: byte {} is NUL", nul));
  }
  std::string twice;
  try {
    tree_->json = nlohmann::json::parse(text, KeysOnce(twice));
  } catch (const nlohmann::json::exception& error) {
    tree_->refuse("is not JSON: " + reason_of(error));
  }
  if (!twice.empty()) tree_->refuse(twice + " is there twice");
}

JsonDocument::JsonDocument(const std::filesystem::path& file, std::int64_t max_bytes,
                           std::string what, std::string remedy)
    : JsonDocument(InputFile(file, what).text(max_bytes),
                   {.what = what, .name = file.string(), .remedy = std::move(remedy)}) {}

JsonValue JsonDocument::root() const {
  return {&tree_->json, *tree_, ""};
}

}  // namespace barestep
