// What the commands of mlp_lab do. Each prints what it finds on stdout; most block for as long as
// their measurements take.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lab/comparison.h"
#include "lab/experiment.h"
#include "lab/prediction.h"
#include "lab/sheets.h"

namespace barestep {

struct StudyOptions {
  std::vector<std::string> names{};  // of experiments, or "all"
  std::filesystem::path output{};    // the study's folder; of a card, its file, or empty
  std::string device = "auto";
  std::filesystem::path card{};          // of an earlier measurement; empty: measured now
  std::optional<std::int64_t> memory{};  // that runs may take, in bytes; else what is free
  bool quick = false;
  int starts = 0;                  // of each case; 0: 9, or 6 with quick
  double margin = kDefaultMargin;  // differences within it are called small
  SettingOptions setting{};
  bool with_pytorch = false;
  std::string python = "python3";
  std::string version{};  // of this program, for reports
};

/// The experiments and the questions they answer.
void list_experiments();

/// Measures what the study in `output` has not measured yet, and writes its report. SIGINT and
/// SIGTERM end it; the same command goes on from there. Throws Error.
void run_study(const StudyOptions& options);

/// An exercise sheet (lab/sheets.h): measures what it needs and the study in `output` lacks, writes
/// the sheet there as Markdown, and prints it. Throws Error.
void print_sheet(const StudyOptions& options, const std::string& name, SheetCopy copy);

/// Writes the report of the study in `folder` again. Throws Error.
void report_study(const std::filesystem::path& folder, double margin);

/// Amdahl's law for a serial share: what so many ranks reach, and any number at most.
void print_amdahl(double serial, const std::vector<int>& ranks);

/// What a checkpoint holds, and whether it is whole. Throws Error: kBadData, after all is printed,
/// where a tensor is damaged; and as report_on_checkpoint() does.
void print_checkpoint(const std::filesystem::path& file);

/// Measures this machine, and writes its card to `output` or prints it. Throws Error.
void print_card(const StudyOptions& options);

/// Prints numbers that others published beside ours. Throws Error(kBug), after the whole table,
/// where one that must come out does not.
void validate_published();

/// Simulates a step on the machine of a card, by its file or its name. Throws Error.
void predict(const std::string& machine, const PredictedModel& model,
             const std::vector<int>& ranks);

/// Writes `out`: one trace with the events of all, on one axis of time, each rank with rows of its
/// own; for Perfetto. HolisticTraceAnalysis takes the files of the ranks themselves. Plain files or
/// .gz. Throws Error: kNoInput for a file that cannot be read, kBadData for one that is no trace or
/// whose rank another file has, kConfiguration where `out` is one of the files; and as
/// write_trace() does.
void merge_traces(const std::filesystem::path& out, std::span<const std::filesystem::path> paths);

/// What one rank of measure_card()'s does.
struct RankRatesOptions {
  std::filesystem::path output{};
  std::string device = "cpu";
  int threads = 0;
  bool quick = false;
  bool alone = false;  // without MPI
};

/// Measures this rank's device and its links as mlp_ddp would use them, and writes the result.
/// Throws Error.
void measure_rank(const RankRatesOptions& options);

}  // namespace barestep
