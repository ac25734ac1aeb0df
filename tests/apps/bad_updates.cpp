#include "apps/bad_input_cases.h"

namespace barestep {

std::vector<BadInput> bad_updates() {
  return {
      {6, {"--clip-norm", "0"}, 2, "--clip-norm '0': out of range; give a number above 0"},
      {6, {"--update", "x"}, 2, "--update 'x': not one of the choices; use separate or fused"},
      {7,
       {"--clip-norm", "1", "--no-zero-grad"},
       78,
       "--no-zero-grad: gradients add up unclipped, which --clip-norm does not go with; give one "
       "of "
       "the two"},
      {7,
       {"--update", "fused", "--no-zero-grad"},
       78,
       "--no-zero-grad: --update fused stores no gradients that could add up; use --update "
       "separate"},
      {7,
       {"--update", "fused", "--optimizer", "sgd"},
       78,
       "--update 'fused': the step inside the weight gradient is Adam's; use --optimizer adam or "
       "adamw, or --update separate"},
      {7,
       {"--update", "fused", "--precision", "tf32", "--clip-norm", "1"},
       78,
       "--clip-norm '1': --update fused would find the norm from products in tf32; use --update "
       "separate, or --precision fp32"},
  };
}

}  // namespace barestep
