// Weights move to PyTorch and back, by load_state_dict and --load, and give the same results there.

#include "apps/on_cpu.h"
#include "support/arguments.h"
#include "support/npy_bytes.h"
#include "support/program_test.h"
#include "support/testing.h"

namespace barestep {
namespace {

const Arguments kMnist =
    mnist_in(BARESTEP_TEST_DATA) +
    words("--layers 784,32,10 --loss cross-entropy --device cpu --no-last-relu");

const Arguments kBlocks = words(
    "--block transformer --dim 16 --heads 2 --length 4 --ffn 24 --depth 2 --data npy:x.npy,y.npy "
    "--device cpu");

class TorchWeights : public ProgramTest {
 protected:
  ProcessResult single(const Arguments& model, const Arguments& arguments) {
    return succeeded(execute(Arguments{MLP_SINGLE} + model + arguments));
  }

  /// Trains, and exchanges the weights with PyTorch, whose figures for each file it gives. Nothing
  /// without PyTorch.
  std::optional<std::array<std::string, 2>> exchanged(const Arguments& model,
                                                      const Arguments& training,
                                                      const Arguments& for_torch) {
    single(model, training + Arguments{"--log-every", "1000", "--save", "ours"});
    const char* const python = std::getenv("BARESTEP_TORCH_PYTHON");
    const auto torch =
        execute(Arguments{"/usr/bin/env", python != nullptr ? python : "/usr/bin/python3",
                          TORCH_WEIGHTS_PY} +
                for_torch + Arguments{"ours", "theirs"});
    if (torch.exit_code == 77 || torch.exit_code == 127) return std::nullopt;
    succeeded(torch);
    const std::size_t line = torch.out.find('\n');
    return std::array{torch.out.substr(0, line), torch.out.substr(line + 1)};
  }

  /// The row of --evaluate-only's table matches PyTorch's: "0.123456789 94.50%", or only a loss.
  void expect_same(const Arguments& model, const std::string& samples, const std::string& file,
                   const std::string& torch) {
    std::istringstream words(torch);
    double loss = 0;
    std::string accuracy;
    words >> loss >> accuracy;
    const auto result = single(model, {"--evaluate-only", "--load", file, "--batch-size", samples});
    const std::string first(10 - samples.size(), ' ');
    std::istringstream row(result.out.substr(result.out.find("\n" + first + samples) + 1));
    std::string batch_size, our_loss, our_accuracy;
    row >> batch_size >> our_loss >> our_accuracy;
    EXPECT_NEAR(std::stod(our_loss), loss, 1e-6) << result.out;  // six decimals are printed
    if (!accuracy.empty()) EXPECT_EQ(our_accuracy, accuracy);
  }
};

TEST_F(TorchWeights, MeanTheSameInPyTorchAndHere) {
  const auto torch = exchanged(kMnist, {"--steps", "150"},
                               {"784,32,10", BARESTEP_TEST_DATA "/mnist/t10k-images-idx3-ubyte.gz",
                                BARESTEP_TEST_DATA "/mnist/t10k-labels-idx1-ubyte.gz"});
  if (!torch) GTEST_SKIP() << "there is no PyTorch";
  expect_same(kMnist, "10000", "ours", torch->front());
  expect_same(kMnist, "10000", "theirs", torch->back());
}

TEST_F(TorchWeights, OfTransformerBlocksMeanTheSameInPyTorchAndHere) {
  std::vector<float> x, y;
  for (int i = 0; i < 20 * 64; ++i) {
    x.push_back(static_cast<float>((37 * i + 11 * i * i) % 61) / 30 - 1);
    y.push_back(static_cast<float>((13 * i) % 47) / 23 - 1);
  }
  file("x.npy", npy_bytes("<f4", "20, 64", x));
  file("y.npy", npy_bytes("<f4", "20, 64", y));
  const auto torch = exchanged(kBlocks, {"--steps", "30", "--batch-size", "10"},
                               {"transformer:16,2,4,24,2", "x.npy", "y.npy"});
  if (!torch) GTEST_SKIP() << "there is no PyTorch";
  expect_same(kBlocks, "20", "ours", torch->front());
  expect_same(kBlocks, "20", "theirs", torch->back());
  EXPECT_NE(torch->front(), torch->back());
}

}  // namespace
}  // namespace barestep
