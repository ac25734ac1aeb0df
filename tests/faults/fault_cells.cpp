// Faults of mlp_ddp's ranks and how their job ends, as a table of cells.
//
//   fault_cells --mlp-ddp build/mlp_ddp --faults build/tests/libmpi_faults.so [--ranks 2,4]
//               [--phases start,end] [--in-turn] [--launcher mpirun|srun|namespaces] [--limit 1]
//               [--jobs 8] [--model "--tensor 2 --pipeline 2"]
//
// A cell is one phase with one fault of one rank. With two ranks this is the second; with more it
// is the first, which prints, and between hosts also the first of the second host. After the fault,
// the job must end within the limit plus 5 seconds, with a nonzero exit code, a line `mlp_ddp:
// error:` from one host or from each, and none of its processes left. The exit code is 1 if a cell
// failed. --in-turn runs each phase and fault only once, alternating the numbers of ranks. --model
// cuts the model; with a pipeline the phase `exchange` exists too.
#include <fmt/format.h>
#include <glob.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "support/process.h"

namespace {

constexpr const char* kMark = "BARESTEP_FAULT_CELL";
constexpr double kGraceSeconds = 10;  // after its limit, before a job is killed

struct Options {
  std::string mlp_ddp, faults;
  std::vector<int> ranks{2, 4};
  std::string phases = "start,first,step,exchange,end";
  std::string model;  // options of mlp_ddp
  bool in_turn = false;
  std::string launcher = "mpirun";
  double limit_s = 1;
  int jobs = 8;

  [[nodiscard]] bool has_hosts() const { return launcher == "namespaces"; }
  [[nodiscard]] std::size_t hosts() const { return has_hosts() ? 2 : 1; }
  [[nodiscard]] bool has_stages() const { return model.find("--pipeline") != std::string::npos; }
};

struct Cell {
  int ranks = 0;
  int failing = 0;  // the rank that fails
  std::string phase, fault;
};

struct Outcome {
  Cell cell;
  double seconds = 0;
  int code = 0;
  std::vector<std::string> lines;
  std::string wrong, err;
};

[[noreturn]] void refuse(const std::string& why) {
  fmt::print(stderr, "fault_cells: error: {}\n", why);
  std::exit(2);
}

/// On the system clock, as the faults tell theirs.
double seconds_now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

std::vector<std::pair<std::string, std::string>> phases_and_faults(const Options& options) {
  std::vector<std::pair<std::string, std::string>> all;
  for (const char* phase : {"start", "first", "step", "exchange", "end"}) {
    if (phase == std::string_view("exchange") && !options.has_stages()) continue;
    for (const char* fault : {"exit0", "exit1", "kill9", "segv", "throw", "hang", "stop"}) {
      all.emplace_back(phase, fault);
    }
  }
  all.insert(all.end(), {{"first", "size"}, {"step", "size"}, {"start", "options"}});
  if (options.has_stages()) all.emplace_back("exchange", "size");
  std::erase_if(
      all, [&](const auto& each) { return options.phases.find(each.first) == std::string::npos; });
  return all;
}

std::string quoted(const std::string& text) {
  std::string inside;
  for (const char c : text) inside += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return "'" + inside + "'";
}

/// A job of `ranks`, with half of them on each host.
std::vector<int> failing_ranks(const Options& options, int ranks) {
  if (ranks == 2) return {1};
  if (options.has_hosts()) return {0, ranks - ranks / 2};
  return {0};
}

/// The command of each rank. The rank that fails runs in its own shell.
std::string rank_command(const Options& options, const Cell& cell) {
  const std::string model = options.model.empty() ? "--depth 1" : "--depth 2 " + options.model;
  const std::string run =
      fmt::format("{} --device cpu --threads 1 --dim 8 {} --steps 20 --timeout {:g}",
                  quoted(options.mlp_ddp), model, options.limit_s);
  if (cell.fault == "options") {
    return fmt::format(
        "test \"${{OMPI_COMM_WORLD_RANK:-$SLURM_PROCID}}\" != {} || set -- --seed 7; exec {} "
        "\"$@\"",
        cell.failing, run);
  }
  return fmt::format("export LD_PRELOAD={}; exec {}", quoted(options.faults), run);
}

/// Starts one job.
std::vector<std::string> launch_command(const Options& options, const Cell& cell) {
  const std::string job = rank_command(options, cell);
  const std::string ranks = std::to_string(cell.ranks);
  if (options.launcher == "srun") {
    return {"srun", "--mpi=pmix", "--overlap", "-n", ranks, "--overcommit", "sh", "-c", job};
  }
  if (!options.has_hosts()) return {"mpirun", "-np", ranks, "sh", "-c", job};
  const int half = cell.ranks / 2;
  const std::string hosts = fmt::format("10.78.0.1:{},10.78.0.2:{}", cell.ranks - half, half);
  std::vector<std::string> command = {BARESTEP_HOSTS, "agent", "10.78.0.1"};
  for (const std::string& word :
       {std::string("mpirun"), std::string("--mca"), std::string("plm_rsh_agent"),
        std::string(BARESTEP_HOSTS " agent"), std::string("-H"), hosts, std::string("-x"),
        std::string(kMark), std::string("-x"), std::string("BARESTEP_FAULT"), std::string("-np"),
        ranks, std::string("sh"), std::string("-c"), job}) {
    command.push_back(quoted(word));
  }
  return command;
}

/// The ids of the processes whose environment names the cell, including its launcher.
std::vector<pid_t> processes_of(const std::string& mark) {
  const std::string requested = fmt::format("{}={}", kMark, mark);
  std::vector<pid_t> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream file(entry.path() / "environ", std::ios::binary);
    for (std::string variable; std::getline(file, variable, '\0');) {
      if (variable == requested) found.push_back(static_cast<pid_t>(std::stol(name)));
    }
  }
  return found;
}

/// Those that still exist after two seconds; they are killed.
std::size_t left_behind(const std::string& mark) {
  const double deadline_s = seconds_now() + 2;
  while (!processes_of(mark).empty() && seconds_now() < deadline_s) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  const std::vector<pid_t> left = processes_of(mark);
  for (const pid_t process : left) ::kill(process, SIGKILL);
  return left.size();
}

Outcome outcome_of(const Options& options, const Cell& cell) {
  const std::string mark = fmt::format("{}.{}.{}.{}.{}.{}", ::getpid(), options.launcher,
                                       cell.ranks, cell.failing, cell.phase, cell.fault);
  const double max_s = options.limit_s + 5;
  const double start_s = seconds_now();
  const barestep::ProcessResult job = barestep::run_process(
      launch_command(options, cell),
      {.variables = {fmt::format("{}={}", kMark, mark),
                     fmt::format("BARESTEP_FAULT={}:{}:{}", cell.failing, cell.phase, cell.fault)},
       .in_own_session = true,
       .timeout_s = max_s + kGraceSeconds});
  const double end_s = seconds_now();
  Outcome outcome{cell, end_s - start_s, job.exit_code, {}, "", job.err};
  std::istringstream said(job.err);
  constexpr std::string_view kStruck = "fault: struck at ";
  for (std::string line; std::getline(said, line);) {
    // Measured from the fault, because a busy machine may take long to start the job.
    if (line.starts_with(kStruck)) {
      outcome.seconds = std::max(0.0, end_s - std::stod(line.substr(kStruck.size())));
    }
    if (line.find("mlp_ddp: error:") != std::string::npos) outcome.lines.push_back(line);
  }
  const auto add = [&](const std::string& what) {
    outcome.wrong += (outcome.wrong.empty() ? "" : ", ") + what;
  };
  if (outcome.seconds > max_s) add(fmt::format("took more than {:g} s", max_s));
  if (outcome.code == 0) add("exit code 0");
  if (outcome.lines.empty() || outcome.lines.size() > options.hosts()) {
    add(fmt::format("{} error lines", outcome.lines.size()));
  }
  if (const std::size_t left = left_behind(mark); left > 0) {
    add(fmt::format("{} processes left", left));
  }
  return outcome;
}

/// Files that ranks share while they run.
std::set<std::string> boards() {
  const std::string pattern =
      (std::filesystem::temp_directory_path() / "ompi.*/*/barestep.*").string();
  glob_t found{};
  std::set<std::string> files;
  if (::glob(pattern.c_str(), 0, nullptr, &found) == 0) {
    files.insert(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  }
  ::globfree(&found);
  return files;
}

/// Those that are new and remain; files of other jobs disappear with their jobs.
std::vector<std::string> boards_left(const std::set<std::string>& before) {
  const double deadline_s = seconds_now() + 20;
  std::vector<std::string> left;
  do {
    const std::set<std::string> now = boards();
    left.clear();
    std::ranges::set_difference(now, before, std::back_inserter(left));
    if (!left.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(200));
  } while (!left.empty() && seconds_now() < deadline_s);
  return left;
}

std::vector<Cell> cells_of(const Options& options) {
  const auto all = phases_and_faults(options);
  std::vector<Cell> cells;
  for (std::size_t i = 0; options.in_turn && i < all.size(); ++i) {
    const int ranks = options.ranks[i % options.ranks.size()];
    cells.push_back({ranks, failing_ranks(options, ranks)[0], all[i].first, all[i].second});
  }
  for (std::size_t i = 0; !options.in_turn && i < options.ranks.size(); ++i) {
    for (const int failing : failing_ranks(options, options.ranks[i])) {
      for (const auto& [phase, fault] : all) {
        cells.push_back({options.ranks[i], failing, phase, fault});
      }
    }
  }
  return cells;
}

std::vector<Outcome> run_all(const Options& options, const std::vector<Cell>& cells) {
  std::vector<Outcome> outcomes(cells.size());
  std::atomic<std::size_t> next{0};
  std::vector<std::thread> workers;
  for (int i = 0; i < options.jobs; ++i) {
    workers.emplace_back([&] {
      for (std::size_t cell = next++; cell < cells.size(); cell = next++) {
        outcomes[cell] = outcome_of(options, cells[cell]);
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  return outcomes;
}

Options options_of(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--in-turn") {
      options.in_turn = true;
      continue;
    }
    if (i + 1 == argc) refuse(name + " needs a value");
    const std::string value = argv[++i];
    if (name == "--mlp-ddp") {
      options.mlp_ddp = std::filesystem::absolute(value);
    } else if (name == "--faults") {
      options.faults = std::filesystem::absolute(value);
    } else if (name == "--launcher") {
      options.launcher = value;
    } else if (name == "--limit") {
      options.limit_s = std::stod(value);
    } else if (name == "--phases") {
      options.phases = value;
    } else if (name == "--model") {
      options.model = value;
    } else if (name == "--jobs") {
      options.jobs = std::stoi(value);
    } else if (name == "--ranks") {
      options.ranks.clear();
      std::istringstream counts(value);
      for (std::string count; std::getline(counts, count, ',');) {
        options.ranks.push_back(std::stoi(count));
      }
    } else {
      refuse("unknown option " + name);
    }
  }
  if (options.mlp_ddp.empty() || options.faults.empty()) refuse("give --mlp-ddp and --faults");
  return options;
}

void print_table(const Options& options, const std::vector<Outcome>& outcomes) {
  fmt::print("{}, limit {:g} s{}{}\n", options.launcher, options.limit_s,
             options.model.empty() ? "" : ", ", options.model);
  fmt::print("ranks  fails  phase     fault    seconds  code  lines  said by the job\n");
  for (const Outcome& each : outcomes) {
    fmt::print("{:5}  {:5}  {:8}  {:7}  {:7.2f}  {:4}  {:5}  {}\n", each.cell.ranks,
               each.cell.failing, each.cell.phase, each.cell.fault, each.seconds, each.code,
               each.lines.size(), each.lines.empty() ? "" : each.lines.front());
  }
  for (const Outcome& each : outcomes) {
    if (each.wrong.empty()) continue;
    fmt::print("WRONG: {} ranks, {} fails, {}, {}: {}\n{}\n", each.cell.ranks, each.cell.failing,
               each.cell.phase, each.cell.fault, each.wrong, each.err);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = options_of(argc, argv);
  const std::set<std::string> before = boards();
  const double start_s = seconds_now();
  const std::vector<Outcome> outcomes = run_all(options, cells_of(options));
  print_table(options, outcomes);
  const std::vector<std::string> left = boards_left(before);
  for (const std::string& file : left) fmt::print("WRONG: file left: {}\n", file);
  const auto failed =
      std::ranges::count_if(outcomes, [](const Outcome& each) { return !each.wrong.empty(); });
  fmt::print("{} cells in {:.1f} s, {} wrong\n", outcomes.size(), seconds_now() - start_s, failed);
  return failed > 0 || !left.empty() ? 1 : 0;
}
