#include "apps/bad_input_cases.h"

namespace barestep {

std::vector<BadInput> bad_updates() {
  return {
      {6, words("--clip-norm 0"), 2, "--clip-norm '0': out of range; give a number above 0"},
      {6, words("--update x"), 2,
       "--update 'x': not one of the choices; use auto or separate or fused"},
      {4, words("--recompute 0"), 2,
       "--recompute '0': out of range; give a whole number from 1 to 10000, or auto"},
      {4, words("--recompute -1"), 2,
       "--recompute '-1': out of range; give a whole number from 1 to 10000, or auto"},
      {2, words("--recompute two"), 2,
       "--recompute 'two': not a number of segments; give a whole number from 1 to 10000, or auto"},
      {2, words("--recompute 1.5"), 2,
       "--recompute '1.5': not a number of segments; give a whole number from 1 to 10000, or auto"},
      {7, words("--recompute 7"), 78, "--recompute '7': the model has 6 layers; give at most 6"},
      {7, words("--recompute 3 --layers 4,3,2 --data idx:none,none"), 78,
       "--recompute '3': the model has 2 layers; give at most 2"},
  };
}

}  // namespace barestep
