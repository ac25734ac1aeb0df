// Every row of the table, for every program: written values are read back, and everything derived
// from the table is consistent with it. A new option needs at most one line in
// support/option_samples.h.
#include "options/options.h"

#include <regex>

#include "command_line.h"
#include "core/error.h"
#include "support/option_samples.h"
#include "support/temp_dir.h"
#include "support/testing.h"

namespace barestep {
namespace {

/// The defaults of the program with this scheme.
TrainConfig defaults_of(SchemeKind scheme) {
  TrainConfig config;
  config.parallel.scheme = scheme;
  return config;
}

TrainConfig with(const Option& option, SchemeKind scheme = SchemeKind::kDdp) {
  TrainConfig config = defaults_of(scheme);
  option.value.read({.where = "--" + std::string(option.name), .text = sample_of(option)}, config);
  return config;
}

TrainConfig with_all(SchemeKind scheme) {
  TrainConfig config = defaults_of(scheme);
  for (const Option& option : options_of(scheme)) {
    option.value.read({.where = std::string(option.name), .text = sample_of(option)}, config);
  }
  return config;
}

std::string error_of(const Option& option, const std::string& text) {
  TrainConfig config;
  try {
    option.value.read({.where = "--" + std::string(option.name), .text = text}, config);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    return error.what();
  }
  return "taken";
}

TEST(Options, DefaultsNeedNoArguments) {
  for (const auto& [program, usual, last] : kTrainingPrograms) {
    EXPECT_THAT(arguments_of(defaults_of(usual)), IsEmpty());
    EXPECT_EQ(parse_command_line(usual, {}).config, defaults_of(usual));
  }
}

TEST(Options, EachIsWrittenAsItIsRead) {
  for (const auto& [program, usual, last] : kTrainingPrograms) {
    for (const Option& option : options_of(usual)) {
      SCOPED_TRACE(option.name);
      const TrainConfig config = with(option, usual);
      if (is_fixed(option)) continue;
      std::vector<std::string> typed = {"--" + std::string(option.name)};
      if (!is_flag(option)) typed.push_back(sample_of(option));
      EXPECT_NE(config, defaults_of(usual)) << "a sample is not the default";
      EXPECT_EQ(arguments_of(config), typed);
      EXPECT_EQ(parse_command_line(usual, typed).config, config);
    }
  }
}

TEST(Options, AllTogetherAreReadBack) {
  for (const auto& [program, usual, last] : kTrainingPrograms) {
    const TrainConfig config = with_all(usual);
    EXPECT_EQ(parse_command_line(usual, arguments_of(config)).config, config);
  }
}

TEST(Options, ASweepIsReadBack) {
  TrainConfig config = defaults_of(SchemeKind::kSingle);
  config.data.batch_size = 32;
  config.data.sweep = {32, 64, 128};
  const auto arguments = arguments_of(config);
  EXPECT_EQ(arguments, (std::vector<std::string>{"--batch-size", "32,64,128"}));
  EXPECT_EQ(parse_command_line(SchemeKind::kSingle, arguments).config, config);
}

class Configuration : public TempDirTest {
 protected:
  /// The configuration read from a config file that contains this configuration's JSON.
  TrainConfig from_json(const TrainConfig& config) {
    const auto path = file("run.json", json_of(config));
    TrainConfig read =
        parse_command_line(config.parallel.scheme, {"--config", path.string()}).config;
    read.file.clear();
    // Whether the global batch was given or is the default does not affect the run.
    read.parallel.global_batch = config.parallel.global_batch;
    return read;
  }
};

TEST_F(Configuration, AsJsonIsAConfigFile) {
  for (const auto& [program, usual, last] : kTrainingPrograms) {
    EXPECT_EQ(from_json(defaults_of(usual)), defaults_of(usual));
    EXPECT_EQ(from_json(with_all(usual)), with_all(usual));
    for (const Option& option : options_of(usual)) {
      SCOPED_TRACE(option.name);
      EXPECT_EQ(from_json(with(option, usual)), with(option, usual));
    }
  }
}

TEST_F(Configuration, AsJsonHasTheTypesOfJson) {
  TrainConfig config = defaults_of(SchemeKind::kSingle);
  config.model.layers = {4, 2};
  config.data.pin = false;
  config.data.kind = DataKind::kSafetensors;
  config.data.x = "f";
  config.training.seed = ~std::uint64_t{0};
  config.optimizer.lr = 0.001;
  config.optimizer.beta1 = 0.9;
  config.optimizer.beta2 = 0.999;
  const std::string json = json_of(config);
  for (const char* part : {R"("layers":[4,2])", R"("no-pin":true)", R"("drop-last":false)",
                           R"("data":"safetensors:f")", R"("seed":18446744073709551615)",
                           R"("lr":0.001)", R"("betas":[0.9,0.999])", R"("fusion":"on")"}) {
    EXPECT_THAT(json, HasSubstr(part));
  }
  EXPECT_THAT(json, Not(HasSubstr("\"dim\"")));  // it is not set
  EXPECT_EQ(configuration_record(config), "{\"configuration\":" + json + "}");
}

TEST_F(Configuration, AsJsonTakesNamesOfFilesThatAreNotUtf8) {
  TrainConfig config;
  config.output.save = "a\xff";
  EXPECT_THAT(json_of(config), HasSubstr("\"save\":\"a\xef\xbf\xbd\""));
}

TEST(Options, HelpNamesEachWithDefaultAndRange) {
  for (const auto& [program, usual, last] : kTrainingPrograms) {
    const std::string help = parse_command_line(usual, {"--help"}).answer;
    for (const Option& option : options_of(usual)) {
      const std::string named = is_flag(option)
                                    ? std::string(option.name)
                                    : std::string(option.name) + " " + option.value.argument;
      EXPECT_THAT(help, HasSubstr("  --" + named));
      if (const auto text = option.value.text({}); text && !is_flag(option)) {
        EXPECT_THAT(help_of(option), HasSubstr("(default: " + *text + ")"));
      }
      if (!option.value.allowed.empty()) {
        EXPECT_THAT(help_of(option), HasSubstr(";\n" + option.value.allowed));
      }
    }
    std::istringstream lines(help);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100U) << line;
  }
}

// "apply the gradients K steps later" explains no --staleness N.
TEST(Options, HelpCallsAValueAsItsArgument) {
  const std::regex letters("(?:^| )([A-Z])\\b");
  for (const auto& [program, usual, last] : kTrainingPrograms) {
    for (const Option& option : options_of(usual)) {
      for (std::sregex_iterator at(option.help.begin(), option.help.end(), letters), end; at != end;
           ++at) {
        EXPECT_THAT(std::string(option.value.argument), HasSubstr(at->str(1))) << option.name;
      }
    }
  }
}

TEST(Options, EachRefusesWhatItDoesNotAllow) {
  const std::map<std::string_view, std::string> others = {
      {"layers", "width 1 is out of range; give 2 to 10001 widths from 1 to 16777216, such as "},
      {"data", "not a data source; use randn, teacher, idx:X,Y or npy:X,Y with files"},
      {"seed", "taken"},
      {"betas", "not two numbers; give two numbers of at least 0 and below 1, such as 0.9,0.999"},
      {"device", "not a device; use auto, cpu, cuda or cuda:N"},
      {"devices", "'-9' is not a device; list cpu, cuda or cuda:N, such as cuda:0,cuda:1"},
      {"loss-scale", "not a loss scale; give dynamic, dynamic:65536 or a number above 0"},
      {"slow-rank", "not a rank and milliseconds; give them like 1:20"},
      {"flip",
       "not a bit of a buffer in a step; give BUFFER:WORD:BIT@STEP like parameters:17:30@5"},
      {"profile-steps", "not two numbers; give first:end, such as 10:20 for the steps 10 to 19"},
      {"profile-phases", "not one of the choices; use data or injected or forward or loss or "},
      {"memory", "is not a number of bytes from 1 to 2^63 - 1; write it like 16GiB"},
      {"checkpoint-every",
       "is not a time from 0.001s to 10000d; write it like 90s, 10m, 3h50m or 1d"},
      {"time-limit", "is not a time from 0.001s to 10000d; write it like 90s, 10m, 3h50m or 1d"},
      {"sort-by", "not one of the choices; use cuda_time_total or "},
  };
  for (const auto& [program, usual, last] : kTrainingPrograms) {
    for (const Option& option : options_of(usual)) {
      const std::string what = "--" + std::string(option.name);
      const std::vector<std::string> choices = choices_of(option);
      if (is_flag(option)) {
        EXPECT_EQ(error_of(option, "-9"), what + " '-9': takes no value; leave the value out");
      } else if (!choices.empty()) {
        EXPECT_EQ(error_of(option, "-9"),
                  what + " '-9': not one of the choices; use " + joined(choices, " or "));
      } else if (option.value.allowed.starts_with("a ") && option.name != "slow-rank") {
        EXPECT_EQ(error_of(option, "-9"),
                  what + " '-9': out of range; give " + option.value.allowed);
      } else if (option.value.argument.ends_with("FILE") || option.value.argument == "DIR") {
        EXPECT_EQ(error_of(option, ""), what + ": the value is empty; give a file");
      } else {
        const auto found = others.find(option.name);
        ASSERT_NE(found, others.end()) << option.name;
        const bool is_taken = found->second == "taken";
        EXPECT_THAT(error_of(option, "-9"),
                    StartsWith(is_taken ? "taken" : what + " '-9': " + found->second));
      }
    }
  }
}

TEST(Options, AutotuneIsOnOffOrAFile) {
  const auto all = options_of(SchemeKind::kSingle);
  const auto option = std::ranges::find(all, std::string_view("autotune"), &Option::name);
  ASSERT_NE(option, all.end());
  EXPECT_TRUE(TrainConfig().device.autotunes);
  TrainConfig config;
  const auto given = [&](const char* text) {
    option->value.read({.where = "--autotune", .text = text}, config);
    return std::tuple(config.device.autotunes, config.device.autotune.string(),
                      option->value.text(config).value_or("on"));
  };
  EXPECT_EQ(given("off"), std::tuple(false, std::string(), std::string("off")));
  EXPECT_EQ(given("f"), std::tuple(true, std::string("f"), std::string("f")));
  EXPECT_EQ(given("on"), std::tuple(true, std::string(), std::string("on")));
}

using Settings = std::vector<std::pair<std::string, std::string>>;

/// "--lr is 0.001 here and 1e-05 there", for settings that differ.
std::vector<std::string> differences(const Settings& ours, const Settings& theirs) {
  std::vector<std::string> all;
  EXPECT_EQ(ours.size(), theirs.size());
  for (std::size_t i = 0; i < ours.size(); ++i) {
    EXPECT_EQ(ours[i].first, theirs[i].first);
    if (ours[i].second == theirs[i].second) continue;
    all.push_back(ours[i].first + " is " + ours[i].second + " here and " + theirs[i].second +
                  " there");
  }
  return all;
}

TEST(SharedSettings, DifferWhereAnOptionDoes) {
  const Settings usual = shared_settings({});
  for (const Option& option : options_of(SchemeKind::kDdp)) {
    const std::string name = "--" + std::string(option.name);
    std::vector<std::string> expected;
    const std::string text = is_flag(option) ? "given" : sample_of(option);
    if (option.agreement == Agreement::kWhetherGiven) {
      expected = {name + " is not given here and given there"};
    } else if (option.agreement == Agreement::kValue) {
      const auto before = is_flag(option) ? std::nullopt : option.value.text({});
      expected = {name + " is " + before.value_or("not given") + " here and " + text + " there"};
    }
    // --batch-size replaces --global-batch-size.
    if (option.name == "batch-size") {
      expected.insert(expected.begin(), "--global-batch-size is 64 here and not given there");
    }
    EXPECT_EQ(differences(usual, shared_settings(with(option))), expected) << option.name;
  }
}

TEST(DecidingSettings, AreOfWhatNumbersDependOnBeyondRounding) {
  std::vector<std::string> names;
  for (const auto& [name, value] : deciding_settings({})) names.push_back(name);
  EXPECT_THAT(names, testing::IsSupersetOf({"--seed", "--optimizer", "--betas", "--weight-decay",
                                            "--no-zero-grad", "--clip-norm", "--grad-dtype"}));
  // These may differ, or are compared by their results.
  for (const char* name : {"--steps", "--scheme", "--threads", "--workers", "--lr", "--dim",
                           "--batch-size", "--bucket-mib", "--update"}) {
    EXPECT_THAT(names, Not(Contains(name)));
  }
}

TEST(SharedSettings, AreOfWhatEveryStepDependsOn) {
  std::vector<std::string> names;
  for (const auto& [name, value] : shared_settings({})) names.push_back(name);
  EXPECT_THAT(names, testing::IsSupersetOf({"--dim", "--layers", "--seed", "--optimizer", "--lr",
                                            "--scheme", "--bucket-mib", "--update"}));
  EXPECT_THAT(names, Not(Contains("--gemm")));
}

}  // namespace
}  // namespace barestep
