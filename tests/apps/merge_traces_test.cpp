// mlp_lab merge-traces, as a user runs it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/output_file.h"
#include "profiler/trace.h"
#include "support/process.h"
#include "support/sample_profile.h"
#include "support/temp_dir.h"

namespace barestep {
namespace {

using OrderedJson = nlohmann::ordered_json;
using ::testing::HasSubstr;

class MergeTraces : public TempDirTest {
 protected:
  ProcessResult run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {MLP_LAB, "merge-traces"});
    return run_process(arguments, {.working_directory = folder()});
  }

  /// The sample's trace as if from a rank that began `late_ns` after rank 0.
  static std::string trace_of_rank(int rank, std::int64_t late_ns) {
    const TraceContext context{.program = "mlp_ddp",
                               .version = "0",
                               .trace_name = "t",
                               .rank = rank,
                               .world = 2,
                               .backend = "mpi",
                               .device_name = "cpu",
                               .pid = 4711,
                               .thread = 4711};
    TraceEvents events({.host_s = 100, .unix_ns = 1711964646000000000 + late_ns});
    add_profile(events, SampleProfile().profile(), context);
    events.close();
    return events.file(trace_head(context), context.trace_name);
  }

  void expect_refused(const std::vector<std::string>& arguments, int code,
                      const std::string& line) {
    const ProcessResult result = run(arguments);
    EXPECT_EQ(result.exit_code, code);
    EXPECT_EQ(result.err, "mlp_lab: error: " + line + "\n");
    EXPECT_FALSE(std::filesystem::exists(folder() / "all.json"));
  }
};

TEST_F(MergeTraces, PutsAllRanksOnOneAxisOfTime) {
  file("0.json", trace_of_rank(0, 0));
  const auto packed = gzip_of(trace_of_rank(1, 2'500'000));
  file("1.json.gz", {reinterpret_cast<const char*>(packed.data()), packed.size()});
  const ProcessResult result = run({"all.json", "1.json.gz", "0.json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const OrderedJson merged = OrderedJson::parse(read_file(folder() / "all.json"));
  EXPECT_EQ(merged.at("baseTimeNanoseconds"), 1711964646000000000);
  std::map<std::int64_t, double> adam_of_process;
  std::set<std::string> names;
  std::map<std::int64_t, int> arrow_ends;
  for (const OrderedJson& event : merged.at("traceEvents")) {
    if (event.contains("cat") && event.at("cat") == "kernel" && event.at("name") == "adam") {
      adam_of_process.try_emplace(event.at("pid"), event.at("ts"));
    }
    if (event.at("name") == "process_name") names.insert(event.at("args").at("name"));
    if (event.contains("id")) ++arrow_ends[event.at("id")];
  }
  EXPECT_EQ(adam_of_process, (std::map<std::int64_t, double>{{0, 6600}, {10'000'000, 9100}}));
  EXPECT_THAT(names, testing::ElementsAre("rank 0: mlp_ddp", "rank 1: mlp_ddp"));
  for (const auto& [id, ends] : arrow_ends) EXPECT_EQ(ends, 2) << id;
}

TEST_F(MergeTraces, RefusesWhatIsNoTraceInOneLine) {
  const std::string remedy = "; give the files that --trace wrote, each once";
  file("good.json", trace_of_rank(0, 0));
  file("bad.json", "{");
  file("other.json", "{\"traceEvents\": []}");
  file("event.json", R"({"distributedInfo": {"rank": 1}, "baseTimeNanoseconds": 1,
                         "traceEvents": [{"ph": 3}]})");
  file("cut.json.gz", std::string("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xff\xff\xff", 13));
  expect_refused({}, 2, "argument 'out': is missing; mlp_lab merge-traces --help describes it");
  expect_refused({"all.json"}, 2,
                 "argument 'in': is missing; mlp_lab merge-traces --help describes it");
  expect_refused({"all.json", "bad.json"}, 65,
                 "trace 'bad.json': is not the trace of a single rank" + remedy);
  expect_refused({"all.json", "other.json"}, 65,
                 "trace 'other.json': is not the trace of a single rank" + remedy);
  expect_refused({"all.json", "good.json", "event.json"}, 65,
                 "trace 'event.json': one of its events is malformed" + remedy);
  const std::string head = R"({"distributedInfo": {"rank": 1}, "baseTimeNanoseconds": )";
  file("deep.json",
       head + "1, \"traceEvents\": [" + std::string(100000, '[') + std::string(100000, ']') + "]}");
  file("base.json", head + "1e300, \"traceEvents\": []}");
  file("late.json", head + R"(1, "traceEvents": [{"ph": "X", "ts": 1e300, "pid": 1}]})");
  expect_refused({"all.json", "deep.json"}, 65,
                 "trace 'deep.json': is nested deeper than 64 arrays and objects" + remedy);
  expect_refused({"all.json", "base.json"}, 65,
                 "trace 'base.json': is not the trace of a single rank" + remedy);
  expect_refused({"all.json", "late.json"}, 65,
                 "trace 'late.json': one of its events is malformed" + remedy);
  expect_refused({"all.json", "cut.json.gz"}, 65,
                 "trace 'cut.json.gz': its gzip stream is corrupt" + remedy);
  expect_refused({"all.json", "good.json", "good.json"}, 65,
                 "trace 'good.json': another file also holds rank 0" + remedy);
  expect_refused({"all.json", "missing"}, 66,
                 "trace 'missing': No such file or directory; check the path");
  expect_refused(
      {"no/all.json", "good.json"}, 73,
      "output file 'no/all.json': cannot be created: No such file or directory; choose a "
      "path that can be written");
  EXPECT_THAT(run({"--help"}).out, HasSubstr("merge-traces [options] out in..."));
}

TEST_F(MergeTraces, WritesOntoNoneOfItsInputs) {
  const std::string trace = trace_of_rank(0, 0);
  file("0.json", trace);
  std::filesystem::create_symlink("0.json", folder() / "link");
  std::filesystem::create_hard_link(folder() / "0.json", folder() / "twin");
  for (const std::string out : {"0.json", "./0.json", "link", "twin"}) {
    expect_refused(
        {out, "0.json"}, 78,
        "output file '" + out +
            "': merge-traces reads this file, which would be lost; write to another one");
    EXPECT_EQ(read_file(folder() / "0.json"), trace);
  }
}

}  // namespace
}  // namespace barestep
