// Every return code that a user can encounter, with its line and exit code.
#include "kernels/cuda/status.h"
#include "support/testing.h"

namespace barestep {
namespace {

const CudaFacts kFacts{.call = "cudaMemcpyAsync",
                       .device = "cuda:0",
                       .is_open = true,
                       .last_op = "gemm of 64x8",
                       .requested_bytes = std::int64_t{8} << 30,
                       .free_bytes = std::int64_t{6} << 30,
                       .total_bytes = std::int64_t{16} << 30,
                       .driver_version = 13000,
                       .runtime_version = 13000,
                       .visible_devices = {},
                       .visible_devices_set = false,
                       .architecture = 61,
                       .built_architectures = "75, 90"};

template <class Change>
CudaFacts with(const Change& change) {
  CudaFacts facts = kFacts;
  change(facts);
  return facts;
}

void expect(const CudaFailure& failure, ExitCode code, const std::string& line) {
  EXPECT_EQ(failure.code, code) << line;
  EXPECT_STREQ(Error(failure.code, failure.problem).what(), line.c_str());
}

TEST(CudaStatus, OutOfMemorySaysWhatWasAskedForAndWhatThereIs) {
  const std::string remedy =
      "; use a smaller --batch-size, --dim or --depth, or end other programs on it";
  expect(explain_status(cudaErrorMemoryAllocation, kFacts), ExitCode::kMemory,
         "memory of device 'cuda:0': 8.00 GiB asked for, 6.00 GiB of 16.00 GiB free" + remedy);
  const auto unasked = with([](CudaFacts& facts) {
    facts.requested_bytes = 0;
    facts.call = "launch of a kernel";
  });
  expect(explain_status(cudaErrorMemoryAllocation, unasked), ExitCode::kMemory,
         "memory of device 'cuda:0': 6.00 GiB of 16.00 GiB free, launch of a kernel needs more" +
             remedy);
  expect(explain_status(CUBLAS_STATUS_ALLOC_FAILED, cudaSuccess, kFacts), ExitCode::kMemory,
         "memory of device 'cuda:0': 8.00 GiB asked for, 6.00 GiB of 16.00 GiB free" + remedy);
}

TEST(CudaStatus, TellsAMissingDriverFromAnOldOne) {
  const auto driver = [](int version) {
    return with([&](CudaFacts& facts) {
      facts.driver_version = version;
      facts.device = "cuda";
    });
  };
  expect(explain_status(cudaErrorInsufficientDriver, driver(0)), ExitCode::kNoDevice,
         "device 'cuda': no NVIDIA driver (libcuda.so.1 was not found); install one, or use "
         "--device cpu");
  expect(explain_status(cudaErrorInsufficientDriver, driver(12040)), ExitCode::kNoDevice,
         "device 'cuda': the driver supports CUDA 12.4, this program needs 13.0; update the "
         "driver, or use --device cpu");
}

TEST(CudaStatus, NoGpuPrintsTheVariableThatMayHideThem) {
  for (const cudaError_t status : {cudaErrorNoDevice, cudaErrorInvalidDevice}) {
    expect(
        explain_status(status, kFacts), ExitCode::kNoDevice,
        "device 'cuda:0': the driver finds no GPU; see what nvidia-smi says, or use --device cpu");
    for (const char* value : {"", "7"}) {
      const auto hidden = with([&](CudaFacts& facts) {
        facts.visible_devices_set = true;
        facts.visible_devices = value;
      });
      expect(explain_status(status, hidden), ExitCode::kNoDevice,
             std::string("device 'cuda:0': the driver shows no GPU, CUDA_VISIBLE_DEVICES is '") +
                 value + "'; unset it, or use --device cpu");
    }
  }
}

TEST(CudaStatus, AnotherArchitectureNamesItsOwnAndThoseOfTheBuild) {
  for (const cudaError_t status : {cudaErrorNoKernelImageForDevice, cudaErrorInvalidKernelImage,
                                   cudaErrorUnsupportedPtxVersion}) {
    expect(explain_status(status, kFacts), ExitCode::kNoDevice,
           "device 'cuda:0': it is of architecture 61, this program was built for 75, 90; "
           "configure with -DCMAKE_CUDA_ARCHITECTURES=61, or use --device cpu");
  }
  expect(explain_status(CUBLAS_STATUS_ARCH_MISMATCH, cudaSuccess, kFacts), ExitCode::kNoDevice,
         "device 'cuda:0': cuBLAS has no code for its architecture, 61; use --device cpu");
}

TEST(CudaStatus, ABusyDeviceIsNoDeviceAtTheStartAndLostInARun) {
  const auto closed = with([](CudaFacts& facts) { facts.is_open = false; });
  expect(explain_status(cudaErrorDevicesUnavailable, closed), ExitCode::kNoDevice,
         "device 'cuda:0': in exclusive use by another program (cudaErrorDevicesUnavailable); end "
         "that program, or use --device cpu");
  EXPECT_EQ(explain_status(cudaErrorDevicesUnavailable, kFacts).code, ExitCode::kTryAgain);
}

TEST(CudaStatus, ALostDeviceNamesTheLastOp) {
  for (const cudaError_t status :
       {cudaErrorDevicesUnavailable, cudaErrorECCUncorrectable, cudaErrorNvlinkUncorrectable,
        cudaErrorContained, cudaErrorLaunchTimeout, cudaErrorHardwareStackError,
        cudaErrorLaunchFailure, cudaErrorExternalDevice}) {
    expect(explain_status(status, kFacts), ExitCode::kTryAgain,
           std::string("device 'cuda:0': lost: ") + cudaGetErrorString(status) + " (" +
               cudaGetErrorName(status) +
               "), the last op queued was gemm of 64x8; run again; the driver's reason is in the "
               "lines of dmesg with Xid");
    EXPECT_TRUE(is_final(status));
  }
}

TEST(CudaStatus, TheDriversOwnTroublesAreNoDevice) {
  for (const cudaError_t status :
       {cudaErrorInitializationError, cudaErrorStubLibrary, cudaErrorSystemNotReady,
        cudaErrorSystemDriverMismatch, cudaErrorMpsServerNotReady}) {
    expect(explain_status(status, kFacts), ExitCode::kNoDevice,
           std::string("device 'cuda:0': ") + cudaGetErrorString(status) + " (" +
               cudaGetErrorName(status) + "); see what nvidia-smi says, or use --device cpu");
  }
}

TEST(CudaStatus, AnythingElseIsABugWithNameCallAndOp) {
  expect(explain_status(cudaErrorInvalidValue, kFacts), ExitCode::kBug,
         std::string("cudaMemcpyAsync 'cudaErrorInvalidValue': ") +
             cudaGetErrorString(cudaErrorInvalidValue) +
             " on cuda:0, the last op queued was gemm of 64x8; this is a bug, please report it");
  EXPECT_EQ(explain_status(cudaErrorIllegalAddress, kFacts).code, ExitCode::kBug);
  EXPECT_TRUE(is_final(cudaErrorIllegalAddress));
  EXPECT_FALSE(is_final(cudaErrorInvalidValue));
  const auto product = with([](CudaFacts& facts) {
    facts.call = "cublasLtMatmul";
    facts.last_op.clear();
  });
  expect(explain_status(CUBLAS_STATUS_NOT_SUPPORTED, cudaSuccess, product), ExitCode::kBug,
         std::string("cublasLtMatmul 'CUBLAS_STATUS_NOT_SUPPORTED': ") +
             cublasLtGetStatusString(CUBLAS_STATUS_NOT_SUPPORTED) +
             " on cuda:0; this is a bug, please report it");
}

TEST(CudaStatus, ACudaErrorBehindACublasErrorIsTheCause) {
  EXPECT_EQ(explain_status(CUBLAS_STATUS_EXECUTION_FAILED, cudaErrorLaunchFailure, kFacts).code,
            ExitCode::kTryAgain);
}

TEST(CudaStatus, AsksTheProcessAboutDriverAndEnvironment) {
  ::setenv("CUDA_VISIBLE_DEVICES", "3", 1);
  const CudaFacts facts = facts_of_process();
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  EXPECT_TRUE(facts.visible_devices_set);
  EXPECT_EQ(facts.visible_devices, "3");
  EXPECT_FALSE(facts_of_process().visible_devices_set);
  EXPECT_EQ(facts.runtime_version, CUDART_VERSION);
  EXPECT_FALSE(facts.built_architectures.empty());
}

}  // namespace
}  // namespace barestep
