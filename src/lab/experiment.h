// An experiment: what to measure, and one function from the measurements to its answers.
//
// The answers are computed from numbers alone, so tests give each experiment made-up measurements
// with opposite outcomes and a tie, and check what its sentences say. Answers leave out ranks and
// devices beyond the cores.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/config.h"
#include "lab/comparison.h"
#include "lab/findings.h"
#include "lab/machine_card.h"
#include "lab/measurement.h"
#include "lab/simulator.h"

namespace barestep {

/// Writes x.npy and y.npy, `rows` x `dim` numbers between -1 and 1 each, and classes.npy, a class
/// for each row of x, into the folder, which is made; unless they are there already. Throws Error:
/// kCannotCreate, kInputOutput.
void make_data_set(const std::filesystem::path& folder, std::int64_t rows, std::int64_t dim);

/// Makes a run read such a folder: its --data.
void read_data_set(DataConfig& data, const std::filesystem::path& folder);
/// The same with the classes for targets.
void read_classes(DataConfig& data, const std::filesystem::path& folder);

/// Values given in place of a setting's own; nothing is left as it is. Each holds where
/// an experiment does not vary it itself.
struct SettingOptions {
  std::optional<std::int64_t> dim{};
  std::optional<std::int64_t> depth{};
  std::optional<std::int64_t> batch_size{};
  std::optional<std::int64_t> steps{};
  std::optional<std::int64_t> recompute{};  // segments
  std::vector<int> ranks{};                 // that scale: ascending, 1 among them

  friend bool operator==(const SettingOptions&, const SettingOptions&) = default;
};

/// As on the command line of `mlp_lab run`: " --dim 512 --ranks 1,2"; empty for none.
std::string text_of(const SettingOptions& options);

/// What experiments are run with.
struct Setting {
  bool quick = false;  // a few seconds, for a look
  bool on_gpu = false;
  int units = 1;                 // GPUs, or cores
  std::filesystem::path data{};  // folder of the data set that experiments read
  std::int64_t data_rows = 4096;
  std::int64_t dim = 1024;
  std::int64_t depth = 6;
  std::int64_t batch_size = 64;
  std::int64_t steps = 30;
  std::int64_t recompute = 1;  // segments
  std::vector<int> ranks{};    // that scale; empty: 1, 2, 4, ... as rank_counts() has them
  int starts = 9;              // of each case; fewer than 6 have no interval
  double margin = kDefaultMargin;
};

Setting new_setting(bool quick, bool on_gpu, int units, const SettingOptions& options = {});

/// The run that an experiment varies: mlp_single on one device, all its threads.
Workload base_workload(const Setting& setting);

/// `ranks` of mlp_ddp, each with its own device or core.
Workload ddp_workload(const Setting& setting, int ranks);

/// `devices` of mlp_dp.
Workload dp_workload(const Setting& setting, int devices);

/// With `beyond_cores` as the workload says.
Case new_case(const Setting& setting, std::string key, Workload workload);

struct Results {
  Setting setting;
  std::string name{};                        // of the experiment
  std::vector<Measurement> cases;            // in the order of the experiment's list
  std::optional<MachineCard> card{};         // the machine's, where its rates were measured
  std::vector<SimulatedStep> predictions{};  // of the cases by that card; none without

  /// Throws Error(kBug) if there is none.
  [[nodiscard]] const Measurement& at(std::string_view key) const;

  /// Starts that every case has.
  [[nodiscard]] std::size_t rounds() const;

  /// Step times of one case, or times per sample where the batches differ.
  [[nodiscard]] Series steps_of(std::string_view key) const;
  [[nodiscard]] Series samples_of(std::string_view key) const;

  /// Step times of `b` against those of `a`.
  [[nodiscard]] Comparison compare(std::string_view a, std::string_view b) const;
  /// Each of `keys` against `reference`, as one family.
  [[nodiscard]] std::vector<Comparison> compare(std::string_view reference,
                                                std::span<const std::string> keys) const;
};

/// Empty, or why nothing may be concluded from times: "INVALID: ...". Too few rounds, or a case
/// that is in trouble (measurement.h).
std::string verdict_of(const Results& results);

struct Experiment {
  const char* name;
  const char* title;
  const char* question;
  std::vector<Case> (*cases)(const Setting& setting);
  Findings (*conclude)(const Results& results);
  bool needs_mpi = false;
  bool reads_data = false;
  bool needs_pytorch = false;  // so it is run only where it is asked for
};

/// All, in the order of the course that docs/lab.md names.
std::span<const Experiment> experiments();

/// Throws Error(kUsage), which names the nearest one, if there is none of this name.
const Experiment& experiment_of(std::string_view name);

}  // namespace barestep
