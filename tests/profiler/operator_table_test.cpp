#include "profiler/operator_table.h"

#include "support/sample_profile.h"
#include "support/testing.h"

namespace barestep {
namespace {

std::vector<std::string> lines_of(std::istream&& text) {
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

OperatorRow row_of(std::string name, std::int64_t calls, double host_us, std::vector<double> us,
                   std::int64_t flops) {
  OperatorRow row{.name = std::move(name), .calls = calls, .cost = {}, .call_s = {}};
  row.host_s = host_us / 1e6;
  for (const double each : us) row.call_s.push_back(each / 1e6);
  std::sort(row.call_s.begin(), row.call_s.end());
  row.device_s = std::accumulate(row.call_s.begin(), row.call_s.end(), 0.0);
  row.cost.flops = flops;
  return row;
}

/// The table must begin, line by line, with PyTorch's output for the same rows
/// (scripts/golden_operator_table.py).
void expect_pytorchs(const std::string& table, const char* golden) {
  std::ifstream file(std::string(BARESTEP_GOLDEN_DIR) + "/" + golden);
  const auto expected = lines_of(std::move(file));
  const auto actual = lines_of(std::istringstream(table));
  ASSERT_EQ(actual.size(), expected.size()) << table;
  ASSERT_GE(expected.size(), 6U);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(actual[i].substr(0, expected[i].size()), expected[i]);
  }
}

TEST(OperatorTable, HasPyTorchsColumnsOnAGpu) {
  const std::vector<OperatorRow> rows = {
      row_of("copy", 2, 1.25, {2.25, 2.5}, 0),
      row_of("gemm", 3, 3334.5, {920.0, 2084.0, 1000.125}, 3 * 134'217'728LL),
      row_of("adam", 1, 2'345'678.0, {1'234'567.0}, 25'190'400)};
  expect_pytorchs(operator_table(rows, {.device = DeviceKind::kCuda, .row_limit = 2}),
                  "operator_table_cuda.txt");
}

TEST(OperatorTable, ShowsTheCpuDevicesTimeInTheCpuColumnsAndNoOthers) {
  const std::vector<OperatorRow> rows = {
      row_of("copy", 2, 99, {0.5, 0.75}, 0),
      row_of("gemm", 3, 99, {1234.5, 1100.25, 999.75}, 3 * 134'217'728LL),
      row_of("adam", 1, 99, {2'345'678.0}, 25'190'400)};
  const std::string table = operator_table(rows, {.device = DeviceKind::kCpu, .row_limit = 2});
  expect_pytorchs(table, "operator_table_cpu.txt");
  EXPECT_EQ(table.find("CUDA"), std::string::npos);
}

TEST(OperatorTable, AddsRatesRoofAndPercentiles) {
  OperatorRow row = row_of("gemm", 4, 0, {100, 200, 300, 400}, 2'000'000'000);
  row.cost.bytes = 5'000'000;
  row.min_s = 0.00025;
  const auto lines = lines_of(std::istringstream(operator_table({row}, {})));
  std::istringstream titles(lines[1].substr(lines[1].find("Total GFLOPs")));
  EXPECT_EQ(titles.str(),
            "Total GFLOPs       GFLOP/s          GB/s     % of roof           p50           p99  ");
  // 2 GFLOP and 5 MB in 1 ms; 0.25 ms at the best rate; 250 us and 300 + 0.97 * 100 us
  // (numpy.percentile).
  EXPECT_THAT(lines[3],
              EndsWith("2.000       2000.00          5.00        25.00%     250.000us     "
                       "397.000us  "));
}

TEST(OperatorTable, SortsByEachKey) {
  OperatorRow rare = row_of("rare", 1, 5, {300}, 0);
  OperatorRow often = row_of("often", 4, 8, {50, 50, 50, 50}, 0);
  const auto first = [&](SortBy by) {
    const std::string table =
        operator_table({often, rare}, {.device = DeviceKind::kCuda, .sort_by = by});
    return table.find("often") < table.find("rare") ? "often" : "rare";
  };
  EXPECT_STREQ(first(SortBy::kDeviceTotal), "rare");
  EXPECT_STREQ(first(SortBy::kSelfDeviceTotal), "rare");
  EXPECT_STREQ(first(SortBy::kDeviceTime), "rare");
  EXPECT_STREQ(first(SortBy::kCpuTotal), "often");
  EXPECT_STREQ(first(SortBy::kSelfCpuTotal), "often");
  EXPECT_STREQ(first(SortBy::kCpuTime), "rare");
  EXPECT_STREQ(first(SortBy::kCount), "often");
}

TEST(OperatorTable, IsEmptyWithoutRows) {
  EXPECT_EQ(operator_table({}, {}), "");
}

TEST(OperatorRows, GroupByOpLayerAndPhase) {
  const SampleProfile sample;
  const auto names = [&](RowsBy by) {
    std::vector<std::string> all;
    for (const OperatorRow& row : operator_rows(sample.profile(), by, {})) all.push_back(row.name);
    return all;
  };
  EXPECT_THAT(names(RowsBy::kOp), ElementsAre("copy", "gemm", "mse_loss", "adam"));
  EXPECT_THAT(names(RowsBy::kBlock),
              ElementsAre("no block, data", "net.0, forward", "no block, loss", "net.0, backward",
                          "no block, optimizer"));
  EXPECT_THAT(names(RowsBy::kPhase),
              ElementsAre("data", "forward", "loss", "backward", "optimizer"));
}

TEST(OperatorRows, SumTimesPricesAndTheRoof) {
  const SampleProfile sample;
  const Peaks peaks{.flops_per_s = 1e9, .bytes_per_s = 1e9};
  const auto rows = operator_rows(sample.profile(), RowsBy::kOp, peaks);
  const OperatorRow& gemm = rows[1];
  EXPECT_EQ(gemm.calls, 4) << "two in each of two steps";
  EXPECT_NEAR(gemm.device_s, 2 * (2e-3 + 3e-3), 1e-12);
  EXPECT_NEAR(gemm.host_s, 4 * 1e-5, 1e-12);
  // x[8x4] w[4x4]: 256 flops and 4 (32 + 16 + 32) bytes each; the bytes take longer.
  EXPECT_EQ(gemm.cost.flops, 4 * 2 * 8 * 4 * 4);
  EXPECT_NEAR(gemm.min_s, 4 * 320e-9, 1e-15);
  EXPECT_EQ(gemm.call_s.size(), 4U);
}

TEST(Contradiction, IsAnOpThatIsFasterThanItsRoofAllows) {
  const Peaks peaks{.flops_per_s = 1e9, .bytes_per_s = 1e9};
  OperatorRow slow = row_of("adam", 1, 0, {1000}, 0);
  slow.cost = {.bytes = 1'090'000};
  OperatorRow fast = row_of("gemm", 1, 0, {500, 500}, 0);
  fast.cost = {.flops = 1'110'000};
  EXPECT_EQ(contradiction({slow}, peaks, 0), "");
  EXPECT_EQ(contradiction({slow, fast}, peaks, 0), "gemm reaches 111.0 % of its roof");
  EXPECT_EQ(contradiction({slow, fast}, {}, 0), "") << "without peaks";
  OperatorRow empty = row_of("copy", 0, 0, {}, 0);
  empty.cost = {.bytes = 1};
  EXPECT_EQ(contradiction({empty}, peaks, 0), "") << "without a time";
}

/// Two calls of 10 us that move 30 kB each: 10 kB from the cache, and 10 kB that stay in it.
TEST(Contradiction, IsNotWhatACacheExplains) {
  const Peaks peaks{.flops_per_s = 1e9, .bytes_per_s = 1e9};
  OperatorRow row = row_of("adam", 2, 0, {10, 10}, 0);
  row.cost = {.bytes = 60'000};
  EXPECT_EQ(contradiction({row}, peaks, 10'000), "");
  EXPECT_EQ(contradiction({row}, peaks, 5'000), "adam reaches 200.0 % of its roof");
}

TEST(HostTable, ShowsInputQueueingWaitingAndReporting) {
  const SampleProfile sample;
  const std::string table = host_table(sample.profile());
  EXPECT_THAT(table, HasSubstr("       make input       0.000us       0.000us             2  \n"));
  EXPECT_THAT(table, HasSubstr("       queue work     200.000us     100.000us             2  \n"));
  EXPECT_THAT(table, HasSubstr("wait for the step      15.800ms       7.900ms             2  \n"));
  EXPECT_THAT(table, HasSubstr("           report       2.000ms       1.000ms             2  \n"));
  EXPECT_EQ(host_table({}), "");
}

TEST(BackwardRatio, ComparesBothPhasesOfAStep) {
  const SampleProfile sample;
  EXPECT_EQ(backward_ratio(sample.profile()),
            "Backward takes 1.50 times as long as forward: 3.000ms and 2.000ms of a step.\n");
  EXPECT_EQ(backward_ratio({}), "");
}

TEST(StepRate, IsOfTheMeasuredPeak) {
  const SampleProfile sample;
  // Two products of 256 flops, an MSE of 32 and an Adam of 16 numbers, in 8 ms.
  const double flops = static_cast<double>(sample.flops_of_step());
  const std::string text = step_rate(sample.profile(), {.flops_per_s = flops / 8e-3 * 4});
  EXPECT_THAT(text, HasSubstr(", 25.0 % of the "));
  EXPECT_EQ(step_rate(sample.profile(), {}), "");
  // The given rate is twice the one at which the floor would be the whole step.
  EXPECT_THAT(step_rate(sample.profile(), {.flops_per_s = flops / 8e-3 * 2}),
              HasSubstr(", the floor: 50.0 % of its time.\n"));

  // Input and evaluation do not count as work of a training step.
  Profile profile = sample.profile();
  const std::string before = step_rate(profile, {.flops_per_s = 1e9});
  Node evaluation = sample.program().nodes()[SampleProfile::kForward];
  evaluation.phase = Phase::kEvaluate;
  TimedOp more = profile.ops[0];
  more.node = &evaluation;
  more.cost.flops = 1 << 30;
  profile.ops.push_back(more);
  EXPECT_EQ(step_rate(profile, {.flops_per_s = 1e9}), before);

  // Recomputation is not progress, but belongs to the floor.
  evaluation.phase = Phase::kRecompute;
  const std::string rate = step_rate(profile, {.flops_per_s = 1e9});
  const std::string progress = before.substr(0, before.find('\n'));
  EXPECT_EQ(rate.substr(0, rate.find('\n')), progress);
  EXPECT_NE(rate, before);
}

/// Two products per step, of 256 flops and 128 + 64 + 128 bytes each, in 5 ms.
TEST(RooflineTable, SaysWhatHoldsAnOpBackAndHowFarItIsFromThat) {
  const SampleProfile sample;
  const Profile profile = sample.profile();
  const auto line_with = [&](const Peaks& peaks) {
    const std::string table = roofline_table(operator_rows(profile, RowsBy::kOp, peaks), peaks, 2);
    const std::size_t at = table.find("gemm");
    return table.substr(at, table.find('\n', at) - at);
  };
  EXPECT_THAT(line_with({.flops_per_s = 1e6, .bytes_per_s = 1e6}),
              ContainsRegex("gemm +0\\.001 +640 B +0\\.80 +memory +0\\.00 +0\\.00 +12\\.80% "));
  EXPECT_THAT(line_with({.flops_per_s = 1e6, .bytes_per_s = 2e6}),
              ContainsRegex("gemm +0\\.001 +640 B +0\\.80 +arithmetic +0\\.00 +0\\.00 +10\\.24% "));
  EXPECT_EQ(roofline_table(operator_rows(profile, RowsBy::kOp, {}), {}, 2), "");
}

}  // namespace
}  // namespace barestep
