// mlp_lab: whole experiments by one command.
#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "commands.h"
#include "core/error.h"
#include "core/host.h"
#include "core/output_file.h"
#include "core/text_table.h"
#include "core/units.h"
#include "findings_text.h"
#include "lab/measured_card.h"
#include "lab/prediction.h"
#include "lab/published.h"
#include "lab/report.h"
#include "lab/run_workload.h"
#include "lab/study.h"
#include "measure_rank.h"
#include "predict_command.h"
#include "run_program.h"
#include "trace_merge.h"

namespace barestep {
namespace {

constexpr const char* kMlpLab = "mlp_lab";

constexpr const char* kExamples = R"(
Examples:
  mlp_lab list
  mlp_lab run amdahl strong-scaling --output scaling
  mlp_lab run all --quick
  mlp_lab run amdahl --with-pytorch --python /usr/bin/python3
  mlp_lab report scaling
  mlp_lab validate
  mlp_lab card --output here.json
  mlp_lab predict --machine h200-nvlink --ranks 1,2,4,8 --dim 8192 --batch-size 64
  mlp_lab merge-traces all.json.gz trace.rank0.json trace.rank1.json
)";

struct RunOptions {
  std::vector<std::string> names;
  std::filesystem::path output = "lab-results";
  std::string device = "auto";
  std::string card;    // of an earlier measurement; empty: measured now
  std::string memory;  // that runs may take; empty: what is free
  bool quick = false;
  bool with_pytorch = false;
  std::string python = "python3";
};

void list_experiments() {
  TextTable table({{"experiment"}, {"question"}});
  for (const Experiment& each : experiments()) table.add_row({each.name, each.question});
  print_now(table.text());
}

/// `all` leaves out what cannot run here, and says so; a name that is given must run.
std::vector<const Experiment*> experiments_named(const std::vector<std::string>& names) {
  std::vector<const Experiment*> wanted;
  const bool has_mpirun = !find_on_path("mpirun").empty();
  for (const std::string& name : names) {
    if (name != "all") {
      wanted.push_back(&experiment_of(name));
      continue;
    }
    for (const Experiment& each : experiments()) {
      if (each.needs_pytorch) continue;
      if (!each.needs_mpi || has_mpirun) {
        wanted.push_back(&each);
      } else {
        print_note(kMlpLab,
                   fmt::format("{} is left out, since there is no mpirun on PATH", each.name));
      }
    }
  }
  return wanted;
}

/// On a terminal one line that changes, else a line for each start.
void show_progress(const StudyProgress& progress) {
  const bool is_terminal = ::isatty(STDERR_FILENO) == 1;
  const std::string left =
      progress.left_s > 0 ? fmt::format(", about {:.0f} s left", progress.left_s) : "";
  const std::string place =
      progress.total > 0 ? fmt::format("[{}/{}] ", progress.done, progress.total) : "";
  print_to_stderr(fmt::format("{}{}{}{}{}", is_terminal ? "\r\x1b[K" : "", place, progress.what,
                              left, is_terminal ? "" : "\n"));
}

void end_progress() {
  if (::isatty(STDERR_FILENO) == 1) print_to_stderr("\r\x1b[K");
}

void print_answers(const Report& report, const std::vector<const Experiment*>& wanted) {
  for (const ReportSection& section : report.sections) {
    if (std::ranges::find(wanted, section.experiment) == wanted.end()) continue;
    std::string text = fmt::format("{}\n", section.experiment->name);
    if (!section.verdict.empty()) text += fmt::format("  {}\n", section.verdict);
    show(text + text_of(section.findings) + "\n");
  }
}

StudyIdentity identity_of(const RunOptions& options) {
  StudyIdentity identity{.quick = options.quick,
                         .machine = this_machine(),
                         .version = BARESTEP_VERSION " " BARESTEP_COMMIT};
  identity.on_gpu = options.device != "cpu" && identity.machine.gpus > 0;
  if (options.device == "cuda" && !identity.on_gpu) {
    fail(ExitCode::kNoDevice, {.what = "--device",
                               .value = "cuda",
                               .why = "there is no GPU here",
                               .remedy = "use --device cpu"});
  }
  return identity;
}

void print_prediction(const Report& report) {
  const Findings prediction = prediction_findings(report.results());
  if (!prediction.sentences.empty()) show(prediction.sentences.front() + "\n");
}

void let_signals_stop_children() {
  std::signal(SIGINT, [](int) { stop_children(); });
  std::signal(SIGTERM, [](int) { stop_children(); });
}

std::filesystem::path folder_of_programs() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path();
}

MachineCard measured_card(const StudyIdentity& identity, const std::filesystem::path& scratch) {
  StudyProgress progress{};
  return measure_card({.machine = identity.machine,
                       .on_gpu = identity.on_gpu,
                       .quick = identity.quick,
                       .programs = folder_of_programs(),
                       .scratch = scratch,
                       .on_progress = [&](const std::string& what) {
                         progress.what = what;
                         show_progress(progress);
                       }});
}

/// Before anything is measured. What GPUs have free, their trainers ask.
void require_memory(const Study& study, const std::vector<const Experiment*>& wanted,
                    const std::string& stated) {
  if (!stated.empty()) {
    study.require_memory(wanted, parse_bytes("--memory", stated));
  } else if (!study.identity().on_gpu) {
    study.require_memory(wanted, host_memory().free_bytes);
  }
}

void run_experiments(const RunOptions& options) {
  std::vector<const Experiment*> wanted = experiments_named(options.names);
  if (options.with_pytorch) wanted.push_back(&experiment_of("pytorch"));
  for (const Experiment* each : wanted) {
    if (each->needs_mpi) path_of_mpirun();
    if (each->needs_pytorch) pytorch_version(options.python);
  }
  Study study(options.output, identity_of(options));
  require_memory(study, wanted, options.memory);
  let_signals_stop_children();
  const Programs programs(folder_of_programs(), options.python);
  if (!options.card.empty()) {
    study.keep_card(load_card(options.card));
  } else if (!study.card()) {
    study.keep_card(measured_card(study.identity(), study.folder() / "scratch"));
  }
  study.run(wanted, programs, show_progress);
  end_progress();
  const Report report = report_of(study);
  write_report(study.folder(), report);
  print_answers(report, wanted);
  print_prediction(report);
  show(fmt::format("Report: {}\n", (study.folder() / "report.html").string()));
}

void write_report_of(const std::filesystem::path& folder) {
  const Study study = Study::open(folder);
  write_report(folder, report_of(study));
  show(fmt::format("Report: {}\n", (folder / "report.html").string()));
}

std::filesystem::path scratch_folder() {
  std::error_code error;
  const std::filesystem::path temporary = std::filesystem::temp_directory_path(error);
  if (error) {
    const char* const named = std::getenv("TMPDIR");
    fail(ExitCode::kCannotCreate, {.what = "temporary folder",
                                   .value = named == nullptr ? "/tmp" : named,
                                   .why = error.message(),
                                   .remedy = "set TMPDIR to a folder that can be written"});
  }
  return temporary / fmt::format("mlp_lab-{}", ::getpid());
}

void print_card(const RunOptions& options) {
  require_card_output(options.output, folder_of_programs());
  let_signals_stop_children();
  const StudyIdentity identity = identity_of(options);
  const std::string text = json_of(measured_card(identity, scratch_folder()));
  end_progress();
  if (options.output.empty()) {
    print_now(text);
    return;
  }
  const std::array parts = {std::as_bytes(std::span(text))};
  replace_file(options.output, parts);
}

void add_device(CLI::App& command, RunOptions& options) {
  static constexpr std::string_view kDevices[] = {"auto", "cpu", "cuda"};
  accept_choices(command.add_option("--device", options.device, "auto is GPUs where there are any"),
                 kDevices)
      ->capture_default_str();
}

void add_run(CLI::App& app, RunOptions& options) {
  CLI::App* run =
      app.add_subcommand("run", "Run experiments; one that was stopped goes on where it stopped");
  run->add_option("name", options.names, "names of experiments, or all")->required();
  run->add_option("--output", options.output, "folder of results and report, made if new")
      ->capture_default_str();
  run->add_flag("--quick", options.quick, "a few seconds each: a small model, few steps");
  add_device(*run, options);
  run->add_option("--card", options.card,
                  "the machine's rates, as mlp_lab card wrote them; else they are measured");
  run->add_option("--memory", options.memory,
                  "what runs may take: of the machine, or of a GPU; 16GiB; else what is free");
  run->add_flag("--with-pytorch", options.with_pytorch,
                "also the experiment pytorch: the practicals' scripts, alternately with ours");
  run->add_option("--python", options.python, "the interpreter that has PyTorch")
      ->capture_default_str();
  run->callback([&] { run_experiments(options); });
}

void add_card(CLI::App& app, RunOptions& options) {
  CLI::App* card = app.add_subcommand(
      "card", "Measure this machine's rates and write its card, for predict --machine");
  card->add_option("--output", options.output, "the card's file, FILE.json; else it is printed");
  card->add_flag("--quick", options.quick, "fewer sizes, a few seconds");
  add_device(*card, options);
  card->callback([&] { print_card(options); });
}

struct MergeOptions {
  std::filesystem::path out;
  std::vector<std::filesystem::path> traces;
};

void add_merge_traces(CLI::App& app, MergeOptions& options) {
  CLI::App* merges = app.add_subcommand(
      "merge-traces", "Put the traces of several ranks or devices on one axis of time");
  merges->add_option("out", options.out, "the file to write; may end in .gz")->required();
  merges->add_option("in", options.traces, "the files that --trace wrote")->required();
  merges->callback([&] { merge_traces(options.out, options.traces); });
}

void validate_published() {
  std::vector<PublishedNumber> exact = exact_numbers();
  exact.push_back(zero_recipe_sum());
  std::vector<PublishedNumber> elsewhere = v100_scaling();
  for (PublishedNumber& each : recipes_elsewhere()) elsewhere.push_back(std::move(each));
  print_now("Numbers that depend on no hardware\n" + text_of(exact));
  print_now("\nNumbers of other hardware, beside ours; neither passes nor fails\n" +
            text_of(elsewhere));
  for (const PublishedNumber& each : exact) {
    BARESTEP_REQUIRE(each.reproduced.value_or(false), "a published number is not reproduced");
  }
}

void run_mlp_lab(const std::vector<std::string>& arguments) {
  CLI::App app{"Runs whole experiments on the trainers, and writes reports of them.", kMlpLab};
  app.footer(kExamples);
  app.set_version_flag("--version",
                       std::string(kMlpLab) + " " BARESTEP_VERSION " " BARESTEP_COMMIT);
  app.require_subcommand(1);

  app.add_subcommand("list", "Print the experiments and the questions they answer")
      ->callback(list_experiments);

  RunOptions options;
  add_run(app, options);

  std::filesystem::path folder;
  CLI::App* report = app.add_subcommand("report", "Write the report of a study again");
  report->add_option("folder", folder, "the --output of an earlier run")->required();
  report->callback([&] { write_report_of(folder); });

  app.add_subcommand("validate", "Reproduce numbers that others published")
      ->callback(validate_published);

  PredictOptions prediction;
  add_predict(app, prediction);

  RunOptions card;
  card.output.clear();
  add_card(app, card);

  MergeOptions merging;
  add_merge_traces(app, merging);

  RankRatesOptions rank_rates;
  add_measure_rank(app, rank_rates);

  try {
    run_command(app, arguments);
  } catch (const CLI::Success&) {
    print_now(arguments.empty() || arguments.front() != "--version" ? app.help()
                                                                    : app.version() + "\n");
  }
}

}  // namespace
}  // namespace barestep

int main(int argc, char** argv) {
  return barestep::run_program(barestep::kMlpLab, argc, argv, barestep::run_mlp_lab);
}
