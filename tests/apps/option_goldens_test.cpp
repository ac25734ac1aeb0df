// Short runs with one option each against PyTorch's (scripts/make_option_golden.py), alone and on
// ranks, which are threads of this process.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "command_line.h"
#include "parallel/schemes/scheme_of.h"
#include "support/golden.h"
#include "support/rank_run.h"
#include "support/temp_dir.h"
#include "support/trainer_harness.h"

namespace barestep {
namespace {

using nlohmann::json;

std::vector<std::string> option_goldens() {
  std::vector<std::string> names;
  for (const auto& entry :
       std::filesystem::directory_iterator(golden_path("x").parent_path() / "options")) {
    names.push_back(entry.path().stem().string());
  }
  std::ranges::sort(names);
  return names;
}

class OptionGolden : public TempDirTest, public testing::WithParamInterface<std::string> {
 protected:
  void SetUp() override {
    golden_ = json::parse(std::ifstream(golden_path("options/" + GetParam())));
  }

  /// What mlp_ddp makes of the golden's arguments and `more`.
  [[nodiscard]] TrainConfig config(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments = golden_.at("arguments");
    std::ranges::replace(arguments, "--batch-size", "--global-batch-size");
    arguments.insert(arguments.end(), {"--device", "cpu", "--threads", "1", "--gemm", "reference"});
    arguments.insert(arguments.end(), more.begin(), more.end());
    return parse_command_line(TrainerKind::kDdp, arguments).config;
  }

  void expect_losses(const Trained& trained) const {
    const std::vector<double> losses = golden_.at("losses");
    ASSERT_EQ(trained.losses.size(), losses.size());
    for (std::size_t i = 0; i < losses.size(); ++i) {
      EXPECT_NEAR(trained.losses[i], losses[i], 2e-6 * std::abs(losses[i])) << "step " << i;
    }
  }

  json golden_;
};

TEST_P(OptionGolden, TrainsAsPyTorchDoes) {
  for (const char* const fusion : {"on", "off"}) {
    SCOPED_TRACE(std::string("--fusion ") + fusion);
    TrainerHarness run(config({"--fusion", fusion}));
    run.run();
    Trained trained;
    trained.losses = run.losses();
    expect_losses(trained);
    const MlpSpec& spec = run.programs->spec().model;
    FlatWeights flat = run.trainer->weights();
    for (int layer = 0; layer < spec.layout.layers(); ++layer) {
      for (const char* const what : {"weight", "bias"}) {
        const std::string name = state_dict_name(spec, layer, what);
        const std::vector<double> expected = golden_.at("parameters").at(name);
        const auto actual =
            *what == 'w' ? weight_in(flat, spec.layout, layer) : bias_in(flat, spec.layout, layer);
        ASSERT_EQ(actual.size(), expected.size());
        for (std::size_t i = 0; i < expected.size(); ++i) {
          EXPECT_NEAR(actual[i], expected[i], 1e-5) << name << " at " << i;
        }
      }
    }
  }
}

TEST_P(OptionGolden, TrainsSoOnRanksOfEveryScheme) {
  for (const char* const scheme : {"ddp", "zero1", "factor"}) {
    for (const int ranks : {2, 3}) {
      SCOPED_TRACE(std::string(scheme) + " on " + std::to_string(ranks));
      const TrainConfig wanted = config({"--scheme", scheme});
      const auto made = scheme_of(wanted, TrainerKind::kDdp, {.first_bucket_bytes = 100});
      for (const Trained& rank : train_threads_by(*made, ranks, wanted)) expect_losses(rank);
    }
  }
}

std::string file_name(const testing::TestParamInfo<std::string>& golden) {
  std::string name = golden.param;
  std::ranges::replace(name, '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Options, OptionGolden, testing::ValuesIn(option_goldens()), file_name);

}  // namespace
}  // namespace barestep
