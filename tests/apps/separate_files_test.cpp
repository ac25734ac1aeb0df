// Files whose names a run derives from given names.
#include <gtest/gtest.h>

#include "support/arguments.h"
#include "support/process.h"
#include "support/temp_dir.h"

namespace barestep {
namespace {

class DerivedFiles : public TempDirTest {};

TEST_F(DerivedFiles, OfDevicesAreNeitherReadNorWrittenOtherwise) {
  const Arguments traced = {"--devices", "cpu,cpu", "--dim", "8",       "--depth",
                            "1",         "--steps", "1",     "--trace", "v.json"};
  const auto expect_refused = [&](const Arguments& more, const std::string& line) {
    const auto result =
        run_process(Arguments{MLP_DP} + traced + more, {.working_directory = folder()});
    EXPECT_EQ(result.exit_code, 78);
    EXPECT_EQ(result.err, "mlp_dp: error: " + line + "\n");
    EXPECT_EQ(result.out, "");
  };
  expect_refused({"--save", "v.device0.json"},
                 "--trace 'v.device0.json': --save writes to the same file; give two files");
  expect_refused({"--metrics", "./v.device1.json"},
                 "--trace 'v.device1.json': --metrics writes to the same file; give two files");
  file("v.device1.json", R"({"seed": 1})");
  expect_refused(
      {"--config", "v.device1.json"},
      "--trace 'v.device1.json': --config reads this file, which would be lost; write to "
      "another one");
  EXPECT_EQ(read_file(folder() / "v.device1.json"), R"({"seed": 1})");
}

}  // namespace
}  // namespace barestep
