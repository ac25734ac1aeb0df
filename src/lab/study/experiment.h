// An experiment: the cases to measure, and one function from the measurements to the findings. One
// without cases is calculated, and nothing of it is timed.
//
// Findings depend only on the numbers, so tests give each experiment invented measurements with
// opposite outcomes and a tie, and check them. They leave out ranks and devices beyond the cores.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/config.h"
#include "lab/predict/asked_run.h"
#include "lab/predict/machine_card.h"
#include "lab/predict/simulator.h"
#include "lab/report/comparison.h"
#include "lab/report/findings.h"
#include "lab/study/measurement.h"

namespace barestep {

/// Creates the folder and writes x.npy and y.npy, each `rows` x `dim` numbers between -1 and 1,
/// unless they exist already. Throws Error: kCannotCreate, kInputOutput.
void make_data_set(const std::filesystem::path& folder, std::int64_t rows, std::int64_t dim);

/// Makes a run read such a folder, as --data does.
void read_data_set(DataConfig& data, const std::filesystem::path& folder);

/// The conditions that experiments run under.
struct Setting {
  bool quick = false;  // a few seconds, for a first look
  bool on_gpu = false;
  int units = 1;                 // GPUs or cores
  std::filesystem::path data{};  // folder of the data set that experiments read
  std::int64_t data_rows = 4096;
  std::int64_t dim = 1024;
  std::int64_t depth = 6;
  std::int64_t batch_size = 64;
  /// Where the question is what limits ranks: at the course's 64 they gain nothing to lose.
  std::int64_t scaling_batch_size = 512;
  std::int64_t steps = 30;
  double pause_ms = 10;      // of a slow disk, for each batch; before backward; half a slow rank's
  TrainConfig base{};        // of every run, but for what an experiment varies and the above
  std::vector<int> ranks{};  // for scaling; empty: 1, 2, 4, ... as in rank_counts()
  int starts = 9;            // per case, at least; fewer than 6 give no interval
  double margin = kDefaultMargin;
};

/// `options` are those of the trainers, "ranks" and "pause-ms". Each applies unless an experiment
/// varies it itself. Throws Error(kUsage) for a value that an option does not allow.
Setting new_setting(bool quick, bool on_gpu, int units, const GivenOptions& options = {});

/// "1,2,4": ascending, each once.
std::vector<int> rank_counts_of(const RawValue& given);

/// The run that an experiment varies: mlp_single on one device with all its threads.
Workload base_workload(const Setting& setting);

/// mlp_ddp with `ranks` ranks, each with its own device or core.
Workload ddp_workload(const Setting& setting, int ranks);

/// mlp_dp with `devices` devices.
Workload dp_workload(const Setting& setting, int devices);

/// Sets `beyond_cores` from the workload.
Case new_case(const Setting& setting, std::string key, Workload workload);

struct Results {
  Setting setting;
  std::string name{};                 // the experiment's
  std::vector<Measurement> cases;     // in the order of the experiment's list
  std::optional<MachineCard> card{};  // the machine's, if its rates were measured
  /// Of the cases, by that card; empty without one. None for a case that the card has no rates for.
  std::vector<std::optional<SimulatedStep>> predictions{};

  /// Throws Error(kBug) if there is none.
  [[nodiscard]] const Measurement& at(std::string_view key) const;

  /// The number of starts that every case has.
  [[nodiscard]] std::size_t rounds() const;

  /// Mean step times of one case, or times per sample if the batch sizes differ.
  [[nodiscard]] Series steps_of(std::string_view key) const;
  [[nodiscard]] std::vector<Series> steps_of(std::span<const std::string> keys) const;
  [[nodiscard]] Series samples_of(std::string_view key) const;

  /// Step times of `b` compared with those of `a`.
  [[nodiscard]] Comparison compare(std::string_view a, std::string_view b) const;
  /// Compares each of `keys` with `reference`, as one family.
  [[nodiscard]] std::vector<Comparison> compare(std::string_view reference,
                                                std::span<const std::string> keys) const;
};

/// Empty, or why nothing may be found from the times: "INVALID: ...". The reason is too few rounds,
/// or a case with trouble (measurement.h). A case whose own time is uncertain is no reason: answers
/// about ratios and shares are certain where their intervals are.
std::string trouble_of(const Results& results);

/// Whether its starts were read from log lines (start.h).
bool is_logged(const Results& results);

/// A ratio of two times that no disturbance makes: it is stated though the starts are INVALID.
constexpr double kLargeEffect = 4;

struct Experiment {
  const char* name;
  const char* title;
  const char* question;
  std::vector<Case> (*cases)(const Setting& setting);
  Findings (*findings)(const Results& results);
  /// Those of its findings, tables and plots that its cases do not have, separated by blanks. A
  /// star stands for what the setting decides. Names of tables end in "-table", of plots in
  /// "-plot", or are that alone.
  const char* names;
  bool chooses = true;      // whether an answer compares more than two of its cases with another
  bool of_command = false;  // its first case is the trainer's run that `mlp_lab what-if` was given

  /// Whether one of its cases needs ranks, a data set, or PyTorch's scripts, so that it runs only
  /// if requested.
  [[nodiscard]] bool needs_mpi() const;
  [[nodiscard]] bool reads_data() const;
  [[nodiscard]] bool needs_pytorch() const;
};

/// The starts of each case of an experiment: the setting's, or as many as its answers need to
/// choose among all of its cases.
int starts_of(const Experiment& experiment, const Setting& setting);

/// All, in the order of the course that docs/sheets.md names.
std::span<const Experiment> experiments();

/// Those of `mlp_lab what-if`: only the run, and with every change of it made, too.
std::span<const Experiment> what_if_experiments();

/// Throws Error(kUsage), with the nearest name, if no experiment has this name.
const Experiment& experiment_of(std::string_view name);

/// What ranks and devices have of their own: "cores" or "GPUs"; and how many there are: "2 cores".
std::string_view units_word(const Setting& setting);
std::string units_text(const Setting& setting);

/// "4 ranks", or "4 devices" of a process.
std::string ranks_text(const Workload& workload);

/// "1.20 ms (4.0 %)": the standard deviation of the steps of a start, and of their mean.
std::string deviation_text(const Measurement& measured);

}  // namespace barestep
