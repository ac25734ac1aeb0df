// Parsing option values from text into numbers, widths and choices, and writing them back.
//
// Every function that reads takes the whole text, or fails with one line that names the option,
// quotes the text and states what is allowed. None of them trims, guesses, or depends on the
// locale. Text that is written is read back as the same value.
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

/// A value as the user wrote it.
struct RawValue {
  std::string where;  // its name in messages: "--lr", "run.json:3:5: lr"
  std::string text;
  ExitCode code = ExitCode::kUsage;  // for every error with this value
};

/// The parts between the separators, one more than there are of these. They point into `text`.
std::vector<std::string_view> split(std::string_view text, std::string_view separator);

std::int64_t whole_number(const RawValue& given, const Range& range);
double real_number(const RawValue& given, const RealRange& range);

/// Any 64-bit integer, signed or not; -1 is 2^64 - 1.
std::uint64_t seed_number(const RawValue& given);

/// "784,512,10": two or more.
std::vector<std::int64_t> widths(const RawValue& given);

/// "64", or a sweep of "32,64,128". Sets batch_size and, if there are several, sweep.
void batch_sizes(const RawValue& given, DataConfig& data);

/// "0.9,0.999"
std::pair<double, double> two_shares(const RawValue& given);

/// "16GiB", "1.5MiB", "4096", as for parse_bytes().
std::int64_t byte_count(const RawValue& given);

/// "3h50m", as for parse_duration().
double duration(const RawValue& given);

/// A number of steps, "400", or a time, "10m".
CheckpointEvery checkpoint_every(const RawValue& given);
std::string text_of(const CheckpointEvery& every);

/// A number of segments, "4", or "auto" for kAutoRecompute.
std::int64_t segment_count(const RawValue& given);
std::string text_of_segments(std::int64_t segments);

/// "10:20": the steps 10 to 19. `first` must be below `end`.
StepRange step_range(const RawValue& given);

/// The names of the phases of a training step, in its order.
std::span<const std::string_view> phases_of_steps();

/// "forward,loss,backward": phases of a training step.
std::vector<Phase> phases(const RawValue& given);
std::string text_of_phases(const std::vector<Phase>& phases);

/// For flags, which have no text of their own: present on the command line, a flag reads as "true".
void no_value(const RawValue& given);

std::filesystem::path file_path(const RawValue& given);

/// "auto", "cpu", "cuda", "cuda:1"
std::string device_name(const RawValue& given);

/// One or more devices: "cuda:0,cuda:1", "cpu,cpu"; "cuda" means "cuda:0".
std::vector<std::string> device_names(const RawValue& given);

/// "randn", "idx:X,Y", "npy:X,Y" or "safetensors:F". Sets kind, x and y.
void data_source(const RawValue& given, DataConfig& data);

/// "1:20": rank 1, 20 ms.
SlowRank slow_rank(const RawValue& given);

/// "gradients:17:30:12@5,rank 1": bit 30 of word 17, after node 12 of step 5, on rank 1.
Flip flip(const RawValue& given);

/// "dynamic", "dynamic:1024" or "128".
LossScaling loss_scaling(const RawValue& given);
std::string text_of_loss_scaling(const LossScaling& scaling);

/// The index of the text in `names`.
std::size_t choice(const RawValue& given, std::span<const std::string_view> names);

/// The shortest text that parses to this number.
std::string text_of_number(double number);
std::string text_of_number(std::int64_t number);

/// "784,512,10"
std::string text_of_numbers(std::span<const std::int64_t> numbers);

std::string joined(std::span<const std::string> parts, std::string_view separator);
std::string joined(std::span<const std::string_view> parts, std::string_view separator);

}  // namespace barestep
