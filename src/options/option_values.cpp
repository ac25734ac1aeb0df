#include "options/option_values.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <limits>

#include "core/index.h"
#include "core/lookup.h"
#include "core/units.h"

namespace barestep {
namespace {

[[noreturn]] void refuse(const RawValue& given, std::string why, std::string remedy) {
  fail(given.code, {given.where, given.text,
                    given.text.empty() ? "the value is empty" : std::move(why), std::move(remedy)});
}

enum class Reading { kWhole, kTooLarge, kIllFormed };

/// A replacement for a well-formed number that no double can hold: infinity, or near 0 the smallest
/// double, which no range treats as 0.
double beyond_double(std::string_view text) {
  using Double = std::numeric_limits<double>;
  const std::size_t exponent = text.find_first_of("eE");
  const bool is_small = exponent != std::string_view::npos && text[exponent + 1] == '-';
  const double size = is_small ? Double::denorm_min() : Double::infinity();
  return text.starts_with('-') ? -size : size;
}

/// What a parser of a number at the start of `text` found there.
Reading reading_of(std::string_view text, const std::from_chars_result& parsed) {
  if (parsed.ec == std::errc::invalid_argument) return Reading::kIllFormed;
  if (parsed.ptr != text.data() + text.size()) return Reading::kIllFormed;
  return parsed.ec == std::errc() ? Reading::kWhole : Reading::kTooLarge;
}

/// Parses all of `text`, or returns why it cannot.
template <typename Number>
Reading read(std::string_view text, Number& number) {
  return reading_of(text, std::from_chars(text.data(), text.data() + text.size(), number));
}

Reading read(std::string_view text, double& number) {
  const Reading reading = reading_of(text, read_real(text, number));
  if (reading != Reading::kTooLarge) return reading;
  number = beyond_double(text);
  return Reading::kWhole;
}

}  // namespace

std::vector<std::string_view> split(std::string_view text, std::string_view separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + separator.size());
  }
}

std::int64_t whole_number(const RawValue& given, const Range& range) {
  std::int64_t number = 0;
  const Reading reading = read(given.text, number);
  if (reading == Reading::kWhole && range.contains(number)) return number;
  refuse(given, reading == Reading::kIllFormed ? "not a whole number" : "out of range",
         "give " + text_of(range));
}

double real_number(const RawValue& given, const RealRange& range) {
  double number = 0;
  const Reading reading = read(given.text, number);
  if (reading == Reading::kWhole && range.contains(number)) return number;
  if (reading == Reading::kIllFormed) refuse(given, "not a number", "give " + text_of(range));
  OutOfRange found = out_of_range(range, number);
  refuse(given, std::move(found.why), std::move(found.remedy));
}

std::uint64_t seed_number(const RawValue& given) {
  std::uint64_t number = 0;
  std::int64_t negative = 0;
  const Reading reading = read(given.text, number);
  if (reading == Reading::kWhole) return number;
  const Reading signed_reading = read(given.text, negative);
  if (signed_reading == Reading::kWhole) return static_cast<std::uint64_t>(negative);
  const bool ill_formed = reading == Reading::kIllFormed && signed_reading == Reading::kIllFormed;
  refuse(given, ill_formed ? "not a whole number" : "out of range",
         "give any 64-bit integer, from -9223372036854775808 to 18446744073709551615");
}

std::vector<std::int64_t> widths(const RawValue& given) {
  const std::string remedy = fmt::format("give {} to {} widths from {} to {}, such as 784,512,10",
                                         limits::kDepths.first + 1, limits::kDepths.last + 1,
                                         limits::kWidths.first, limits::kWidths.last);
  std::vector<std::int64_t> numbers;
  for (const std::string_view part : split(given.text, ",")) {
    const std::string name = fmt::format("width {}", numbers.size() + 1);
    std::int64_t number = 0;
    const Reading reading = read(part, number);
    if (part.empty()) refuse(given, name + " is empty", remedy);
    if (reading == Reading::kIllFormed) refuse(given, name + " is not a whole number", remedy);
    if (reading == Reading::kTooLarge || !limits::kWidths.contains(number)) {
      refuse(given, name + " is out of range", remedy);
    }
    numbers.push_back(number);
  }
  if (numbers.size() < 2) refuse(given, "one width makes no layer", remedy);
  if (!limits::kDepths.contains(static_cast<std::int64_t>(numbers.size()) - 1)) {
    refuse(given, fmt::format("{} widths", numbers.size()), remedy);
  }
  return numbers;
}

void batch_sizes(const RawValue& given, DataConfig& data) {
  std::vector<std::int64_t> sizes;
  for (const std::string_view part : split(given.text, ",")) {
    sizes.push_back(
        whole_number({given.where, std::string(part), given.code}, limits::kBatchSizes));
  }
  data.batch_size = sizes.front();
  if (sizes.size() > 1) data.sweep = std::move(sizes);
}

std::pair<double, double> two_shares(const RawValue& given) {
  const std::string remedy = "give two numbers of at least 0 and below 1, such as 0.9,0.999";
  const auto parts = split(given.text, ",");
  if (parts.size() != 2) refuse(given, "not two numbers", remedy);
  double numbers[2] = {};
  for (std::size_t i = 0; i < 2; ++i) {
    const Reading reading = read(parts[i], numbers[i]);
    if (reading == Reading::kIllFormed) refuse(given, "not two numbers", remedy);
    if (!limits::kShares.contains(numbers[i])) {
      refuse(given, out_of_range(limits::kShares, numbers[i]).why, remedy);
    }
  }
  return {numbers[0], numbers[1]};
}

std::int64_t byte_count(const RawValue& given) {
  std::int64_t bytes = 0;
  try {
    bytes = parse_bytes(given.where, given.text);
  } catch (const Error& error) {
    throw Error(given.code, {.what = error.what()});
  }
  if (!limits::kMemorySizes.contains(bytes)) {
    refuse(given, "out of range", "give at most 1048576TiB");
  }
  return bytes;
}

double duration(const RawValue& given) {
  try {
    return parse_duration(given.where, given.text);
  } catch (const Error& error) {
    throw Error(given.code, {.what = error.what()});
  }
}

CheckpointEvery checkpoint_every(const RawValue& given) {
  const bool is_number = given.text.find_first_not_of("0123456789") == std::string::npos;
  if (is_number) return {.steps = whole_number(given, limits::kCounts)};
  return {.seconds = duration(given)};
}

std::string text_of(const CheckpointEvery& every) {
  return every.steps > 0 ? text_of_number(every.steps) : duration_text(every.seconds);
}

std::int64_t segment_count(const RawValue& given) {
  if (given.text == "auto") return kAutoRecompute;
  std::int64_t number = 0;
  const Reading reading = read(given.text, number);
  if (reading == Reading::kWhole && limits::kDepths.contains(number)) return number;
  refuse(given, reading == Reading::kIllFormed ? "not a number of segments" : "out of range",
         fmt::format("give {}, or auto", text_of(limits::kDepths)));
}

std::string text_of_segments(std::int64_t segments) {
  return segments == kAutoRecompute ? "auto" : text_of_number(segments);
}

StepRange step_range(const RawValue& given) {
  const std::string remedy = "give first:end, such as 10:20 for the steps 10 to 19";
  const auto parts = split(given.text, ":");
  if (parts.size() != 2) refuse(given, "not two numbers", remedy);
  StepRange range;
  for (const auto& [part, number] : {std::pair(parts[0], &range.first), {parts[1], &range.end}}) {
    const Reading reading = read(part, *number);
    if (reading == Reading::kIllFormed) refuse(given, "not two whole numbers", remedy);
    if (reading == Reading::kTooLarge || !limits::kProfiledSteps.contains(*number)) {
      refuse(given, "out of range", remedy);
    }
  }
  if (range.size() < 1) refuse(given, "holds no step", remedy);
  return range;
}

void no_value(const RawValue& given) {
  if (given.text != "true") refuse(given, "takes no value", "leave the value out");
}

std::filesystem::path file_path(const RawValue& given) {
  if (given.text.empty()) refuse(given, "", "give a file");
  return given.text;
}

std::string device_name(const RawValue& given) {
  if (!is_device_name(given.text)) refuse(given, "not a device", "use auto, cpu, cuda or cuda:N");
  return given.text;
}

std::vector<std::string> device_names(const RawValue& given) {
  std::vector<std::string> names;
  for (const std::string_view part : split(given.text, ",")) {
    if (part == "auto" || !is_device_name(part)) {
      refuse(given, fmt::format("'{}' is not a device", part),
             "list cpu, cuda or cuda:N, such as cuda:0,cuda:1");
    }
    // Each device gets one name: "cuda" and "cuda:00" become "cuda:0".
    int ordinal = 0;
    if (part.starts_with("cuda:")) read(part.substr(5), ordinal);
    names.push_back(part == "cpu" ? "cpu" : fmt::format("cuda:{}", ordinal));
  }
  return names;
}

void data_source(const RawValue& given, DataConfig& data) {
  const std::string remedy =
      "use randn, teacher, idx:X,Y or npy:X,Y with files of samples and of their labels or "
      "targets, or safetensors:F with tensors x and y";
  data.teacher = given.text == "teacher";
  if (given.text == "randn" || data.teacher) {
    data.kind = DataKind::kRandn;
    return;
  }
  constexpr std::pair<std::string_view, DataKind> kKinds[] = {
      {"idx", DataKind::kIdx}, {"npy", DataKind::kNpy}, {"safetensors", DataKind::kSafetensors}};
  const std::size_t colon = std::min(given.text.find(':'), given.text.size());
  const DataKind* const kind = found_in(kKinds, std::string_view(given.text).substr(0, colon));
  if (kind == nullptr || colon == given.text.size()) {
    refuse(given, "not a data source", remedy);
  }
  const auto files = split(std::string_view(given.text).substr(colon + 1), ",");
  const std::size_t expected = *kind == DataKind::kSafetensors ? 1 : 2;
  if (files.size() != expected || files.front().empty() || files.back().empty()) {
    refuse(given, expected == 1 ? "not one file" : "not two files", remedy);
  }
  data.kind = *kind;
  data.x = files.front();
  data.y = expected == 2 ? files.back() : "";
}

SlowRank slow_rank(const RawValue& given) {
  const std::vector<std::string_view> parts = split(given.text, ":");
  SlowRank slow;
  const bool whole = parts.size() == 2 && read(parts[0], slow.rank) == Reading::kWhole &&
                     read(parts[1], slow.delay_ms) == Reading::kWhole;
  if (!whole || !limits::kRanks.contains(slow.rank) || !limits::kDelays.contains(slow.delay_ms)) {
    refuse(given, "not a rank and milliseconds", "give them like 1:20");
  }
  return slow;
}

Flip flip(const RawValue& given) {
  Flip flip;
  const std::vector<std::string_view> halves = split(given.text, "@");
  const std::vector<std::string_view> what = split(halves.front(), ":");
  bool is_whole = halves.size() == 2 && (what.size() == 3 || what.size() == 4);
  const auto take = [&](std::string_view text, std::int64_t& number, const Range& range) {
    is_whole = is_whole && read(text, number) == Reading::kWhole && range.contains(number);
  };
  if (is_whole) {
    flip.buffer = what[0];
    take(what[1], flip.word, limits::kFlippedWords);
    take(what[2], flip.bit, {0, 31});
    if (what.size() == 4) take(what[3], flip.node.emplace(), limits::kProfiledSteps);
    const std::vector<std::string_view> when = split(halves.back(), ",rank ");
    take(when.front(), flip.step, limits::kProfiledSteps);
    if (when.size() > 1) take(when.back(), flip.rank, limits::kRanks);
    is_whole = is_whole && when.size() <= 2 && !flip.buffer.empty();
  }
  if (!is_whole) {
    refuse(given, "not a bit of a buffer in a step",
           "give BUFFER:WORD:BIT@STEP like parameters:17:30@5, after a node like "
           "gradients:17:30:12@5, on another rank like parameters:17:30@5,rank 1");
  }
  return flip;
}

LossScaling loss_scaling(const RawValue& given) {
  constexpr std::string_view kDynamic = "dynamic";
  LossScaling scaling{.dynamic = std::string_view(given.text).starts_with(kDynamic)};
  std::string_view number = given.text;
  if (given.text == kDynamic) return scaling;
  if (scaling.dynamic && number.starts_with("dynamic:")) number.remove_prefix(kDynamic.size() + 1);
  if (read(number, scaling.initial) != Reading::kWhole ||
      !limits::kPositive.contains(scaling.initial)) {
    refuse(given, "not a loss scale", "give dynamic, dynamic:65536 or a number above 0");
  }
  return scaling;
}

std::string text_of_loss_scaling(const LossScaling& scaling) {
  if (!scaling.dynamic) return text_of_number(scaling.initial);
  if (scaling.initial == LossScaling{}.initial) return "dynamic";
  return fmt::format("dynamic:{}", scaling.initial);
}

std::size_t choice(const RawValue& given, std::span<const std::string_view> names) {
  const auto found = std::ranges::find(names, given.text);
  if (found != names.end()) return static_cast<std::size_t>(found - names.begin());
  const std::string_view near = nearest(given.text, names);
  refuse(given, "not one of the choices",
         fmt::format("{}use {}", near.empty() ? "" : fmt::format("did you mean '{}'? ", near),
                     fmt::join(names, " or ")));
}

std::span<const std::string_view> phases_of_steps() {
  static_assert(kValuesOf<Phase>.back() == Phase::kEvaluate, "which is no part of a training step");
  return std::span(kNamesOf<Phase>).first(std::size(kNamesOf<Phase>) - 1);
}

std::vector<Phase> phases(const RawValue& given) {
  std::vector<Phase> all;
  for (const std::string_view part : split(given.text, ",")) {
    const RawValue one{.where = given.where, .text = std::string(part), .code = given.code};
    all.push_back(kValuesOf<Phase>.at(choice(one, phases_of_steps())));
  }
  return all;
}

std::string text_of_phases(const std::vector<Phase>& phases) {
  std::vector<std::string_view> names;
  for (const Phase phase : phases) names.push_back(name_of(phase));
  return joined(names, ",");
}

std::string text_of_number(double number) {
  return fmt::format("{}", number);
}

std::string text_of_number(std::int64_t number) {
  return std::to_string(number);
}

std::string text_of_numbers(std::span<const std::int64_t> numbers) {
  return fmt::format("{}", fmt::join(numbers, ","));
}

std::string joined(std::span<const std::string> parts, std::string_view separator) {
  return fmt::format("{}", fmt::join(parts, separator));
}

std::string joined(std::span<const std::string_view> parts, std::string_view separator) {
  return fmt::format("{}", fmt::join(parts, separator));
}

}  // namespace barestep
