// Weights move to PyTorch and back, by load_state_dict and --load, and give the same results there.
#include <gmock/gmock.h>

#include <cstdlib>
#include <sstream>

#include "support/arguments.h"
#include "support/process.h"
#include "support/temp_dir.h"

namespace barestep {
namespace {

using ::testing::HasSubstr;

const Arguments kMnist = {"--data",
                          "idx:" BARESTEP_TEST_DATA
                          "/mnist/t10k-images-idx3-ubyte.gz," BARESTEP_TEST_DATA
                          "/mnist/t10k-labels-idx1-ubyte.gz",
                          "--layers",
                          "784,32,10",
                          "--loss",
                          "cross-entropy",
                          "--device",
                          "cpu",
                          "--no-last-relu"};

class TorchWeights : public TempDirTest {
 protected:
  ProcessResult single(const Arguments& arguments) {
    return run_process(Arguments{MLP_SINGLE} + kMnist + arguments, {.working_directory = folder()});
  }

  /// The row of --evaluate-only's table matches PyTorch's: "0.123456789 94.50%".
  void expect_same(const std::string& file, const std::string& torch) {
    std::istringstream words(torch);
    double loss = 0;
    std::string accuracy;
    words >> loss >> accuracy;
    const auto result = single({"--evaluate-only", "--load", file, "--batch-size", "10000"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    std::istringstream row(result.out.substr(result.out.find("\n     10000") + 1));
    std::string batch_size, our_loss, our_accuracy;
    row >> batch_size >> our_loss >> our_accuracy;
    EXPECT_NEAR(std::stod(our_loss), loss, 1e-6) << result.out;  // six decimals are printed
    EXPECT_EQ(our_accuracy, accuracy);
  }
};

TEST_F(TorchWeights, MeanTheSameInPyTorchAndHere) {
  const auto trained = single({"--steps", "150", "--log-every", "1000", "--save", "ours"});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const char* const python = std::getenv("BARESTEP_TORCH_PYTHON");
  const auto torch = run_process(
      {"/usr/bin/env", python != nullptr ? python : "/usr/bin/python3", TORCH_WEIGHTS_PY,
       "784,32,10", BARESTEP_TEST_DATA "/mnist/t10k-images-idx3-ubyte.gz",
       BARESTEP_TEST_DATA "/mnist/t10k-labels-idx1-ubyte.gz", "ours", "theirs"},
      {.working_directory = folder()});
  if (torch.exit_code == 77 || torch.exit_code == 127) GTEST_SKIP() << "there is no PyTorch";
  ASSERT_EQ(torch.exit_code, 0) << torch.err;
  const std::size_t line = torch.out.find('\n');
  expect_same("ours", torch.out.substr(0, line));
  expect_same("theirs", torch.out.substr(line + 1));
}

}  // namespace
}  // namespace barestep
