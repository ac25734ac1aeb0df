// The commands of mlp_lab. Each prints its results on stdout; most block for as long as their
// measurements take.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lab/explain/trace_scaling.h"
#include "lab/predict/prediction.h"
#include "lab/report/comparison.h"
#include "lab/study/experiment.h"

namespace barestep {

struct StudyOptions {
  std::vector<std::string> names{};  // of experiments, or "all"
  std::filesystem::path output{};    // the study's folder; for a card, its file, or empty
  std::string device = "auto";
  std::filesystem::path logs{};          // folder of logs of other programs; empty: none
  std::filesystem::path card{};          // from an earlier measurement; empty: measured now
  std::filesystem::path before{};        // a sheet as it was before the first run, if it is there
  std::optional<std::int64_t> memory{};  // limit of the runs' memory in bytes; default: all free
  bool quick = false;
  bool wait_quiet = false;         // for other programs to leave the cores alone
  int starts = 0;                  // per case; 0: 9, or 6 with quick
  double margin = kDefaultMargin;  // smaller differences are called small
  GivenOptions given{};            // of the trainers, and "ranks"
  bool with_pytorch = false;
  std::string python = "python3";
  std::string version{};  // of this program, for reports
};

/// Prints the experiments and the questions they answer.
void list_experiments();

/// Measures what the study in `output` lacks, and writes its report. The signals that stop
/// a trainer stop it; the same command continues from there. Throws Error.
void run_study(const StudyOptions& options);

/// Measures the run of a trainer, on this machine, and prints what it would gain from changes of
/// its options; if `checks`, makes each of them in turn with the run and prints what it gained. Of
/// `options`, the trainers' and the device are the run's. Writes a report, if there is a folder for
/// it. Throws Error: what require() throws, kConfiguration for outputs of the run.
void what_if(StudyOptions options, Run run, bool checks);

struct SheetOptions {
  std::string name{};                // of a sheet, or a file in .md
  std::string machine = kUsualCard;  // of the GPUs that are simulated
  bool blank = false;                // nothing is measured
  bool key = false;
  bool figures = false;  // answers are left to the student
  bool pdf = false;
  std::vector<std::string> script{};  // arguments of a script that does it later; empty: do it now
  StudyOptions study{};  // without a folder, "lab-results", or the current one for a blank copy
};

/// Produces an exercise sheet (lab/sheets.h): measures the experiments that it needs and the study
/// lacks, writes the sheet there as Markdown, as a page and, if asked for, as PDF, and prints it.
/// Or writes NAME.sh into the current folder, which does so with `script` as its arguments. Throws
/// Error.
void print_sheet(SheetOptions options);

struct ClassOptions {
  std::string action{};                        // "new", "grade", "collect"
  std::vector<std::string> arguments{};        // a sheet; a class and what was handed in; a folder
  std::filesystem::path students{}, output{};  // output: "class", or what grading makes of it
  std::string machine{};                       // the card that prices; empty: the usual one
  std::string secret{};
  bool quick = false;
  bool rerun = false;
};

/// Makes a class, grades it, or joins the studies of its machines (lab/class/class.h). Throws
/// Error.
void run_class(const ClassOptions& options);

/// Prints the names that sheets may use.
void list_sheet_names();

/// Rewrites the report of the study in `folder`, with `pdf` also as report.pdf. Throws Error.
void report_study(const std::filesystem::path& folder, double margin, bool pdf);

/// Amdahl's law for a serial share: the speed-up of this many ranks, and the limit for any number.
void print_amdahl(double serial, const std::vector<int>& ranks);

/// Prints what a checkpoint holds and whether it is intact: reads it whole. Throws Error: kNoInput
/// if it cannot be opened, kBadData if it is not a checkpoint of a training run or, after
/// everything is printed, if a tensor is damaged, kInputOutput if reading fails.
void print_checkpoint(const std::filesystem::path& file);

/// Measures this machine, and writes its card to `output` or prints it. Throws Error.
void print_card(const StudyOptions& options);

/// Prints docs/published.md: published numbers beside ours, which a test computes.
void print_published();

struct PredictOptions {
  std::string machine = kUsualCard;  // a card's file or name
  std::vector<int> ranks{};          // none: usual_ranks()
  bool with_rates = false;           // of products by shape, and of the card with their sources
};

/// Simulates a step on the machine of a card. Throws Error.
void predict(const PredictOptions& options, const Run& asked);

/// Prints the best mesh of `ranks` ranks, each with so much memory, on the machine of a card, with
/// the reasons. Throws Error.
void plan_mesh(const std::string& machine, const Run& asked, int ranks, std::int64_t memory_bytes);

/// Writes `out`, for Perfetto: one trace with the events of all files on one time axis; each rank
/// has its own rows. HolisticTraceAnalysis takes the ranks' own files. Plain files or .gz. Throws
/// Error: kNoInput if a file cannot be read; kBadData if a file is not a trace, or if two have the
/// same rank; kConfiguration if `out` is one of the files; also as write_trace() does.
void merge_traces(const std::filesystem::path& out, std::span<const std::filesystem::path> paths);

struct ExplorerOptions {
  std::filesystem::path output = "explore.html";
  std::string machine{};             // the page's first card, a file or a name; empty: a usual one
  std::filesystem::path study{};     // a study's folder: it starts from that machine's card
  std::filesystem::path question{};  // to be answered instead of writing the page; empty: none
  bool open = false;                 // in the desktop's browser
  std::string version{};             // of this program
};

/// With a question, prints the answer (lab/predict/explorer.h), for which the question may name its
/// card. Otherwise writes the page that runs this code in a browser: one file that needs no others.
/// Throws Error: kNoInput if page_module() is not there or the study has no card; kNoDevice if no
/// browser starts; also as load_card() and replace_file() do.
void write_explorer(const ExplorerOptions& options);

/// What the page runs; it may be missing where programs were copied alone.
std::filesystem::path page_module();

struct ExplainOptions {
  /// One of each rank, or folders of them; none: the newest one here. Two folders, or results.json
  /// of an earlier account and a trace or folder: two runs.
  std::vector<std::filesystem::path> traces{};
  std::optional<double> fail_above{};       // of two runs: how much longer the second may take
  std::filesystem::path output{};           // the report's folder; empty: none
  bool json = false;                        // print results.json instead of the text
  std::string machine{};                    // the card of a prediction; empty: by the GPU
  bool scaling = false;                     // the traces are folders, one for each number of ranks
  std::optional<ScalingProblem> problem{};  // of scaling; else as the traces tell
  int ranks = 0;                            // that one device's program is predicted for; 0: none
};

/// Prints the account of a run from its traces, by PyTorch's profiler or by --trace, or of two
/// runs the account of their difference, and writes its report. Throws Error: kNoInput,
/// kBadData, also if the second run is too slow; kCannotCreate, kInputOutput.
void explain_traces(const ExplainOptions& options);

/// Options of one rank of measure_card().
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
