// Short runs with one option each compared with PyTorch's (scripts/make_option_golden.py), alone
// and with several ranks, which are threads of this process.
#include <nlohmann/json.hpp>

#include "command_line.h"
#include "parallel/schemes/scheme_of.h"
#include "support/golden.h"
#include "support/layers.h"
#include "support/near.h"
#include "support/npy_bytes.h"
#include "support/rank_run.h"
#include "support/temp_dir.h"
#include "support/testing.h"
#include "support/trainer_harness.h"

namespace barestep {
namespace {

using nlohmann::json;

bool is_in_16_bits(const std::string& golden) {
  return golden.starts_with("bf16_") || golden.starts_with("fp16_");
}

std::vector<std::string> option_goldens() {
  std::vector<std::string> names;
  for (const auto& entry :
       std::filesystem::directory_iterator(golden_path("x").parent_path() / "options")) {
    names.push_back(entry.path().stem().string());
  }
  std::ranges::sort(names);
  return names;
}

/// In 16 bits, each rank's gradient is rounded, so a step has not the bits of one rank's.
std::vector<std::string> option_goldens_of_ranks() {
  std::vector<std::string> names = option_goldens();
  std::erase_if(names, is_in_16_bits);
  return names;
}

class OptionGolden : public TempDirTest, public testing::WithParamInterface<std::string> {
 protected:
  void SetUp() override {
    golden_ = json::parse(std::ifstream(golden_path("options/" + GetParam())));
    if (!golden_.contains("x")) return;
    const std::int64_t samples = golden_.at("samples");
    const auto write = [&](const char* name, const char* type, const auto& numbers) {
      const auto cols = std::ssize(numbers) / samples;
      file(name, npy_bytes(type, std::to_string(samples) + ", " + std::to_string(cols), numbers));
    };
    write("x.npy", "<f4", golden_.at("x").get<std::vector<float>>());
    if (golden_.at("y").at(0).is_number_integer()) {
      write("y.npy", "<i8", golden_.at("y").get<std::vector<std::int64_t>>());
    } else {
      write("y.npy", "<f4", golden_.at("y").get<std::vector<float>>());
    }
  }

  /// The configuration that mlp_ddp reads from the golden file's arguments and `more`.
  [[nodiscard]] TrainConfig config(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments = golden_.at("arguments");
    std::ranges::replace(arguments, "--batch-size", "--global-batch-size");
    arguments.insert(arguments.end(), {"--device", "cpu", "--threads", "1", "--gemm", "reference"});
    if (golden_.contains("x")) {
      arguments.insert(arguments.end(), {"--data", "npy:" + (folder() / "x.npy").string() + "," +
                                                       (folder() / "y.npy").string()});
    }
    arguments.insert(arguments.end(), more.begin(), more.end());
    return parse_command_line(SchemeKind::kDdp, arguments).config;
  }

  /// The losses of steps and, after each epoch, of the test set.
  [[nodiscard]] std::vector<double> losses() const {
    const std::vector<double> steps = golden_.at("losses");
    if (!golden_.contains("evaluations")) return steps;
    const std::size_t of_epoch = golden_.at("steps_of_epoch");
    std::vector<double> all;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      all.push_back(steps[i]);
      if ((i + 1) % of_epoch == 0)
        all.push_back(golden_.at("evaluations").at(i / of_epoch).at("loss"));
    }
    return all;
  }

  void expect_losses(const Trained& trained) const {
    expect_within(trained.losses, losses(), 2e-6);
  }

  void expect_evaluations(const std::vector<EvaluationReport>& evaluations) const {
    const json none = json::array();
    const json& expected = golden_.contains("evaluations") ? golden_.at("evaluations") : none;
    ASSERT_EQ(evaluations.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const auto expect = [&](const char* name, const std::optional<double>& actual) {
        ASSERT_EQ(actual.has_value(), expected[i].contains(name)) << name;
        if (actual) EXPECT_NEAR(*actual, expected[i].at(name).get<double>(), 2e-6) << name;
      };
      expect("accuracy", evaluations[i].accuracy);
      expect("r2", evaluations[i].r2);
      expect("mean_absolute_error", evaluations[i].mean_absolute_error);
    }
  }

  json golden_;
};

TEST_P(OptionGolden, TrainsAsPyTorchDoes) {
  for (const char* const fusion : {"on", "off"}) {
    if (is_in_16_bits(GetParam()) && fusion == std::string("off")) continue;  // is refused
    SCOPED_TRACE(std::string("--fusion ") + fusion);
    const TrainConfig requested = config({"--fusion", fusion});
    expect_losses(train_single(requested));
    TrainerHarness run(requested);
    run.run();
    expect_evaluations(run.evaluations);
    // In 16 bits another rounding shows in the gradients; if all are PyTorch's, less is left.
    const double bound = is_in_16_bits(GetParam()) ? 2e-7 : 1e-5;
    const std::vector<double> rates = golden_.at("rates");
    ASSERT_EQ(run.steps.size(), rates.size());
    for (std::size_t i = 0; i < rates.size(); ++i) EXPECT_NEAR(run.steps[i].lr, rates[i], 1e-12);
    const ModelSpec& spec = run.programs->spec().model;
    FlatWeights flat = run.trainer->weights();
    for (int layer = 0; layer < spec.layers(); ++layer) {
      for (const char* const what : {"weight", "bias"}) {
        const std::string name = state_dict_name(spec, layer, what);
        const std::vector<double> expected = golden_.at("parameters").at(name);
        const auto actual =
            *what == 'w' ? weight_in(flat, spec, layer) : bias_in(flat, spec, layer);
        ASSERT_EQ(actual.size(), expected.size());
        for (std::size_t i = 0; i < expected.size(); ++i) {
          EXPECT_NEAR(actual[i], expected[i], bound) << name << " at " << i;
        }
      }
    }
  }
}

using OptionGoldenOfRanks = OptionGolden;

TEST_P(OptionGoldenOfRanks, TrainsSoWithEveryScheme) {
  for (const char* const scheme : {"ddp", "zero1", "zero2", "zero3", "factor"}) {
    for (const int ranks : {2, 3}) {
      SCOPED_TRACE(std::string(scheme) + " on " + std::to_string(ranks));
      const TrainConfig requested = config({"--scheme", scheme});
      const auto made = scheme_of(requested, {.first_bucket_bytes = 100});
      for (const Trained& rank : train_threads_by(*made, ranks, requested)) expect_losses(rank);
    }
  }
}

std::string file_name(const testing::TestParamInfo<std::string>& golden) {
  std::string name = golden.param;
  std::ranges::replace(name, '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Options, OptionGolden, testing::ValuesIn(option_goldens()), file_name);
INSTANTIATE_TEST_SUITE_P(Options, OptionGoldenOfRanks, testing::ValuesIn(option_goldens_of_ranks()),
                         file_name);

}  // namespace
}  // namespace barestep
