#include "lab/study/experiment.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <random>
#include <utility>

#include "core/error.h"
#include "core/output_file.h"
#include "options/option_values.h"

namespace barestep {
namespace {

/// Of NPY version 1.0; the elements begin at a multiple of 64 bytes.
std::string npy_header(std::int64_t rows, std::int64_t dim) {
  std::string text =
      fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows, dim);
  constexpr std::size_t kBeforeText = 10;
  text.append(63 - (kBeforeText + text.size()) % 64, ' ');
  text += '\n';
  std::string header = "\x93NUMPY\x01";
  header += '\0';
  header += static_cast<char>(text.size() % 256);
  header += static_cast<char>(text.size() / 256);
  return header + text;
}

std::vector<float> random_numbers(std::int64_t count, unsigned seed) {
  std::minstd_rand random(seed);
  std::vector<float> numbers(static_cast<std::size_t>(count));
  const auto range = static_cast<float>(std::minstd_rand::max());
  for (float& value : numbers) value = 2 * (static_cast<float>(random()) / range) - 1;
  return numbers;
}

template <class Is>
bool has_case(const Experiment& experiment, const Is& is) {
  return std::ranges::any_of(experiment.cases(new_setting(false, false, 2)), is);
}

}  // namespace

void make_data_set(const std::filesystem::path& folder, std::int64_t rows, std::int64_t dim) {
  std::filesystem::create_directories(folder);
  const std::string header = npy_header(rows, dim);
  for (const auto& [name, seed] : {std::pair{"x.npy", 1U}, {"y.npy", 2U}}) {
    if (std::filesystem::exists(folder / name)) continue;
    const std::vector<float> numbers = random_numbers(rows * dim, seed);
    replace_file(folder / name,
                 std::array{std::as_bytes(std::span(header)), std::as_bytes(std::span(numbers))});
  }
}

void read_data_set(DataConfig& data, const std::filesystem::path& folder) {
  data.kind = DataKind::kNpy;
  data.x = folder / "x.npy";
  data.y = folder / "y.npy";
}

std::vector<int> rank_counts_of(const RawValue& given) {
  std::vector<int> counts;
  for (const std::string_view text : split(given.text, ",")) {
    counts.push_back(static_cast<int>(
        whole_number({.where = given.where, .text = std::string(text)}, {1, 1 << 20})));
  }
  std::ranges::sort(counts);
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  return counts;
}

Setting new_setting(bool quick, bool on_gpu, int units, const GivenOptions& options) {
  Setting setting{.quick = quick, .on_gpu = on_gpu, .units = units};
  if (on_gpu) setting.dim = 8192;
  if (quick) {
    setting.dim = on_gpu ? 1024 : 256;
    setting.depth = 2;
    setting.steps = 20;
    setting.starts = 6;
    setting.data_rows = 1024;
  }
  GivenOptions of_runs = options;
  if (const auto ranks = of_runs.extract("ranks")) {
    setting.ranks = rank_counts_of({.where = "--ranks", .text = ranks.mapped()});
    if (setting.ranks.front() != 1) setting.ranks.insert(setting.ranks.begin(), 1);
  }
  if (const auto pause = of_runs.extract("pause-ms")) {
    setting.pause_ms = real_number({.where = "--pause-ms", .text = pause.mapped()},
                                   {.low = 0, .with_low = false, .end = 1e4});
  }
  setting.base = asked_run(of_runs).config;
  setting.dim = setting.base.model.dim.value_or(setting.dim);
  setting.depth = setting.base.model.depth.value_or(setting.depth);
  setting.steps = setting.base.training.steps.value_or(setting.steps);
  if (options.contains("batch-size")) {
    setting.batch_size = setting.scaling_batch_size = setting.base.data.batch_size;
  }
  // Enough different batches for the longest experiment that reads data.
  setting.data_rows = std::max(setting.data_rows, 4 * setting.batch_size);
  return setting;
}

Workload base_workload(const Setting& setting) {
  Workload workload{
      {.on_gpu = setting.on_gpu, .data_rows = setting.data_rows, .config = setting.base}};
  workload.config.parallel.scheme = SchemeKind::kSingle;
  workload.config.model.dim = setting.dim;
  workload.config.model.depth = setting.depth;
  workload.config.data.batch_size = setting.batch_size;
  workload.config.training.steps = setting.steps;
  workload.config.device.device = setting.on_gpu ? "cuda" : "cpu";
  // Experiments break a step down and compare it with PyTorch's and with that of several devices,
  // which have no fused update; so products and updates are separate.
  Update& update = workload.config.training.update;
  if (update == Update::kAuto) update = Update::kSeparate;
  return workload;
}

Workload ddp_workload(const Setting& setting, int ranks) {
  Workload workload = base_workload(setting);
  const SchemeKind asked = setting.base.parallel.scheme;
  workload.config.parallel.scheme = has_ranks(asked) ? asked : SchemeKind::kDdp;
  workload.ranks = ranks;
  if (!setting.on_gpu) workload.config.device.threads = 1;
  return workload;
}

Workload dp_workload(const Setting& setting, int devices) {
  Workload workload = ddp_workload(setting, devices);
  workload.config.parallel.scheme = SchemeKind::kDataParallel;
  workload.gpus = setting.units;
  DeviceConfig& device = workload.config.device;
  device.device = "auto";
  for (int i = 0; i < devices; ++i) {
    device.devices.push_back(setting.on_gpu ? fmt::format("cuda:{}", i % setting.units) : "cpu");
  }
  return workload;
}

Case new_case(const Setting& setting, std::string key, Workload workload) {
  Case what{.key = std::move(key), .workload = std::move(workload)};
  what.beyond_cores = what.workload.ranks > setting.units;
  return what;
}

const Measurement& Results::at(std::string_view key) const {
  const auto found = std::ranges::find_if(
      cases, [&](const Measurement& measured) { return measured.what().key == key; });
  BARESTEP_REQUIRE(found != cases.end(), "an experiment asks for a case that it does not have");
  return *found;
}

std::size_t Results::rounds() const {
  BARESTEP_REQUIRE(!cases.empty(), "an experiment has no case");
  return std::ranges::min(cases, {},
                          [](const Measurement& measured) { return measured.starts().size(); })
      .starts()
      .size();
}

Series Results::steps_of(std::string_view key) const {
  return {std::string(key), at(key).mean_s_by_start()};
}

std::vector<Series> Results::steps_of(std::span<const std::string> keys) const {
  std::vector<Series> all;
  for (const std::string& key : keys) all.push_back(steps_of(key));
  return all;
}

Series Results::samples_of(std::string_view key) const {
  return {std::string(key), at(key).sample_s_by_start()};
}

Comparison Results::compare(std::string_view a, std::string_view b) const {
  return barestep::compare(steps_of(a), steps_of(b), setting.margin);
}

std::vector<Comparison> Results::compare(std::string_view reference,
                                         std::span<const std::string> keys) const {
  return barestep::compare(steps_of(reference), steps_of(keys), setting.margin);
}

bool is_logged(const Results& results) {
  return !results.cases.empty() && results.cases.front().starts().front().library == kLogged;
}

std::string trouble_of(const Results& results) {
  if (is_logged(results)) {
    return "INVALID: log lines tell neither the parts of a step nor what other programs took";
  }
  std::vector<std::string> reasons;
  for (const Measurement& measured : results.cases) {
    if (const std::string why = measured.trouble(); !why.empty()) reasons.push_back(why);
  }
  if (!reasons.empty()) {
    const std::string rest =
        reasons.size() == 1 ? "" : fmt::format(" (and {} more)", reasons.size() - 1);
    return fmt::format("INVALID: {}{}; the same command with --wait-quiet repeats these starts",
                       reasons.front(), rest);
  }
  const std::size_t needed = starts_needed(1);
  if (results.rounds() >= needed) return "";
  return fmt::format(
      "INVALID: {} made, a 95 % interval needs {}; run it again with --starts {}",
      results.rounds() == 1 ? "1 round was" : fmt::format("{} rounds were", results.rounds()),
      needed, needed);
}

bool Experiment::needs_mpi() const {
  return has_case(
      *this, [](const Case& what) { return what.workload.has_ranks() && what.made == nullptr; });
}

bool Experiment::reads_data() const {
  return has_case(
      *this, [](const Case& what) { return what.workload.config.data.kind == DataKind::kNpy; });
}

bool Experiment::needs_pytorch() const {
  return has_case(*this, [](const Case& what) { return what.workload.pytorch; });
}

int starts_of(const Experiment& experiment, const Setting& setting) {
  const std::size_t cases = experiment.chooses ? experiment.cases(setting).size() : 1;
  return std::max(setting.starts,
                  static_cast<int>(starts_needed(std::max<std::size_t>(cases, 2) - 1)));
}

std::string_view units_word(const Setting& setting) {
  return setting.on_gpu ? "GPUs" : "cores";
}

std::string units_text(const Setting& setting) {
  return counted(setting.units, setting.on_gpu ? "GPU" : "core");
}

std::string ranks_text(const Workload& workload) {
  return counted(workload.ranks, workload.has_ranks() ? "rank" : "device");
}

std::string deviation_text(const Measurement& measured) {
  return fmt::format("{} ({})", time_text(estimate_of(measured.deviation_s_by_start()).median),
                     percent_text(estimate_of(measured.variation_by_start()).median));
}

}  // namespace barestep
