#include "profiler/report.h"

#include <nlohmann/json.hpp>

#include "kernels/make_device.h"
#include "support/pattern.h"
#include "support/testing.h"

namespace barestep {
namespace {

StepReport report_of(std::int64_t step, std::int64_t steps, double wall_s) {
  StepReport report;
  report.step = step;
  report.steps = steps;
  report.samples = 64;
  report.loss = 1.036895F;
  report.wall_s = wall_s;
  return report;
}

TEST(StepLine, IsTheFormatOfThePractical) {
  EXPECT_EQ(step_line(report_of(0, 20, 0.1234)),
            "Step 00 | Step time: 0.1234s | Throughput: 518.64 samples/sec | Loss: 1.036895");
}

TEST(StepLine, IsAsWideAsTheLastStepAndAtLeastTwoDigits) {
  EXPECT_THAT(step_line(report_of(3, 1, 1)), HasSubstr("Step 03 |"));
  EXPECT_THAT(step_line(report_of(3, 100, 1)), HasSubstr("Step 03 |"));
  EXPECT_THAT(step_line(report_of(3, 101, 1)), HasSubstr("Step 003 |"));
  EXPECT_THAT(step_line(report_of(1234, 1235, 1)), HasSubstr("Step 1234 |"));
}

TEST(StepLine, HasFourDecimalsAndFourSignificantDigitsOfTime) {
  const auto time = [](double wall_s) {
    const std::string line = step_line(report_of(0, 1, wall_s));
    const std::size_t begin = line.find("time: ") + 6;
    return line.substr(begin, line.find(" |", begin) - begin);
  };
  EXPECT_EQ(time(12.345678), "12.3457s");
  EXPECT_EQ(time(1), "1.0000s");
  EXPECT_EQ(time(0.1), "0.1000s");
  EXPECT_EQ(time(0.0123456), "0.01235s");
  EXPECT_EQ(time(0.00123456), "0.001235s");
  EXPECT_EQ(time(0.000123456), "0.0001235s");
  EXPECT_EQ(time(1.23456e-6), "0.000001235s");
}

TEST(StepLine, SaysWhatIsWarmUp) {
  StepReport report = report_of(0, 20, 0.1234);
  report.warmup = true;
  EXPECT_TRUE(step_line(report).ends_with("Loss: 1.036895 | warm-up"));
}

TEST(EvaluationLine, HasAccuracyForClassifiersOnly) {
  EvaluationReport report{.epoch = 0,
                          .epochs = 5,
                          .samples = 2000,
                          .loss = 0.3012,
                          .accuracy = 0.9125,
                          .seconds = 0.0123};
  EXPECT_EQ(evaluation_line(report),
            "Epoch 1/5 | Test loss: 0.301200 | Test accuracy: 91.25% | 2000 samples in 0.01230s");
  report.accuracy.reset();
  report.r2 = 0.75;
  report.mean_absolute_error = 0.5;
  EXPECT_EQ(evaluation_line(report),
            "Epoch 1/5 | Test loss: 0.301200 | Test R2: 0.7500 | Test mean absolute error: "
            "0.500000 | 2000 samples in 0.01230s");
  report.r2.reset();
  report.mean_absolute_error.reset();
  report.epochs = 0;
  EXPECT_EQ(evaluation_line(report), "Epoch 1 | Test loss: 0.301200 | 2000 samples in 0.01230s");
  report.samples = 1;
  EXPECT_EQ(evaluation_line(report), "Epoch 1 | Test loss: 0.301200 | 1 sample in 0.01230s");
}

/// A step in which all parts that records have are of different times.
StepFigures measured(std::int64_t step) {
  StepFigures figures;
  figures.report = report_of(step, 20, 0);
  figures.report.flops = 1'000'000'000;
  double milliseconds = 0.1 * static_cast<double>(step);
  for (const Part part : kValuesOf<Part>) {
    if (traits_of(part).key.empty()) continue;
    figures.account[part] = 0.001 * ++milliseconds;
    figures.report.wall_s += figures.account[part];
  }
  figures.account.wall_s = figures.report.wall_s;
  figures.account.between_s = 0.007;
  figures.account.clock_error_s = 1e-6 * static_cast<double>(step);
  return figures;
}

TEST(MetricsRecord, IsOneLineOfJsonWithTheWholeLoss) {
  StepFigures step = measured(3);
  const StepReport& report = step.report;
  step.report.loss = std::nextafter(1.036895F, 2.0F);
  step.report.warmup = true;
  const std::string line = metrics_record(step, 2);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const auto record = nlohmann::json::parse(line);
  EXPECT_EQ(record.at("step"), 3);
  EXPECT_EQ(record.at("rank"), 2);
  EXPECT_EQ(record.at("loss").get<double>(), static_cast<double>(report.loss));
  EXPECT_EQ(record.at("step_time_s").get<double>(), report.wall_s);
  EXPECT_EQ(record.at("samples"), 64);
  EXPECT_EQ(record.at("samples_per_s").get<double>(), 64 / report.wall_s);
  EXPECT_EQ(record.at("warmup"), true);
  EXPECT_EQ(record.at("between_s").get<double>(), 0.007);
  const auto& phases = record.at("phases_s");
  EXPECT_EQ(phases.size(), std::size(kNamesOf<Part>) - 3)
      << "both kinds of input are one, steps that are recorded have phases, and no step evaluates";
  double sum = 0;
  for (const auto& [name, seconds] : phases.items()) sum += seconds.get<double>();
  EXPECT_NEAR(sum, report.wall_s, 1e-12);
  EXPECT_EQ(phases.at("backward").get<double>(), step.account[Part::kBackward]);
}

/// Milliseconds and percentages of the account's rows, by name.
std::map<std::string, std::pair<double, double>> rows_of(const std::string& summary) {
  std::map<std::string, std::pair<double, double>> rows;
  for (const auto& row :
       all_matches(summary, R"(\n  (\S[^\d\n]*?) +(-?[\d.]+) ms +(-?[\d.]+) %)")) {
    rows[row[1]] = {std::stod(row[2]), std::stod(row[3])};
  }
  return rows;
}

TEST(RunSummary, OfOneStepSaysSoInTheSingular) {
  RunSummary summary(1);
  summary.add(measured(0));
  const auto device = make_cpu_device({.threads = 1, .gemm = GemmProvider::kReference});
  EXPECT_THAT(summary.text(*device, "separate"),
              HasSubstr("Summary of 1 step after 0 of warm-up, cpu: "));
}

TEST(RunSummary, AccountsForTheWholeWallTime) {
  RunSummary summary(20);
  StepFigures warmup = measured(0);
  warmup.report.warmup = true;
  warmup.report.wall_s = 1000;
  summary.add(warmup);
  for (int step = 1; step < 5; ++step) summary.add(measured(step));
  const auto device = make_cpu_device({.threads = 1, .gemm = GemmProvider::kReference});
  const std::string text = summary.text(*device, "fused, 31.3 bytes a parameter in a step");
  EXPECT_THAT(text, HasSubstr("Summary of 4 steps after 1 of warm-up, cpu: "));
  EXPECT_THAT(text, HasSubstr(", 1 thread, products by reference\n"));

  const auto rows = rows_of(text);
  ASSERT_TRUE(rows.contains("wall time")) << text;
  double milliseconds = 0;
  double percents = 0;
  for (const auto& [name, values] : rows) {
    if (name == "wall time" || name == "between steps" || name == "error of the clocks") continue;
    milliseconds += values.first;
    percents += values.second;
  }
  EXPECT_EQ(rows.size(), std::size(kNamesOf<Part>) - 2 + 3) << "no graph, no evaluation";
  EXPECT_NEAR(milliseconds, rows.at("wall time").first, 0.0001 * static_cast<double>(rows.size()));
  EXPECT_NEAR(percents, 100, 0.01 * static_cast<double>(rows.size()));
  EXPECT_NEAR(rows.at("data wait").first, 1 + 0.25, 1e-4);
  EXPECT_NEAR(rows.at("host to device").first, 2 + 0.25, 1e-4);
  EXPECT_NEAR(rows.at("host").first, 14 + 0.25, 1e-4);
  EXPECT_NEAR(rows.at("idle").first, 15 + 0.25, 1e-4);
  EXPECT_NEAR(rows.at("between steps").first, 7, 1e-4);
  EXPECT_NEAR(rows.at("error of the clocks").first, 0.004, 1e-9) << "the largest";
  // The parts of step n add up to 120 + 1.5 n ms.
  EXPECT_THAT(text, HasSubstr("  Step time    mean 0.1237s, "));
  EXPECT_THAT(text, HasSubstr("  Throughput   517.17 samples/sec\n"));
  EXPECT_THAT(text, HasSubstr("  Rate         8.08 GFLOP/s\n"));
  EXPECT_THAT(text, HasSubstr("  Update       fused, 31.3 bytes a parameter in a step\n\n"));
  EXPECT_THAT(
      summary.text(*device, "fused", 0.02475),
      HasSubstr("  Update       fused\n"
                "  Floor        0.02475s at the rates measured here, 20.0 % of the mean\n\n"));
  EXPECT_THAT(summary.text(*device, "fused", 0.1485),
              HasSubstr("120.0 % of the mean: data that fit in caches are faster, or the machine "
                        "was slower when the rates were measured\n\n"));
}

/// The median step takes 20 ms, the mean step 35 ms; the last one has half a batch.
TEST(SweepTable, HasTheThroughputOfAllSteps) {
  RunSummary summary(3);
  StepFigures step;
  for (const double wall_s : {0.01, 0.02, 0.09}) {
    step.report = report_of(0, 3, wall_s);
    summary.add(step);
  }
  step.report = report_of(2, 3, 0.02);
  step.report.samples = 32;
  summary.add(step);
  const SweepRow row{16, summary.step_time_s(), summary.samples_per_s()};
  const std::string table = sweep_table(std::vector{row});
  EXPECT_THAT(table, HasSubstr("Step time, median (s)"));
  EXPECT_THAT(table, HasSubstr("mean  Throughput (samples/sec)\n"));
  // 3 x 64 + 32 samples in 0.14 s
  EXPECT_THAT(table, ContainsRegex("\n +16 +0\\.02000 .* 0\\.03500 +1600\\.00\n"));
}

TEST(UpdateText, NamesTheLevelAndItsBytes) {
  TrainConfig config;
  config.model.dim = 256;
  const auto text = [&](bool fused) {
    config.training.update = fused ? Update::kFused : Update::kSeparate;
    return update_text(StepPrograms(spec_of(config, DeviceKind::kCpu, nullptr)));
  };
  EXPECT_EQ(text(false), "separate, 39.3 bytes a parameter in a step");
  EXPECT_EQ(text(true), "fused, 31.3 bytes a parameter in a step");
}

/// Bytes calculated by hand for wide layers. Products read each weight (4 or 2) in forward and,
/// except in the first of six layers, in backward (5/6 of that); they write a gradient (4 or 2),
/// which Adam reads. Adam reads and writes weight and moments (24) and writes the rounded weight
/// (2). In fp16, each gradient is read again to check that it is finite.
TEST(UpdateText, HasTheBytesOfEachPrecision) {
  const auto bytes = [&](Precision precision, Update update, std::int64_t accumulate = 1) {
    TrainConfig config;
    config.model.dim = 8192;
    config.device.precision = precision;
    config.training.update = update;
    config.training.accumulate = accumulate;
    const StepPrograms programs(spec_of(config, DeviceKind::kCpu, nullptr));
    return static_cast<double>(state_bytes_of(programs.train().program)) /
           static_cast<double>(programs.parameter_list().size());
  };
  constexpr double kReads = 1 + 5.0 / 6;
  constexpr double kNear = 0.02;  // biases, and other small reads
  EXPECT_NEAR(bytes(Precision::kFp32, Update::kSeparate), 4 * kReads + 4 + 4 + 24, kNear);
  EXPECT_NEAR(bytes(Precision::kFp32, Update::kFused), 4 * kReads + 24, kNear);
  EXPECT_NEAR(bytes(Precision::kBf16, Update::kSeparate), 2 * kReads + 2 + 2 + 24 + 2, kNear);
  EXPECT_NEAR(bytes(Precision::kBf16, Update::kFused), 2 * kReads + 24 + 2, kNear);
  EXPECT_NEAR(bytes(Precision::kFp16, Update::kSeparate), 2 * kReads + 2 + 2 + 2 + 24 + 2, kNear);
}

TEST(RunSummary, SaysNothingOfNoSteps) {
  const auto device = make_cpu_device({.threads = 1});
  EXPECT_EQ(RunSummary(1'000'000'000'000).text(*device, ""), "");
}

TEST(RunHeader, NamesModelDataAndDevice) {
  const auto device = make_cpu_device({.threads = 2, .gemm = GemmProvider::kReference});
  const StepPrograms square({.model = {.widths = {1024, 1024, 1024}}});
  EXPECT_THAT(run_header(square, *device),
              StartsWith("2 x Linear(1024, 1024), 2,099,200 parameters, batch 64\ncpu: "));
  const StepPrograms files(
      {.model = {.widths = {784, 10}},
       .input = {.data = DataKind::kIdx, .train_rows = 8000, .test_rows = 2000}});
  EXPECT_THAT(run_header(files, *device),
              StartsWith("Linear 784 - 10, 7,850 parameters, batch 64, 8,000 training and "
                         "2,000 test samples\ncpu: "));
  EXPECT_THAT(run_header(files, *device, "features / 255"),
              HasSubstr(" and 2,000 test samples, features / 255\ncpu: "));
  EXPECT_TRUE(run_header(files, *device).ends_with(", 2 threads, products by reference\n"));
}

}  // namespace
}  // namespace barestep
