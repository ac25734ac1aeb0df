// mlp_dp on GPUs, started like a user does.
#include "kernels/make_device.h"
#include "support/near.h"
#include "support/program_test.h"
#include "support/testing.h"

namespace barestep {
namespace {

using Options = std::vector<std::string>;
const Options kMlp = {"--layers", "64,128,32", "--fusion", "off"};
const Options kTransformer = {"--block", "transformer", "--dim", "32",       "--depth",
                              "2",       "--heads",     "4",     "--length", "12"};

class DpOnGpu : public ProgramTest {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_cuda_device(); !why.empty()) GTEST_SKIP() << why;
  }

  /// The losses of a run, one per step.
  std::vector<double> losses(Options command, const std::string& says, const Options& model) {
    command.insert(command.end(), {"--steps", "6", "--metrics", "m.jsonl"});
    command.insert(command.end(), model.begin(), model.end());
    EXPECT_THAT(succeeded(execute(command)).out, HasSubstr(says));
    return ProgramTest::losses("m.jsonl");
  }

  void expect_near_single(const std::string& devices, const std::string& says,
                          const Options& model = kMlp, const Options& more = {}) {
    const auto single =
        losses({MLP_SINGLE, "--device", "cuda", "--update", "separate"}, "batch 64", model);
    Options command = {MLP_DP, "--devices", devices};
    command.insert(command.end(), more.begin(), more.end());
    const auto spread = losses(command, says, model);
    ASSERT_EQ(single.size(), 6U);
    expect_within(spread, single, 1e-6);
  }
};

TEST_F(DpOnGpu, OneGpuGivenTwiceTrainsAsSingleDoes) {
  for (const Options& model : {kMlp, kTransformer}) {
    expect_near_single("cuda:0,cuda:0", "Exchange by copies and sums in their common memory",
                       model);
  }
}

TEST_F(DpOnGpu, StagesTrainAsSingleDoes) {
  const std::string other = cuda_device_count() < 2 ? "cuda:0" : "cuda:1";
  for (const Options& model : {kMlp, kTransformer}) {
    expect_near_single("cuda:0," + other, "A pipeline of 2 stages", model, {"--pipeline", "2"});
  }
}

TEST_F(DpOnGpu, TwoGpusTrainAsSingleDoes) {
  if (cuda_device_count() < 2) GTEST_SKIP() << "there is one GPU";
  expect_near_single("cuda:0,cuda:1", "Exchange by ");
}

}  // namespace
}  // namespace barestep
