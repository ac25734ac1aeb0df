// The options of the trainers: one table, of which the command line, the config file, --help, the
// checks of ranges, the agreement of ranks, the command lines of experiments and the configuration
// in metrics and reports are made. A new option is a member of TrainConfig and a row of the table.
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

/// How JSON writes the value of an option.
enum class JsonKind { kBoolean, kNumber, kString, kNumbers, kNumberOrString, kNumberOrNumbers };

/// What ranks must have in common before they train together.
enum class Agreement { kValue, kWhetherGiven, kNothing };

/// Where the value of an option lies, and how it is read and written.
struct OptionValue {
  JsonKind json;
  std::string argument;  // what --help calls it; empty for a flag
  std::string allowed;   // "a whole number from 0 to 256"; may be empty
  /// Throws Error for text that is not allowed.
  std::function<void(const RawValue&, TrainConfig&)> read;
  /// What would be typed, "true" of a flag; nothing where it is not set. read() takes it back,
  /// unless code has set a value that cannot be typed.
  std::function<std::optional<std::string>(const TrainConfig&)> text;
};

struct Option {
  std::string_view name;  // without the dashes; also the key of a config file
  std::string help;       // without default and range, which --help adds
  OptionValue value;
  std::string unset{};  // what holds where it is not set, for --help
  // Given on the command line, the option also takes the place of these in the config file.
  std::vector<std::string_view> replaces{};
  std::vector<TrainerKind> trainers{};  // that have it; empty: all
  Agreement agreement = Agreement::kValue;
  // What is trained depends on it beyond rounding: a run that goes on from a checkpoint has the
  // same.
  bool decides_numbers = false;
  std::string_view group{};  // of --help
};

/// Whether its presence is all there is to give.
inline bool is_flag(const Option& option) {
  return option.value.json == JsonKind::kBoolean;
}

/// The options of a program, in the order of --help.
std::span<const Option> options_of(TrainerKind trainer);

std::vector<std::string_view> names_of_options(TrainerKind trainer);

/// What --help says: "learning rate (default: 0.001);", and on the next line the allowed values.
std::string help_of(const Option& option);

/// The arguments that make `config` of the defaults: none for what is as it is by default.
std::vector<std::string> arguments_of(const TrainConfig& config, TrainerKind trainer);

/// One line of JSON: an object of all options that are set, by their names, which a config file may
/// hold. What is not UTF-8 in a file's name is replaced.
std::string json_of(const TrainConfig& config, TrainerKind trainer);

/// The first line of a --metrics file: {"configuration": {...}}; without its newline.
std::string configuration_record(const TrainConfig& config, TrainerKind trainer);

/// Names and values of what ranks must share: "--lr" and "0.001". The same names on every rank.
std::vector<std::pair<std::string, std::string>> shared_settings(const TrainConfig& config);

/// The same of what a run must have in common with the checkpoint that it goes on from, as far as
/// options tell alone.
std::vector<std::pair<std::string, std::string>> deciding_settings(const TrainConfig& config);

/// Throws Error: kUsage for a value that the option does not allow, in the words of the command
/// line; kConfiguration for options that do not fit together. Finds everything that can be found
/// without a device or a file.
void validate(const TrainConfig& config, TrainerKind trainer);

struct UpdateChoice {
  Update update;
  std::string_view why;
};

/// What --update auto is on a device of this kind, and why: the fastest that computes what was
/// asked for. The same on all ranks, whatever processors they have.
UpdateChoice choose_update(const TrainConfig& config, TrainerKind trainer, DeviceKind kind);

}  // namespace barestep
