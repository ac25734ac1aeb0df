// Values of options: from text to numbers, widths, choices, and back.
//
// Every function that reads takes the whole text or fails with one line that names the option,
// quotes the text and says what is allowed. None of them trims, guesses, or depends on the locale.
// What is written is read back the same.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/config.h"
#include "core/error.h"

namespace barestep {

/// A value as it was written.
struct RawValue {
  std::string where;  // what messages call it: "--lr", "run.json:3:5: lr"
  std::string text;
  ExitCode code = ExitCode::kUsage;  // of every failure with it
};

std::int64_t whole_number(const RawValue& given, const Range& range);
double real_number(const RawValue& given, const RealRange& range);

/// Any 64-bit integer, signed or not; -1 is 2^64 - 1.
std::uint64_t seed_number(const RawValue& given);

/// "784,512,10": two or more.
std::vector<std::int64_t> widths(const RawValue& given);

/// "64", or a sweep of "32,64,128": fills batch_size and, for several, sweep.
void batch_sizes(const RawValue& given, DataConfig& data);

/// "0.9,0.999"
std::pair<double, double> two_shares(const RawValue& given);

/// "16GiB", "1.5MiB", "4096": what parse_bytes() reads.
std::int64_t byte_count(const RawValue& given);

/// "3h50m": what parse_duration() reads.
double duration(const RawValue& given);

/// "400", a number of steps, or "10m", a time.
CheckpointEvery checkpoint_every(const RawValue& given);
std::string text_of(const CheckpointEvery& every);

/// "4", a number of segments, or "auto", which is kAutoRecompute.
std::int64_t segment_count(const RawValue& given);
std::string text_of_segments(std::int64_t segments);

/// "10:20", the steps 10 to 19: `first` below `end`.
StepRange step_range(const RawValue& given);

/// A flag has no text of its own: on the command line its presence is "true".
void no_value(const RawValue& given);

std::filesystem::path file_path(const RawValue& given);

/// "auto", "cpu", "cuda", "cuda:1"
std::string device_name(const RawValue& given);

/// "cuda:0,cuda:1", "cpu,cpu": one or more; "cuda" is "cuda:0".
std::vector<std::string> device_names(const RawValue& given);

/// "randn", "idx:X,Y", "npy:X,Y" or "safetensors:F": fills kind, x and y.
void data_source(const RawValue& given, DataConfig& data);

/// "1:20": rank 1, 20 ms.
SlowRank slow_rank(const RawValue& given);

/// "dynamic", "dynamic:1024" or "128".
LossScaling loss_scaling(const RawValue& given);
std::string text_of_loss_scaling(const LossScaling& scaling);

/// The index of the text in `names`.
std::size_t choice(const RawValue& given, std::span<const std::string_view> names);

/// The shortest text that is read as this number.
std::string text_of_number(double number);
std::string text_of_number(std::int64_t number);

/// "784,512,10"
std::string text_of_numbers(std::span<const std::int64_t> numbers);

std::string joined(std::span<const std::string> parts, std::string_view separator);
std::string joined(std::span<const std::string_view> parts, std::string_view separator);

}  // namespace barestep
