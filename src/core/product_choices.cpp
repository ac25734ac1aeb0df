#include "core/product_choices.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <limits>
#include <utility>

#include "core/error.h"
#include "core/host.h"
#include "core/input_file.h"
#include "core/json_document.h"
#include "core/output_file.h"

namespace barestep {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr const char* kChoicesFormat = "barestep product choices 1";
constexpr std::int64_t kMaxChoicesBytes = 1 << 20;
constexpr const char* kRemedy = "remove the file, or name another";

[[noreturn]] void refuse_choices(const std::filesystem::path& file, std::string why) {
  fail(ExitCode::kConfiguration, {"--autotune", file.string(), std::move(why), kRemedy});
}

std::int32_t alignment_of(std::int64_t offset_bytes) {
  constexpr std::int64_t kMax = 256;
  if (offset_bytes % kMax == 0) return kMax;
  return static_cast<std::int32_t>(offset_bytes & -offset_bytes);
}

std::int32_t alignment_of(const Tensor& tensor) {
  return alignment_of(tensor.offset_bytes);
}

std::string hexadecimal(const AlgorithmBytes& bytes) {
  std::string digits;
  for (const std::byte byte : bytes) digits += fmt::format("{:02x}", static_cast<unsigned>(byte));
  return digits;
}

unsigned digit_of(char c) {
  if (c >= '0' && c <= '9') return static_cast<unsigned>(c - '0');
  return static_cast<unsigned>(c - 'a') + 10;
}

AlgorithmBytes parse_algorithm(const JsonValue& value) {
  const std::string digits = value.text();
  AlgorithmBytes bytes{};
  if (digits.size() != 2 * bytes.size() ||
      digits.find_first_not_of("0123456789abcdef") != std::string::npos) {
    value.refuse(fmt::format("is not {} hexadecimal digits", 2 * bytes.size()));
  }
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(16 * digit_of(digits[2 * i]) + digit_of(digits[2 * i + 1]));
  }
  return bytes;
}

std::string transpose_text(const ProductShape& shape) {
  return {shape.transpose_a ? 'T' : 'N', shape.transpose_b ? 'T' : 'N'};
}

OrderedJson to_json(const ProductShape& shape, const ProductChoice& choice) {
  OrderedJson json = {{"m", shape.m},       {"n", shape.n},
                      {"k", shape.k},       {"transpose", transpose_text(shape)},
                      {"bias", shape.bias}, {"relu", shape.relu}};
  if (shape.type != DType::kF32) json["types"] = {name_of(shape.type), name_of(shape.type_of_c)};
  if (shape.cached) json["cached"] = true;
  json["alignment"] = {shape.alignment_a, shape.alignment_b, shape.alignment_c,
                       shape.alignment_bias};
  json["algorithm"] = hexadecimal(choice.algorithm);
  if (choice.times.library_us) json["library_us"] = *choice.times.library_us;
  if (choice.times.own_us) json["own_us"] = *choice.times.own_us;
  return json;
}

DType parse_type(const JsonValue& value) {
  const std::string name = value.text();
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    if (name == name_of(type)) return type;
  }
  value.refuse("is not f32, bf16 or f16");
}

std::optional<double> parse_time(const JsonValue& json, const char* name) {
  return json.has(name) ? std::optional(json.at(name).number(0, 1e9)) : std::nullopt;
}

std::pair<ProductShape, ProductChoice> from_json(const JsonValue& json) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  const std::string transpose = json.at("transpose").text();
  if (transpose.size() != 2 || transpose.find_first_not_of("NT") != std::string::npos) {
    json.at("transpose").refuse("is not NN, NT, TN or TT");
  }
  std::vector<std::int32_t> alignment;
  for (const JsonValue& each : json.at("alignment").items(4)) {
    alignment.push_back(static_cast<std::int32_t>(each.whole(1, 256)));
  }
  ProductShape shape{.m = json.at("m").whole(1, kMax),
                     .n = json.at("n").whole(1, kMax),
                     .k = json.at("k").whole(1, kMax),
                     .transpose_a = transpose[0] == 'T',
                     .transpose_b = transpose[1] == 'T',
                     .bias = json.at("bias").boolean(),
                     .relu = json.at("relu").boolean(),
                     .cached = json.has("cached") && json.at("cached").boolean(),
                     .alignment_a = alignment[0],
                     .alignment_b = alignment[1],
                     .alignment_c = alignment[2],
                     .alignment_bias = alignment[3]};
  if (json.has("types")) {
    const std::vector<JsonValue> types = json.at("types").items(2);
    shape.type = parse_type(types[0]);
    shape.type_of_c = parse_type(types[1]);
  }
  return {shape,
          {.algorithm = parse_algorithm(json.at("algorithm")),
           .times = {.library_us = parse_time(json, "library_us"),
                     .own_us = parse_time(json, "own_us")}}};
}

std::string text_of(const ProductPlace& place) {
  return fmt::format("{} with {} in {}", place.device, place.library, place.precision);
}

struct ReadChoices {
  ProductPlace place;
  std::map<ProductShape, ProductChoice> choices;
  std::map<std::string, KernelTimes> kernels;
};

/// Throws Error(kBadData).
ReadChoices parse_choices(const std::string& text, const std::filesystem::path& file) {
  const JsonDocument document(text,
                              {.what = "--autotune", .name = file.string(), .remedy = kRemedy});
  const JsonValue json = document.root();
  if (json.at("format").text() != kChoicesFormat) {
    json.at("format").refuse(fmt::format("is not '{}'", kChoicesFormat));
  }
  ReadChoices read{.place = {.device = json.at("device").text(),
                             .library = json.at("library").text(),
                             .precision = json.at("precision").text()},
                   .choices = {},
                   .kernels = {}};
  for (const JsonValue& choice : json.at("choices").items()) {
    read.choices.insert(from_json(choice));
  }
  if (json.has("kernels")) {
    for (const JsonValue& choice : json.at("kernels").items()) {
      read.kernels[choice.at("work").text()] = {.usual_us = choice.at("usual_us").number(0, 1e9),
                                                .other_us = parse_time(choice, "other_us")};
    }
  }
  document.require_known();
  return read;
}

std::string choices_text(const std::filesystem::path& path) {
  InputFile file(path, "--autotune");
  if (file.size_bytes() > kMaxChoicesBytes) refuse_choices(path, "is larger than 1 MiB");
  return file.text(kMaxChoicesBytes);
}

}  // namespace

ProductShape shape_of(const Gemm& op) {
  return {.m = op.c.rows,
          .n = op.c.cols,
          .k = op.transpose_a ? op.a.rows : op.a.cols,
          .transpose_a = op.transpose_a,
          .transpose_b = op.transpose_b,
          .bias = op.bias.has_value(),
          .relu = op.activation == Activation::kRelu,
          .type = op.a.dtype,
          .type_of_c = op.c.dtype,
          .alignment_a = alignment_of(op.a),
          .alignment_b = alignment_of(op.b),
          .alignment_c = alignment_of(op.c),
          .alignment_bias = op.bias ? alignment_of(*op.bias) : 256};
}

ProductShape shape_for_rows(const ProductShape& shape, std::int64_t rows) {
  if (shape.transpose_a) return shape;
  ProductShape of_rows = shape;
  of_rows.m = rows;
  of_rows.alignment_a = alignment_of(shape.k * bytes_of(shape.type));
  of_rows.alignment_c = alignment_of(shape.n * bytes_of(shape.type_of_c));
  return of_rows;
}

std::string text_of(const ProductShape& shape) {
  const std::string type = shape.type == DType::kF32 ? "" : fmt::format(" {}", name_of(shape.type));
  return fmt::format("{}x{}x{} {}{}{}{}", shape.m, shape.n, shape.k, transpose_text(shape), type,
                     shape.bias ? " bias" : "", shape.relu ? " relu" : "");
}

ProductChoices::ProductChoices(std::filesystem::path file, ProductPlace place, Keeper keeper)
    : file_(std::move(file)), place_(std::move(place)), keeper_(keeper) {
  if (keeper_ == Keeper::kCache) {
    try {
      if (!file_.empty() && std::filesystem::exists(file_)) load(choices_text(file_));
    } catch (const std::exception&) {  // an unreadable cache counts as missing
    }
    return;
  }
  require_writable(file_);
  if (!std::filesystem::exists(file_)) return;
  ReadChoices read = parse_choices(choices_text(file_), file_);
  if (read.place != place_) {
    refuse_choices(file_,
                   fmt::format("was made on {}, this is {}", text_of(read.place), text_of(place_)));
  }
  choices_ = std::move(read.choices);
  kernels_ = std::move(read.kernels);
}

bool ProductChoices::take(const std::string& text) {
  const bool is_taken = load(text);
  if (is_taken) is_stored_ = false;
  return is_taken;
}

bool ProductChoices::load(const std::string& text) {
  try {
    ReadChoices read = parse_choices(text, file_);
    if (read.place != place_) return false;
    choices_ = std::move(read.choices);
    kernels_ = std::move(read.kernels);
    return true;
  } catch (const Error&) {
    return false;
  }
}

std::optional<AlgorithmBytes> ProductChoices::find(const ProductShape& shape) const {
  const auto found = choices_.find(shape);
  return found == choices_.end() ? std::nullopt : std::optional(found->second.algorithm);
}

void ProductChoices::add(const ProductShape& shape, const AlgorithmBytes& algorithm,
                         const ProductTimes& times) {
  choices_[shape] = {.algorithm = algorithm, .times = times};
  keep();
}

std::optional<KernelTimes> ProductChoices::find_kernels(const std::string& work) const {
  const auto found = kernels_.find(work);
  return found == kernels_.end() ? std::nullopt : std::optional(found->second);
}

void ProductChoices::add_kernels(const std::string& work, const KernelTimes& times) {
  kernels_[work] = times;
  keep();
}

void ProductChoices::keep() const {
  if (file_.empty() || !is_stored_) return;
  try {
    if (keeper_ == Keeper::kCache) std::filesystem::create_directories(file_.parent_path());
    replace_file(file_, text());
  } catch (const std::exception&) {
    if (keeper_ == Keeper::kFile) throw;
  }
}

std::string ProductChoices::text() const {
  if (choices_.empty() && kernels_.empty()) return "";
  OrderedJson all = OrderedJson::array();
  for (const auto& [known, chosen] : choices_) all.push_back(to_json(known, chosen));
  OrderedJson json = {{"format", kChoicesFormat},
                      {"device", place_.device},
                      {"library", place_.library},
                      {"precision", place_.precision},
                      {"choices", std::move(all)}};
  for (const auto& [work, times] : kernels_) {
    OrderedJson each = {{"work", work}, {"usual_us", times.usual_us}};
    if (times.other_us) each["other_us"] = *times.other_us;
    json["kernels"].push_back(std::move(each));
  }
  return json.dump(1) + "\n";
}

std::optional<std::filesystem::path> choices_cache(const ProductPlace& place) {
  const auto folder = cache_folder();
  if (!folder) return std::nullopt;
  std::string name = fmt::format("products {}", text_of(place));
  std::ranges::replace_if(
      name, [](char c) { return c == '/' || c == ' ' || c == '\0'; }, '_');
  return *folder / (name + ".json");
}

}  // namespace barestep
