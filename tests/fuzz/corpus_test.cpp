// Runs every input that the fuzzer kept.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "fuzz/targets.h"
#include "support/process.h"
#include "support/temp_dir.h"

namespace barestep {
namespace {

class Corpus : public TempDirTest, public testing::WithParamInterface<FuzzTarget> {};

TEST_P(Corpus, IsReadOrRefused) {
  const std::string packed = std::string(FUZZ_CORPUS) + "/" + GetParam().name + ".tar.gz";
  const auto unpacked = run_process({"/bin/tar", "-xzf", packed, "-C", folder().string()});
  ASSERT_EQ(unpacked.exit_code, 0) << unpacked.err;
  int inputs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder())) {
    SCOPED_TRACE(entry.path());
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    GetParam().run(std::as_bytes(std::span(bytes)));
    ++inputs;
  }
  EXPECT_GE(inputs, 3) << "the corpus of " << GetParam().name << " is not there";
}

INSTANTIATE_TEST_SUITE_P(Fuzz, Corpus,
                         testing::ValuesIn(fuzz_targets().begin(), fuzz_targets().end()),
                         [](const auto& target) { return std::string(target.param.name); });

}  // namespace
}  // namespace barestep
