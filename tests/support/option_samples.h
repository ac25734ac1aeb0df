// A value of every option of the table.
#pragma once

#include "options/options.h"
#include "support/testing.h"

namespace barestep {

/// For each option that is neither a flag nor a choice of names, a value other than the default.
inline const std::map<std::string_view, std::string>& samples() {
  static const std::map<std::string_view, std::string> all = {
      {"dim", "48"},
      {"depth", "3"},
      {"layers", "784,512,10"},
      {"heads", "4"},
      {"length", "16"},
      {"ffn", "96"},
      {"label-smoothing", "0.05"},
      {"dropout", "0.1"},
      {"data", "npy:x*.npy,a folder/y.npy"},
      {"workers", "0"},
      {"prefetch", "7"},
      {"test-split", "0.2"},
      {"input-scale", "127.5"},
      {"batch-size", "48"},
      {"global-batch-size", "96"},
      {"steps", "7"},
      {"epochs", "3"},
      {"warmup", "0"},
      {"seed", "18446744073709551615"},
      {"log-every", "10"},
      {"lr", "1e-05"},
      {"lr-warmup", "4"},
      {"lr-min", "1e-06"},
      {"lr-step", "5"},
      {"lr-gamma", "0.5"},
      {"betas", "0.8,0.95"},
      {"eps", "1e-45"},
      {"momentum", "0.9"},
      {"weight-decay", "0.1"},
      {"accumulate", "2"},
      {"recompute", "4"},
      {"reproducible", "8"},
      {"clip-norm", "0.5"},
      {"device", "cuda:1"},
      {"threads", "2"},
      {"autotune", "choices.json"},
      {"loss-scale", "dynamic:1024"},
      {"loss-scale-window", "500"},
      {"devices", "cuda:0,cuda:2"},
      {"tensor", "2"},
      {"servers", "2"},
      {"sync-every", "4"},
      {"staleness", "2"},
      {"teacher-noise", "0.25"},
      {"pipeline", "3"},
      {"micro-batches", "4"},
      {"bucket-mib", "0.25"},
      {"timeout", "60"},
      {"io-delay-ms", "0.30000000000000004"},
      {"delay-ms", "10"},
      {"slow-rank", "1:20.5"},
      {"jitter-ms", "3"},
      {"flip", "parameters:17:30:4@3"},
      {"trace", "t.json.gz"},
      {"profile-steps", "10:18"},
      {"profile-phases", "forward,loss,backward"},
      {"sort-by", "count"},
      {"row-limit", "5"},
      {"tensorboard", "runs"},
      {"metrics", "m.jsonl"},
      {"verify-every", "4"},
      {"memory", "17179869184"},
      {"save", "s"},
      {"load", "l"},
      {"early-stop", "3"},
      {"checkpoint", "c"},
      {"checkpoint-every", "1h30m"},
      {"checkpoint-keep", "3"},
      {"resume-from", "f"},
      {"time-limit", "1d2h3m4.567s"},
  };
  return all;
}

/// Whether the option has one value, the default.
inline bool is_fixed(const Option& option) {
  return option.value.json == JsonKind::kString && option.value.argument == option.unset;
}

/// The names that an option offers; empty if it takes other text.
inline std::vector<std::string> choices_of(const Option& option) {
  std::vector<std::string> names;
  if (option.value.json != JsonKind::kString) return names;
  std::istringstream argument(option.value.argument);
  for (std::string name; std::getline(argument, name, '|');) names.push_back(name);
  const bool free = (names.size() < 2 && !is_fixed(option)) || samples().contains(option.name);
  return free ? std::vector<std::string>{} : names;
}

/// A value other than the default; "true" for a flag.
inline std::string sample_of(const Option& option) {
  if (is_flag(option)) return "true";
  const std::vector<std::string> choices = choices_of(option);
  if (!choices.empty()) return choices.back();
  const auto found = samples().find(option.name);
  EXPECT_NE(found, samples().end()) << option.name << " has no sample";
  return found == samples().end() ? "" : found->second;
}

}  // namespace barestep
