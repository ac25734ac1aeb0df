#include <cublasLt.h>

#include "kernels/cuda/blas_lt.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"
#include "support/testing.h"

namespace barestep {
namespace {

/// What is mapped into this process's memory.
constexpr const char* kMappedFiles = "/proc/self/maps";

TEST(CublasLt, IsLoadedWhenItIsFirstCalled) {
  EXPECT_THAT(read_file(kMappedFiles), Not(HasSubstr("libcublasLt")));
  EXPECT_EQ(cublasLtGetVersion() / 10000, std::size_t{CUBLAS_VER_MAJOR});
  EXPECT_THAT(read_file(kMappedFiles), HasSubstr("libcublasLt"));
  EXPECT_STREQ(cublasLtGetStatusName(CUBLAS_STATUS_SUCCESS), "CUBLAS_STATUS_SUCCESS");
}

TEST(CublasLt, IsRefusedInOneLineWhereItIsMissing) {
  const std::array<std::string, 2> files = {"libcublasLt.so.0", "/nowhere/libcublasLt.so"};
  expect_error(ExitCode::kNoDevice,
               "cuBLASLt: libcublasLt.so.0: cannot open shared object file: No such file or "
               "directory; install it, name its folder in LD_LIBRARY_PATH, or use --device cpu",
               [&] { load_cublas_lt(files); });
}

TEST(CublasLt, IsRefusedInOneLineWhereItLacksAFunction) {
  const std::array<std::string, 2> files = {"/nowhere/libcublasLt.so", "libm.so.6"};
  void* const library = load_cublas_lt(files);
  EXPECT_NE(function_of_cublas_lt(library, "cos"), nullptr);
  expect_error(ExitCode::kNoDevice,
               "cuBLASLt: the library that was found has no cublasLtCreate; use that of the CUDA "
               "that barestep was built with, or --device cpu",
               [&] { function_of_cublas_lt(library, "cublasLtCreate"); });
}

}  // namespace
}  // namespace barestep
