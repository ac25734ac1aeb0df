// barestep_bench takes --threads=N and --gemm=PROVIDER, followed by Google Benchmark's options.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <charconv>
#include <fstream>
#include <string_view>

#include "core/error.h"
#include "core/host.h"
#include "measure.h"

namespace barestep::bench {
namespace {

/// Parses one of our own options; false for anything else.
bool take_option(std::string_view argument) {
  constexpr std::string_view kThreads = "--threads=";
  constexpr std::string_view kGemm = "--gemm=";
  if (argument.starts_with(kThreads)) {
    argument.remove_prefix(kThreads.size());
    const char* const end = argument.data() + argument.size();
    const auto [stop, error] = std::from_chars(argument.data(), end, setting().threads);
    return error == std::errc() && stop == end && limits::kThreads.contains(setting().threads);
  }
  if (!argument.starts_with(kGemm)) return false;
  argument.remove_prefix(kGemm.size());
  for (const GemmProvider provider : kValuesOf<GemmProvider>) {
    if (name_of(provider) != argument) continue;
    setting().gemm = provider;
    return true;
  }
  return false;
}

/// Prints what the figures depend on, apart from the code.
void describe_machine() {
  ThreadPool pool(setting().threads);
  const auto product = make_product(setting().gemm);
  std::string load = "unknown";
  std::getline(std::ifstream("/proc/loadavg"), load);
  benchmark::AddCustomContext("threads", std::to_string(setting().threads));
  benchmark::AddCustomContext("products", std::string(product->name()));
  benchmark::AddCustomContext("load at start", load);
  benchmark::AddCustomContext("core to core ns", fmt::format("{:.0f}", 1e9 * core_distance_s()));
  benchmark::AddCustomContext("arithmetic peak GFLOP/s",
                              fmt::format("{:.1f}", arithmetic_peak(pool) / 1e9));
  benchmark::AddCustomContext("product peak GFLOP/s",
                              fmt::format("{:.1f}", product_peak(pool, *product) / 1e9));
}

}  // namespace
}  // namespace barestep::bench

int main(int argc, char** argv) {
  using namespace barestep::bench;
  int kept = 1;
  for (int i = 1; i < argc; ++i) {
    if (!take_option(argv[i])) argv[kept++] = argv[i];
  }
  benchmark::Initialize(&kept, argv);
  if (benchmark::ReportUnrecognizedArguments(kept, argv)) return 2;
  try {
    describe_machine();
    benchmark::RunSpecifiedBenchmarks();
    fmt::print("{}", op_tables());
  } catch (const barestep::Error& error) {
    fmt::print(stderr, "barestep_bench: error: {}\n", error.what());
    return static_cast<int>(error.code());
  }
}
