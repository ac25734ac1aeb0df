#include "apps/bad_input_cases.h"
#include "support/arguments.h"

namespace barestep {

std::vector<BadInput> bad_evaluations() {
  const std::string beside =
      ": cannot be combined with --evaluate-only, which trains nothing; leave one of the two out";
  const auto evaluation = [](const Arguments& more) {
    return Arguments{"--data", "idx:images,labels", "--layers", "4,3", "--evaluate-only"} + more;
  };
  std::vector<BadInput> all = {
      {7, evaluation({}), 78,
       "--evaluate-only: there are no weights to evaluate; give --load FILE"},
      {7,
       {"--evaluate-only", "--load", "w"},
       78,
       "--evaluate-only: there are no samples to evaluate with; give files by --data"},
      {7, evaluation({"--load", "w", "--standardize"}), 78,
       "--standardize: means and deviations are those of the training set, and all of --data is "
       "evaluated; give the files and the --test-split of the training"},
      {12, evaluation({"--load", "w"}), 66,
       "idx file 'images': No such file or directory; check the path"},
  };
  const Arguments int8 = {"--load", "w", "--precision", "int8"};
  const std::vector<BadInput> of_int8 = {
      {7,
       {"--precision", "int8"},
       78,
       "--precision 'int8': nothing is trained in int8, only evaluated; add --evaluate-only --load "
       "FILE, or use --precision fp32"},
      {7, evaluation({"--load", "w", "--quantization", "torch"}), 78,
       "--quantization 'torch': only --precision int8 quantizes; leave it out, or add --precision "
       "int8"},
      {7,
       {"--quantization", "tourch"},
       2,
       "--quantization 'tourch': not one of the choices; did you mean 'torch'? use row or torch or "
       "torch-per-channel"},
      {7, evaluation(int8 + Arguments{"--fusion", "off"}), 78,
       "--fusion 'off': a product in int8 ends in its bias and activation; leave it out, or use "
       "--precision fp32"},
      {7, evaluation(int8 + Arguments{"--device", "cuda", "--autotune", "f"}), 78,
       "--autotune 'f': there is no choice of int8 products; leave it out, or use --precision "
       "fp32"},
      {7, Arguments{"--data", "idx:images,labels", "--layers", "65537,3", "--evaluate-only"} + int8,
       78,
       "--precision 'int8': a layer has 65537 inputs, and sums of more than 65536 products may "
       "overflow; use --precision fp32"},
  };
  all.insert(all.end(), of_int8.begin(), of_int8.end());
  for (const Arguments& other :
       {Arguments{"--save", "v"}, Arguments{"--tensorboard", "t"}, Arguments{"--epochs", "2"},
        Arguments{"--steps", "2"}, Arguments{"--accumulate", "2"}, Arguments{"--recompute", "2"},
        Arguments{"--graph"}, Arguments{"--monitor"}, Arguments{"--early-stop", "2"}}) {
    all.push_back({7, evaluation(Arguments{"--load", "w"} + other), 78, other.front() + beside});
  }
  all.push_back({7, evaluation({"--load", "w", "--profile"}), 78, "--profile" + beside});
  return all;
}

}  // namespace barestep
