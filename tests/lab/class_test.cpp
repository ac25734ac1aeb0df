#include "lab/class/class.h"

#include <nlohmann/json.hpp>

#include "lab/made_up.h"
#include "lab/report/page.h"
#include "support/expect_error.h"
#include "support/pattern.h"
#include "support/temp_dir.h"
#include "support/testing.h"

namespace barestep {
namespace {

using ::testing::Field;

// Students who are made up, with the files of studies that nobody ran.

constexpr const char* kSheetName = "practical3";

/// What the loss of a variant is, in every start of every machine.
double loss_of(const GivenOptions& options) {
  double loss = 1;
  for (const auto& [name, value] : options) loss += 1e-4 * std::stod(value.substr(0, 4)) + 1e-3;
  return loss;
}

MadeUpStep step_of(const Case& what, const Student& student) {
  const double work_s = 0.004 + 1e-4 * static_cast<double>(what.workload.batch_size());
  const double pause_s = 1e-3 * std::stod(student.options.at("pause-ms"));
  const double waits_s = what.key == "workers-0" ? pause_s : 0;
  MadeUpStep step{.step_s = work_s + waits_s,
                  .phase_s = {{"forward", 0.3 * work_s},
                              {"loss", 0.02 * work_s},
                              {"backward", 0.5 * work_s},
                              {"optimizer", 0.18 * work_s},
                              {"injected", waits_s}},
                  .weights_hash = "ab12",
                  .loss = loss_of(student.options)};
  if (what.record_ops) {
    step.ops = {{"gemm", "forward", "net.0", 0.003},
                {"mse_loss", "loss", "", 0.0001},
                {"gemm", "backward", "net.0", 0.006}};
  }
  if (what.workload.config.output.monitor) {
    step.watched = {{.source = "host",
                     .gauges = {{"own_percent", {91, 90, 92}}, {"resident_mib", {100, 90, 110}}}}};
  }
  return step;
}

StudyIdentity identity_of(const ClassPlan& plan, const Student& student, bool on_gpu = false) {
  return {.quick = plan.quick,
          .on_gpu = on_gpu,
          .options = student.options,
          .machine = {.processor = "made up",
                      .cores = 2,
                      .memory_bytes = 1 << 30,
                      .gpu = on_gpu ? "made up" : "",
                      .gpus = on_gpu ? 1 : 0},
          .version = "0.1.0 abc"};
}

using ChangeOfStart = std::function<void(const Case& what, Start& start)>;

/// Writes a study of the variant, as its run would have done.
void write_study(const std::filesystem::path& folder, const ClassPlan& plan, const Student& student,
                 const ChangeOfStart& change = nullptr, HowCasesWent how = nullptr,
                 bool on_gpu = false) {
  if (!how) how = [&](const Case& what) { return step_of(what, student); };
  const Study study(folder, identity_of(plan, student, on_gpu));
  Setting setting = study.setting();
  setting.starts = 9;
  for (const Experiment* const experiment : experiments_of(plan.sheet)) {
    const std::filesystem::path runs = folder / "runs" / experiment->name;
    std::filesystem::create_directories(runs);
    const Results results = made_up(*experiment, setting, how);
    for (const Measurement& measured : results.cases) {
      for (std::size_t i = 0; i < measured.starts().size(); ++i) {
        Start start = measured.starts()[i];
        if (change) change(measured.what(), start);
        write_file(runs / fmt::format("{}.{}.json", measured.what().key, i), json_of(start));
      }
    }
  }
}

/// The sheet that was given out with a prediction, as run.sh keeps it.
std::string predicted_sheet(const ClassPlan& plan, const Student& student,
                            const std::string& prediction) {
  std::string text = template_of(plan.sheet, student.name);
  const std::size_t room = text.find("\\_", text.find("before you measure.**"));
  return text.replace(room, text.find('\n', room) - room, prediction);
}

/// The sheet with the student's figures and answers: the right choice, and a sentence elsewhere.
std::string answered_sheet(const ClassPlan& plan, const std::filesystem::path& study,
                           const MachineCard& gpus) {
  const Report report = report_of(Study::open(study));
  std::string text;
  std::string number;
  for (const std::vector<std::string>& block :
       blocks_of(markdown_of(plan.sheet, SheetRuns(report, gpus), SheetCopy::kFigures))) {
    const bool is_room = block.front().starts_with("\\_");
    if (block.front().starts_with("**")) {
      number = block.front().substr(2, block.front().find(' ') - 2);
    }
    if (!is_room) {
      for (const std::string& line : block) text += line + "\n";
      text += "\n";
    } else if (!number.empty()) {
      const MarkedItem& item = *plan.header.item(number);
      std::string answer = "It is so because of the update, which costs the same for any batch.";
      if (item.by == MarkedBy::kPrediction) answer = block.front();
      if (item.by == MarkedBy::kWord) {
        answer = kCannotBeSaid;
        const ReportSection& section = *report.section(item.experiment);
        for (const auto& [choice, words] : item.choices) {
          const bool is_right =
              section.trouble.empty() &&
              std::ranges::find(words, section.findings.named(item.finding)->word) != words.end();
          if (is_right) answer = choice;
        }
        answer = fmt::format("{}, by the figures above.", answer);
      }
      text += answer + "\n\n";
      number.clear();
    }
  }
  return text;
}

/// Exchanges the cell of a row that begins with `row`, counted from 1, of the first table that has
/// one, with `other`.
void cell(std::string& text, const std::string& row, int column, std::string* other) {
  std::size_t at = text.find("\n| " + row) + 1;
  for (int i = 0; i < column; ++i) at = text.find('|', at) + 1;
  const std::size_t begin = at + 1, end = text.find(" |", begin);
  const std::string old = text.substr(begin, end - begin);
  text.replace(begin, end - begin, *other);
  *other = old;
}

using RowsOfCsv = std::vector<std::vector<std::string>>;

/// A cell of marks.csv, why it is as it is, what grading wrote there, and what the teacher wrote.
struct Typed {
  std::string student{}, item{}, what{}, graded{}, points{};
};

std::string& cell_at(RowsOfCsv& rows, const Typed& where) {
  const auto column = std::ranges::find(rows[0], where.item) - rows[0].begin();
  const auto row =
      std::ranges::find(rows, where.student, [](const auto& cells) { return cells[0]; });
  return row->at(static_cast<std::size_t>(column));
}

class AClass : public TempDirTest {
 protected:
  ClassPlan new_one(const std::string& names, const std::string& sheet = kSheetName) {
    return new_class({.sheet = sheet,
                      .students = file("names.csv", names),
                      .output = folder() / "class",
                      .machine = "t4",
                      .secret = "secret",
                      .quick = true});
  }

  [[nodiscard]] std::filesystem::path handed(const Student& student) const {
    return folder() / "handed-in" / student.folder;
  }

  void hand_in(const ClassPlan& plan, const Student& student,
               const ChangeOfStart& change = nullptr) {
    write_study(handed(student) / "results", plan, student, change);
    write_file(sheet_of(student), answered_sheet(plan, handed(student) / "results", gpus_));
    predict(plan, student, "Three times as many, since the update stays as it is.");
  }

  void predict(const ClassPlan& plan, const Student& student, const std::string& prediction) {
    write_file(handed(student) / fmt::format("{}-before.md", kSheetName),
               predicted_sheet(plan, student, prediction));
  }

  /// A sheet with one question, of these choices.
  ClassPlan words_only(const std::string& names, const std::string& choices) {
    return new_one(names, file("words.md",
                               "---\n| check | points | marked by |\n| --- | --- | --- "
                               "|\n| 1 | 1 | " +
                                   choices + R"( |
---
# Words

| Time |
| --- |
| {{batch-sweep.batch-32.time}} |

**Is it?**

No.
)")
                              .string());
  }

  /// Hands in such a sheet, with steps of 40 ms, at batch 128 of these seconds.
  void hand_in_words(const ClassPlan& plan, const Student& student, double large_s,
                     const std::string& answer) {
    write_study(handed(student) / "results", plan, student, nullptr, [&](const Case& what) {
      const double step_s = what.key == "batch-128" ? large_s : 0.04;
      return MadeUpStep{.step_s = step_s, .noise = 0.02, .phase_s = {{"forward", step_s}}};
    });
    write_file(sheet_of(student, "words"), fmt::format("# Words\n\n**1 Is it?**\n\n{}\n", answer));
  }

  /// A sheet that asks for ranks only.
  ClassPlan ranks_only(const std::string& names, const std::string& more = "") {
    return new_one(names, file("ranks.md", R"(# Ranks

| Ranks | Time | Speed-up | Efficiency | Exposed |
| --- | --- | --- | --- | --- |
| 1 | {{strong-scaling.ranks-1.time}} | {{strong-scaling.ranks-1.speed-up}} | {{strong-scaling.ranks-1.efficiency}} | {{strong-scaling.ranks-1.exposed}} |
| 2 | {{strong-scaling.ranks-2.time}} | {{strong-scaling.ranks-2.speed-up}} | {{strong-scaling.ranks-2.efficiency}} | {{strong-scaling.ranks-2.exposed}} |

)" + more + R"(**Is it so?**

It is.
)")
                              .string());
  }

  /// Hands in a sheet of ranks with these two rows and this split, and no records.
  void hand_in_sheet(const Student& student, const std::string& one, const std::string& two,
                     const std::string& split) {
    std::filesystem::create_directories(handed(student));
    write_file(handed(student) / "ranks-figures.md",
               fmt::format("# Ranks\n\n| Ranks | Time | Speed-up | Efficiency | Exposed |\n| --- | "
                           "--- | --- | --- | --- |\n| 1 | {} |\n| 2 | {} |\n\n| Devices | Rows "
                           "|\n| --- | --- |\n| 3 | {} |\n",
                           one, two, split));
  }

  /// Logs of a student's own program, which takes so much longer than the others'; a sweep of
  /// batches of five starts of six steps. `change` changes a line.
  void hand_in_logs(const ClassPlan& plan, const Student& student, double slower,
                    const std::function<void(std::string& line)>& change = nullptr) {
    const std::filesystem::path logs = folder() / ("logs of " + student.name);
    std::filesystem::create_directories(logs);
    for (const int batch : {32, 64, 128}) {
      std::string log;
      for (int step = 0; step < 30; ++step) {
        const double seconds = slower * (0.008 + 1e-4 * batch) * (1 + 0.01 * (step % 4));
        std::string line = fmt::format(
            "Step {:02} | Step time: {:.4f}s | Throughput: {:.2f} samples/sec | Loss: 1.0\n",
            step % 6, seconds, batch / seconds);
        if (change && batch == 64) change(line);
        log += line;
      }
      write_file(logs / fmt::format("batch-sweep.batch-{}.log", batch), log);
    }
    const Study study(handed(student) / "results", identity_of(plan, student));
    study.keep_logs(experiment_of("batch-sweep"), logs);
    write_file(sheet_of(student, plan.sheet.name),
               answered_sheet(plan, handed(student) / "results", gpus_));
  }

  [[nodiscard]] std::filesystem::path sheet_of(const Student& student,
                                               const std::string& sheet = kSheetName) const {
    return handed(student) / "results" / fmt::format("{}-figures.md", sheet);
  }

  /// Changes the sheet that a student handed in.
  template <class Change>
  void change_sheet(const Student& student, const Change& change) {
    std::string text = read_file(sheet_of(student));
    change(text);
    write_file(sheet_of(student), text);
  }

  GradedClass grade(const ClassPlan& plan, const Rerun& rerun = nullptr) {
    std::filesystem::create_directories(folder() / "handed-in");
    return grade_class(plan, folder() / "handed-in", gpus_, rerun, [](int, const std::string&) {});
  }

  /// Returns the copy of what is more than points, if there is one.
  std::string regrade(const ClassPlan& plan) {
    return write_grades(folder() / "grades", plan, grade(plan)).string();
  }

  /// Writes marks.csv as a spreadsheet that separates cells by this.
  void edit_marks(const std::function<void(RowsOfCsv& rows)>& edit, char separator = ',') {
    const std::filesystem::path file = folder() / "grades/marks.csv";
    RowsOfCsv rows = csv_rows(read_file(file));
    edit(rows);
    std::string text;
    for (const std::vector<std::string>& row : rows) {
      for (const std::string& cell : row) {
        const bool is_quoted = cell.find(separator) != std::string::npos;
        text += is_quoted ? '"' + cell + '"' : cell;
        text += separator;
      }
      text.back() = '\n';
    }
    write_file(file, text);
  }

  MachineCard gpus_ = load_card("t4");
};

std::string names_of(int count) {
  std::string text = "name\n";
  for (int i = 0; i < count; ++i) text += fmt::format("Õie Žukova {}\n", i);
  return text;
}

TEST_F(AClass, GivesEachStudentAVariantOfTheSameDifficulty) {
  const ClassPlan plan = new_one(names_of(60));
  ASSERT_THAT(plan.students, SizeIs(60));
  std::set<GivenOptions> variants;
  std::vector<double> seconds;
  for (const Student& each : plan.students) {
    variants.insert(each.options);
    seconds.push_back(each.price.step_s);
    EXPECT_EQ(std::stoi(each.options.at("dim")) % 64, 0);
  }
  EXPECT_THAT(variants, SizeIs(60));
  const auto [least, greatest] = std::ranges::minmax(seconds);
  EXPECT_LE(greatest / least, 1.5 * 1.5);
  const std::filesystem::path own = folder() / "class/students" / plan.students[7].folder;
  const std::string script = read_file(own / "run.sh");
  EXPECT_THAT(script, HasSubstr("#SBATCH --time="));
  EXPECT_THAT(script,
              testing::ContainsRegex(
                  "practical3: [0-9]+ starts, about [0-9]+ minutes? on one T4 .simulated.[.] Run"));
  EXPECT_THAT(script, HasSubstr("sheet 'practical3.md' --figures --batch-size "));
  EXPECT_THAT(script, HasSubstr("|| cp 'practical3.md' 'practical3-before.md' || exit\n"));
  const std::string given = read_file(own / "practical3.md");
  EXPECT_THAT(given, AllOf(HasSubstr("Name: Õie Žukova 7 "), HasSubstr("{{batch-sweep.batch-32."),
                           Not(HasSubstr("Look for")), Not(HasSubstr("vary:"))));
  EXPECT_THAT(load_sheet((own / "practical3.md").string()).text, HasSubstr("Choose no, yes or"));
  EXPECT_THAT(load_class(folder() / "class").students[7].options, plan.students[7].options);
}

/// Whatever machine prices them, another answer is another student's figure, not another sheet.
TEST_F(AClass, HasVariantsOfEverySheetWithOtherFigures) {
  const std::string cpu = file("cpu.json", R"({"name": "made up", "kind": "cpu", "others_share": 0,
                "device": {"flops_per_s": {"value": 1e11, "source": "made up"},
                           "memory_bytes_per_s": {"value": 1e10, "source": "made up"},
                           "launch_s": {"value": 1e-6, "source": "made up"},
                           "host_s": {"value": 1e-5, "source": "made up"}},
                "node": {"devices": 2, "latency_s": {"value": 1e-6, "source": "made up"},
                         "hop_s": {"value": 1e-6, "source": "made up"}}})")
                              .string();
  std::set<std::string> refused;
  for (const std::string& machine : {cpu, std::string("t4"), std::string("h200-nvlink")}) {
    for (const std::string& sheet : sheet_names()) {
      SCOPED_TRACE(fmt::format("{} on {}", sheet, machine));
      const std::filesystem::path output =
          folder() / fmt::format("{}-{}", sheet, std::filesystem::path(machine).stem().string());
      ClassPlan plan;
      const auto why = refusal_of([&] {
        plan = new_class({.sheet = sheet,
                          .students = file("names.csv", names_of(8)),
                          .output = output,
                          .machine = machine,
                          .secret = "secret",
                          .quick = true});
      });
      if (why) {
        EXPECT_EQ(machine, "t4") << why->what();
        EXPECT_THAT(why->what(), HasSubstr("none of its runs can be priced on one T4, which has 1 "
                                           "device; name another --machine, or another sheet"));
        refused.insert(sheet);
        continue;
      }
      std::set<GivenOptions> variants, models;
      std::set<double> seconds;
      for (const Student& each : plan.students) {
        GivenOptions options = each.options;
        variants.insert(options);
        options.erase("seed");
        models.insert(options);
        seconds.insert(each.price.step_s);
        EXPECT_THAT(each.price.trouble, IsEmpty());
      }
      EXPECT_THAT(variants, SizeIs(8));
      EXPECT_GT(models.size(), 2U);
      if (*seconds.begin() > 0) {  // this CPU's card has no rates of exchanges
        EXPECT_GT(seconds.size(), 2U) << "what varies changes no step";
        EXPECT_LE(*seconds.rbegin() / *seconds.begin(), 1.5 * 1.5);
      }
      const std::filesystem::path own = output / "students" / plan.students[0].folder;
      EXPECT_THAT(experiments_of(load_sheet((own / (sheet + ".md")).string())),
                  testing::UnorderedElementsAreArray(experiments_of(plan.sheet)))
          << "what only answers need is measured, too";
    }
  }
  EXPECT_THAT(refused, ElementsAre("homework2")) << "of others some cases have one device";
}

TEST_F(AClass, KeepsVariantsWhereAStudentComesLater) {
  const ClassPlan plan = new_one("Anna\nBo\n");
  const ClassPlan later = new_one("Zoe\nAnna\n\"Lee, Bo\",Bo\n");
  EXPECT_EQ(later.students[1].options, plan.students[0].options);
  EXPECT_EQ(later.students[2].options, plan.students[1].options) << "drawn by the folder";
  EXPECT_EQ(later.students[2].name, "Lee, Bo");
  expect_error(ExitCode::kConfiguration,
               "it holds a class of another text, machine or secret: practical3 --quick on one T4",
               [&] { new_one("Anna\n", "homework1"); });
}

TEST_F(AClass, KeepsTheVariantsAndTheFilesThatAreGivenOut) {
  const std::string sheet = file("few.md", R"(---
vary: seed 1 to 3
---
# Few

| Time |
| --- |
| {{batch-sweep.batch-32.time}} |
)")
                                .string();
  const ClassPlan plan = new_one("Anna\nBo\n", sheet);
  const std::filesystem::path own = folder() / "class/students/Anna/few.md";
  write_file(own, "Anna's work");
  const ClassPlan later = new_one("Zoe\nAnna\nBo\n", sheet);
  EXPECT_EQ(later.students[1].options, plan.students[0].options) << "Zoe takes what is left";
  EXPECT_EQ(later.students[2].options, plan.students[1].options);
  EXPECT_EQ(read_file(own), "Anna's work");
  EXPECT_TRUE(std::filesystem::exists(folder() / "class/students/Zoe/run.sh"));
  expect_error(ExitCode::kBadData,
               "it lacks 'Bo', whose variant is given out; add the line again, or name another",
               [&] { new_one("Zoe\nAnna\n", sheet); });
  EXPECT_THAT(load_class(folder() / "class").students, SizeIs(3));
}

/// A class priced by a teacher's own card of a GPU has that card in each folder; one priced for
/// CPUs has simulated columns of the usual GPUs.
TEST_F(AClass, SimulatesTheSameMachineForStudentsAndKey) {
  MachineCard mine = gpus_;
  mine.name = "my T4";
  const auto script_of = [&](const std::string& machine, const std::string& output) {
    const ClassPlan plan = new_class({.sheet = kSheetName,
                                      .students = file("names.csv", "Anna\n"),
                                      .output = folder() / output,
                                      .machine = machine,
                                      .quick = true});
    return read_file(folder() / output / "students/Anna/run.sh");
  };
  EXPECT_THAT(script_of("t4", "a"), HasSubstr(" --quick --machine 't4' --output results \"$@\""));
  EXPECT_THAT(script_of(file("mine.json", json_of(mine)).string(), "b"),
              HasSubstr(" --quick --machine 'machine.json' --output results \"$@\""));
  EXPECT_EQ(load_card((folder() / "b/students/Anna/machine.json").string()).name, "my T4");
  std::filesystem::rename(folder() / "b", folder() / "moved");
  EXPECT_EQ(load_card(load_class(folder() / "moved").machine).name, "my T4");
  EXPECT_EQ(simulated_machine("t4"), "t4");
  mine.on_gpu = false;
  EXPECT_EQ(simulated_machine(file("cpu.json", json_of(mine)).string()), kUsualCard);
}

TEST_F(AClass, ReadsNamesAsSpreadsheetsWriteThem) {
  const auto students = [&](const std::string& names) {
    std::filesystem::remove_all(folder() / "class");
    std::vector<std::string> all;
    for (const Student& each : new_one(names).students) {
      all.push_back(each.name + "/" + each.folder);
    }
    return all;
  };
  EXPECT_THAT(students("Name;Nr\r\n\"M\u00fcller, Anna\";12\r\nBo;13\r\n"),
              ElementsAre("M\u00fcller, Anna/12", "Bo/13"));
  EXPECT_THAT(students("Bo.\nCon\n"), ElementsAre("Bo./Bo-", "Con/Con-"));
  expect_error(ExitCode::kBadData, "there is no UTF-8 in line 2; save it as 'CSV UTF-8'",
               [&] { students("name\nM\xe4gi\n"); });
  expect_error(ExitCode::kBadData, "there is no UTF-8 in line 1",
               [&] { students(std::string("A\0n\0\n\0", 6)); });
  expect_error(ExitCode::kBadData, "there are 3 columns in line 1; write a name, and a folder",
               [&] { students("First name,Last name,Email\nBo,Lee,b@l\n"); });
  expect_error(ExitCode::kBadData, "'anna' stands twice", [&] { students("Anna\nanna\n"); });
}

TEST_F(AClass, TakesTheFolderOfTheLongestNameHoweverItsAccentsAreWritten) {
  const ClassPlan plan = new_one("mari\nmari_t\nJ\u00fcri\nJuri\n");
  for (const char* name : {"mari_t_4711_file_", "Ju\u0308ri_3"}) {
    std::filesystem::create_directories(folder() / "handed-in" / name);
  }
  const GradedClass grades = grade(plan);
  EXPECT_TRUE(grades.students[0].has(MistakeKind::kNothing));
  EXPECT_FALSE(grades.students[1].has(MistakeKind::kNothing));
  EXPECT_FALSE(grades.students[2].has(MistakeKind::kNothing));
  EXPECT_TRUE(grades.students[3].has(MistakeKind::kNothing));
  EXPECT_THAT(grades.unknown, IsEmpty());
}

TEST_F(AClass, TakesAChoiceFromTheBeginningOfAnAnswerOnly) {
  const ClassPlan plan = new_one("Anna\nBo\nCy\nDi\n");
  const std::string answers[] = {"*No* \u2013 it does not.", "There is no doubt that it grows.",
                                 "No doubt it grows.", "no"};
  for (std::size_t i = 0; i < plan.students.size(); ++i) {
    hand_in(plan, plan.students[i]);
    change_sheet(plan.students[i], [&](std::string& text) {
      const std::size_t end = text.find(", by the figures"), at = text.rfind('\n', end) + 1;
      text.replace(at, text.find('\n', end) - at, answers[i]);
    });
  }
  const GradedClass grades = grade(plan);
  const auto mark = [&](std::size_t i) {
    return std::ranges::find(grades.students[i].marks, "2.2",
                             [](const Mark& each) { return each.item->name; })
        ->points;
  };
  EXPECT_EQ(mark(0), mark(3)) << "a sign may be around it";
  EXPECT_NE(mark(3), std::nullopt);
  EXPECT_EQ(mark(1), std::nullopt);
  EXPECT_EQ(mark(2), std::nullopt);
}

TEST_F(AClass, FindsAnswersInEitherSheetAndAFileThatABrowserHasRenamed) {
  const ClassPlan plan = new_one("Anna\n");
  hand_in(plan, plan.students[0]);
  std::string answers;
  change_sheet(plan.students[0], [&](std::string& text) {
    answers = text;
    text.replace(text.find("Step time (s)"), 13, "Step time, s");
    for (std::size_t at = 0; (at = text.find("It is so because", at)) != std::string::npos;) {
      text.erase(at, text.find('\n', at) - at);
    }
  });
  write_file(handed(plan.students[0]) / "practical3.md", answers);
  std::filesystem::rename(sheet_of(plan.students[0]),
                          sheet_of(plan.students[0]).parent_path() / "practical3-figures (1).md");
  const GradedClass grades = grade(plan);
  EXPECT_THAT(grades.students[0].mistakes, IsEmpty());
  EXPECT_EQ(grades.students[0].marks[1].points, 2) << "a title was edited";
  for (const Mark& mark : grades.students[0].marks) EXPECT_NE(mark.text, "There is no answer.");
}

TEST_F(AClass, NamesStartsThatAreMissingAndGivesNothingForFewer) {
  const ClassPlan plan = new_one("Anna\n");
  hand_in(plan, plan.students[0]);
  for (const char* key : {"batch-32", "batch-64", "batch-128"}) {
    for (int i = 1; i < 9; ++i) {
      std::filesystem::remove(handed(plan.students[0]) / "results/runs/batch-sweep" /
                              fmt::format("{}.{}.json", key, i));
    }
  }
  change_sheet(plan.students[0], [&](std::string& text) {
    const std::size_t end = text.find(", by the figures"), at = text.rfind('\n', end) + 1;
    text.replace(at, end - at, "Cannot be said");
  });
  const GradedStudent student = grade(plan).students[0];
  EXPECT_THAT(student.mistakes,
              Contains(Field(&Mistake::text,
                             "batch-sweep has 1 start of each case, and an interval "
                             "needs 6; sh run.sh makes them")));
  const auto mark =
      std::ranges::find(student.marks, "2.2", [](const Mark& each) { return each.item->name; });
  EXPECT_EQ(mark->points, std::nullopt) << mark->text;
}

TEST_F(AClass, LeavesAWordThatNoChoiceStandsForToTheTeacher) {
  const ClassPlan plan = words_only("Anna\n", "batch-sweep.linear: yes=faster, no=slower");
  EXPECT_THAT(plan.note,
              MatchesRegex("on one T4 the simulator tells no right choice for question 1 "
                           "\\('(above|below)' is none\\) of any student; grading goes by each "
                           "student's own figures: where no choice stands for them, write the "
                           "points into marks.csv"));
  hand_in_words(plan, plan.students[0], 0.04, "No.");
  const Mark mark = grade(plan).students[0].marks.back();
  EXPECT_EQ(mark.points, std::nullopt);
  EXPECT_THAT(mark.text, HasSubstr("no choice of the sheet stands for 'above'"));
}

TEST_F(AClass, SaysWhichChoicesCannotBeSimulated) {
  const ClassPlan plan = words_only("Anna\nBo\n", "profile.backward: yes=above, no=below");
  EXPECT_THAT(experiments_of(plan.sheet), Contains(&experiment_of("profile")))
      << "though the text does not name it";
  EXPECT_THAT(plan.note,
              StartsWith("on one T4 the simulator tells no right choice for question 1 of "
                         "any student; grading goes"));
  EXPECT_THAT(new_class({.sheet = kSheetName,
                         .students = file("names.csv", "Anna\n"),
                         .output = folder() / "told",
                         .machine = "t4",
                         .quick = true})
                  .note,
              IsEmpty());
}

/// Throughput grows to just the border between linear and not.
TEST_F(AClass, TakesNoOtherAnswerWhereFiguresDecideNothing) {
  const ClassPlan plan = words_only("Anna\nBo\n", "batch-sweep.linear: yes=above, no=below");
  hand_in_words(plan, plan.students[0], 0.04 / 0.9, "Cannot be said: the interval has 3.6 in it.");
  hand_in_words(plan, plan.students[1], 0.04 / 0.9, "No.");
  const GradedClass grades = grade(plan);
  EXPECT_EQ(grades.students[0].marks.back().points, 1) << grades.students[0].marks.back().text;
  EXPECT_EQ(grades.students[1].marks.back().points, 0);
  EXPECT_THAT(grades.students[1].marks.back().text,
              StartsWith("'no', and your own figures say 'cannot be said': Whether throughput"));
}

/// Of each kind of question and check, whether grading left it to the teacher or decided it.
TEST_F(AClass, KeepsThePointsThatATeacherHasWritten) {
  const ClassPlan plan = new_one("Anna\nBo\n007\n");
  for (const Student& each : plan.students) hand_in(plan, each);
  std::filesystem::remove_all(handed(plan.students[1]) / "results/runs");
  std::filesystem::remove(handed(plan.students[1]) / "results/study.json");
  change_sheet(plan.students[0], [&](std::string& text) {
    const std::size_t end = text.find(", by the figures"), at = text.rfind('\n', end) + 1;
    text.replace(at, end - at, "Look");
  });
  EXPECT_THAT(regrade(plan), IsEmpty());
  const std::vector<Typed> typed = {{"Anna", "1.1", "text", "", "0.5"},
                                    {"Anna", "2.1", "prediction", "", "0.25"},
                                    {"Anna", "2.2", "a word that is not told", "", "1.5"},
                                    {"Bo", "arithmetic", "no records to compare with", "", "1.25"},
                                    {"Bo", "2.4", "nothing was measured", "", "2"},
                                    {"Anna", "identity", "decided", "2", "1"},
                                    {"007", "2.4", "a word", "2", "0"}};
  edit_marks([&](RowsOfCsv& rows) {
    for (const Typed& each : typed) {
      EXPECT_EQ(cell_at(rows, each), each.graded) << each.what;
      cell_at(rows, each) = each.points;
    }
  });
  for (const char separator : {',', ';', ','}) {  // as graded, and as two spreadsheets save it
    EXPECT_THAT(regrade(plan), IsEmpty());
    edit_marks(
        [&](RowsOfCsv& rows) {
          double sum = 0;
          for (const Typed& each : typed) EXPECT_EQ(cell_at(rows, each), each.points) << each.what;
          for (std::size_t i = 2; i + 3 < rows[1].size(); ++i) {
            sum += rows[1][i].empty() ? 0 : std::stod(rows[1][i]);
          }
          EXPECT_EQ(std::stod(rows[1][rows[1].size() - 3]), sum);
          for (std::vector<std::string>& row : rows) {
            for (std::string& cell : row) {
              if (separator == ';') std::ranges::replace(cell, '.', ',');
              if (separator == ';' && cell == "007") cell = "7";
              if (separator == ';' && cell == "2,2") cell = "02.Feb";
            }
          }
        },
        separator);
  }
  const std::string page = read_file(folder() / "grades/students/Anna.md");
  EXPECT_THAT(page, HasSubstr("| identity | 1 of 2 | The teacher's points, in place of 2: Opt"));
  EXPECT_THAT(page, HasSubstr("| 2.2 | 1.5 of 2 | The teacher's points. |"));
  edit_marks([&](RowsOfCsv& rows) {
    for (const Typed& each : typed) cell_at(rows, each).clear();
  });
  regrade(plan);
  edit_marks([&](RowsOfCsv& rows) {
    for (const Typed& each : typed) EXPECT_EQ(cell_at(rows, each), each.graded) << each.what;
  });
}

TEST_F(AClass, KeepsACopyOfWhatATeacherHasWrittenBesidePoints) {
  const ClassPlan plan = new_one("Anna\nBo\n");
  for (const Student& each : plan.students) hand_in(plan, each);
  regrade(plan);
  const std::vector<std::function<void(RowsOfCsv&)>> edits = {
      [](RowsOfCsv& rows) {
        cell_at(rows, {"Bo", "1.1"}) = "nan";
      },
      [](RowsOfCsv& rows) {
        cell_at(rows, {"Bo", "1.1"}) = "1 of 2";
      },
      [](RowsOfCsv& rows) {
        cell_at(rows, {"Bo", "found"}) = "talk to him";
      },
      [](RowsOfCsv& rows) {
        rows[0].insert(rows[0].begin() + 2, "remark");
        rows[1].insert(rows[1].begin() + 2, "well done");
        rows[2].insert(rows[2].begin() + 2, "");
      },
      [](RowsOfCsv& rows) {
        rows.push_back({"Zoe", "Zoe", "2"});
      }};
  for (std::size_t i = 0; i < edits.size(); ++i) {
    edit_marks([&](RowsOfCsv& rows) {
      cell_at(rows, {"Anna", "1.1"}) = "1";
      edits[i](rows);
    });
    const std::string before = read_file(folder() / "grades/marks.csv");
    const std::filesystem::path copy = folder() / fmt::format("grades/marks-{}.csv", i + 1);
    EXPECT_EQ(regrade(plan), copy.string());
    EXPECT_EQ(read_file(copy), before);
    EXPECT_THAT(regrade(plan), IsEmpty()) << "there is no more than points";
    edit_marks([&](RowsOfCsv& rows) {
      EXPECT_EQ(cell_at(rows, {"Anna", "1.1"}), "1");
      EXPECT_EQ(cell_at(rows, {"Bo", "1.1"}), "") << "is no number of points";
    });
  }
}

TEST_F(AClass, TakesAFigureWithItsUnitAndAnyThousands) {
  const ClassPlan plan = new_one("Anna\nBo\n");
  for (const Student& each : plan.students) {
    hand_in(plan, each);
    change_sheet(each, [&](std::string& text) {
      std::string old;
      cell(text, "32 ", 2, &old);
      const double ms = 1e3 * std::stod(old) * (each.name == "Bo" ? 1.5 : 1);
      std::string time = fmt::format("{:.2f} ms (4 ms to 9 ms)", ms);
      cell(text, "32 ", 2, &time);
      cell(text, "32 ", 3, &old);
      std::string samples = old.substr(0, old.find(' ')) + " samples/s";
      samples.replace(samples.find(','), 1, "\u202f");
      cell(text, "32 ", 3, &samples);
    });
  }
  const GradedClass grades = grade(plan);
  EXPECT_THAT(grades.students[0].mistakes, IsEmpty());
  EXPECT_THAT(grades.students[1].mistakes,
              Contains(Field(&Mistake::text, HasSubstr("batch-32.seconds is written '"))));
}

TEST_F(AClass, SaysWhyNoVariantCanBeDrawn) {
  const auto with = [&](const std::string& vary) {
    return file("own.md", "---\nvary: " + vary + "\n---\n# A\n\n{{batch-sweep.linear}}\n").string();
  };
  expect_error(ExitCode::kConfiguration,
               "sheet 'own': its header varies batch-size, which changes no run; change 'vary'",
               [&] { new_one("Anna\n", with("batch-size 16 to 64 by 16")); });
  expect_error(ExitCode::kConfiguration,
               "of 500 drawn variants for Bo, 0 are out of the band of 50 %, 0 have other answers "
               "than the middle one or are too large, and 500 are others'",
               [&] { new_one("Anna\nBo\n", with("seed 1 to 1")); });
}

TEST_F(AClass, RefusesNamesThatAreNone) {
  expect_error(ExitCode::kBadData, "there is no name in line 1", [&] { new_one("name\n\n"); });
  expect_error(ExitCode::kBadData, "'Anna' stands twice, the second time in line 3",
               [&] { new_one("Anna\nBo\nAnna\n"); });
  expect_error(ExitCode::kBadData, "a quote is not closed in line 1", [&] { new_one("\"A\nB\n"); });
}

/// The kinds of what students did, and how many.
const std::vector<std::pair<std::string, int>> kRoles = {
    {"honest", 27}, {"mistyped", 5}, {"swapped", 5}, {"edited", 5},
    {"copied", 5},  {"busy", 5},     {"chose", 3},   {"nothing", 5}};

TEST_F(AClass, OfSixtyIsCaughtAsWhatItIs) {
  const ClassPlan plan = new_one(names_of(60));
  std::vector<std::string> roles;
  for (const auto& [role, count] : kRoles) {
    for (int i = 0; i < count; ++i) roles.push_back(role);
  }
  ASSERT_EQ(roles.size(), 60U);
  const std::filesystem::path neighbor = handed(plan.students.front());
  for (std::size_t i = 0; i < roles.size(); ++i) {
    const Student& student = plan.students[i];
    const std::string& role = roles[i];
    if (role == "nothing") continue;
    if (role == "copied") {
      std::filesystem::copy(neighbor, handed(student), std::filesystem::copy_options::recursive);
      continue;
    }
    hand_in(plan, student, [&](const Case&, Start& start) {
      if (role == "busy") start.lost_share = 0.6;
    });
    change_sheet(student, [&](std::string& text) {
      std::string first, second;
      if (role == "mistyped") {
        cell(text, "32 ", 2, &first);
        std::string wrong = "0" + first.substr(2, 1) + "." + first.substr(3);  // the point moved
        cell(text, "32 ", 2, &wrong);
      }
      if (role == "swapped") {
        cell(text, "32 ", 2, &first);
        second = first;
        cell(text, "128 ", 2, &second);
        cell(text, "32 ", 2, &second);
      }
      if (role == "chose") {
        const std::size_t end = text.find(", by the figures"), at = text.rfind('\n', end) + 1;
        text.replace(at, end - at, text.substr(at).starts_with("no,") ? "Yes" : "No");
      }
    });
    if (role != "edited") continue;
    const std::filesystem::path record =
        handed(student) / "results/runs/batch-sweep/batch-64.3.json";
    nlohmann::json start = nlohmann::json::parse(read_file(record));
    for (auto& each : start["ranks"][0]["step_s"]) each = each.get<double>() / 2;
    write_file(record, start.dump(1));
  }
  const GradedClass grades = grade(plan);
  const std::map<std::string, std::set<MistakeKind>> expected = {
      {"honest", {}},
      {"mistyped", {MistakeKind::kMistyped}},
      {"swapped", {MistakeKind::kSwapped}},
      {"edited", {MistakeKind::kAltered}},
      {"copied", {MistakeKind::kVariant, MistakeKind::kCopied}},
      {"busy", {MistakeKind::kBusy}},
      {"chose", {MistakeKind::kAnswer}},
      {"nothing", {MistakeKind::kNothing}}};
  for (std::size_t i = 0; i < roles.size(); ++i) {
    const GradedStudent& student = grades.students[i];
    SCOPED_TRACE(fmt::format("{} ({})", student.student->name, roles[i]));
    std::set<MistakeKind> kinds;
    std::string texts;
    for (const Mistake& each : student.mistakes) {
      kinds.insert(each.kind);
      texts += each.text + "\n";
    }
    std::set<MistakeKind> wanted = expected.at(roles[i]);
    if (i == 0) wanted = {MistakeKind::kShared};  // whose records others handed in
    EXPECT_EQ(kinds, wanted) << texts;
    double points = 0;
    for (const Mark& mark : student.marks) points += mark.points.value_or(0);
    if (roles[i] == "honest") EXPECT_EQ(points, 12) << "all that a machine can decide";
    if (roles[i] == "copied") {
      EXPECT_EQ(points, 0) << "identity, and the rest is of another's figures";
      EXPECT_EQ(student.owner, &plan.students.front());
    }
    if (roles[i] == "edited") {
      EXPECT_EQ(texts,
                "not as the run wrote it, so figures of this case are not compared: "
                "batch-sweep.batch-64.3.json\n");
    }
    if (roles[i] == "mistyped") EXPECT_THAT(texts, HasSubstr("is written '"));
  }
  write_grades(folder() / "grades", plan, grades);
  const std::string marks = read_file(folder() / "grades/marks.csv");
  EXPECT_EQ(std::ranges::count(marks, '\n'), 61);
  EXPECT_THAT(marks, StartsWith("\xEF\xBB\xBF"
                                "folder,name,identity,"));
  EXPECT_THAT(marks, HasSubstr("\nÕie Žukova 1,Õie Žukova 1,2,2,2,,,2,"));
  EXPECT_THAT(marks, HasSubstr(",nothing handed in\n"));
  const std::string page = read_file(folder() / "grades/class.md");
  EXPECT_THAT(page, AllOf(HasSubstr("| batch-sweep.batch-32.seconds | 55 |"),
                          HasSubstr("| batch-sweep.batch-64.seconds | 55 |")))
      << "though the sheet shows it twice";
  EXPECT_THAT(
      page,
      HasSubstr("- Measured on a busy machine, so some times decide nothing: Õie Žukova 47 ("));
  EXPECT_THAT(page, HasSubstr("- Õie Žukova 42 handed in the variant of Õie Žukova 0.\n"));
  EXPECT_THAT(read_file(folder() / "grades/students" / (plan.students[0].folder + ".md")),
              HasSubstr("somebody else handed in these files, which costs you nothing"));
  EXPECT_THAT(read_file(folder() / "grades/students" / (plan.students[30].folder + ".md")),
              AllOf(HasSubstr("mistyped: this figure is not the one"), Not(HasSubstr("Look for"))));
  EXPECT_THAT(read_file(folder() / "grades/answers.md"), HasSubstr("Look for"));
}

TEST_F(AClass, LeavesFilesThatTwoMayHaveMadeToTheTeacher) {
  const ClassPlan plan = ranks_only("Anna\nBo\n");
  for (const Student& each : plan.students) {
    write_study(
        handed(each) / "results", plan, each,
        [](const Case&, Start& start) {
          start.configuration.clear();  // as log lines have none
          start.ranks.front().loss.assign(start.ranks.front().loss.size(), 1);
        },
        [](const Case&) {
          return MadeUpStep{.step_s = 0.04, .phase_s = {{"forward", 0.04}}};
        });
  }
  std::filesystem::copy(
      handed(plan.students[0]) / "results/runs", handed(plan.students[1]) / "results/runs",
      std::filesystem::copy_options::recursive | std::filesystem::copy_options::overwrite_existing);
  const GradedClass grades = grade(plan);
  for (const GradedStudent& each : grades.students) {
    EXPECT_TRUE(each.has(MistakeKind::kCopied));
    EXPECT_EQ(each.marks[0].points, std::nullopt) << each.marks[0].text;
    EXPECT_THAT(each.marks[0].text, HasSubstr("either of two may have made these files"));
  }
}

TEST_F(AClass, WritesMarksThatNoSpreadsheetTakesForAFormula) {
  const ClassPlan plan = new_one("\"=1+1\"\n@b\n");
  write_grades(folder() / "grades", plan, grade(plan));
  const std::string marks = read_file(folder() / "grades/marks.csv");
  EXPECT_THAT(marks, AllOf(HasSubstr("\n'=1+1,'=1+1,0,"), HasSubstr("\n'@b,'@b,0,")));
}

TEST_F(AClass, ComparesLossesAndWeightsWithThoseOfAnotherRun) {
  const ClassPlan plan = new_one("Anna\nBo\nCy\nDi\n");
  for (const Student& each : plan.students) {
    hand_in(plan, each, [&](const Case&, Start& start) {
      if (each.name == "Bo") std::ranges::fill(start.ranks.front().loss, 1.25);
    });
  }
  std::mutex running;
  const GradedClass grades = grade(plan, [&](const Case& what) {
    const std::scoped_lock lock(running);
    const auto student = std::ranges::find_if(plan.students, [&](const Student& each) {
      return std::stoull(each.options.at("seed")) == what.workload.config.training.seed;
    });
    if (student->name == "Di")
      fail(ExitCode::kMemory, {"run", "mlp_single", "needs more", "free some"});
    Start start{.weights_hash = student->name == "Cy" ? "other" : "ab12"};
    start.ranks = {made_up_rank(step_of(what, *student), what.workload.steps())};
    return start;
  });
  EXPECT_THAT(grades.students[0].mistakes, IsEmpty());
  EXPECT_THAT(grades.students[0].marks[0].text, HasSubstr("the same weights, to the bit"));
  EXPECT_THAT(
      grades.students[1].mistakes,
      ElementsAre(Field(&Mistake::text, HasSubstr("are not those of another run: 1.25 and"))));
  EXPECT_THAT(grades.students[2].mistakes, IsEmpty()) << "another machine may round otherwise";
  EXPECT_THAT(grades.students[2].marks[0].text, HasSubstr("had the same losses"));
  EXPECT_THAT(grades.students[3].mistakes,
              ElementsAre(testing::AllOf(
                  Field(&Mistake::kind, MistakeKind::kNoRerun),
                  Field(&Mistake::text, HasSubstr("run 'mlp_single': needs more; free some")))));
  EXPECT_EQ(grades.students[3].marks[0].points, 2) << "the other checks of identity hold";
  write_grades(folder() / "grades", plan, grades);
  EXPECT_THAT(read_file(folder() / "grades/students/Di.md"), HasSubstr("rerun failed: "));
  EXPECT_THAT(read_file(folder() / "grades/marks.csv"), HasSubstr(",rerun failed\n"));
}

TEST_F(AClass, ComparesRunsOfGpusThatReadFilesWithARunOnTheCpu) {
  const ClassPlan plan = new_one("Anna\nBo\n", file("disk.md", R"(---
vary: pause-ms 8 to 14
---
# Disk

| Time | Of random data |
| --- | --- |
| {{io-delay.no-delay.time}} | {{batch-sweep.batch-32.time}} |
)")
                                                   .string());
  for (const Student& each : plan.students) {
    write_study(
        handed(each) / "results", plan, each,
        [&](const Case& what, Start& start) {
          start.wall_s = what.workload.config.data.kind == DataKind::kNpy ? 2 : 1;
          for (double& loss : start.ranks.front().loss)
            loss *= each.name == "Bo" ? 1.00001 : 1.000004;
        },
        nullptr, true);
  }
  const GradedClass grades = grade(plan, [&](const Case& what) {
    EXPECT_EQ(what.workload.config.data.kind, DataKind::kNpy) << "GPUs draw other random data";
    const bool is_annas =
        what.workload.config.training.seed == std::stoull(plan.students[0].options.at("seed"));
    Start start;
    start.ranks = {
        made_up_rank(step_of(what, plan.students[is_annas ? 0 : 1]), what.workload.steps())};
    return start;
  });
  EXPECT_THAT(grades.students[0].mistakes, IsEmpty());
  EXPECT_THAT(grades.students[0].marks[0].text,
              testing::EndsWith("another run had the same losses."));
  EXPECT_THAT(grades.students[1].mistakes,
              ElementsAre(Field(&Mistake::text, HasSubstr("are not those of another run"))));
}

TEST_F(AClass, SaysOfRunsOfGpusOnRandomDataThatNoneWasRepeated) {
  const ClassPlan plan = ranks_only("Anna\n");
  write_study(
      handed(plan.students[0]) / "results", plan, plan.students[0], nullptr,
      [](const Case&) {
        return MadeUpStep{.step_s = 0.04, .phase_s = {{"forward", 0.04}}};
      },
      true);
  const GradedClass grades = grade(plan, [](const Case&) {
    ADD_FAILURE() << "a run was repeated";
    return Start{.ranks = {made_up_rank({}, 1)}};
  });
  EXPECT_THAT(grades.students[0].mistakes, IsEmpty());
  EXPECT_THAT(grades.students[0].marks[0].text,
              testing::EndsWith("; no run was repeated, since GPUs draw other random data than the "
                                "CPU."));
}

TEST_F(AClass, TakesLogLinesOfStudentsOwnPrograms) {
  const ClassPlan plan = new_one("Anna\nBo\nCy\nDi\nEd\nFay\n", file("sweep.md", R"(---
| check | points | marked by |
| --- | --- | --- |
| 1 | 1 | batch-sweep.linear: yes=above, no=below |
---
# Sweep

| Batch | Time | Throughput | Nobody knows |
| --- | --- | --- | --- |
| 32 | {{batch-sweep.batch-32.seconds}} | {{batch-sweep.batch-32.samples-per-s}} | {{batch-sweep.batch-32.ran-on}} |
| 64 | {{batch-sweep.batch-64.seconds}} | {{batch-sweep.batch-64.samples-per-s}} | {{batch-sweep.batch-64.computes}} |
| 128 | {{batch-sweep.batch-128.seconds}} | {{batch-sweep.batch-128.samples-per-s}} | {{batch-sweep.batch-128.computes}} |

**Is it linear?**

It is not.
)")
                                                                    .string());
  double slower = 1;
  for (const Student& each : plan.students) {
    if (each.name == "Ed") continue;
    hand_in_logs(plan, each, slower += 0.1, [&](std::string& line) {
      if (each.name == "Bo") line.replace(line.find("time: ") + 6, 6, "0.0050");
    });
  }
  const std::filesystem::path record =
      handed(plan.students[2]) / "results/runs/batch-sweep/batch-64.3.json";
  nlohmann::json start = nlohmann::json::parse(read_file(record));
  for (auto& each : start["ranks"][0]["step_s"]) each = each.get<double>() / 2;
  write_file(record, start.dump(1));
  std::string text = read_file(sheet_of(plan.students[3], "sweep")), fast = "0.0010";
  cell(text, "64 ", 2, &fast);
  write_file(sheet_of(plan.students[3], "sweep"), text);
  std::filesystem::copy(handed(plan.students[5]), handed(plan.students[4]),
                        std::filesystem::copy_options::recursive);
  const GradedClass grades = grade(plan, [](const Case&) {
    ADD_FAILURE() << "a student's own program was run";
    return Start{.ranks = {made_up_rank({}, 1)}};
  });
  const auto kinds = [&](std::size_t student) {
    std::set<MistakeKind> all;
    for (const Mistake& each : grades.students[student].mistakes) all.insert(each.kind);
    return all;
  };
  using enum MistakeKind;
  EXPECT_THAT(grades.students[0].mistakes, IsEmpty());
  EXPECT_EQ(all_matches(read_file(sheet_of(plan.students[0], "sweep")), " [|] - [|]\n").size(), 3U);
  EXPECT_EQ(grades.students[0].marks[0].points, 2);
  EXPECT_THAT(grades.students[0].marks[0].text,
              HasSubstr("losses in your own log lines are not compared"));
  EXPECT_EQ(grades.students[0].marks[1].points, 2) << grades.students[0].marks[1].text;
  EXPECT_EQ(grades.students[0].marks[2].points, std::nullopt) << "logs do not tell their machine";
  EXPECT_EQ(grades.students[0].marks[3].points, 1) << "cannot be said";
  EXPECT_THAT(kinds(1), ElementsAre(kArithmetic));
  EXPECT_THAT(grades.students[1].mistakes,
              Contains(Field(&Mistake::text,
                             HasSubstr("batch-sweep.batch-64: a log line has 5.00 ms and"))));
  EXPECT_THAT(kinds(2), Contains(kAltered));
  EXPECT_THAT(kinds(3), ElementsAre(kOther));
  EXPECT_THAT(kinds(4), ElementsAre(kVariant, kCopied));
  EXPECT_THAT(kinds(5), ElementsAre(kShared));
}

TEST_F(AClass, ComparesASheetOfRanksWithARunOfTheFewest) {
  const ClassPlan plan = ranks_only("Anna\nBo\n");
  const auto took = [](const Student& student) {
    return [&student](const Case& what) {
      return MadeUpStep{.step_s = 0.04 / what.workload.ranks,
                        .phase_s = {{"forward", 0.04 / what.workload.ranks}},
                        .other_ranks = std::vector(
                            static_cast<std::size_t>(what.workload.ranks) - 1, MadeUpStep{}),
                        .weights_hash = "ab12",
                        .loss = loss_of(student.options)};
    };
  };
  for (const Student& each : plan.students) {
    write_study(
        handed(each) / "results", plan, each,
        [&](const Case& what, Start& start) {
          start.wall_s = what.workload.ranks;
          if (each.name == "Bo") std::ranges::fill(start.ranks.front().loss, 1.5);
        },
        took(each));
  }
  const GradedClass grades = grade(plan, [&](const Case& what) {
    EXPECT_EQ(what.workload.ranks, 1);
    EXPECT_TRUE(what.workload.has_ranks());
    Start start{.weights_hash = "ab12"};
    const bool is_annas =
        what.workload.config.training.seed == std::stoull(plan.students[0].options.at("seed"));
    const Student& student = plan.students[is_annas ? 0 : 1];
    start.ranks = {made_up_rank(took(student)(what), what.workload.steps())};
    return start;
  });
  EXPECT_THAT(grades.students[0].mistakes, IsEmpty());
  EXPECT_THAT(grades.students[0].marks[0].text, HasSubstr("the same weights, to the bit"));
  EXPECT_THAT(
      grades.students[1].mistakes,
      ElementsAre(Field(&Mistake::text, HasSubstr("the losses of ranks-1 are not those of another "
                                                  "run: 1.5 and"))));
}

TEST_F(AClass, FollowsFiguresWithoutRecordsFromEachOther) {
  const ClassPlan plan = ranks_only("Anna\nBo\nCy\n",
                                    "| Devices | Rows |\n| --- | --- |\n| 3 | "
                                    "{{data-parallel.devices-3.split}} |\n\n");
  hand_in_sheet(plan.students[0], "40.0 ms | 1.00x | 100 % | 0 us (0.0 %)",
                "25 ms (24 ms to 27 ms) | 1.59x | 79.5 % | 2.50 ms (10.1 %)", "22/22/20");
  hand_in_sheet(plan.students[1], "0.0400 | 1 | 100 | 0", "25.0 ms | 1.80x | 90 % | 2.5 ms (20 %)",
                "21/21/22");
  hand_in_sheet(plan.students[2], "40.0 ms | | | ", "| 1.80x | 90 % | ", "");
  const GradedClass grades = grade(plan);
  const auto texts = [&](std::size_t student) {
    std::vector<std::string> all;
    for (const Mistake& each : grades.students[student].mistakes) {
      if (each.kind == MistakeKind::kArithmetic) all.push_back(each.text);
    }
    return all;
  };
  EXPECT_THAT(texts(0), IsEmpty());
  EXPECT_EQ(grades.students[0].marks[1].points, std::nullopt) << "they may be another's";
  EXPECT_THAT(grades.students[0].marks[1].text,
              HasSubstr("6 of 6 figures and their ratios are right, as far as they follow"));
  EXPECT_THAT(
      texts(1),
      ElementsAre("strong-scaling.ranks-2.speed-up is written '1.80x', and from the times beside "
                  "it follows 1.60x",
                  "strong-scaling.ranks-2.efficiency is written '90 %', and from the times beside "
                  "it follows 80.0 %",
                  "strong-scaling.ranks-2.exposed is written '2.5 ms (20 %)', and from the times "
                  "beside it follows 2.50 ms (10.0 %)",
                  "data-parallel.devices-3.split is written '21/21/22', and from the variant "
                  "follows 22/22/20"));
  EXPECT_THAT(texts(2), IsEmpty()) << "nothing follows from one time";
}

TEST_F(AClass, LeavesPredictionsToTheTeacherHoweverCloseTheyAre) {
  const ClassPlan plan = new_one("Anna\nBo\nCy\n");
  for (const Student& each : plan.students) hand_in(plan, each);
  predict(plan, plan.students[0], "A hundred times as many.");
  std::filesystem::remove(handed(plan.students[1]) / "practical3-before.md");
  std::filesystem::remove(handed(plan.students[2]) / "practical3-before.md");
  change_sheet(plan.students[1], [](std::string& text) {
    text.insert(text.find("\n\n", text.find("before you measure.**")), "\n\nThree times.");
  });
  const GradedClass grades = grade(plan);
  const auto mark_of = [&](std::size_t student) {
    EXPECT_THAT(grades.students[student].mistakes, IsEmpty());
    const auto mark = std::ranges::find(grades.students[student].marks, MarkedBy::kPrediction,
                                        [](const Mark& each) { return each.item->by; });
    return *mark;
  };
  EXPECT_EQ(mark_of(0).points, std::nullopt);
  EXPECT_EQ(mark_of(0).answer, "A hundred times as many.");
  EXPECT_EQ(mark_of(0).text,
            "In what run.sh kept before the first run. Marked by its reason, not by how close it "
            "is.");
  EXPECT_THAT(mark_of(0).key, HasSubstr("Look for: a number between 1 and 4"));
  EXPECT_EQ(mark_of(1).points, std::nullopt);
  EXPECT_EQ(mark_of(1).answer, "Three times.");
  EXPECT_THAT(mark_of(1).text, StartsWith("Not in what run.sh kept before"));
  EXPECT_EQ(mark_of(2).points, 0);
}

TEST_F(AClass, SaysWhetherPredictionsWereChangedAfterTheFirstRun) {
  const ClassPlan plan = new_one("Anna\nBo\n");
  for (const Student& each : plan.students) {
    std::filesystem::create_directories(handed(each));
    predict(plan, each, "Three times as many, since the update stays as it is.");
    StudyIdentity identity = identity_of(plan, each);
    identity.sheet = hash_of_sheet(handed(each) / "practical3-before.md");
    Study(handed(each) / "results", identity);
    std::filesystem::create_directory(handed(each) / "results/runs");
    hand_in(plan, each);
  }
  predict(plan, plan.students[1], "1.83 times as many.");
  const GradedClass grades = grade(plan);
  const auto text_of = [&](std::size_t student) {
    return std::ranges::find(grades.students[student].marks, MarkedBy::kPrediction,
                             [](const Mark& each) { return each.item->by; })
        ->text;
  };
  EXPECT_THAT(text_of(0), StartsWith("In what run.sh kept before the first run. Marked"));
  EXPECT_THAT(text_of(1), StartsWith("In what run.sh kept before the first run, but that was "
                                     "changed after it. Marked"));
}

TEST_F(AClass, VariesThePausesOfOtherSheets) {
  const ClassPlan plan = new_class({.sheet = "homework1",
                                    .students = file("names.csv", names_of(5)),
                                    .output = folder() / "class",
                                    .machine = "h200-nvlink",
                                    .secret = "secret",
                                    .quick = true});
  std::set<std::string> pauses;
  for (const Student& each : plan.students) pauses.insert(each.options.at("pause-ms"));
  EXPECT_THAT(pauses, Each(AnyOf("8", "10", "12", "14")));
  EXPECT_GT(pauses.size(), 1U);
}

TEST_F(AClass, NamesRunsWithOtherOptionsThanTheVariants) {
  const ClassPlan plan = new_one("Anna\nBo\nCy\n");
  const auto is_case = [](const Case& what, const char* key) { return what.key == key; };
  hand_in(plan, plan.students[0]);
  hand_in(plan, plan.students[1], [&](const Case& what, Start& start) {
    TrainConfig config = what.workload.config;
    config.data.io_delay_ms = 1;
    if (is_case(what, "workers-0")) start.configuration = json_of(config);
  });
  hand_in(plan, plan.students[2], [&](const Case& what, Start& start) {
    TrainConfig config = what.workload.config;
    config.data.batch_size = 16;
    if (is_case(what, "batch-32")) start.configuration = json_of(config);
  });
  const GradedClass grades = grade(plan);
  EXPECT_THAT(grades.students[0].mistakes, IsEmpty());
  EXPECT_THAT(grades.students[1].mistakes,
              ElementsAre(Field(&Mistake::text,
                                "these runs are not those of the variant: "
                                "io-delay.workers-0")));
  EXPECT_THAT(grades.students[2].mistakes,
              ElementsAre(Field(&Mistake::text,
                                "these runs are not those of the variant: "
                                "batch-sweep.batch-32")));
}

TEST_F(AClass, NamesWhatCannotBe) {
  const ClassPlan plan = new_one("Anna\nBo\n");
  hand_in(plan, plan.students[0], [](const Case&, Start& start) {
    for (auto& [phase, seconds] : start.ranks.front().phase_s) {
      for (double& each : seconds) each *= 0.5;
    }
  });
  hand_in(plan, plan.students[1], [](const Case&, Start& start) {
    RankSteps& steps = start.ranks.front();
    for (double& each : steps.step_s) each *= 1e-6;
    for (auto& [phase, seconds] : steps.phase_s) {
      for (double& each : seconds) each *= 1e-6;
    }
  });
  Study::open(handed(plan.students[1]) / "results").keep_card(gpus_);
  const GradedClass grades = grade(plan);
  EXPECT_THAT(
      grades.students[0].mistakes,
      Contains(Field(&Mistake::text, HasSubstr("the parts of the steps of batch-sweep.batch-32 "
                                               "do not add up to their time"))));
  EXPECT_THAT(grades.students[1].mistakes,
              Contains(Field(&Mistake::text, HasSubstr("and the products alone at least "))));
}

TEST_F(AClass, NamesFilesOfAStudyThatWereEdited) {
  const ClassPlan plan = new_one("Anna\nBo\nCy\nDi\n");
  for (const Student& each : plan.students) {
    hand_in(plan, each);
    Study::open(handed(each) / "results").keep_card(gpus_);
  }
  const auto edit = [&](std::size_t student, const char* name, const std::string& from,
                        const char* to) {
    const std::filesystem::path path = handed(plan.students[student]) / "results" / name;
    std::string text = read_file(path);
    write_file(path, text.replace(text.find(from), from.size(), to));
  };
  edit(0, "study.json", "made up", "Xeon");
  edit(1, "machine.json", "T4", "H200");
  edit(3, "study.json", "\"quick\": true", "\"quick\": false");
  const GradedClass grades = grade(plan);
  const auto is_altered = [](const std::string& text) {
    return ElementsAre(
        testing::AllOf(Field(&Mistake::kind, MistakeKind::kAltered), Field(&Mistake::text, text)));
  };
  EXPECT_THAT(grades.students[0].mistakes, is_altered("study.json is not as the run wrote it"));
  EXPECT_THAT(grades.students[1].mistakes, is_altered("machine.json is not as the run wrote it"));
  EXPECT_EQ(grades.students[1].marks[0].points, 0);
  EXPECT_THAT(grades.students[2].mistakes, IsEmpty());
  EXPECT_TRUE(grades.students[3].has(MistakeKind::kAltered));
  EXPECT_THAT(grades.students[3].mistakes,
              Contains(Field(&Mistake::text, testing::EndsWith(" --quick"))));
}

TEST_F(AClass, NamesFiguresOfAnotherSheetWhereThereAreNoRecords) {
  const ClassPlan plan = new_one("Anna\nBo\nCy\n");
  hand_in(plan, plan.students[0]);
  hand_in(plan, plan.students[2]);
  std::filesystem::create_directories(handed(plan.students[1]) / "results");
  std::filesystem::copy_file(sheet_of(plan.students[0]), sheet_of(plan.students[1]));
  std::filesystem::remove_all(handed(plan.students[2]) / "results/runs");
  std::filesystem::remove(handed(plan.students[2]) / "results/study.json");
  const GradedClass grades = grade(plan);
  EXPECT_THAT(grades.students[0].mistakes, IsEmpty());
  EXPECT_THAT(grades.students[1].mistakes,
              Contains(Field(&Mistake::text, "another student's sheet has the same figures")));
  EXPECT_FALSE(grades.students[2].has(MistakeKind::kCopied));
}

TEST_F(AClass, GradesWhatIsLeftBesideADamagedRecord) {
  const ClassPlan plan = new_one("Anna\nBo\n");
  for (const Student& each : plan.students) hand_in(plan, each);
  const auto record = [&](std::size_t student, int round) {
    return handed(plan.students[student]) /
           fmt::format("results/runs/batch-sweep/batch-64.{}.json", round);
  };
  write_file(record(0, 1), "{");
  for (int round = 0; round < 9; ++round) write_file(record(1, round), "{");
  const GradedClass grades = grade(plan);
  EXPECT_THAT(grades.students[0].mistakes,
              ElementsAre(Field(&Mistake::text,
                                "batch-64.1.json of batch-sweep cannot be read, so figures of "
                                "batch-sweep are not compared")));
  for (const std::size_t check : {0U, 1U, 2U}) EXPECT_EQ(grades.students[0].marks[check].points, 2);
  EXPECT_THAT(grades.students[1].mistakes,
              Contains(Field(&Mistake::text, HasSubstr("batch-64.8.json': is not JSON"))));
  EXPECT_EQ(grades.students[1].marks[0].points, 0);
}

TEST_F(AClass, AsksForIntervalsOfTimesThatNobodyDisturbed) {
  const ClassPlan plan = new_one("Anna\nBo\nCy\n", file("sweep.md", R"(---
intervals: yes
---
# Sweep

| Time |
| --- |
| {{batch-sweep.batch-32.time}} |
)")
                                                       .string());
  for (const Student& each : plan.students) {
    const std::filesystem::path study = handed(each) / "results";
    const double step_s = 0.04 + 1e-9 * std::stod(each.options.at("seed"));
    write_study(
        study, plan, each,
        [&](const Case&, Start& start) {
          if (each.name == "Bo") start.lost_share = 0.6;
        },
        [&](const Case&) {
          return MadeUpStep{.step_s = step_s, .phase_s = {{"forward", step_s}}};
        });
    for (const std::filesystem::path& record : files_below(study / "runs")) {
      const bool is_kept = each.name == "Cy" || record.string().ends_with(".0.json");
      if (record.extension() == ".json" && !is_kept) std::filesystem::remove(record);
    }
    write_file(sheet_of(each, "sweep"), answered_sheet(plan, study, gpus_));
  }
  const GradedClass grades = grade(plan);
  EXPECT_THAT(grades.students[0].mistakes,
              Contains(Field(&Mistake::text, "batch-sweep.batch-32.time has no interval")));
  EXPECT_FALSE(grades.students[1].has(MistakeKind::kPhysics));
  EXPECT_EQ(grades.students[1].marks[2].points, 2);
  EXPECT_THAT(grades.students[2].mistakes, IsEmpty());
}

TEST_F(AClass, TellsWhatIsMissingOrUnreadable) {
  const ClassPlan plan = new_one("Anna\nBo\nCy\nDi\n");
  for (const Student& each : plan.students) hand_in(plan, each);
  std::filesystem::remove_all(handed(plan.students[0]) / "results/runs/io-delay");
  write_file(handed(plan.students[2]) / "results/study.json", "{");
  std::filesystem::remove(sheet_of(plan.students[2]));
  std::filesystem::rename(handed(plan.students[3]),
                          folder() / "handed-in/Di_4711_assignsubmission");
  std::filesystem::create_directories(folder() / "handed-in/Eve");
  std::filesystem::copy(folder() / "handed-in/Di_4711_assignsubmission",
                        folder() / "handed-in/late", std::filesystem::copy_options::recursive);
  write_file(folder() / "handed-in/Cyy_1.zip", "");
  std::filesystem::remove_all(handed(plan.students[1]));
  write_file(folder() / "handed-in/Bo_4712_assignsubmission_file_.zip", "");
  const GradedClass grades = grade(plan);
  EXPECT_TRUE(grades.students[0].has(MistakeKind::kMissing));
  EXPECT_THAT(grades.students[1].mistakes,
              ElementsAre(Field(&Mistake::text, HasSubstr("unpack it"))));
  for (const Mark& mark : grades.students[1].marks) EXPECT_EQ(mark.points, std::nullopt);
  EXPECT_TRUE(grades.students[2].has(MistakeKind::kUnreadable));
  EXPECT_EQ(grades.students[2].marks[1].points, 0);
  EXPECT_THAT(grades.students[2].marks[1].text,
              HasSubstr("The sheet with the figures is not there"));
  EXPECT_THAT(grades.students[3].mistakes, IsEmpty());
  EXPECT_THAT(grades.unknown, ElementsAre("'Cyy_1.zip' (a file, perhaps of 'Cy')", "'Eve'",
                                          "'late' (has the variant of 'Di')"));
  EXPECT_THAT(summary_of_grades(grades),
              HasSubstr("\nOf nobody in the class: 'Cyy_1.zip' (a file, "));
}

TEST_F(AClass, JoinsTheStudiesOfItsMachines) {
  const ClassPlan plan = new_one("Anna\nBo\n");
  for (const Student& each : plan.students) hand_in(plan, each);
  hand_in(plan, {.name = "Cy", .folder = "Cy", .options = plan.students[0].options});
  write_file(handed({.folder = "Cy"}) / "results/runs/batch-sweep/batch-64.3.json", "{");
  collect_studies(folder() / "handed-in", folder() / "all");
  EXPECT_THAT(read_file(folder() / "all/report.md"),
              HasSubstr("- Cy is left out: records of a run "));
  const std::string page = read_file(folder() / "all/report.md");
  EXPECT_THAT(page,
              AllOf(HasSubstr("| where | machine | options | batch-sweep.batch-32 | "
                              "batch-sweep.batch-64 | batch-sweep.batch-128 | "),
                    HasSubstr(" | io-delay.workers-0 | "),
                    HasSubstr("\n| Anna | processor made up, cores 2 | --quick --batch-size "),
                    HasSubstr("\n| Bo | "), HasSubstr("![Time of a step]")));
  std::size_t tables = 0;
  for (const std::vector<std::string>& block : blocks_of(page)) {
    tables += block.front().starts_with("|") ? 1 : 0;
  }
  EXPECT_EQ(tables, 1U);
  EXPECT_THAT(read_file(folder() / "all/plots/machines-1.svg"), HasSubstr("io-delay.workers-0"));
  EXPECT_THAT(read_file(folder() / "all/results.csv"),
              AllOf(StartsWith("where,experiment,case,"), HasSubstr("\nBo,batch-sweep,batch-32,")));
  expect_error(ExitCode::kNoInput, "there are none in this folder",
               [&] { collect_studies(folder() / "class", folder() / "all"); });
}

// Headers.

class SheetWithHeader : public TempDirTest {
 protected:
  SheetHeader read(const std::string& header) {
    const std::string text =
        "# Mine\n\n| A |\n| --- |\n| {{batch-sweep.batch-32.seconds}} |\n\n**Is it?**\n\nYes.\n";
    return header_of(load_sheet(file("own.md", header + text).string()));
  }
};

TEST_F(SheetWithHeader, SaysWhatVariesAndHowItIsMarked) {
  const SheetHeader header = read(
      "---\nvary: dim 64 to 128 by 32\nband: 30 %\nintervals: yes\nmeasure: warmup, amdahl\n"
      "| check | points | by |\n| --- | ---: | --- |\n| identity | 2.5 | |\n| physics | 0 | |\n"
      "| 1 | 3 | batch-sweep.linear: yes=above, no=below, no=same |\n---\n");
  EXPECT_EQ(header.varied.at(0).name, "dim");
  EXPECT_EQ(header.varied.at(0).step, 32);
  EXPECT_DOUBLE_EQ(header.band, 0.3);
  EXPECT_TRUE(header.asks_intervals);
  EXPECT_EQ(header.item("identity")->points, 2.5);
  EXPECT_THAT(header.item("1")->choices.at("no"), ElementsAre(Word::kBelow, Word::kNoDifference));
  EXPECT_THAT(header.measured, ElementsAre(&experiment_of("warmup"), &experiment_of("amdahl"),
                                           &experiment_of("batch-sweep")))
      << "and what the word is of";
  EXPECT_EQ(header.item("physics"), nullptr) << "no points";
  EXPECT_EQ(read("").items.size(), 4U) << "three checks and a question";
  EXPECT_EQ(read("").item("identity")->points, 2);
  EXPECT_EQ(read("").varied.at(0).name, "seed");
}

TEST_F(SheetWithHeader, IsRefusedWithLineAndRemedy) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"---\nvary: seed 1 to 2\n", "line '1': own.md has a header without its end there"},
      {"---\nvaries: seed 1 to 2\n---\n",
       "line '2': own.md has what is no setting of a header there"},
      {"---\n\nvary: seed\n---\n", "line '3': own.md has a range that cannot be read there; write"},
      {"---\nvary: dim 64 to 96\nvary: dim 64 to 64\n---\n",
       "line '3': own.md has 'dim' a second time there; write one line for each option"},
      {"---\n| identity | 2 | |\n---\n",
       "line '2': own.md has a table without its titles there; write '| check | points"},
      {"---\nvary: dim 9 to 2\n---\n", "line '2': own.md has a range without a value there"},
      {"---\nvary: dim 896 to 900 by 64\n---\n",
       "line '2': own.md has a step that is larger than its range there; write"},
      {"---\nvary: lr 1 to 3\n---\n",
       "line '2': own.md has 'lr', which is no option of whole numbers there; write 'vary: dim"},
      {"---\n| check | points | by |\n| --- | --- | --- |\n| identity | 1 | text |\n---\n",
       "line '4': own.md has a way of marking for identity, a check of the program there; leave"},
      {"---\nvary: dmi 1 to 2\n---\n",
       "line '2': own.md has an option that no run takes (option '--dmi'"},
      {"---\nmeasure: warmup, warmpu\n---\n",
       "line '2': own.md has an experiment that does not exist (experiment 'warmpu': no "
       "experiment"},
      {"---\nvary: seed 1 to x\n---\n", "own.md:2 'x': not a whole number"},
      {"---\n| check | points |\n| --- | --- |\n| 2.7 | 1 |\n---\n",
       "line '4': own.md has points for '2.7', which is no question of the sheet there; the first "
       "one is '1'"},
      {"---\n| check | points |\n| --- | --- |\n| 1 | one |\n---\n",
       "own.md:4 'one': not a number"},
      {"---\n| check | points | by |\n| --- | --- | --- |\n| 1 | 1 | guess |\n---\n",
       "line '4': own.md has a way of marking that does not exist there"},
      {"---\n| check | points | by |\n| --- | --- | --- |\n| 1 | 1 | batch-sweep.liner: a=above "
       "|\n---\n",
       "line '4': own.md has 'batch-sweep.liner', which no experiment finds there; did you mean"},
      {"---\n| check | points | by |\n| --- | --- | --- |\n| 1 | 1 | batch-sweep.linear: a=up "
       "|\n---\n",
       "line '4': own.md has 'a=up', which is no answer with its word there"}};
  for (const auto& [header, error] : cases) {
    expect_error(ExitCode::kBadData, error, [&, of = header] { read(of); });
  }
  expect_error(ExitCode::kBadData, "own.md, line 5, has a name that stands for nothing", [&] {
    load_sheet(file("own.md", "---\n---\n# A\n\n{{nothing.at-all}}\n").string());
  });
}

TEST_F(SheetWithHeader, LeavesAnswersToStudentsBelowTheirFigures) {
  const auto has = [](const std::string& sheet, const std::string& number) {
    EXPECT_THAT(questions_of(load_sheet(sheet)), Contains(Field(&SheetQuestion::number, number)));
  };
  has(kSheetName, "2.3");
  has("practical5", "1.1");  // "## 1 to 3."
  has("practical5", "4.3");
  has("homework1", "5B.2");
  has("practical8", "1.4");  // its heading has no number
  const std::vector<SheetQuestion> read = questions_in(
      "## A\n\n**1.1 Is it?**\n\n\\_\\_\\_\n\nIt is.\nMore.\n\n- or not\n\nChecklist: [ ] a\n\n## "
      "B\n\nText.\n");
  ASSERT_THAT(read, SizeIs(1));
  EXPECT_EQ(read[0].text, "Is it?");
  EXPECT_EQ(read[0].answer, "It is. More. - or not");
}

TEST(FiguresOfASheet, AreFilledInAgainAboveTheAnswersThatAreThere) {
  const std::string copy =
      "# A\n\nName: \\_\\_ Date: \\_\n\n| T |\n| --- |\n| 2 s |\n\n**1 Is "
      "it?**\n\n\\_\\_\n\n\\_\\_\n\n"
      "**2 Why?**\n\n\\_\\_\n\n\\_\\_\n\n| U |\n| --- |\n| 4 s |\n\nChecklist: [x]\n\n";
  EXPECT_EQ(with_answers(copy, copy), copy);
  EXPECT_EQ(
      with_answers(copy,
                   "# A\n\nName: Bo Date: today\n\n| T |\n| --- |\n| 1 s |\n\n**1 Is it?**\n"
                   "\nIt is.\n\n| mine |\n| --- |\n| 7 |\n\nSo there.\n\n**2 Why?**\n\n\\_\\_\n\n"
                   "| U |\n| --- |\n| 3 s |\n\nChecklist: [ ]\n"),
      "# A\n\nName: Bo Date: today\n\n| T |\n| --- |\n| 2 s |\n\n**1 Is it?**\n\nIt is.\n\n| mine "
      "|\n"
      "| --- |\n| 7 |\n\nSo there.\n\n**2 Why?**\n\n\\_\\_\n\n\\_\\_\n\n| U |\n| --- |\n| 4 s |\n\n"
      "Checklist: [x]\n\n");
}

}  // namespace
}  // namespace barestep
