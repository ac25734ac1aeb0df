// The contents of a checkpoint file, and the handling of damaged or foreign files.
#include <unistd.h>

#include "core/input_file.h"
#include "data/checkpoint_folder.h"
#include "data/sample_checkpoint.h"
#include "support/expect_error.h"
#include "support/saved_weights.h"
#include "support/temp_dir.h"
#include "support/testing.h"

namespace barestep {
namespace {

namespace fs = std::filesystem;

class Checkpoints : public TempDirTest {
 protected:
  [[nodiscard]] fs::path path_of(std::int64_t step) const {
    std::string digits = std::to_string(step);
    digits.insert(0, 9 - digits.size(), '0');
    return folder() / ("step-" + digits + ".safetensors");
  }

  void write(std::initializer_list<int> steps, int keep = 2) const {
    CheckpointFolder checkpoints(folder(), keep);
    for (const int step : steps) write_checkpoint(checkpoints, image_of(step));
  }

  /// The step of the newest complete checkpoint; adds each line about a skipped one to `skipped`.
  std::int64_t newest() {
    const auto found = newest_whole_checkpoint(
        folder(), [this](const std::string& why) { skipped_.push_back(why); });
    if (!found) return -1;
    EXPECT_EQ(found->file, path_of(found->image.step));
    EXPECT_EQ(text_of(found->image), text_of(image_of(found->image.step)));
    return found->image.step;
  }

  /// The file of step 400 with these bytes is skipped with one line that ends with `why`, and
  /// refused with the same line; step 200 is used.
  void expect_skipped(const std::string& bytes, const std::string& why) {
    write_file(path_of(400), bytes);
    skipped_.clear();
    EXPECT_EQ(newest(), 200);
    ASSERT_EQ(skipped_.size(), 1U);
    EXPECT_THAT(skipped_[0], HasSubstr("checkpoint '" + path_of(400).string() + "': "));
    EXPECT_THAT(skipped_[0], HasSubstr(why));
    expect_error(ExitCode::kBadData, skipped_[0], [&] { read_checkpoint(path_of(400)); });
  }

  std::vector<std::string> skipped_;
};

TEST_F(Checkpoints, HoldWhatWasWrittenAndTheNewestIsFound) {
  CheckpointFolder checkpoints(folder() / "a/b", 2);
  const auto newest = [&] {
    return newest_whole_checkpoint(checkpoints.path(),
                                   [](const std::string& why) { FAIL() << why; });
  };
  EXPECT_FALSE(newest());
  for (const std::int64_t step : {0, 400, 1'000'000'000})
    write_checkpoint(checkpoints, image_of(step));
  const auto found = newest();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->file, folder() / "a/b/step-1000000000.safetensors");
  EXPECT_EQ(text_of(found->image), text_of(image_of(1'000'000'000)));
  EXPECT_THAT(checkpoint_steps(folder() / "a/b"), ElementsAre(400, 1'000'000'000));
}

TEST_F(Checkpoints, AreSafetensorsFilesWithTheirStateAndChecksumsInTheMetadata) {
  write({400});
  EXPECT_THAT(names(), ElementsAre("step-000000400.safetensors"));
  const SafetensorsReader file(path_of(400));
  std::vector<std::string> names;
  for (const SafetensorsEntry& entry : file.tensors()) names.push_back(entry.name);
  EXPECT_THAT(names, ElementsAre("updates", "empty", "net.0.bias", "net.0.weight", "random"))
      << "by alignment, then by name";
  EXPECT_EQ(file.metadata().at("format"), "barestep checkpoint 1");
  EXPECT_EQ(file.metadata().at("step"), "400");
  EXPECT_EQ(file.metadata().at("state"), image_of(400).state);
  EXPECT_THAT(file.metadata().at("checksums"),
              HasSubstr("\"updates\":\"" + hash_of_bytes(std::string(8, '\7')) + '"'));
  std::string head = file.head();
  const std::string& checksum = file.metadata().at("checksum");
  head.replace(head.find(checksum), 32, std::string(32, '0'));
  EXPECT_EQ(checksum, hash_of_bytes(head));
}

TEST_F(Checkpoints, AreAsManyAsAreToBeKept) {
  write({100, 200, 300});
  EXPECT_THAT(checkpoint_steps(folder()), ElementsAre(200, 300));
  write({400}, 1);
  EXPECT_THAT(checkpoint_steps(folder()), ElementsAre(400));
  write({500, 600, 700}, 3);
  EXPECT_THAT(checkpoint_steps(folder()), ElementsAre(500, 600, 700));
  write({700}, 3);
  EXPECT_THAT(checkpoint_steps(folder()), ElementsAre(500, 600, 700));
}

TEST_F(Checkpoints, OfLaterStepsGoWhenARunWentBack) {
  write({100, 200, 300}, 3);
  write({150}, 3);
  EXPECT_THAT(checkpoint_steps(folder()), ElementsAre(100, 150));
  EXPECT_EQ(newest(), 150);
}

TEST_F(Checkpoints, OfTheSameStepAreReplaced) {
  CheckpointFolder checkpoints(folder(), 2);
  write_checkpoint(checkpoints, image_of(100, 1));
  write_checkpoint(checkpoints, image_of(100, 2));
  EXPECT_EQ(text_of(read_checkpoint(path_of(100))), text_of(image_of(100, 2)));
  EXPECT_THAT(names(), ElementsAre("step-000000100.safetensors"));
}

TEST_F(Checkpoints, LeaveOtherFilesAlone) {
  const std::vector<std::string> others = {"metrics.jsonl",
                                           "step-4.safetensors",
                                           "step-best.safetensors",
                                           ".barestep-1-0.tmp",
                                           "step--00000005.safetensors",
                                           "step-000000900.safetensors.bak",
                                           ".step",
                                           ".model.safetensors-1-0.tmp2",
                                           "step-00000000000000000000.safetensors"};
  for (const std::string& name : others) file(name, "x");
  EXPECT_EQ(newest(), -1);
  write({100, 200, 300}, 1);
  EXPECT_EQ(newest(), 300);
  std::vector<std::string> expected = others;
  expected.emplace_back("step-000000300.safetensors");
  EXPECT_THAT(names(), testing::UnorderedElementsAreArray(expected));
}

TEST_F(Checkpoints, ThatAKilledProgramBeganAreRemovedByTheNext) {
  file(".step-000000400.safetensors-4711-0.tmp", "half");
  write({100});
  EXPECT_THAT(names(), ElementsAre("step-000000100.safetensors"));
}

TEST_F(Checkpoints, AreOfOneProgramAtATime) {
  const CheckpointFolder first(folder(), 2);
  expect_error(ExitCode::kTryAgain,
               "--checkpoint '" + folder().string() + "': data_test (process " +
                   std::to_string(::getpid()) +
                   ") writes into this folder; wait until it ends, or name another folder",
               [&] { CheckpointFolder(folder(), 2); });
}

TEST_F(Checkpoints, NeedAFolder) {
  expect_error(ExitCode::kCannotCreate, "folder '" + file("a", "").string() + "': cannot be",
               [&] { CheckpointFolder(folder() / "a", 2); });
  expect_error(ExitCode::kCannotCreate, "cannot be created: Not a directory; choose a writable one",
               [&] { CheckpointFolder(folder() / "a/b", 2); });
  expect_error(ExitCode::kCannotCreate,
               "cannot be created: ", [&] { CheckpointFolder("/proc/checkpoints", 2); });
  expect_error(ExitCode::kCannotCreate, "folder: cannot be created: No such file or directory",
               [] { CheckpointFolder("", 2); });
  expect_error(
      ExitCode::kNoInput,
      "folder of checkpoints '" + (folder() / "a").string() + "': Not a directory; check the path",
      [&] { newest_whole_checkpoint(folder() / "a", {}); });
  EXPECT_FALSE(newest_whole_checkpoint(folder() / "none", {}));
}

TEST_F(Checkpoints, WithAnyBitTurnedAreSkippedInOneLine) {
  write({200, 400});
  const std::string whole = read_file(path_of(400));
  for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    SCOPED_TRACE(bit);
    std::string bytes = whole;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    expect_skipped(bytes, "");  // the text depends on the bit
    if (HasFailure()) return;
  }
}

TEST_F(Checkpoints, OfAnyOtherLengthAreSkippedInOneLine) {
  write({200, 400});
  const std::string whole = read_file(path_of(400));
  for (std::size_t size = 0; size < whole.size() + 20; ++size) {
    if (size == whole.size()) continue;
    SCOPED_TRACE(size);
    std::string bytes = whole;
    bytes.resize(size);
    expect_skipped(bytes, "damaged");
    if (HasFailure()) return;
  }
}

TEST_F(Checkpoints, NameTheTensorThatIsDamaged) {
  write({200, 400});
  std::string bytes = read_file(path_of(400));
  const SafetensorsReader file(path_of(400));
  bytes[file.head().size() + static_cast<std::size_t>(file.find("net.0.bias")->begin_bytes)] ^= 1;
  expect_skipped(bytes, ": tensor 'net.0.bias' has a wrong checksum; it is damaged; use another");
}

TEST_F(Checkpoints, OfOtherProgramsAreSkippedInOneLine) {
  write({200, 400});
  const std::string ours = read_file(path_of(400));
  expect_skipped("not a checkpoint at all", "states a header of ");
  expect_skipped(std::string(ours.size(), '\0'), "': is not JSON: ");
  const std::vector<float> values = {1};
  save_safetensors(folder() / "a", std::vector<NamedTensor>{{"net.0.bias", {1}, values}});
  expect_skipped(
      read_file(folder() / "a"),
      "': is a safetensors file, but not a checkpoint; name a file that --checkpoint has written");
  // As written by a program that reads our metadata and writes it in a different order.
  const auto parts = safetensors_parts({}, {{"format", "barestep checkpoint 1"}});
  expect_skipped(parts.head, "': its header was changed; use the original");
}

TEST_F(Checkpoints, OfAnotherVersionAreSkippedInOneLine) {
  write({200, 400});
  const auto forged = [&](SafetensorsMetadata metadata, const std::string& checksums = "{}") {
    metadata.emplace(metadata.begin(), "checksum", std::string(32, '0'));
    metadata.emplace_back("checksums", checksums);
    std::string head = safetensors_parts({}, metadata).head;
    return head.replace(head.find(std::string(32, '0')), 32, hash_of_bytes(head));
  };
  expect_skipped(forged({{"format", "barestep checkpoint 2"}}),
                 "': its format is 'barestep checkpoint 2', not 'barestep checkpoint 1'; use the "
                 "version of barestep that wrote it");
  const std::pair<std::string, std::string> format = {"format", "barestep checkpoint 1"};
  expect_skipped(forged({format}), "': has no step; it is damaged");
  expect_skipped(forged({format, {"step", "4x"}, {"state", ""}}),
                 "': its step is not a number of steps; it is damaged");
  expect_skipped(forged({format, {"step", "400"}}), "': has no state; it is");
  expect_skipped(forged({format, {"step", "400"}, {"state", ""}}, "["),
                 "it is damaged; use another one");
}

TEST_F(Checkpoints, UnderAnotherNameAreSkippedInOneLine) {
  write({200});
  fs::copy_file(path_of(200), path_of(400));
  fs::create_directory(path_of(500));
  EXPECT_EQ(newest(), 200);
  EXPECT_THAT(skipped_, ElementsAre("checkpoint '" + path_of(500).string() +
                                        "': Is a directory; check the path",
                                    "checkpoint '" + path_of(400).string() +
                                        "': is of step 200; give it its own name again"));
}

TEST_F(Checkpoints, OfWhichNoneIsWholeAreAnError) {
  write({200, 400});
  for (const int step : {200, 400}) fs::resize_file(path_of(step), 100);
  expect_error(ExitCode::kBadData,
               "folder of checkpoints '" + folder().string() +
                   "': has 2 checkpoints, none of which is complete; remove them to start from the "
                   "beginning, or name another folder",
               [&] { newest(); });
  EXPECT_EQ(skipped_.size(), 2U);
  fs::remove(path_of(400));
  expect_error(ExitCode::kBadData, "': has 1 checkpoint, none of which is", [&] { newest(); });
}

}  // namespace
}  // namespace barestep
