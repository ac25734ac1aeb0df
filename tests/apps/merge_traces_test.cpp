// mlp_lab merge-traces, as a user runs it.
#include <nlohmann/json.hpp>

#include "profiler/trace.h"
#include "support/idx_bytes.h"
#include "support/program_test.h"
#include "support/sample_profile.h"
#include "support/sanitized.h"
#include "support/testing.h"

namespace barestep {
namespace {

using OrderedJson = nlohmann::ordered_json;

class MergeTraces : public ProgramTest {
 protected:
  ProcessResult run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {MLP_LAB, "merge-traces"});
    return execute(arguments);
  }

  /// The sample's trace as if from a rank that began `late_ns` after rank 0.
  static std::string trace_of_rank(int rank, std::int64_t late_ns) {
    const TraceContext context{.program = "mlp_ddp",
                               .version = "0",
                               .trace_name = "t",
                               .mesh = Mesh::of_data(rank, 2),
                               .backend = "mpi",
                               .device_name = "cpu",
                               .pid = 4711,
                               .thread = 4711};
    TraceEvents events({.host_s = 100, .unix_ns = 1711964646000000000 + late_ns});
    add_profile(events, SampleProfile().profile(), context);
    events.close();
    return events.file(trace_head(context), context.trace_name);
  }
};

TEST_F(MergeTraces, PutsAllRanksOnOneAxisOfTime) {
  file("0.json", trace_of_rank(0, 0));
  file("1.json.gz", gzipped(trace_of_rank(1, 2'500'000)));
  const ProcessResult result = succeeded(run({"all.json", "1.json.gz", "0.json"}));
  const OrderedJson merged = OrderedJson::parse(text("all.json"));
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
  EXPECT_THAT(names, ElementsAre("rank 0: mlp_ddp", "rank 1: mlp_ddp"));
  for (const auto& [id, ends] : arrow_ends) EXPECT_EQ(ends, 2) << id;
}

TEST_F(MergeTraces, HoldsNeitherItsInputsNorItsOutputInMemory) {
  if (kAddressSanitized) GTEST_SKIP() << "the sanitizer needs more memory than the program";
  constexpr std::int64_t kEvents = 400'000;
  std::int64_t bytes = 0;
  for (int rank = 0; rank < 2; ++rank) {
    // Written in pieces: before it becomes another program, a child has this one's memory.
    std::ofstream trace(folder() / fmt::format("{}.json", rank));
    trace << fmt::format(
        R"({{"distributedInfo": {{"rank": {}}}, "baseTimeNanoseconds": 0, "traceEvents": [)", rank);
    for (std::int64_t i = 0; i < kEvents; ++i) {
      trace << fmt::format(R"({}{{"ph": "X", "cat": "kernel", "name": "gemm", "pid": 1, "tid": 2, )"
                           R"("ts": {}, "dur": 1.5, "args": {{"correlation": {}}}}})",
                           i == 0 ? "" : ",\n", i, i);
    }
    trace << "]}";
    bytes += trace.tellp();
  }
  const ProcessResult result =
      succeeded(run_process({MLP_LAB, "merge-traces", "all.json.gz", "0.json", "1.json"},
                            {.working_directory = folder()}));
  EXPECT_GT(bytes, 80'000'000);
  EXPECT_LT(result.peak_bytes, bytes);
}

TEST_F(MergeTraces, RefusesWhatUnpacksToMuchWhileItIsRead) {
  const std::string head =
      R"({"distributedInfo": {"rank": 0}, "baseTimeNanoseconds": 0, "traceEvents": [)";
  const std::string blanks(17 << 20, ' ');
  for (const std::string& text :
       {head + blanks + "]}", head + R"({"ph": "X", "name": ")" + blanks + "\"}]}"}) {
    file("bomb.json.gz", gzipped(text));
    const ProcessResult result = run({"all.json", "bomb.json.gz"});
    EXPECT_THAT(
        result,
        Fails(65,
              "mlp_lab: error: trace 'bomb.json.gz': holds more than 16 MiB in one of its events, "
              "or beside them; give the files that --trace wrote, each once\n"));
    EXPECT_FALSE(std::filesystem::exists(folder() / "all.json"));
  }
}

TEST_F(MergeTraces, TakeAnyNumberOfInputs) {
  EXPECT_THAT(run({"--help"}).out, HasSubstr("merge-traces [options] out in..."));
}

TEST_F(MergeTraces, WritesOntoNoneOfItsInputs) {
  const std::string trace = trace_of_rank(0, 0);
  file("0.json", trace);
  std::filesystem::create_symlink("0.json", folder() / "link");
  std::filesystem::create_hard_link(folder() / "0.json", folder() / "twin");
  for (const std::string out : {"0.json", "./0.json", "link", "twin"}) {
    const ProcessResult result = run({out, "0.json"});
    EXPECT_THAT(result,
                Fails(78, "mlp_lab: error: output file '" + out +
                              "': merge-traces reads this file, which would be lost; write to "
                              "another one\n"));
    EXPECT_EQ(text("0.json"), trace);
  }
}

}  // namespace
}  // namespace barestep
