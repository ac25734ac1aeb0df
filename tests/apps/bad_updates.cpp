#include "apps/bad_input_cases.h"

namespace barestep {

std::vector<BadInput> bad_updates() {
  return {
      {6, {"--clip-norm", "0"}, 2, "--clip-norm '0': out of range; give a number above 0"},
      {6,
       {"--update", "x"},
       2,
       "--update 'x': not one of the choices; use auto or separate or fused"},
      {4,
       {"--recompute", "0"},
       2,
       "--recompute '0': out of range; give a whole number from 1 to 10000, or auto"},
      {4,
       {"--recompute", "-1"},
       2,
       "--recompute '-1': out of range; give a whole number from 1 to 10000, or auto"},
      {2,
       {"--recompute", "two"},
       2,
       "--recompute 'two': not a number of segments; give a whole number from 1 to 10000, or auto"},
      {2,
       {"--recompute", "1.5"},
       2,
       "--recompute '1.5': not a number of segments; give a whole number from 1 to 10000, or auto"},
      {7, {"--recompute", "7"}, 78, "--recompute '7': the model has 6 layers; give at most 6"},
      {7,
       {"--recompute", "3", "--layers", "4,3,2", "--data", "idx:none,none"},
       78,
       "--recompute '3': the model has 2 layers; give at most 2"},
      {7,
       {"--recompute", "2", "--update", "fused"},
       78,
       "--recompute '2': --update fused makes gradients and update from the activations of all "
       "layers at the end of the step; use --update separate"},
      {7,
       {"--recompute", "auto"},
       78,
       "--recompute 'auto': works only with --plan; give --plan too, or a number of segments"},
      {7,
       {"--recompute", "auto", "--plan"},
       78,
       "--recompute 'auto': there is no memory to fit into; give --memory too, such as 16GiB"},
      {7,
       {"--clip-norm", "1", "--no-zero-grad"},
       78,
       "--no-zero-grad: it adds up gradients that are not clipped, so --clip-norm cannot be used; "
       "give one of the two"},
      {7,
       {"--update", "fused", "--no-zero-grad"},
       78,
       "--no-zero-grad: --update fused stores no gradients that could add up; use --update "
       "separate"},
      {7,
       {"--update", "fused", "--optimizer", "sgd"},
       78,
       "--update 'fused': only Adam and AdamW can run inside the weight gradient; use --optimizer "
       "adam or adamw, or --update separate"},
      {7,
       {"--update", "fused", "--precision", "tf32", "--clip-norm", "1"},
       78,
       "--clip-norm '1': --update fused would find the norm from products in tf32; use --update "
       "separate, or --precision fp32"},
      {7,
       {"--update", "fused", "--precision", "bf16", "--clip-norm", "1"},
       78,
       "--clip-norm '1': --update fused would find the norm of gradients that are not yet rounded; "
       "use --update separate, or --precision fp32"},
  };
}

}  // namespace barestep
