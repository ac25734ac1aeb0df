// Runs the named inputs of seeds/ and every input that the fuzzer kept, in corpus.tar.gz.

#include "fuzz/targets.h"
#include "support/process.h"
#include "support/temp_dir.h"
#include "support/testing.h"

namespace barestep {
namespace {

class Corpus : public TempDirTest, public testing::WithParamInterface<FuzzTarget> {
 protected:
  /// Runs the files of a folder; returns their number.
  static int run_all(const std::filesystem::path& inputs) {
    int count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(inputs)) {
      SCOPED_TRACE(entry.path());
      std::ifstream file(entry.path(), std::ios::binary);
      const std::string bytes{std::istreambuf_iterator<char>(file), {}};
      GetParam().run(std::as_bytes(std::span(bytes)));
      ++count;
    }
    return count;
  }
};

TEST_P(Corpus, IsReadOrRefused) {
  const std::filesystem::path inputs = FUZZ_INPUTS;
  const auto unpacked =
      run_process({"/bin/tar", "-xzf", inputs / "corpus.tar.gz", "-C", folder().string()});
  ASSERT_EQ(unpacked.exit_code, 0) << unpacked.err;
  EXPECT_GE(run_all(inputs / "seeds" / GetParam().name), 2) << "named inputs are missing";
  const std::filesystem::path kept = folder() / GetParam().name;
  if (std::filesystem::exists(kept)) run_all(kept);
}

INSTANTIATE_TEST_SUITE_P(Fuzz, Corpus,
                         testing::ValuesIn(fuzz_targets().begin(), fuzz_targets().end()),
                         [](const auto& target) { return std::string(target.param.name); });

}  // namespace
}  // namespace barestep
