// Checks a JSON value against the subset of JSON Schema used by docs/results.schema.json.
#pragma once

#include <nlohmann/json.hpp>

#include "support/testing.h"

namespace barestep {

/// Empty, or where and how `value` violates `schema`. `root` is the whole schema, for references.
inline std::string schema_violation(const nlohmann::json& value, const nlohmann::json& schema,
                                    const nlohmann::json& root, const std::string& place = "$") {
  using nlohmann::json;
  if (schema.contains("$ref")) {
    const std::string reference = schema.at("$ref").get<std::string>().substr(1);
    return schema_violation(value, root.at(json::json_pointer(reference)), root, place);
  }
  // "type": a name, or a list of allowed names.
  const json& types = schema.at("type");
  if (types.is_array()) {
    for (const json& each : types) {
      json alone = schema;
      alone["type"] = each;
      if (schema_violation(value, alone, root, place).empty()) return "";
    }
    return place + " is none of " + types.dump();
  }
  const std::string type = types;
  const bool fits =
      (type == "object" && value.is_object()) || (type == "array" && value.is_array()) ||
      (type == "string" && value.is_string()) || (type == "boolean" && value.is_boolean()) ||
      (type == "integer" && value.is_number_integer()) || (type == "number" && value.is_number()) ||
      (type == "null" && value.is_null());
  if (!fits) return place + " is no " + type;
  if (schema.contains("const") && value != schema.at("const")) return place + " is another value";
  if (type == "array") {
    for (std::size_t i = 0; i < value.size(); ++i) {
      std::string why = schema_violation(value[i], schema.at("items"), root,
                                         place + "[" + std::to_string(i) + "]");
      if (!why.empty()) return why;
    }
  }
  if (type != "object") return "";
  for (const json& name : schema.value("required", json::array())) {
    if (!value.contains(name.get<std::string>())) return place + " lacks " + name.dump();
  }
  const json properties = schema.value("properties", json::object());
  const json others = schema.value("additionalProperties", json(true));
  for (const auto& [name, member] : value.items()) {
    const bool is_listed = properties.contains(name);
    if (!is_listed && others == json(false)) return place + " has also " + name;
    if (!is_listed && !others.is_object()) continue;
    std::string why = schema_violation(member, is_listed ? properties.at(name) : others, root,
                                       place + "." + name);
    if (!why.empty()) return why;
  }
  return "";
}

}  // namespace barestep
