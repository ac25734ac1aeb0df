#include "lab/commands.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <set>
#include <utility>

#include "core/error.h"
#include "core/host.h"
#include "core/input_file.h"
#include "core/output_file.h"
#include "core/stop_request.h"
#include "core/text_table.h"
#include "lab/child.h"
#include "lab/class/class.h"
#include "lab/experiments/case_figures.h"
#include "lab/predict/mesh_search.h"
#include "lab/report/page.h"
#include "lab/sheets/sheets.h"
#include "lab/study/core_users.h"
#include "lab/study/measured_card.h"
#include "lab/study/prediction_errors.h"
#include "lab/study/report.h"
#include "lab/study/run_workload.h"
#include "lab/study/study.h"
#include "session/outputs.h"
#include "session/progress_bar.h"
#include "session/run_program.h"

namespace barestep {

namespace {

/// `all` skips, with a message, the experiments that cannot run here; an experiment given by name
/// must run. Each is requested once, however often it is named.
std::vector<const Experiment*> experiments_named(const std::vector<std::string>& names) {
  std::vector<const Experiment*> requested;
  const auto add = [&](const Experiment& experiment) {
    if (std::ranges::find(requested, &experiment) == requested.end())
      requested.push_back(&experiment);
  };
  const bool has_mpirun = !find_on_path("mpirun").empty();
  for (const std::string& name : names) {
    if (name != "all") {
      add(experiment_of(name));
      continue;
    }
    for (const Experiment& experiment : experiments()) {
      if (experiment.needs_pytorch()) continue;
      if (!experiment.needs_mpi() || has_mpirun) {
        add(experiment);
      } else {
        print_note("mlp_lab", fmt::format("{} is left out, since there is no mpirun on PATH",
                                          experiment.name));
      }
    }
  }
  return requested;
}

/// On a terminal a bar, once it is known of what; otherwise a line for each start.
void show_progress(const StudyProgress& progress) {
  const bool is_counted = progress.total > 0, has_left = progress.left_s > 0;
  if (::isatty(STDERR_FILENO) == 1) {
    std::vector<std::string> fields = {progress.what};
    if (has_left) fields.insert(fields.begin(), clock_text(progress.left_s) + " left");
    const int columns = terminal_columns() - 1;
    return print_to_stderr(kEraseLine + (is_counted ? bar_text(progress.done, progress.total,
                                                               std::move(fields), columns)
                                                    : progress.what));
  }
  print_to_stderr(fmt::format(
      "{}{}{}\n", is_counted ? fmt::format("[{}/{}] ", progress.done, progress.total) : "",
      progress.what, has_left ? fmt::format(", about {:.0f} s left", progress.left_s) : ""));
}

void end_progress() {
  if (::isatty(STDERR_FILENO) == 1) print_to_stderr(kEraseLine);
}

void print_findings(const Report& report, const std::vector<const Experiment*>& requested) {
  for (const ReportSection& section : report.sections) {
    if (std::ranges::find(requested, section.experiment) == requested.end()) continue;
    std::string text = fmt::format("{}\n", section.experiment->name);
    if (!section.trouble.empty()) text += fmt::format("  {}\n", trouble_line(section));
    show(text + text_of(shown_texts(section), section.findings) + "\n");
  }
}

StudyIdentity identity_of(const StudyOptions& options) {
  StudyIdentity identity{.quick = options.quick,
                         .options = options.given,
                         .machine = this_machine(),
                         .version = options.version};
  if (std::filesystem::exists(options.before)) identity.sheet = hash_of_sheet(options.before);
  identity.on_gpu = options.device != "cpu" && identity.machine.gpus > 0;
  if (options.device == "cuda" && !identity.on_gpu) {
    fail(ExitCode::kNoDevice, {"--device", "cuda", "there is no GPU here", "use --device cpu"});
  }
  return identity;
}

void show_report(const std::filesystem::path& folder, const char* name = "report.html") {
  show(fmt::format("Report: {}\n", on_one_line((folder / name).string())));
}

void print_prediction(const Report& report) {
  const Findings prediction = prediction_findings(report.results());
  if (!prediction.timed.empty()) show(prediction.timed.front().text + "\n");
}

void let_signals_stop_children() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU}) {
    if (signal == SIGHUP && is_ignored(signal)) continue;
    std::signal(signal, [](int) { stop_children(); });
  }
}

CardRequest card_request(const StudyIdentity& identity, const std::filesystem::path& scratch) {
  return {.machine = identity.machine,
          .on_gpu = identity.on_gpu,
          .quick = identity.quick,
          .programs = folder_of_program(),
          .scratch = scratch,
          .on_progress = [](const std::string& what) {
            StudyProgress progress{};
            progress.what = what;
            show_progress(progress);
          }};
}

/// Checks memory before anything is measured. On GPUs, the trainers check the free memory
/// themselves.
void require_memory(const Study& study, const std::vector<const Experiment*>& requested,
                    std::optional<std::int64_t> stated) {
  if (stated) {
    study.require_memory(requested, *stated);
  } else if (!study.identity().on_gpu) {
    study.require_memory(requested, host_memory().free_bytes);
  }
}

/// The card must not overwrite one of the programs that measure it.
void require_card_output(const std::filesystem::path& output,
                         const std::filesystem::path& programs) {
  if (output.empty()) return;
  require_writable(output);
  std::vector<FileUse> inputs;
  for (const char* name : {"mlp_lab", "mlp_single", "mlp_ddp"}) {
    inputs.push_back({"mlp_lab card", programs / name});
  }
  require_separate_files({{"--output", output}}, inputs);
}

}  // namespace

void list_experiments() {
  TextTable table({"experiment", "question"});
  for (const Experiment& experiment : experiments())
    table.add_row({experiment.name, experiment.question});
  print_now(table.text());
}

namespace {

std::string planned_text(const StudyPlan& plan) {
  return fmt::format("{} {} planned", counted(plan.starts, "start"),
                     plan.starts == 1 ? "is" : "are");
}

constexpr double kPassSeconds = 60;  // of measure_once(), about

/// How often the machine is measured for a study: its rates drift while a long one runs.
int passes_for(const StudyPlan& plan, const CardRequest& request) {
  const int all = passes_of(request.quick, request.on_gpu);
  return plan.seconds < all * kPassSeconds ? std::min(all, 3) : all;
}

/// What is going to be measured, and who disturbs it.
void announce(const StudyPlan& plan, int passes, bool waits) {
  if (plan.starts == 0) return;
  const double seconds = plan.seconds + passes * kPassSeconds;
  const std::string time = plan.seconds == 0 ? ""
                           : seconds < 50
                               ? fmt::format(", about {:.0f} s", 10 * std::ceil(seconds / 10))
                               : fmt::format(", about {:.0f} min", std::ceil(seconds / 60));
  const std::string rates =
      passes > 0 ? fmt::format(", and the machine's rates {}", counted(passes, "more time")) : "";
  print_note("mlp_lab", planned_text(plan) + rates + time);
  const CoreUsers others = watch_core_users(std::chrono::seconds(1));
  if (!others.disturb() || waits) return;
  print_note("mlp_lab",
             "other programs take " + others.text() +
                 ": of most times nothing will be concluded; --wait-quiet waits for them");
}

/// The script has fewer options than the trainers.
void require_pytorch(const StudyOptions& options) {
  static constexpr std::string_view kScripts[] = {"activation", "batch-size", "depth",
                                                  "dim",        "ranks",      "steps"};
  for (const auto& [name, value] : options.given) {
    if (std::ranges::find(kScripts, name) != std::end(kScripts)) continue;
    fail(ExitCode::kUsage,
         {"--" + name, value == "true" ? "" : value, "the script of PyTorch has no such option",
          "leave it out, or the experiment pytorch"});
  }
  pytorch_version(options.python);
}

/// Names the logs in a folder that are of no case.
void note_other_logs(const Study& study, const std::vector<const Experiment*>& requested,
                     const std::filesystem::path& logs) {
  std::set<std::string> known;
  for (const Experiment* const experiment : requested) {
    for (const Case& what : experiment->cases(study.setting())) {
      known.insert(fmt::format("{}.{}.log", experiment->name, what.key));
    }
  }
  for (const std::filesystem::path& file : files_below(logs)) {
    const std::string name = file.filename().string();
    if (!name.ends_with(".log") || known.contains(name)) continue;
    print_note("mlp_lab",
               fmt::format("'{}' is not read: its name is that of no case", on_one_line(name)));
  }
}

/// Measures the parts of these experiments that the study in `output` lacks, and writes its report.
Report measured_report(const StudyOptions& options,
                       const std::vector<const Experiment*>& requested) {
  for (const Experiment* experiment : requested) {
    if (experiment->needs_mpi()) path_of_mpirun();
    if (experiment->needs_pytorch()) require_pytorch(options);
  }
  Study study(options.output, identity_of(options), options.starts);
  require_memory(study, requested, options.memory);
  if (!options.logs.empty()) {
    if (std::ranges::none_of(requested, [&](const Experiment* experiment) {
          return study.has_logs(*experiment, options.logs);
        })) {
      fail(ExitCode::kNoInput,
           {"--logs", options.logs.string(), "it has no log of what is to be measured",
            "name a folder with EXPERIMENT.CASE.log, such as batch-sweep.batch-32.log"});
    }
    for (const Experiment* experiment : requested) study.keep_logs(*experiment, options.logs);
    note_other_logs(study, requested, options.logs);
  }
  let_signals_stop_children();
  const Programs programs(folder_of_program(), options.python);
  const auto has_runs = [&](const Experiment* experiment) {
    return std::ranges::any_of(experiment->cases(study.setting()),
                               [](const Case& what) { return what.made == nullptr; });
  };
  const StudyPlan plan = study.plan_of(requested, options.wait_quiet);
  const bool measures = std::ranges::any_of(requested, has_runs) && plan.starts > 0;
  const CardRequest request = card_request(study.identity(), study.folder() / "scratch");
  if (!options.card.empty()) {
    study.keep_card(load_card(options.card));
  } else if (measures && !study.card()) {
    print_note("mlp_lab", planned_text(plan) +
                              "; the machine's rates, measured first, tell how long they take");
    study.keep_pass(measure_once(request));
  }
  if (measures) study.choose_width(programs, show_progress);
  require_memory(study, requested, options.memory);  // of the model that was chosen
  const StudyPlan starts = study.plan_of(requested, options.wait_quiet);
  const auto measured_passes = [&] { return static_cast<int>(study.passes().size()); };
  const bool is_own = options.card.empty() && measured_passes() > 0;
  const int passes = is_own ? std::max(measured_passes(), passes_for(starts, request)) : 0;
  announce(starts, is_own ? passes - measured_passes() : 0, options.wait_quiet);
  study.run(requested, programs, show_progress, options.wait_quiet, [&](int round, int rounds) {
    // Spread evenly over the rounds, because the machine's rates drift.
    const int measured = measured_passes();
    if (measured < passes && measured * rounds <= round * passes) {
      study.keep_pass(measure_once(request));
    }
  });
  end_progress();
  Report report = report_of(study, options.margin);
  write_report(study.folder(), report);
  return report;
}

}  // namespace

void run_study(const StudyOptions& options) {
  std::vector<std::string> names = options.names;
  if (options.with_pytorch) names.emplace_back("pytorch");
  const std::vector<const Experiment*> requested = experiments_named(names);
  const Report report = measured_report(options, requested);
  print_findings(report, requested);
  print_prediction(report);
  show_report(options.output);
}

namespace {

/// A run's files are the study's.
void refuse_outputs(const TrainConfig& config) {
  for (const Option& option : options_of(config.parallel.scheme)) {
    const std::optional<std::string> text = option.value.text(config);
    const bool is_of_outputs = option.group == "Observing" || option.group == "Files";
    if (!is_of_outputs || text == option.value.text({})) continue;
    refuse_options(fmt::format("--{}", option.name), is_flag(option) ? "" : text.value_or(""),
                   "a run that is changed and measured has no outputs", "leave it out");
  }
}

/// As the study's options; what the trainers choose by the machine is chosen here.
GivenOptions options_of_study(Run run, const StudyIdentity& identity) {
  TrainConfig& config = run.config;
  std::vector<std::string>& devices = config.device.devices;
  const bool is_process = run.scheme() == SchemeKind::kDataParallel;
  if (is_process && devices.empty()) {
    const std::int64_t count = identity.on_gpu
                                   ? identity.machine.gpus
                                   : std::max<std::int64_t>(config.parallel.pipeline, 2);
    for (std::int64_t i = 0; i < count; ++i) {
      devices.push_back(identity.on_gpu ? fmt::format("cuda:{}", i) : "cpu");
    }
    if (config.device.device.starts_with("cuda:")) devices = {config.device.device};
    config.device.device = "auto";  // not both
  }
  GivenOptions given = given_of(run);
  if (is_process) given["scheme"] = name_of(run.scheme());
  if (run.has_ranks()) given["ranks"] = std::to_string(run.ranks);
  if (config.model.layers.empty()) {
    given.emplace("dim", std::to_string(identity.on_gpu ? kDefaultDimCuda : kDefaultDimCpu));
    given.emplace("depth", std::to_string(kDefaultDepth));
  }
  return given;
}

}  // namespace

void what_if(StudyOptions options, Run run, bool checks) {
  refuse_outputs(run.config);
  const DeviceConfig& device = run.config.device;
  const std::string& first = device.devices.empty() ? device.device : device.devices.front();
  options.device = first.substr(0, first.find(':'));
  const StudyIdentity identity = identity_of(options);
  options.given = options_of_study(std::move(run), identity);
  const Experiment& experiment = what_if_experiments()[checks ? 1 : 0];
  const int units = identity.on_gpu ? identity.machine.gpus : identity.machine.cores;
  const Setting setting = new_setting(options.quick, identity.on_gpu, units, options.given);
  require(experiment.cases(setting).front().workload);
  const TemporaryFolder scratch("what-if-");
  const bool keeps = !options.output.empty();
  if (!keeps) options.output = scratch.path();
  const Report report = measured_report(options, {&experiment});
  print_findings(report, {&experiment});
  if (keeps) show_report(options.output);
}

namespace {

/// The sheet filled in from the study that its experiments ask for, if they ask for any.
std::string filled_sheet(SheetOptions options, const Sheet& sheet) {
  const MachineCard gpus = load_card(options.machine);
  const std::vector<const Experiment*> requested = experiments_of(sheet);
  options.study.before =
      std::filesystem::path(options.name).parent_path() / (sheet.name + std::string(kBeforeEnding));
  Report report = requested.empty() ? Report{} : measured_report(options.study, requested);
  std::erase_if(report.sections, [&](const ReportSection& section) {
    return std::ranges::find(requested, section.experiment) == requested.end();
  });
  return markdown_of(sheet, SheetRuns(report, gpus),
                     options.key       ? SheetCopy::kKey
                     : options.figures ? SheetCopy::kFigures
                                       : SheetCopy::kFilled);
}

/// A sheet's output: NAME.md, NAME.html or NAME.pdf.
std::filesystem::path sheet_file(const SheetOptions& options, const Sheet& sheet,
                                 const char* ending) {
  const char* const copy = options.blank     ? "-blank"
                           : options.key     ? "-key"
                           : options.figures ? "-figures"
                                             : "";
  return options.study.output / fmt::format("{}{}{}", sheet.name, copy, ending);
}

/// Returns the last file written.
std::filesystem::path write_sheet(const SheetOptions& options, const Sheet& sheet,
                                  const std::string& text) {
  std::filesystem::path file = sheet_file(options, sheet, ".md");
  const std::filesystem::path page = sheet_file(options, sheet, ".html");
  replace_file(file, text);
  replace_file(page, sheet_page(sheet, text));
  if (!options.pdf) return file;
  std::filesystem::path pdf = sheet_file(options, sheet, ".pdf");
  print_pdf(page, pdf);
  return pdf;
}

/// Markdown for a terminal: without its backticks and backslashes.
std::string without_marks(std::string_view markdown) {
  std::string text;
  for (std::size_t i = 0; i < markdown.size(); ++i) {
    const bool is_mark = markdown[i] == '`' || markdown[i] == '\\';
    if (!is_mark || (i > 0 && markdown[i - 1] == '\\')) text += markdown[i];
  }
  return text;
}

/// Takes the answers of the sheet that is there, NAME.md, which stays as NAME-1.md where the new
/// one differs.
void keep_answers(const std::filesystem::path& file, std::string& text) {
  if (!std::filesystem::exists(file)) return;
  const std::string before = InputFile(file, "--figures").text(std::int64_t{1} << 22);
  text = with_answers(text, before);
  if (text != before) numbered_copy(file);
}

/// That of --card, else of --machine.
MachineCard pricing_card(const SheetOptions& options) {
  return load_card(options.study.card.empty() ? options.machine : options.study.card.string());
}

void write_script(const SheetOptions& options, const Sheet& sheet) {
  std::string arguments;
  for (const std::string& argument : options.script) {
    const auto letters = split(argument, "'");
    arguments += fmt::format("{}'{}'", arguments.empty() ? "" : " ", fmt::join(letters, "'\\''"));
  }
  const StudyOptions& study = options.study;
  const MachineCard card = pricing_card(options);
  const Setting setting = new_setting(study.quick, card.on_gpu, card.max_ranks(), study.given);
  const std::string file = sheet.name + ".sh";
  replace_file(file,
               script_of(sheet, file, price_of(sheet, setting, Simulations(card)), arguments));
  show(fmt::format("Script: {}\n", on_one_line(file)));
}

}  // namespace

void print_sheet(SheetOptions options) {
  if (!options.script.empty()) return write_script(options, load_sheet(options.name));
  std::filesystem::path& folder = options.study.output;
  // A folder that holds other files cannot become a study's, so a blank copy starts none.
  if (folder.empty()) folder = options.blank ? "." : "lab-results";
  const Sheet sheet = load_sheet(options.name);
  require_separate_files({{"--output", sheet_file(options, sheet, ".md")}},
                         {{"mlp_lab sheet", options.name}});
  if (options.pdf) page_printer();
  std::string text = options.blank ? blank_copy_of(sheet, Simulations(pricing_card(options)))
                                   : filled_sheet(options, sheet);
  make_folder(folder);
  if (options.figures) keep_answers(sheet_file(options, sheet, ".md"), text);
  const std::filesystem::path file = write_sheet(options, sheet, text);
  show((options.figures ? "" : without_marks(text)) +
       fmt::format("Sheet: {}\n", on_one_line(file.string())));
}

namespace {

[[noreturn]] void refuse_class(const ClassOptions& options) {
  const std::string& action = options.action;
  fail(ExitCode::kUsage, {"class", action, "arguments are missing or too many",
                          action == "new"     ? "write mlp_lab class new SHEET --students names.csv"
                          : action == "grade" ? "write mlp_lab class grade CLASS HANDED-IN"
                                              : "write mlp_lab class collect FOLDER --output DIR"});
}

void print_new_class(const ClassOptions& options) {
  const std::filesystem::path folder = options.output.empty() ? "class" : options.output;
  const ClassPlan plan = new_class({.sheet = options.arguments.front(),
                                    .students = options.students,
                                    .output = folder,
                                    .machine = options.machine,
                                    .secret = options.secret,
                                    .quick = options.quick});
  const SheetPrice& price = plan.students.front().price;
  if (price.unpriced > 0) {
    print_note("mlp_lab",
               fmt::format("{} of {} cases have no price: {} has {}", price.unpriced, price.runs,
                           price.machine, counted(load_card(plan.machine).max_ranks(), "device")));
  }
  if (!plan.note.empty()) print_note("mlp_lab", plan.note);
  TextTable table({"student", "variant", ">sum of steps, simulated"});
  for (const Student& student : plan.students) {
    table.add_row(
        {student.name, options_text(student.options), simulated_time(student.price.step_s)});
  }
  const std::string in = on_one_line((folder / "students").string());
  show(fmt::format("{}{} of {}: give out the folders in {}\n", table.text(),
                   counted(std::ssize(plan.students), "variant"), plan.sheet.name, in));
}

void print_grades(const ClassOptions& options) {
  const std::filesystem::path folder = options.arguments[0];
  const ClassPlan plan = load_class(folder);
  const MachineCard card =
      load_card(simulated_machine(options.machine.empty() ? plan.machine : options.machine));
  let_signals_stop_children();
  const TemporaryFolder scratch("class-");
  std::atomic<int> runs = 0;
  const bool has_mpirun = !find_on_path("mpirun").empty();
  const Rerun rerun = [&](const Case& what) {
    Case alone = what;
    Workload& run = alone.workload;
    // One device has the losses of any number of ranks, but for the order of sums.
    if (run.has_ranks() && !has_mpirun) run = on_one(run);
    if (run.on_gpu) run.config.device.device = "cpu";
    run.on_gpu = false;
    run.config.device.threads = 1;
    const std::filesystem::path own = scratch.path() / std::to_string(runs++);
    std::filesystem::create_directories(own);
    if (run.config.data.kind == DataKind::kNpy) {
      make_data_set(own / "data", run.data_rows, run.dim());
      read_data_set(run.config.data, own / "data");
    }
    return run_workload(alone, folder_of_program(), own);
  };
  const GradedClass grades = grade_class(
      plan, options.arguments[1], card, options.rerun ? rerun : nullptr,
      [&](int done, const std::string& name) {
        show_progress(
            {.done = done, .total = static_cast<int>(plan.students.size()), .what = name});
      });
  end_progress();
  const std::filesystem::path output = options.output.empty() ? folder / "grades" : options.output;
  const std::filesystem::path kept = write_grades(output, plan, grades);
  if (!kept.empty()) {
    print_note("mlp_lab", fmt::format("what marks.csv had besides points of items is in {} only",
                                      on_one_line(kept.string())));
  }
  show(summary_of_grades(grades) +
       fmt::format("Marks: {}\n", on_one_line((output / "marks.csv").string())));
}

}  // namespace

void run_class(const ClassOptions& options) {
  const std::size_t needed = options.action == "grade" ? 2 : 1;
  const bool lacks = (options.action == "new" && options.students.empty()) ||
                     (options.action == "collect" && options.output.empty());
  if (options.arguments.size() != needed || lacks) refuse_class(options);
  if (options.action == "new") return print_new_class(options);
  if (options.action == "grade") return print_grades(options);
  collect_studies(options.arguments[0], options.output);
  show_report(options.output);
}

void list_sheet_names() {
  print_now(sheet_names_text());
}

void report_study(const std::filesystem::path& folder, double margin, bool pdf) {
  if (pdf) page_printer();
  const Study study = Study::open(folder);
  write_report(folder, report_of(study, margin));
  const char* const name = pdf ? "report.pdf" : "report.html";
  if (pdf) print_pdf(folder / "report.html", folder / name);
  show_report(folder, name);
}

void print_amdahl(double serial, const std::vector<int>& ranks) {
  TextTable table({">ranks", ">speed-up", ">efficiency"});
  for (const int count : ranks) {
    const double speed_up = amdahl_speed_up(serial, count);
    table.add_row({std::to_string(count), factor_text(speed_up), percent_text(speed_up / count)});
  }
  const std::string limit = serial > 0
                                ? fmt::format("However many ranks there are, it is less than {}.",
                                              factor_text(1 / serial))
                                : "More ranks are always faster.";
  print_now(
      fmt::format("Calculated, by Amdahl's law: speed-up = 1 / (s + (1 - s) / n), where s, the "
                  "serial share, is {}.\n{}{}\n",
                  chosen_percent(serial), table.text(2), limit));
}

void print_card(const StudyOptions& options) {
  require_card_output(options.output, folder_of_program());
  let_signals_stop_children();
  const StudyIdentity identity = identity_of(options);
  const TemporaryFolder scratch("");
  const std::string text = json_of(measure_card(card_request(identity, scratch.path())));
  end_progress();
  if (options.output.empty()) {
    print_now(text);
    return;
  }
  replace_file(options.output, text);
  show(fmt::format("Card: {}\n", on_one_line(options.output.string())));
}

void print_published() {
  constexpr std::int64_t kMaxBytes = 1 << 20;
  print_now(InputFile(installed_file(BARESTEP_DOCS, "published.md"), "page").text(kMaxBytes));
}

namespace {

void print_simulated(const Findings& findings, const MachineCard& card) {
  print_now(
      fmt::format("{}\n  {}\n", text_of(texts_of(findings.timed), findings), error_note(card)));
}

}  // namespace

void predict(const PredictOptions& options, const Run& asked) {
  const MachineCard card = load_card(options.machine);
  Findings findings = predict_scaling(
      asked, card, options.ranks.empty() ? usual_ranks(asked, card) : options.ranks);
  if (!options.with_rates) {
    std::erase_if(findings.tables, [](const auto& table) { return table.name == kProductsTable; });
  }
  print_simulated(findings, card);
  if (!options.with_rates) {
    print_now(fmt::format("  Machine: {}. --machine names another; --rates shows its rates.\n",
                          options.machine));
    return;
  }
  TextTable rates({"rate", ">value", "source"});
  for (const StatedRate& rate : card.stated) rates.add_row({rate.name, rate.value, rate.source});
  print_now(fmt::format("\nRates of {}:\n{}", card.name, rates.text(2)));
}

void plan_mesh(const std::string& machine, const Run& asked, int ranks, std::int64_t memory_bytes) {
  const MachineCard card = load_card(machine);
  print_simulated(best_mesh(asked, card, ranks, memory_bytes), card);
}

void measure_rank(const RankRatesOptions& options) {
  const RanksToMeasure ranks{
      .device = options.device, .threads = options.threads, .in_process = options.alone ? 1 : 0};
  measure_on_ranks(ranks, [&](const MeasuringRank& rank) {
    write_rank_rates(rank, options.quick, options.output);
  });
}

}  // namespace barestep
