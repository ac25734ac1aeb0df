#include "apps/bad_input_cases.h"
#include "support/arguments.h"

namespace barestep {

std::vector<BadInput> bad_evaluations() {
  const auto evaluation = [](const char* layers) {
    return Arguments{"--data", "idx:images,labels", "--layers", layers, "--evaluate-only", "--load",
                     "w"};
  };
  return {
      {12, evaluation("4,3"), 66, "idx file 'images': No such file or directory; check the path"},
      {7, words("--quantization tourch"), 2,
       "--quantization 'tourch': not one of the choices; did you mean 'torch'? use row or torch or "
       "torch-per-channel"},
      {7, evaluation("65537,3") + Arguments{"--precision", "int8"}, 78,
       "--precision 'int8': a layer has 65537 inputs, and sums of more than 65536 products may "
       "overflow; use --precision fp32"},
  };
}

}  // namespace barestep
