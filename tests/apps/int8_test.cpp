// --evaluate-only --precision int8: the table compared with fp32, the accuracy of a trained
// classifier, and the refusals.
#include <nlohmann/json.hpp>

#include "apps/on_cpu.h"
#include "support/arguments.h"
#include "support/file_runs.h"
#include "support/program_test.h"
#include "support/testing.h"

namespace barestep {
namespace {

/// A row of a classifier's table.
struct Int8Row {
  std::string precision;
  int batch_size = 0;
  double loss = 0, accuracy = 0;  // in percent
  std::string changed;
  std::string weights;
};

std::vector<Int8Row> rows_of(const std::string& table) {
  std::vector<Int8Row> rows;
  std::istringstream lines(table);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("fp32 ") && !line.starts_with("int8 ")) continue;
    Int8Row row;
    std::string p50, p95, p99, throughput;
    char percent = 0;
    std::istringstream(line) >> row.precision >> row.batch_size >> row.loss >> row.accuracy >>
        percent >> p50 >> p95 >> p99 >> throughput >> row.changed >> row.weights;
    rows.push_back(row);
  }
  return rows;
}

class Int8 : public ProgramTest {
 protected:
  ProcessResult single(const Arguments& arguments) {
    return execute(Arguments{MLP_SINGLE} + on_cpu(arguments));
  }
};

class Int8OfMnist : public Int8 {
 protected:
  const Arguments kClassifier =
      mnist_in(BARESTEP_TEST_DATA) +
      words("--layers 784,512,512,10 --loss cross-entropy --no-last-relu --test-split 0.2");
};

TEST_F(Int8OfMnist, KeepsTheAccuracyOfATrainedClassifierAndAllButAFewAnswers) {
  const auto trained = succeeded(
      single(kClassifier + Arguments{"--epochs", "3", "--log-every", "1000", "--save", "w"}));
  for (const char* const scheme : {"row", "torch", "torch-per-channel"}) {
    SCOPED_TRACE(scheme);
    const auto result = succeeded(
        single(kClassifier + Arguments{"--evaluate-only", "--load", "w", "--precision", "int8",
                                       "--quantization", scheme, "--batch-size", "64,512"}));
    const std::vector<Int8Row> rows = rows_of(result.out);
    ASSERT_EQ(rows.size(), 4U) << result.out;
    for (std::size_t i = 0; i < rows.size(); i += 2) {
      const Int8Row &fp32 = rows[i], &int8 = rows[i + 1];
      EXPECT_EQ(fp32.precision, "fp32");
      EXPECT_EQ(int8.precision, "int8");
      EXPECT_EQ(fp32.batch_size, int8.batch_size);
      EXPECT_GT(fp32.accuracy, 90);
      EXPECT_NEAR(int8.accuracy, fp32.accuracy, 0.2);
      EXPECT_NE(int8.loss, fp32.loss);
      EXPECT_NEAR(int8.loss, fp32.loss, 1e-3);
      EXPECT_EQ(fp32.changed, "-");
      EXPECT_LE(std::stoi(int8.changed), 10);
      EXPECT_EQ(fp32.weights, "2,678,824");  // 669,706 parameters
      // One byte per weight, and for each output a bias, a sum and a scale, or one scale per layer.
      EXPECT_EQ(int8.weights, std::string(scheme) == "torch" ? "676,956" : "681,080");
    }
  }
}

/// A classifier trained on a few samples, with weights in "w".
class SmallInt8 : public Int8 {
 protected:
  void SetUp() override {
    class_run(folder());
    succeeded(single(kFiles + Arguments{"--epochs", "2", "--save", "w"}));
  }
  const Arguments kFiles = words(
      "--data idx:x.idx,y.idx --layers 6,12,4 --loss cross-entropy --no-last-relu --test-split "
      "0.25");
  const Arguments kInt8 = kFiles + words("--evaluate-only --load w --precision int8");
};

TEST_F(SmallInt8, IsShownBesideFp32ForEachBatchSize) {
  const auto usual = succeeded(single(kInt8 + Arguments{"--batch-size", "1,8,64,512"}));
  EXPECT_THAT(usual.out, HasSubstr("w of 10 samples, features / 255\nPrecision  Batch size "));
  EXPECT_THAT(usual.out, HasSubstr("Answers changed  Weights (bytes)\n"));
  EXPECT_THAT(usual.out, HasSubstr("int8: quantization row, activations of "));
  std::vector<int> sizes;
  for (const Int8Row& row : rows_of(usual.out)) sizes.push_back(row.batch_size);
  EXPECT_EQ(sizes, (std::vector{1, 1, 8, 8, 64, 64, 512, 512}));
  EXPECT_EQ(rows_of(single(kInt8).out).size(), 2U);
}

TEST_F(SmallInt8, HasTheNumbersOfThePlainLoopWhateverMultiplies) {
  const auto losses = [&](const char* gemm) {
    const auto result = succeeded(
        single(kInt8 + Arguments{"--gemm", gemm, "--batch-size", "3", "--quantization", "torch"}));
    return rows_of(result.out).at(1);
  };
  EXPECT_EQ(losses("auto").loss, losses("reference").loss);
}

TEST_F(SmallInt8, TellsThePrecisionOfEveryBatchInItsMetrics) {
  const auto result = succeeded(single(kInt8 + Arguments{"--batch-size", "5", "--metrics", "m"}));
  EXPECT_EQ(configuration_of(text("m")).at("precision"), "int8");
  EXPECT_GT(lost_times_of(text("m")).at(0).at("wall_s"), 0);
  std::vector<std::string> precisions;
  std::vector<nlohmann::json> evaluations;
  for (const nlohmann::json& record : records("m")) {
    if (record.contains("evaluation")) {
      evaluations.push_back(record.at("evaluation"));
    } else {
      precisions.push_back(record.at("precision"));
    }
  }
  EXPECT_EQ(precisions, (std::vector<std::string>{"fp32", "fp32", "int8", "int8"}));
  ASSERT_EQ(evaluations.size(), 2U);
  EXPECT_EQ(evaluations[0].at("precision"), "fp32");
  EXPECT_FALSE(evaluations[0].contains("changed"));
  EXPECT_EQ(evaluations[1].at("precision"), "int8");
  EXPECT_EQ(evaluations[1].at("samples"), 10);
  EXPECT_EQ(evaluations[1].at("weight_bytes"), 6 * 12 + 12 * 4 + 16 * 12);
  for (const char* const name : {"loss", "accuracy", "changed"}) {
    EXPECT_TRUE(evaluations[1].contains(name)) << name;
  }
}

TEST_F(SmallInt8, ShowsItsProgramItsPriceAndItsMemory) {
  const auto result =
      succeeded(single(kInt8 + Arguments{"--plan", "--explain", "--batch-size", "5"}));
  for (const char* const text :
       {"\n  parameters                 2,304 B  2.25 KiB\n", "Program 'evaluate'", " quantize  ",
        " quantized_gemm  ", "int8_x[5x6] = x[5x6] / x_scales[5x1] in ", "Program 'quantize'",
        " quantize_weight  ", "It is run once, at the start.\n"}) {
    EXPECT_THAT(result.out, HasSubstr(text));
  }
  EXPECT_THAT(result.out, Not(ContainsRegex("\n *[0-9]+ +evaluate +[0-9]+ +compute +gemm")));
}

}  // namespace
}  // namespace barestep
