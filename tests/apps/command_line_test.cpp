#include "command_line.h"

#include "core/config.h"
#include "options/options.h"
#include "support/temp_dir.h"
#include "support/testing.h"

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

/// What options_test.cpp does not type.
TEST(CommandLine, TakesNumbersAtTheEndsOfTheirRanges) {
  const TrainConfig c = parsed({"--batch-size", "2147483647", "--lr", ".5", "--betas", "0,0.5",
                                "--eps", "1e-45", "--warmup", "0", "--dim=16777216"});
  EXPECT_EQ(c.data.batch_size, 2147483647);
  EXPECT_EQ(c.optimizer.lr, 0.5);
  EXPECT_EQ(c.optimizer.beta1, 0);
  EXPECT_EQ(c.optimizer.eps, 1e-45);
  EXPECT_EQ(c.training.warmup, 0);
  EXPECT_EQ(c.model.dim, 16777216);
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
