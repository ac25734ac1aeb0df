// Reads JSON that a person may have edited, value by value. Every error is one line with the file,
// the value and what is allowed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace barestep {

/// How deep arrays and objects may be nested, so code that walks them may recurse.
constexpr int kMaxJsonDepth = 64;

/// Whether `text`, if it is JSON, is nested no deeper than kMaxJsonDepth.
bool is_shallow_json(std::string_view text);

/// Where the JSON comes from, for messages: `<what> '<name>': <why>; <remedy>`.
struct JsonSource {
  std::string what;  // "machine card"
  std::string name;  // of the file
  std::string remedy;
};

struct JsonTree;

/// A value of a JsonDocument, which must outlive it. Every read throws Error(kBadData) if the value
/// is missing, of another kind or out of range; ranges include both ends. A member that has() or
/// at() was called for, or that members() or json() returned, is a known one.
class JsonValue {
 public:
  /// For objects: whether there is a member with this key.
  [[nodiscard]] bool has(const char* key) const;
  [[nodiscard]] JsonValue at(const char* key) const;
  [[nodiscard]] std::vector<std::pair<std::string, JsonValue>> members() const;
  /// For arrays, which must have `count` elements if that is given.
  [[nodiscard]] std::vector<JsonValue> items() const;
  [[nodiscard]] std::vector<JsonValue> items(std::size_t count) const;

  [[nodiscard]] bool is_null() const;
  [[nodiscard]] bool is_array() const;
  [[nodiscard]] bool is_number() const;
  [[nodiscard]] double number(double min, double max) const;
  [[nodiscard]] std::vector<double> numbers(double min, double max) const;
  [[nodiscard]] std::int64_t whole(std::int64_t min, std::int64_t max) const;
  [[nodiscard]] bool boolean() const;
  /// Safe to show: passed through on_one_line().
  [[nodiscard]] std::string text() const;
  [[nodiscard]] std::string exact_text() const;
  [[nodiscard]] std::vector<std::string> texts() const;

  /// This value as JSON on one line.
  [[nodiscard]] std::string json() const;

  /// For objects: these members, with all that is in them, are known, but not needed.
  void ignore(std::initializer_list<const char*> keys) const;

  /// Throws Error(kBadData): "<path> <why>".
  [[noreturn]] void refuse(const std::string& why) const;

 private:
  friend class JsonDocument;

  JsonValue(const void* json, JsonTree& tree, std::string path)
      : json_(json), tree_(&tree), path_(std::move(path)) {}

  [[nodiscard]] JsonValue member(const char* key, const void* json) const;
  [[nodiscard]] JsonValue item(std::size_t index, const void* json) const;
  [[noreturn]] void refuse_kind(const std::string& expected) const;

  void require_known() const;

  const void* json_;  // nlohmann's; headers do not include its type
  JsonTree* tree_;
  std::string path_;  // e.g. "device.launch_s.value"; empty for the whole document
};

class JsonDocument {
 public:
  /// Throws Error(kBadData) if `text` is not JSON, is nested deeper than kMaxJsonDepth, or has two
  /// members with the same key in an object.
  JsonDocument(std::string_view text, JsonSource source);
  /// Reads a file; throws as InputFile does, too. Throws Error(kNoInput) if the file has more than
  /// `max_bytes`.
  JsonDocument(const std::filesystem::path& file, std::int64_t max_bytes, std::string what,
               std::string remedy);
  JsonDocument(const JsonDocument&) = delete;
  JsonDocument& operator=(const JsonDocument&) = delete;

  [[nodiscard]] JsonValue root() const;

  /// Throws Error(kBadData), with the nearest known key, if an object has a member that is not
  /// known. Readers of files that people edit call it when they have read all.
  void require_known() const { root().require_known(); }

 private:
  std::unique_ptr<JsonTree, void (*)(JsonTree*)> tree_;
};

}  // namespace barestep
