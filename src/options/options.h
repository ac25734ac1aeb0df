// The options of the trainers: a single table. It is the source of the command line, the config
// file, --help, the range checks, the agreement of ranks, the command lines of experiments, and the
// configuration in metrics and reports. A new option is a member of TrainConfig and a row of the
// table.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/config.h"
#include "core/device.h"
#include "options/option_values.h"

namespace barestep {

/// The JSON type of an option's value.
enum class JsonKind { kBoolean, kNumber, kString, kNumbers, kNumberOrString, kNumberOrNumbers };

/// What must be equal on all ranks before they train together.
enum class Agreement { kValue, kWhetherGiven, kNothing };

/// How an option's value is read and written.
struct OptionValue {
  JsonKind json;
  std::string argument;  // its name in --help; empty for a flag
  std::string allowed;   // "a whole number from 0 to 256"; may be empty
  /// Throws Error if the text is not allowed.
  std::function<void(const RawValue&, TrainConfig&)> read;
  /// The text as a user would type it, "true" for a flag; nothing if not set. read() accepts it,
  /// unless code has set a value that cannot be typed.
  std::function<std::optional<std::string>(const TrainConfig&)> text;
};

struct Option {
  std::string_view name;  // without the dashes; also the key of a config file
  std::string help;       // without default and range, which --help appends
  OptionValue value;
  std::string unset{};  // the behavior if not set, for --help
  // Options of the config file that this one overrides too if it is on the command line.
  std::vector<std::string_view> replaces{};
  std::vector<SchemeKind> programs{};  // the default schemes of those that have it; empty: all
  // The optimizers that have it; null: all. With another one it is refused.
  bool OptimizerTraits::*optimizers = nullptr;
  Agreement agreement = Agreement::kValue;
  // Affects training results beyond rounding, so a run resumed from a checkpoint must have the same
  // value.
  bool decides_numbers = false;
  std::string_view group{};  // in --help
};

/// Whether the option takes no value.
inline bool is_flag(const Option& option) {
  return option.value.json == JsonKind::kBoolean;
}

/// The options of the program that has this scheme, in the order of --help.
std::span<const Option> options_of(SchemeKind scheme);

std::vector<std::string_view> names_of_options(SchemeKind scheme);

/// The text in --help: "learning rate (default: 0.001);", and on the next line the allowed values.
std::string help_of(const Option& option);

/// The arguments that turn the defaults of the program into `config`; nothing for values equal to
/// their defaults.
std::vector<std::string> arguments_of(const TrainConfig& config);

/// One line of JSON: an object with all options that are set, by name, in the form of a config
/// file. Invalid UTF-8 in file names is replaced.
std::string json_of(const TrainConfig& config);

/// The options whose values JSON cannot hold, because they are file names that are not UTF-8:
/// "--load, --save". Empty if there are none.
std::string options_without_json(const TrainConfig& config);

/// The first line of a --metrics file: {"configuration": {...}}; without its newline.
std::string configuration_record(const TrainConfig& config);

/// Names and values that ranks must share: "--lr" and "0.001". The same names on every rank.
std::vector<std::pair<std::string, std::string>> shared_settings(const TrainConfig& config);

/// The names and values that a resumed run must share with its checkpoint, as far as options
/// determine them.
std::vector<std::pair<std::string, std::string>> deciding_settings(const TrainConfig& config);

/// That an option is given, that it has one of some values, or the opposite of either.
struct Condition {
  bool is_opposite = false;
  std::string_view name{};  // of the option
  // Patterns of fnmatch(3), one of which the value matches; "*" is any but the default. None: the
  // option is given.
  std::vector<std::string> values{};

  /// Of an option with this value and this default.
  [[nodiscard]] bool holds(const std::optional<std::string>& text,
                           const std::optional<std::string>& usual) const;
};

/// A row of the table of options that are refused together.
struct OptionConflict {
  std::vector<Condition> options;  // each is refused; with its value if the condition has values
  std::vector<Condition> when;     // if all of these hold
  const char* why;                 // {name} stands for the value of that option
  const char* remedy;
};

std::span<const OptionConflict> conflicts();

/// Throws Error(kConfiguration) with the parts of its message.
[[noreturn]] void refuse_options(std::string what, std::string value, std::string why,
                                 std::string remedy);

/// Throws Error(kConfiguration) if options are given that a row refuses.
void refuse_conflicts(const TrainConfig& config);

/// Throws Error: kUsage for a value that the option does not allow, in the words of the command
/// line; kConfiguration for options that contradict each other. Finds every error that can be found
/// without a device or a file.
void validate(const TrainConfig& config);

/// Whether 64 bits hold the bytes and flops of a step with this batch. validate() refuses others.
bool is_countable(const TrainConfig& config, std::int64_t batch_size);

/// Whether fp32 products on the CPU are our own, which have the same bits on every processor.
bool computes_own_products(const DeviceConfig& device);

/// Whether the fused update has the bits of the separate one, where both can run.
bool updates_agree(const TrainConfig& config, DeviceKind kind);

struct UpdateChoice {
  Update update;
  std::string_view why;
  bool is_to_be_measured = false;  // a run may try both and go on with the faster one
};

/// The update that --update auto selects on a device of this kind before anything is measured, and
/// the reason: the fastest one that supports the options. The same on all ranks, whatever their
/// processors.
UpdateChoice choose_update(const TrainConfig& config, DeviceKind kind);

}  // namespace barestep
