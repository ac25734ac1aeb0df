#include "rank_agreement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>

#include "core/content_hash.h"
#include "core/error.h"
#include "core/file_pattern.h"
#include "core/units.h"
#include "train/schedule.h"

namespace barestep {
namespace {

constexpr char kEndOfValue = '\0';

void add_files(RankSettings& settings, const char* name, const std::filesystem::path& pattern) {
  if (pattern.empty()) return;
  std::vector<std::string> contents;
  for (const auto& file : matching_files(pattern)) contents.push_back(content_hash(file));
  settings.emplace_back(name, fmt::format("{}", fmt::join(contents, ", ")));
}

std::map<std::string, std::string> settings_in(const std::string& text) {
  std::map<std::string, std::string> settings;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t name_end = text.find(kEndOfValue, at);
    const std::size_t end = text.find(kEndOfValue, name_end + 1);
    settings[text.substr(at, name_end - at)] = text.substr(name_end + 1, end - name_end - 1);
    at = end + 1;
  }
  return settings;
}

/// "rank 0", "ranks 1-3 and 5".
std::string text_of_ranks(const std::vector<int>& ranks) {
  std::vector<std::string> runs;
  for (std::size_t first = 0; first < ranks.size();) {
    std::size_t last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    runs.push_back(first == last ? std::to_string(ranks[first])
                                 : fmt::format("{}-{}", ranks[first], ranks[last]));
    first = last + 1;
  }
  return fmt::format("{} {}", noun_for(std::ssize(ranks), "rank"), fmt::join(runs, ", "));
}

}  // namespace

RankSettings settings_of(const TrainConfig& config, const StepPrograms& programs) {
  const StepSpec& spec = programs.spec();
  const TrainingConfig& training = config.training;
  const OptimizerConfig& optimizer = config.optimizer;
  const ParallelConfig& parallel = config.parallel;
  RankSettings settings;
  const auto add = [&](const char* name, const auto& value) {
    settings.emplace_back(name, fmt::format("{}", value));
  };
  add("--layers", fmt::format("{}", fmt::join(spec.model.layout.widths(), ",")));
  add("--activation", name_of(spec.model.activation));
  add("--no-last-relu", !spec.model.last_relu);
  add("--loss", name_of(spec.model.loss));
  add("--data", name_of(spec.data));
  add("--test-split", config.data.test_split);
  add_files(settings, "data", config.data.x);
  add_files(settings, "targets", config.data.y);
  add("--drop-last", spec.drop_last);
  add("--global-batch-size", spec.batch_size);
  add("--data-seeding", spec.own_data ? "per-rank" : "global");
  add("--accumulate", spec.accumulate);
  add("--no-zero-grad", !spec.zero_grad);
  add("--steps", steps_of(training, spec.epoch_rows(), spec.step_rows()));
  add("--log-every", training.log_every);
  add("--seed", training.seed);
  add("--optimizer", name_of(optimizer.kind));
  add("--lr", optimizer.lr);
  add("--lr-warmup", optimizer.lr_warmup);
  add("--lr-scale", name_of(optimizer.lr_scale));
  add("--betas", fmt::format("{},{}", optimizer.beta1, optimizer.beta2));
  add("--eps", optimizer.eps);
  add("--momentum", optimizer.momentum);
  add("--nesterov", optimizer.nesterov);
  add("--weight-decay", weight_decay_of(optimizer));
  add("--fusion", config.device.fusion ? "on" : "off");
  add("--precision", name_of(config.device.precision));
  add("--graph", config.device.graph);
  add("--scheme", name_of(parallel.scheme));
  add("--bucket-mib", parallel.bucket_mib);
  add("--first-bucket", parallel.whole_first_bucket ? "whole" : "same");
  add("--no-overlap", !parallel.overlap);
  add("--grad-dtype", parallel.bf16_gradients ? "bf16" : "fp32");
  add("--update", name_of(training.update));
  add("--clip-norm", training.clip_norm.value_or(0));
  add("--evaluate-only", training.evaluate_only);
  add("--metrics", !config.output.metrics.empty());
  add("--monitor", config.output.monitor);
  add("--profile", config.output.profile);
  add("--trace", !config.output.trace.empty());
  if (training.evaluate_only) return settings;  // which has no steps
  const StepRange profiled =
      profiled_steps_of(config, steps_of(training, spec.epoch_rows(), spec.step_rows()));
  add("--profile-steps", fmt::format("{}:{}", profiled.first, profiled.end));
  return settings;
}

std::vector<std::string> gather_texts(Communicator& ranks, const std::string& mine) {
  const auto count = static_cast<std::size_t>(ranks.size());
  const std::int64_t size = std::ssize(mine);
  std::vector<std::int64_t> sizes(count);
  ranks.all_gather(std::as_bytes(std::span(&size, 1)), std::as_writable_bytes(std::span(sizes)));
  const auto longest = static_cast<std::size_t>(*std::ranges::max_element(sizes));
  std::string padded = mine;
  padded.resize(longest);
  std::string all(count * longest, kEndOfValue);
  ranks.all_gather(std::as_bytes(std::span(padded)), std::as_writable_bytes(std::span(all)));
  std::vector<std::string> texts;
  for (std::size_t rank = 0; rank < count; ++rank) {
    texts.push_back(all.substr(rank * longest, static_cast<std::size_t>(sizes[rank])));
  }
  return texts;
}

RankSettings build_settings() {
  return {{"build", content_hash("/proc/self/exe")}};
}

void require_agreement(Communicator& ranks, const RankSettings& settings) {
  std::string mine;
  for (const auto& [name, value] : settings) {
    for (const std::string& text : {name, value}) {
      mine += text;
      mine += kEndOfValue;
    }
  }
  std::vector<std::map<std::string, std::string>> all;
  for (const std::string& text : gather_texts(ranks, mine)) all.push_back(settings_in(text));

  // In this rank's order; names that only others have come behind.
  std::vector<std::string> names;
  for (const auto& [name, value] : settings) names.push_back(name);
  for (const auto& each : all) {
    for (const auto& [name, value] : each) {
      if (std::ranges::find(names, name) == names.end()) names.push_back(name);
    }
  }
  std::vector<std::string> differences;
  for (const std::string& name : names) {
    std::map<std::string, std::vector<int>> ranks_of;
    std::vector<std::string> values;  // in rank order
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      const auto found = all[rank].find(name);
      const std::string value = found == all[rank].end() ? "not there" : found->second;
      if (ranks_of[value].empty()) values.push_back(value);
      ranks_of[value].push_back(static_cast<int>(rank));
    }
    if (values.size() == 1) continue;
    std::vector<std::string> parts;
    for (const std::string& value : values) {
      parts.push_back(fmt::format("{} on {}", value, text_of_ranks(ranks_of[value])));
    }
    differences.push_back(fmt::format("{} is {}", name, fmt::join(parts, " and ")));
  }
  if (differences.empty()) return;
  fail(ExitCode::kConfiguration, {.what = "ranks differ",
                                  .value = "",
                                  .why = fmt::format("{}", fmt::join(differences, ", ")),
                                  .remedy = "give all ranks the same build, options and files"});
}

}  // namespace barestep
