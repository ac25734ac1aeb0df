#include "lab/opposites.h"

namespace barestep {
namespace {

HowCasesWent side_by_side(double ours, double theirs, double their_loss = 1) {
  return [=](const Case& what) {
    const bool is_ours = what.key.ends_with("-ours");
    return MadeUpStep{.step_s = is_ours ? ours : theirs, .loss = is_ours ? 1 : their_loss};
  };
}

}  // namespace

std::vector<Opposites> opposites_of_pytorch() {
  std::vector<Opposites> all;
  all.push_back({"pytorch", side_by_side(0.01, 0.02),
                 "On one device barestep is 2.00x (2.00x to 2.00x) as fast",
                 side_by_side(0.02, 0.01), "On DDP on two ranks PyTorch is 2.00x"});
  all.push_back({"pytorch", side_by_side(0.01, 0.02), "barestep is 2.00x", side_by_side(0.02, 0.02),
                 "On one device the two cannot be told apart"});
  all.push_back({"pytorch", side_by_side(0.01, 0.02, 1 + 1e-7), "losses of equal steps agree",
                 side_by_side(0.01, 0.02, 1.01), "they do not train the same"});
  return all;
}

}  // namespace barestep
