#include "core/input_file.h"

#include "support/expect_error.h"
#include "support/temp_dir.h"
#include "support/testing.h"

namespace barestep {
namespace {

class FilePattern : public TempDirTest {};

TEST_F(FilePattern, FitsFilesInTheOrderOfTheirNames) {
  const auto b = file("x-10.npy", ""), a = file("x-02.npy", ""), c = file("x-2.npy", "");
  file("y-1.npy", "");
  EXPECT_THAT(matching_files(folder() / "x-*.npy"), ElementsAre(a, b, c));
  EXPECT_THAT(matching_files(folder() / "x-?.npy"), ElementsAre(c));
  EXPECT_THAT(matching_files(folder() / "x-[01]*"), ElementsAre(a, b));
}

TEST_F(FilePattern, IsAFileOfThisVeryNameFirst) {
  const auto odd = file("x[1].npy", "");
  file("x1.npy", "");
  EXPECT_THAT(matching_files(odd), ElementsAre(odd));
  EXPECT_THAT(matching_files(folder() / "none"), ElementsAre(folder() / "none"));
}

TEST_F(FilePattern, ThatFitsNothingIsRefused) {
  expect_error(
      ExitCode::kNoInput,
      "data '" + (folder() / "none-*").string() + "': no file fits this pattern; check the path",
      [&] { matching_files(folder() / "none-*"); });
}

class InstalledFolder : public TempDirTest {};

TEST_F(InstalledFolder, HasTheNamesOfItsFilesWithAnEnding) {
  file("t4.json", "");
  file("a100.json", "");
  file("a100.cpp", "");
  EXPECT_THAT(installed_names(folder(), ".json"), ElementsAre("a100", "t4"));
}

TEST_F(InstalledFolder, IsLookedIntoForANameAndNotForAFile) {
  const auto found = [&](const std::string& name) {
    return given_or_installed("machine card", name, folder(), std::vector<std::string>{"t4"},
                              ".json");
  };
  EXPECT_EQ(found("t4"), folder() / "t4.json");
  EXPECT_EQ(found("else/t5.json"), "else/t5.json");
  expect_error(ExitCode::kUsage,
               "machine card 't5': no machine card has this name; did you mean 't4'? a file's name "
               "ends in .json",
               [&] { found("t5"); });
  expect_error(ExitCode::kUsage, "name one of t4, or a file in .json", [&] { found("h100"); });
}

TEST_F(InstalledFolder, ThatIsMissingHasNoNamesAndIsNamedWhenOneIsAskedFor) {
  const std::filesystem::path missing = folder() / "cards";
  EXPECT_THAT(installed_names(missing, ".json"), IsEmpty());
  expect_error(ExitCode::kNoInput,
               "machine card 't4': there is no folder '" + missing.string() +
                   "'; install barestep again, or give a file",
               [&] { given_or_installed("machine card", "t4", missing, {}, ".json"); });
}

class ContentHash : public TempDirTest {};

TEST_F(ContentHash, IsXxh3OfTheBytes) {
  EXPECT_EQ(hash_of_bytes(""), "99aa06d3014798d86001c324468d497f") << "as xxhsum -H2 says";
  const std::string text = "weights";
  EXPECT_EQ(content_hash(file("weights", text)), "7 bytes, hash " + hash_of_bytes(text));
}

}  // namespace
}  // namespace barestep
