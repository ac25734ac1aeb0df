// Products in a build without oneDNN and OpenBLAS.
#include "kernels/cpu/product.h"
#include "support/expect_error.h"
#include "support/testing.h"

namespace barestep {
namespace {

TEST(ProductWithoutLibraries, AutoIsTheReference) {
  EXPECT_EQ(make_product(GemmProvider::kAuto)->name(), "barestep");
  EXPECT_EQ(make_product(GemmProvider::kReference)->name(), "reference");
}

TEST(ProductWithoutLibraries, SaysWhatToDoWhenOneIsAskedFor) {
  expect_error(ExitCode::kConfiguration,
               "--gemm 'onednn': this build has no oneDNN; take --gemm own, or configure with "
               "-DBARESTEP_ONEDNN=ON",
               [] { make_product(GemmProvider::kOneDnn); });
  expect_error(ExitCode::kConfiguration,
               "--gemm 'cblas': this build has no OpenBLAS; take --gemm own, or configure with "
               "-DBARESTEP_CBLAS=ON",
               [] { make_product(GemmProvider::kCblas); });
}

}  // namespace
}  // namespace barestep
