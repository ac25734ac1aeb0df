// mlp_lab: complete experiments with one command.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "argument_parser.h"
#include "command_line.h"
#include "core/config.h"
#include "core/error.h"
#include "lab/commands.h"
#include "lab/doctor.h"
#include "lab/predict/asked_run.h"
#include "lab/predict/machine_card.h"
#include "lab/predict/schedule_check.h"
#include "lab/sheets/sheets.h"
#include "lab/study/experiment.h"
#include "lab/study/rank_bench.h"
#include "options/option_values.h"
#include "options/options.h"
#include "session/run_program.h"

namespace barestep {
namespace {

constexpr const char* kMlpLab = "mlp_lab";

/// A plan of so many ranks, with a hundred layers, takes two minutes.
constexpr int kMaxPlannedRanks = 1024;

constexpr const char* kExamples = R"(Examples:
  mlp_lab list
  mlp_lab run amdahl strong-scaling --output scaling
  mlp_lab run all --quick
  mlp_lab run amdahl --with-pytorch --python /usr/bin/python3
  mlp_lab report scaling
  mlp_lab what-if --check mpirun -np 2 mlp_ddp --slow-rank 1:20
  mlp_lab sheet homework1 --quick --pdf
  mlp_lab sheet my-sheet.md --machine a100-nvlink
  mlp_lab class new practical3 --students names.csv --output class
  mlp_lab class grade class handed-in --rerun
  mlp_lab validate
  mlp_lab amdahl --serial 0.1 --ranks 4
  mlp_lab doctor
  mlp_lab checkpoint run1/step-000000400.safetensors
  mlp_lab card --output here.json
  mlp_lab predict --machine h200-nvlink --ranks 1,2,4,8 --dim 8192 --batch-size 64
  mlp_lab plan --ranks 8 --memory 16GiB --dim 8192 --depth 24
  mlp_lab explore --output explore.html
  mlp_lab all-reduce --ranks 4
  mlp_lab check-schedule my-schedule.json
  mlp_lab merge-traces all.json.gz trace.rank0.json trace.rank1.json
  mlp_lab explain trace.rank0.json trace.rank1.json --output account)";

Argument device_option(std::string& device) {
  static constexpr std::string_view kDevices[] = {"auto", "cpu", "cuda"};
  return option("--device", "auto|cpu|cuda", "auto takes GPUs if there are any (auto)",
                [&](const RawValue& given) { device = kDevices[choice(given, kDevices)]; });
}

Argument machine_option(std::string& machine, std::string help) {
  return with_values(option("--machine", "CARD", std::move(help), to_text(machine)), card_names());
}

Read to_rank_counts(std::vector<int>& counts) {
  return [&counts](const RawValue& given) { counts = rank_counts_of(given); };
}

/// A trainer's option, with its limits and help. `usual` is its default here, if that differs.
Argument trainer_option(const Option& option, GivenOptions& given, std::string usual = "") {
  Option here = option;
  if (!usual.empty()) here.unset = std::move(usual);
  const auto keep = [&given, option](const RawValue& value) {
    TrainConfig scratch;
    option.value.read(value, scratch);
    given.emplace(option.name, is_flag(option) ? "true" : value.text);
  };
  return {.name = fmt::format("--{}", option.name),
          .type = option.value.argument,
          .help = help_of(here),
          .group = std::string(option.group),
          .read = keep};
}

/// Reads percent; stores a ratio above 1.
Argument margin_option(double& margin) {
  return option("--margin", "P", "differences of times up to P percent are called small (5)",
                [&](const RawValue& given) {
                  margin = 1 + real_number(given, {.low = 0, .with_low = false, .end = 100}) / 100;
                });
}

/// How every command measures.
void add_measuring_options(Command& run, StudyOptions& study, const char* quick) {
  run.add(flag("--quick", quick, study.quick));
  run.add(option("--starts", "N",
                 "starts of each case (9; 6 or 9 with --quick); fewer than 6 allow no conclusion",
                 to_number(study.starts, 1000)));
  run.add(flag("--wait-quiet", "before each start, wait until other programs leave the cores alone",
               study.wait_quiet));
  run.add(margin_option(study.margin));
  run.add(option("--card", "FILE",
                 "the machine's rates, as written by mlp_lab card; without it they are measured",
                 to_path(study.card)));
  run.add(
      option("--memory", "SIZE",
             "memory of the machine, or of a GPU, that runs may use, such as 16GiB (what is free)",
             to_bytes(study.memory)));
}

/// The options of every command that runs experiments.
void add_study_options(Command& run, StudyOptions& study) {
  study.output = "lab-results";
  run.add(option("--output", "DIR",
                 "folder for results and report, created if needed (lab-results)",
                 to_path(study.output)));
  add_measuring_options(run, study,
                        "a small model and few steps: a minute or less for each experiment");
  run.add(option("--ranks", "N,N,...",
                 "numbers of ranks in scaling experiments, which always include 1 (1,2,4,...)",
                 [&study](const RawValue& given) {
                   rank_counts_of(given);
                   study.given["ranks"] = given.text;
                 }));
  run.add(
      option("--pause-ms", "MS",
             "the pause of the slow disk in io-delay and before backward in delay, and half the "
             "slow rank's in imbalance (10)",
             [&study](const RawValue& given) {
               real_number(given, {.low = 0, .with_low = false, .end = 1e4});
               study.given["pause-ms"] = given.text;
             }));
  run.add(option("--logs", "DIR",
                 "take EXPERIMENT.CASE.log there, with a line 'Step 00 | Step time: 0.1234s | ...' "
                 "for each step, in place of runs",
                 to_path(study.logs)));
  run.add(device_option(study.device));
  // What runs read, write and where they are is the experiments' choice.
  static constexpr std::string_view kChosen[] = {
      "batch-per-rank", "data",   "device",  "devices",    "epochs",
      "early-stop",     "layers", "threads", "show-split", "global-batch-size"};
  for (const Option& of_trainer : options_to_predict()) {
    const bool is_chosen = std::ranges::find(kChosen, of_trainer.name) != std::end(kChosen);
    if (is_chosen || of_trainer.group == "Observing" || of_trainer.group == "Files") continue;
    const char* const usual =
        of_trainer.name == "dim"
            ? "1024, on GPUs 8192, with --quick as wide as a step of 3 ms needs, or varied"
        : of_trainer.name == "depth" ? "6, or varied"
        : of_trainer.name == "steps" ? "30, with --quick 20"
                                     : "";
    run.add(trainer_option(of_trainer, study.given, usual));
  }
}

void add_run(ArgumentParser& parser, StudyOptions& study) {
  Command& run =
      parser.add_command("run", "Run experiments; a stopped run continues where it stopped.",
                         [&] { run_study(study); });
  std::vector<std::string> names = {"all"};
  for (const Experiment& experiment : experiments()) names.push_back(experiment.name);
  run.add(with_values(
      required(several(option("name", "", "experiments, or all", to_texts(study.names)))),
      std::move(names)));
  add_study_options(run, study);
  run.add(
      flag("--with-pytorch",
           "also run the experiment pytorch: the same training in PyTorch, alternating with ours",
           study.with_pytorch));
  run.add(option("--python", "PROGRAM", "a Python interpreter with PyTorch (python3)",
                 to_text(study.python)));
}

struct WhatIfRequest {
  StudyOptions study{};
  bool checks = false;
  std::vector<std::string> command{};
};

/// "mpirun -np 2" before a trainer: its ranks, and where the trainer stands.
int ranks_of_command(const std::vector<std::string>& command, std::size_t& place) {
  const auto is_mpirun = [](const std::string& word) {
    return std::filesystem::path(word).filename() == "mpirun";
  };
  if (!is_mpirun(command.at(0))) return 1;
  const bool counts = command.size() > 3 && (command[1] == "-np" || command[1] == "-n");
  if (!counts || command[3].starts_with('-')) {
    fail(ExitCode::kUsage,
         {"command", command[0], "mlp_lab starts the ranks itself, all on this machine",
          "give mpirun -np N and a trainer"});
  }
  place = 3;
  return static_cast<int>(whole_number({.where = command[1], .text = command[2]}, {1, 1 << 20}));
}

void ask_what_if(const WhatIfRequest& requested) {
  std::size_t place = 0;
  Run run{.ranks = ranks_of_command(requested.command, place)};
  const std::string name = std::filesystem::path(requested.command[place]).filename().string();
  const auto* const program = std::ranges::find(kTrainingPrograms, name, &TrainingProgram::name);
  if (program == std::end(kTrainingPrograms) || (place > 0 && !has_ranks(program->usual))) {
    fail(ExitCode::kUsage, {"command", name, place > 0 ? "has no ranks" : "is no trainer",
                            "give mlp_single, mlp_dp or mpirun -np N mlp_ddp, and its options"});
  }
  const CommandLine line = parse_command_line(
      program->usual, {requested.command.begin() + static_cast<std::ptrdiff_t>(place) + 1,
                       requested.command.end()});
  if (!line.answer.empty()) return print_now(line.answer);
  run.config = line.config;
  what_if(requested.study, std::move(run), requested.checks);
}

void add_what_if(ArgumentParser& parser, WhatIfRequest& requested) {
  Command& asks = parser.add_command(
      "what-if", "Measure a trainer's run, and predict what it gains from changes of its options.",
      [&] { ask_what_if(requested); });
  asks.add(flag("--check", "also make each change, in turn with the run, and measure what it gains",
                requested.checks));
  asks.add(option("--output", "DIR", "keep the results there, with a report",
                  to_path(requested.study.output)));
  add_measuring_options(asks, requested.study,
                        "fewer starts and steps, and the machine's rates at fewer sizes");
  asks.add(with_values(rest(option("command", "", "of a trainer, with mpirun -np N before mlp_ddp",
                                   to_texts(requested.command))),
                       {"mlp_single", "mlp_dp", "mlp_ddp", "mpirun"}));
}

struct SheetRequest {
  SheetOptions options{};
  std::vector<std::string> arguments{};  // as typed
  bool lists_names = false, as_script = false;
};

void produce(SheetRequest& requested) {
  if (requested.lists_names) return list_sheet_names();
  if (requested.options.name.empty()) {
    fail(ExitCode::kUsage, {"argument", "name", "is missing", "mlp_lab sheet --help describes it"});
  }
  SheetOptions& options = requested.options;
  if (options.key && (options.blank || options.figures)) {
    fail(ExitCode::kUsage,
         {options.blank ? "--blank" : "--figures", "",
          fmt::format("a copy with --key {}", options.blank ? "is not blank" : "has answers"),
          "give one of them"});
  }
  if (options.blank && requested.as_script) {
    fail(ExitCode::kUsage, {"--script", "", "a blank copy measures nothing", "leave out --blank"});
  }
  if (requested.as_script) {
    options.script.assign(requested.arguments.begin() + 1, requested.arguments.end());
    std::erase(options.script, "--script");
  }
  print_sheet(options);
}

void add_sheet(ArgumentParser& parser, SheetRequest& requested) {
  SheetOptions& options = requested.options;
  Command& sheet = parser.add_command(
      "sheet", "Fill in an exercise sheet: one of a university course, or your own.",
      [&] { produce(requested); });
  sheet.add(with_values(
      option("name", "",
             fmt::format("of a sheet, {}, or your own file in .md", fmt::join(sheet_names(), ", ")),
             to_text(options.name)),
      sheet_names()));
  sheet.add(
      flag("--names", "list the names that a sheet may use, and exit", requested.lists_names));
  sheet.add(flag("--blank", "leave the students' cells and answers empty; nothing is measured",
                 options.blank));
  sheet.add(flag("--figures", "fill in the tables, and leave the answers to the student",
                 options.figures));
  sheet.add(flag("--script",
                 "write NAME.sh here, which does this later: by sh, or by sbatch under Slurm",
                 requested.as_script));
  sheet.add(flag("--key", "the teacher's copy: also what a good answer contains", options.key));
  sheet.add(machine_option(options.machine,
                           "the GPUs of simulated columns, a card's file or name (h200-nvlink)"));
  sheet.add(flag("--pdf", "also print it to a PDF file, by Chromium or WeasyPrint", options.pdf));
  add_study_options(sheet, options.study);
  options.study.output.clear();
}

void add_class(ArgumentParser& parser, ClassOptions& options) {
  static constexpr std::string_view kActions[] = {"new", "grade", "collect"};
  Command& command = parser.add_command(
      "class", "Give each student of a class a variant of a sheet, and grade what they hand in.",
      [&] { run_class(options); });
  command.add(required(with_values(
      option("action", "",
             "new SHEET, grade CLASS HANDED-IN, or collect FOLDER: the studies of all machines",
             [&](const RawValue& given) { options.action = kActions[choice(given, kActions)]; }),
      {kActions, std::end(kActions)})));
  command.add(required(
      several(option("argument", "", "a sheet, or folders", to_texts(options.arguments)))));
  command.add(option("--students", "FILE", "of new: the students in CSV, a name on each line",
                     to_path(options.students)));
  command.add(option("--output", "DIR",
                     "the class (class), its grades (CLASS/grades) or the report",
                     to_path(options.output)));
  command.add(machine_option(options.machine,
                             "the card of the students' machines, which prices variants "
                             "(h200-nvlink)"));
  command.add(option("--secret", "TEXT", "of new: what variants are drawn from (drawn itself)",
                     to_text(options.secret)));
  command.add(flag("--quick", "of new: students measure with --quick", options.quick));
  command.add(flag("--rerun", "of grade: also repeat a run of each student, to compare its losses",
                   options.rerun));
}

void add_card(ArgumentParser& parser, StudyOptions& study) {
  Command& card = parser.add_command(
      "card", "Measure this machine's rates and write its card, for predict --machine.",
      [&] { print_card(study); });
  card.add(option("--output", "FILE", "the card's file, FILE.json; without it the card is printed",
                  to_path(study.output)));
  card.add(flag("--quick", "fewer sizes, a few seconds", study.quick));
  card.add(device_option(study.device));
}

/// The trainers' options. Those that are never simulated are refused with the reason, and hidden.
void add_options_to_predict(Command& command, GivenOptions& given) {
  for (const Option& option : options_to_predict()) {
    if (option.name == "memory") continue;  // of `plan`, which has its own
    Argument argument =
        trainer_option(option, given, option.name == "dim" ? text_of_number(kDefaultDimCuda) : "");
    if (option.name == "scheme") {
      argument.type = fmt::format("{}", fmt::join(scheme_names(), "|"));
      argument.read = [&given](const RawValue& value) { given.emplace("scheme", value.text); };
      argument.help +=
          "; data-parallel is what mlp_dp does; the ranks of tensor share every layer, and those "
          "of pipeline are stages";
    }
    if (!why_never_simulated(option).empty()) argument.group = "";
    command.add(std::move(argument));
  }
}

/// "a card's file, or one of t4, ... (h200-nvlink)"
std::string cards_help() {
  return fmt::format("a card's file, or one of {} ({})", fmt::join(card_names(), ", "), kUsualCard);
}

struct Prediction {
  PredictOptions options{};
  GivenOptions given{};
};

void add_predict(ArgumentParser& parser, Prediction& requested) {
  Command& predicts =
      parser.add_command("predict", "Simulate a step on another machine, described by its card.",
                         [&] { predict(requested.options, asked_run(requested.given)); });
  predicts.add(machine_option(requested.options.machine, cards_help()));
  predicts.add(
      option("--ranks", "N,N,...",
             "numbers of ranks (1,2,4,8, or those of them that the machine and the model allow)",
             to_rank_counts(requested.options.ranks)));
  predicts.add(flag("--rates", "also show each product and the card's rates with their sources",
                    requested.options.with_rates));
  add_options_to_predict(predicts, requested.given);
}

struct MeshRequest {
  std::string machine = kUsualCard;
  int ranks = 0;
  std::int64_t memory_bytes = 0;
  GivenOptions given{};
};

void add_plan(ArgumentParser& parser, MeshRequest& requested) {
  Command& plans = parser.add_command(
      "plan", "Find the fastest mesh of ranks that fits in their memory, by simulation.", [&] {
        plan_mesh(requested.machine, asked_run(requested.given), requested.ranks,
                  requested.memory_bytes);
      });
  plans.add(required(
      option("--ranks", "N", "the number of ranks", to_number(requested.ranks, kMaxPlannedRanks))));
  plans.add(required(option("--memory", "SIZE", "memory of each rank's device, such as 16GiB",
                            to_bytes(requested.memory_bytes))));
  plans.add(machine_option(requested.machine, cards_help()));
  add_options_to_predict(plans, requested.given);
}

void add_explore(ArgumentParser& parser, ExplorerOptions& options) {
  Command& explores =
      parser.add_command("explore", "Write a page that answers \"what if\" in the browser.",
                         [&] { write_explorer(options); });
  explores.add(option("--output", "FILE", "the page (explore.html)", to_path(options.output)));
  explores.add(machine_option(options.machine, "the card that the page starts from (h200-nvlink)"));
  explores.add(option("--study", "FOLDER", "start from the card of this study's machine",
                      to_path(options.study)));
  explores.add(option("--question", "FILE",
                      "print the answer to a question in JSON instead (docs/explore.md)",
                      to_path(options.question)));
  explores.add(flag("--open", "also open it in the browser", options.open));
}

struct AmdahlsLaw {
  double serial = 0.3;
  std::vector<int> ranks = {1, 2, 4, 8, 16};
};

void add_amdahl(ArgumentParser& parser, AmdahlsLaw& law) {
  Command& amdahl =
      parser.add_command("amdahl", "Calculate Amdahl's law for a serial share of a step.",
                         [&] { print_amdahl(law.serial, law.ranks); });
  amdahl.add(option("--serial", "S", "the share, at least 0 and below 1 (0.3)",
                    [&](const RawValue& given) {
                      law.serial = real_number(given, {.low = 0, .with_low = true, .end = 1});
                    }));
  amdahl.add(
      option("--ranks", "N,N,...", "numbers of ranks (1,2,4,8,16)", to_rank_counts(law.ranks)));
}

void add_explain(ArgumentParser& parser, ExplainOptions& options) {
  Command& explains = parser.add_command(
      "explain", "Account for each step of a run, PyTorch's or ours, from its traces.",
      [&] { explain_traces(options); });
  explains.add(several(option(
      "trace", "",
      "each rank's trace, .json or .json.gz, or folders (the newest trace here); two folders, "
      "or results.json of --output and a trace: their difference",
      to_paths(options.traces))));
  explains.add(flag("--json", "print results.json instead of the text", options.json));
  explains.add(option("--output", "DIR", "also write report.html, report.md and results.json there",
                      to_path(options.output)));
  explains.add(option("--fail-above", "P",
                      "of two runs: fail if a step of the second takes P percent longer, or more",
                      [&](const RawValue& given) {
                        options.fail_above =
                            real_number(given, {.low = 0, .with_low = true, .end = 1e6}) / 100;
                      }));
  explains.add(flag("--scaling",
                    "of folders, one for each number of ranks: efficiency as a product of factors",
                    options.scaling));
  explains.add(
      option("--problem", "strong|weak",
             "of --scaling: whether the whole batch is the same, or that of a rank (as the "
             "traces tell)",
             [&](const RawValue& given) {
               const auto kinds = std::span(kNamesOf<ScalingProblem>).first<2>();
               options.problem = kValuesOf<ScalingProblem>[choice(given, kinds)];
             }));
  explains.add(option("--ranks", "N",
                      "of the trace of one device: what DDP on N of --machine would take",
                      to_number(options.ranks, kMaxPlannedRanks)));
  explains.add(machine_option(options.machine,
                              "for --ranks, or if the model is an MLP: the machine to predict it "
                              "for, a card's file or name (that of the GPU in the trace)"));
}

/// Examines a schedule, or writes a built-in one to begin with.
struct ScheduleRequest {
  std::filesystem::path file{};
  std::optional<PipelineSchedule> write{};
  PipelineSpec pipeline{.stages = 4, .micro_batches = 8};
};

void add_check_schedule(ArgumentParser& parser, ScheduleRequest& request) {
  Command& checks = parser.add_command(
      "check-schedule", "Check the lists of a pipeline's stages: order, deadlocks, time, memory.",
      [&] {
        if (request.write) {
          request.pipeline.schedule = *request.write;
          return print_now(schedule_json(request.pipeline));
        }
        if (request.file.empty()) {
          fail(ExitCode::kUsage, {"check-schedule", "", "there is nothing to check",
                                  "give a file, or --write for one to begin with"});
        }
        check_schedule_file(request.file);
      });
  checks.add(option("file", "", "JSON with the list of every stage", to_path(request.file)));
  checks.add(option("--write", fmt::format("{}", fmt::join(kNamesOf<PipelineSchedule>, "|")),
                    "print this built-in schedule as such a file instead",
                    [&](const RawValue& given) {
                      request.write = kValuesOf<PipelineSchedule>[static_cast<std::size_t>(
                          choice(given, kNamesOf<PipelineSchedule>))];
                    }));
  checks.add(option("--stages", "P", "of --write (4)", to_number(request.pipeline.stages, 1024)));
  checks.add(option("--micro-batches", "M", "of --write (8)",
                    to_number(request.pipeline.micro_batches, 65536)));
}

/// The hidden command that a card's measurement starts.
void add_measure_rank(ArgumentParser& parser, RankRatesOptions& rates) {
  Command& measure = parser.add_command("measure-rank", "", [&] { measure_rank(rates); });
  measure.add(required(option("--output", "FILE", "", to_path(rates.output))));
  measure.add(option("--device", "DEVICE", "", to_text(rates.device)));
  measure.add(option("--threads", "N", "", to_number(rates.threads, 1 << 20)));
  measure.add(flag("--quick", "", rates.quick));
  measure.add(flag("--alone", "", rates.alone));
}

void add_all_reduce(ArgumentParser& parser, MeasuredSumRequest& sum) {
  static constexpr std::string_view kTransports[] = {"auto", "nccl", "mpi"};
  Command& measure = parser.add_command(
      "all-reduce", "Measure all-reduces alone, by size: started by mpirun, or between threads.",
      [&] { measure_sums(sum); });
  measure.add(option("--ranks", "N", "ranks that are threads of this process (those of mpirun)",
                     to_number(sum.ranks.in_process, 1 << 10)));
  measure.add(device_option(sum.ranks.device));
  measure.add(option("--transport", "auto|nccl|mpi",
                     "auto takes NCCL if each rank has a GPU of its own (auto)",
                     [&](const RawValue& given) {
                       sum.ranks.transport = static_cast<TransportKind>(choice(given, kTransports));
                     }));
  measure.add(option("--bytes", "SIZE", "only this size, such as 25MiB (8 B to 64 MiB, doubled)",
                     to_bytes(sum.bytes)));
  measure.add(option("--steps", "N", "figures of each size (20)", to_number(sum.steps, 1 << 20)));
}

struct ReportOptions {
  std::filesystem::path folder{};
  double margin = kDefaultMargin;
  bool pdf = false;
};

void add_report(ArgumentParser& parser, ReportOptions& options) {
  Command& report = parser.add_command("report", "Write the report of a study again.", [&] {
    report_study(options.folder, options.margin, options.pdf);
  });
  report.add(
      required(option("folder", "", "the --output of an earlier run", to_path(options.folder))));
  report.add(margin_option(options.margin));
  report.add(flag("--pdf", "also print it to report.pdf, by Chromium or WeasyPrint", options.pdf));
}

void run_mlp_lab(const std::vector<std::string>& arguments) {
  constexpr const char* kVersion = BARESTEP_VERSION " " BARESTEP_COMMIT;
  ArgumentParser parser(kMlpLab, kVersion,
                        "Runs whole experiments on the trainers, and writes reports of them.",
                        kExamples);
  parser.add_command("list", "Print the experiments and the questions they answer.",
                     list_experiments);
  StudyOptions study{.version = kVersion};
  add_run(parser, study);
  WhatIfRequest question{.study = {.version = kVersion}};
  add_what_if(parser, question);
  SheetRequest sheet;
  sheet.options.study.version = kVersion;
  sheet.arguments = arguments;
  add_sheet(parser, sheet);
  ClassOptions class_options;
  add_class(parser, class_options);
  ReportOptions report;
  add_report(parser, report);
  parser.add_command("validate", "Print published numbers beside ours.", print_published);
  AmdahlsLaw law;
  add_amdahl(parser, law);
  Prediction prediction;
  add_predict(parser, prediction);
  MeshRequest mesh;
  add_plan(parser, mesh);
  ExplorerOptions explorer{.version = kVersion};
  add_explore(parser, explorer);
  StudyOptions card{.version = kVersion};
  add_card(parser, card);
  std::filesystem::path checkpoint;
  Command& checkpoints = parser.add_command(
      "checkpoint", "Print what a checkpoint contains, and check that it is complete.",
      [&] { print_checkpoint(checkpoint); });
  checkpoints.add(required(option("file", "", "that --checkpoint wrote", to_path(checkpoint))));
  parser.add_command("doctor", "Say what this machine has and lacks, and how to mend it.",
                     examine_machine);
  std::filesystem::path merged;
  std::vector<std::filesystem::path> traces;
  Command& merges = parser.add_command(
      "merge-traces", "Merge the traces of several ranks or devices, with one time axis.",
      [&] { merge_traces(merged, traces); });
  merges.add(required(option("out", "", "the file to write; may end in .gz", to_path(merged))));
  merges.add(required(several(option("in", "", "the files that --trace wrote", to_paths(traces)))));
  ExplainOptions explained;
  add_explain(parser, explained);
  ScheduleRequest schedule;
  add_check_schedule(parser, schedule);
  RankRatesOptions rank_rates;
  add_measure_rank(parser, rank_rates);
  MeasuredSumRequest sum;
  add_all_reduce(parser, sum);
  const std::string answer = parser.parse(arguments);
  if (!answer.empty()) print_now(answer);
}

}  // namespace
}  // namespace barestep

int main(int argc, char** argv) {
  return barestep::run_program(barestep::kMlpLab, argc, argv, barestep::run_mlp_lab);
}
