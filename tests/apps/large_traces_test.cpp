// Memory and time of mlp_lab on traces that are large.

#include <iostream>

#include "support/busy_machine.h"
#include "support/program_test.h"
#include "support/sanitized.h"
#include "support/testing.h"

namespace barestep {
namespace {

/// Writes a trace of a training on a GPU, of about so many MiB: steps of ops with their shapes, the
/// calls that launch their kernels, and the kernels, all with the arguments that PyTorch writes.
std::int64_t write_large_trace(const std::filesystem::path& path, std::int64_t mib) {
  constexpr std::int64_t kOpsPerStep = 1000, kOpUs = 30;
  std::ofstream trace(path, std::ios::binary);
  trace << R"({"schemaVersion": 1, "distributedInfo": {"rank": 0}, "baseTimeNanoseconds": 0, )"
           R"("traceEvents": [)"
        << '\n';
  for (std::int64_t i = 0; trace.tellp() < mib << 20; ++i) {
    const std::int64_t at = kOpUs * i;
    if (i % kOpsPerStep == 0) {
      trace << fmt::format(
          R"({{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#{}", "pid": 1, "tid": 1, )"
          R"("ts": {}, "dur": {}, "args": {{"External id": {}, "Ev Idx": {}}}}},)"
          "\n",
          i / kOpsPerStep, at, kOpsPerStep * kOpUs, i, i);
    }
    trace << fmt::format(
        R"({{"ph": "X", "cat": "cpu_op", "name": "aten::{}", "pid": 1, "tid": 1, "ts": {}, )"
        R"("dur": 20, "args": {{"External id": {}, "Record function id": 0, "Ev Idx": {}, )"
        R"("Sequence number": {}, "Fwd thread id": {}, "Input Dims": [[64, 1024], [64, 1024], []], )"
        R"("Input type": ["float", "float", "Scalar"], "Concrete Inputs": ["", "", "1"]}}}},)"
        "\n",
        i % 3 == 0 ? "add_" : "mul_", at + 1, i, i, i, i % kOpsPerStep < kOpsPerStep / 3 ? 0 : 1);
    trace << fmt::format(
        R"({{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, )"
        R"("ts": {}, "dur": 5, "args": {{"External id": {}, "cbid": 211, "correlation": {}}}}},)"
        "\n",
        at + 5, i, i + 1);
    trace << fmt::format(
        R"({{"ph": "X", "cat": "kernel", "name": "void at::native::vectorized_elementwise_kernel<4, )"
        R"(at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3> >(int, )"
        R"k(at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3>)", "pid": 0, "tid": 7, )k"
        R"("ts": {}, "dur": 18, "args": {{"External id": {}, "queued": 0, "device": 0, )"
        R"("context": 1, "stream": 7, "correlation": {}, "registers per thread": 16, )"
        R"("shared memory": 0, "blocks per SM": 1.5, "warps per SM": 6, "grid": [128, 1, 1], )"
        R"("block": [128, 1, 1], "est. achieved occupancy %": 9}}}},)"
        "\n",
        at + 12, i, i + 1);
  }
  trace << R"({"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}]})" << '\n';
  return trace.tellp();
}

class LargeTraces : public TempDirTest {
 protected:
  /// Has mlp_lab explain a trace of that size; prints what that took.
  ProcessResult explained(std::int64_t mib) {
    const std::string name = fmt::format("{}.json", mib);
    if (!std::filesystem::exists(folder() / name)) write_large_trace(folder() / name, mib);
    const ProcessResult result =
        succeeded(run_process({MLP_LAB, "explain", name}, {.working_directory = folder()}));
    std::cout << fmt::format("mlp_lab explain on {} MiB: {:.1f} MiB of memory, {:.2f} s\n", mib,
                             static_cast<double>(result.peak_bytes) / (1 << 20), result.cpu_s);
    return result;
  }
};

TEST_F(LargeTraces, AreReadAsAStream) {
  if (kAddressSanitized || kThreadSanitized) GTEST_SKIP() << "sanitizers need memory of their own";
  const std::int64_t small = explained(15).peak_bytes, large = explained(60).peak_bytes;
  // Twice what is kept of 45 MiB of events; as JSON values in memory they take hundreds.
  EXPECT_LT(large - small, 45 << 20);
  EXPECT_LT(large, 128 << 20);
}

TEST_F(LargeTraces, TakeTimeInProportion) {
  repeat_while_busy([&] {
    const double small_s = explained(15).cpu_s, large_s = explained(60).cpu_s;
    EXPECT_LT(large_s, 1.5 * 4 * small_s);
  });
}

/// For a figure: BARESTEP_TRACE_MIB=300 programs_test --gtest_filter='LargeTraces.*'.
TEST_F(LargeTraces, OfAnySizeAreMeasuredOnRequest) {
  const char* const mib = std::getenv("BARESTEP_TRACE_MIB");
  if (mib == nullptr) GTEST_SKIP() << "BARESTEP_TRACE_MIB is not set";
  explained(std::atoll(mib));
}

}  // namespace
}  // namespace barestep
