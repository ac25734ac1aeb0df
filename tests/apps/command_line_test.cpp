#include "command_line.h"

#include <gtest/gtest.h>

#include <sstream>

#include "core/config.h"
#include "options/options.h"
#include "support/temp_dir.h"

namespace barestep {
namespace {

TrainConfig parsed(const std::vector<std::string>& arguments) {
  return parse_command_line(SchemeKind::kSingle, arguments).config;
}

class ConfigFile : public TempDirTest {
 protected:
  TrainConfig from_file(const std::string& content, std::vector<std::string> arguments = {}) {
    arguments.insert(arguments.end(), {"--config", file("run.json", content).string()});
    return parsed(arguments);
  }
};

TEST(CommandLine, LeavesDefaultsWhereNothingIsGiven) {
  const TrainConfig c = parsed({});
  EXPECT_FALSE(c.model.dim);
  EXPECT_FALSE(c.model.depth);
  EXPECT_TRUE(c.model.last_relu);
  EXPECT_EQ(c.data.kind, DataKind::kRandn);
  EXPECT_EQ(c.data.batch_size, 64);
  EXPECT_EQ(numbers_of(c.optimizer).lr, 1e-3);
  EXPECT_FALSE(c.device.threads);
  EXPECT_FALSE(c.output.memory);
}

TEST(CommandLine, FillsTheModel) {
  const TrainConfig c = parsed(
      {"--layers", "784,512,10", "--activation", "none", "--no-last-relu", "--loss=cross-entropy"});
  EXPECT_EQ(c.model.layers, (std::vector<std::int64_t>{784, 512, 10}));
  EXPECT_EQ(c.model.activation, Activation::kNone);
  EXPECT_FALSE(c.model.last_relu);
  EXPECT_EQ(c.model.loss, LossKind::kCrossEntropy);
  EXPECT_EQ(parsed({"--dim", "16777216"}).model.dim, 16777216);
  EXPECT_EQ(parsed({"--depth=3"}).model.depth, 3);
}

TEST(CommandLine, FillsDataAndTraining) {
  const TrainConfig c =
      parsed({"--data", "idx:a/x,b/y", "--batch-size", "2147483647", "--test-split", "0.2",
              "--epochs", "3", "--warmup", "0", "--lr", ".5", "--betas", "0,0.5", "--eps", "1e-45",
              "--no-zero-grad", "--log-every", "10"});
  EXPECT_EQ(c.data.kind, DataKind::kIdx);
  EXPECT_EQ(c.data.x, "a/x");
  EXPECT_EQ(c.data.y, "b/y");
  EXPECT_EQ(c.data.batch_size, 2147483647);
  EXPECT_EQ(c.data.test_split, 0.2);
  EXPECT_EQ(c.training.epochs, 3);
  EXPECT_EQ(c.training.warmup, 0);
  EXPECT_EQ(c.optimizer.lr, 0.5);
  EXPECT_EQ(c.optimizer.beta1, 0);
  EXPECT_EQ(c.optimizer.beta2, 0.5);
  EXPECT_EQ(c.optimizer.eps, 1e-45);
  EXPECT_FALSE(c.training.zero_grad);
  EXPECT_EQ(c.training.log_every, 10);
}

TEST(CommandLine, FillsDeviceAndOutput) {
  const TrainConfig c = parsed(
      {"--device", "cuda:1",      "--threads", "2",       "--gemm",     "reference", "--fusion",
       "off",      "--precision", "tf32",      "--graph", "--autotune", "a",         "--metrics",
       "m",        "--save",      "s",         "--load",  "l",          "--plan",    "--explain"});
  EXPECT_EQ(c.device.device, "cuda:1");
  EXPECT_EQ(c.device.threads, 2);
  EXPECT_EQ(c.device.gemm, GemmProvider::kReference);
  EXPECT_FALSE(c.device.fusion);
  EXPECT_EQ(c.device.precision, Precision::kTf32);
  EXPECT_TRUE(c.device.graph);
  EXPECT_EQ(c.device.autotune, "a");
  EXPECT_EQ(c.output.metrics, "m");
  EXPECT_EQ(c.output.save, "s");
  EXPECT_EQ(c.output.load, "l");
  EXPECT_TRUE(c.output.plan);
  EXPECT_TRUE(c.output.explain);
  EXPECT_EQ(parsed({"--gemm", "cblas"}).device.gemm, GemmProvider::kCblas);
  EXPECT_EQ(parsed({}).device.denormals, Denormals::kFlush);
  EXPECT_EQ(parsed({"--denormals", "keep"}).device.denormals, Denormals::kKeep);
}

TEST(CommandLine, TakesAny64BitSeed) {
  EXPECT_EQ(parsed({"--seed", "-1"}).training.seed, 18446744073709551615U);
  EXPECT_EQ(parsed({"--seed", "18446744073709551615"}).training.seed, 18446744073709551615U);
  EXPECT_EQ(parsed({"--seed", "-9223372036854775808"}).training.seed, 9223372036854775808U);
  EXPECT_EQ(parsed({"--seed=0"}).training.seed, 0U);
}

TEST(CommandLine, ReadsSizesWithUnits) {
  const auto memory = [](const char* text) { return parsed({"--memory", text}).output.memory; };
  EXPECT_EQ(memory("16GiB"), std::int64_t{16} << 30);
  EXPECT_EQ(memory("1.5MiB"), 3 << 19);
  EXPECT_EQ(memory("4096"), 4096);
  EXPECT_EQ(memory("4096B"), 4096);
  EXPECT_EQ(memory("1KiB"), 1024);
  EXPECT_EQ(memory("1048576TiB"), std::int64_t{1} << 60);
}

TEST(CommandLine, ParsesTheExamplesOfHelp) {
  for (const auto& [program, usual, last] : kTrainingPrograms) {
    const std::string help = parse_command_line(usual, {"--help"}).answer;
    std::string examples = help.substr(help.find("Examples:\n") + 10);
    for (std::size_t at; (at = examples.find("\\\n")) != std::string::npos;) examples.erase(at, 2);
    std::istringstream lines(examples);
    int count = 0;
    for (std::string line; std::getline(lines, line); ++count) {
      std::istringstream words(line);
      std::vector<std::string> arguments;
      for (std::string word; words >> word;) {
        arguments.push_back(word);
        if (word == program) arguments.clear();  // the words before it start it under mpirun
      }
      EXPECT_NO_THROW(validate(parse_command_line(usual, arguments).config)) << line;
    }
    EXPECT_EQ(count, 3);
  }
}

TEST_F(ConfigFile, GivesWhatTheCommandLineGives) {
  const TrainConfig c = from_file(
      "\xEF\xBB\xBF{\r\n\"layers\": [784, 512, 10], \"plan\": true,\r\n"
      "\"no-last-relu\": false, \"lr\": 1e-2, \"seed\": -1,\r\n"
      "\"betas\": [0.8, 0.9], \"memory\": \"2KiB\",\r\n"
      "\"data\": \"idx:a,b\", \"fusion\": \"off\"}\r\n");
  EXPECT_EQ(c.model.layers, (std::vector<std::int64_t>{784, 512, 10}));
  EXPECT_TRUE(c.output.plan);
  EXPECT_TRUE(c.model.last_relu);
  EXPECT_EQ(c.optimizer.lr, 1e-2);
  EXPECT_EQ(c.training.seed, 18446744073709551615U);
  EXPECT_EQ(c.optimizer.beta1, 0.8);
  EXPECT_EQ(c.optimizer.beta2, 0.9);
  EXPECT_EQ(c.output.memory, 2048);
  EXPECT_EQ(c.data.y, "b");
  EXPECT_FALSE(c.device.fusion);
  EXPECT_EQ(from_file(R"({"memory": 4096})").output.memory, 4096);
}

TEST_F(ConfigFile, LosesToTheCommandLine) {
  const TrainConfig c = from_file(R"({"lr": 1, "eps": 2, "epochs": 3, "layers": [8, 8]})",
                                  {"--lr", "4", "--steps", "5", "--depth", "6"});
  EXPECT_EQ(c.optimizer.lr, 4);
  EXPECT_EQ(c.optimizer.eps, 2);
  EXPECT_EQ(c.training.steps, 5);
  EXPECT_FALSE(c.training.epochs);
  EXPECT_EQ(c.model.depth, 6);
  EXPECT_TRUE(c.model.layers.empty());
}

}  // namespace
}  // namespace barestep
