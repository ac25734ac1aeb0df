// Products in a build without OpenBLAS.
#include <gtest/gtest.h>

#include "core/error.h"
#include "kernels/product.h"

namespace barestep {
namespace {

TEST(ProductWithoutCblas, AutoIsTheReference) {
  EXPECT_EQ(make_product(GemmProvider::kAuto)->name(), "reference");
  EXPECT_EQ(make_product(GemmProvider::kReference)->name(), "reference");
}

TEST(ProductWithoutCblas, SaysWhatToDoWhenItIsAskedFor) {
  try {
    make_product(GemmProvider::kCblas);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfiguration);
    EXPECT_STREQ(error.what(),
                 "--gemm 'cblas': this build has no OpenBLAS; take --gemm reference, or configure "
                 "with -DBARESTEP_CBLAS=ON");
  }
}

}  // namespace
}  // namespace barestep
