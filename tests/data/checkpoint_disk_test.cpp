// Checkpoints on disks that fail in any call, and on disks that lose power at any time.

#include "core/error.h"
#include "core/output_file.h"
#include "data/checkpoint_folder.h"
#include "data/sample_checkpoint.h"
#include "data/unreliable_disk.h"
#include "support/temp_dir.h"
#include "support/testing.h"

namespace barestep {
namespace {

namespace fs = std::filesystem;

void no_skips(const std::string& why) {
  ADD_FAILURE() << "nothing but whole files is ever seen: " << why;
}

class CheckpointsOnABadDisk : public TempDirTest {
 protected:
  [[nodiscard]] fs::path dir() const { return folder() / "run/checkpoints"; }

  /// Empty if there is none.
  [[nodiscard]] static std::string newest_in(const fs::path& folder) {
    const auto found = newest_whole_checkpoint(folder, no_skips);
    return found ? text_of(found->image) : "";
  }

  /// Every visible file in the folder is a complete checkpoint; a program that was killed may leave
  /// hidden files to the next one.
  static void expect_only_whole(const fs::path& folder, bool was_killed) {
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (was_killed && entry.path().filename().string().starts_with('.')) continue;
      EXPECT_NO_THROW(read_checkpoint(entry.path())) << entry.path();
    }
  }

  /// Writes steps 100 and 200, then 300 with `fault`, then 400. Returns whether the fault occurred.
  /// Empties the folder.
  bool survives(const FaultyDisk::Fault& fault);

  /// The lowest step that a run could resume from after a power cut while it wrote steps 100 to
  /// 400, minus the last acknowledged step; -1 if a file was not complete.
  std::int64_t max_lost(int keep, RecordingDisk::Obeys obeys);
};

/// The error text for a call with this name.
std::string expected_words(const std::string& call, int error) {
  const std::string why = std::strerror(error);
  if (call == "create") return "step-000000300.safetensors': cannot be created: " + why;
  if (call == "unlink") return "step-000000100.safetensors': cannot be removed: " + why;
  if (call == "list") return "cannot be listed: " + why;
  return "step-000000300.safetensors': writing failed: " + why;
}

bool CheckpointsOnABadDisk::survives(const FaultyDisk::Fault& fault) {
  {
    CheckpointFolder before(dir(), 2);
    write_checkpoint(before, image_of(100));
    write_checkpoint(before, image_of(200));
  }
  FaultyDisk faulty(real_files(), fault);
  try {
    CheckpointFolder checkpoints(dir(), 2, faulty);
    try {
      write_checkpoint(checkpoints, image_of(300));
      EXPECT_EQ(newest_in(dir()), text_of(image_of(300)));
    } catch (const Error& error) {
      const std::string call = faulty.calls().at(fault.at);
      if (fault.kind == FaultyDisk::Kind::kDeath) throw;  // the program is dead and reports nothing
      EXPECT_EQ(error.code(), ExitCode::kInputOutput);
      EXPECT_THAT(error.what(), StartsWith("checkpoint '" + dir().string()));
      EXPECT_THAT(error.what(), HasSubstr(expected_words(call, fault.error)));
      const bool stands = call == "unlink" || call == "list";
      EXPECT_EQ(newest_in(dir()), text_of(image_of(stands ? 300 : 200)));
    }
  } catch (const Error&) {
    EXPECT_THAT(newest_in(dir()), AnyOf(text_of(image_of(200)), text_of(image_of(300))));
  }
  expect_only_whole(dir(), fault.kind == FaultyDisk::Kind::kDeath);
  CheckpointFolder checkpoints(dir(), 2);
  write_checkpoint(checkpoints, image_of(400));
  EXPECT_EQ(newest_in(dir()), text_of(image_of(400)));
  EXPECT_EQ(checkpoint_steps(dir()).size(), 2U);
  const auto entries = std::distance(fs::directory_iterator(dir()), fs::directory_iterator());
  EXPECT_EQ(entries, 2) << "nothing else is left";
  fs::remove_all(folder() / "run");
  return faulty.has_failed();
}

TEST_F(CheckpointsOnABadDisk, AreLeftAsTheyWereByACallThatFails) {
  for (const int error : {ENOSPC, EIO, EDQUOT, EACCES}) {
    for (std::size_t at = 0;; ++at) {
      SCOPED_TRACE(std::string(std::strerror(error)) + " at call " + std::to_string(at));
      if (!survives({.error = error, .at = at})) break;
      ASSERT_FALSE(HasFailure());
    }
  }
}

/// A disk of a file system that cannot sync folders.
class NoFolderSync final : public FaultyDisk {
 public:
  explicit NoFolderSync(int error) : FaultyDisk(real_files(), {.at = SIZE_MAX}), error_(error) {}
  int sync_folder(const fs::path& /*folder*/) override { return -error_; }

 private:
  int error_;
};

TEST_F(CheckpointsOnABadDisk, AreWrittenWhereFoldersCannotBeSynced) {
  for (const int error : {EINVAL, EOPNOTSUPP, ENOSYS, EBADF, EIO}) {
    SCOPED_TRACE(std::strerror(error));
    std::vector<std::pair<fs::path, int>> reported;
    report_unsynced_folder(
        [&](const fs::path& path, int why) { reported.emplace_back(path, why); });
    NoFolderSync disk(error);
    CheckpointFolder checkpoints(dir(), 2, disk);
    write_checkpoint(checkpoints, image_of(100));
    write_checkpoint(checkpoints, image_of(200));
    report_unsynced_folder(nullptr);
    EXPECT_EQ(newest_in(dir()), text_of(image_of(200)));
    ASSERT_EQ(reported.size(), 1U) << "it is said once";
    EXPECT_EQ(reported[0].second, error);
    fs::remove_all(folder() / "run");
  }
}

TEST_F(CheckpointsOnABadDisk, AreWrittenInSeveralCallsWhereOneTakesHalfOfTheBytes) {
  for (std::size_t at = 0;; ++at) {
    SCOPED_TRACE(at);
    if (!survives({.kind = FaultyDisk::Kind::kShortWrite, .at = at})) break;
    ASSERT_FALSE(HasFailure());
  }
}

TEST_F(CheckpointsOnABadDisk, AreLeftAsTheyWereByAProgramThatIsKilledAtAnyCall) {
  for (std::size_t at = 0;; ++at) {
    SCOPED_TRACE(at);
    if (!survives({.kind = FaultyDisk::Kind::kDeath, .error = EIO, .at = at})) break;
    ASSERT_FALSE(HasFailure());
  }
}

/// Copies a disk's files into a folder of the real one.
void make(const RecordingDisk::State& state, const fs::path& folder) {
  fs::remove_all(folder);
  fs::create_directories(folder);
  for (const fs::path& each : state.folders) fs::create_directories(folder / each);
  for (const auto& [path, bytes] : state.files) write_file(folder / path, bytes);
}

std::int64_t CheckpointsOnABadDisk::max_lost(int keep, RecordingDisk::Obeys obeys) {
  fs::remove_all(folder() / "run");
  RecordingDisk disk(folder(), obeys);
  std::vector<std::pair<std::size_t, std::int64_t>> acknowledged = {{0, 0}};
  CheckpointFolder checkpoints(dir(), keep, disk);
  for (const std::int64_t step : {100, 200, 300, 400}) {
    write_checkpoint(checkpoints, image_of(step));
    acknowledged.emplace_back(disk.operations(), step);
  }
  std::int64_t max = 0;
  for (std::size_t count = 0; count <= disk.operations(); ++count) {
    std::int64_t promised = 0;
    for (const auto& [operations, step] : acknowledged) {
      if (operations <= count) promised = step;
    }
    for (const RecordingDisk::State& state : disk.states_after_power_cut(count)) {
      const fs::path after = folder() / "after";
      make(state, after);
      bool is_bad = false;
      std::int64_t found = 0;
      try {
        const auto newest = newest_whole_checkpoint(after / "run/checkpoints",
                                                    [&](const std::string&) { is_bad = true; });
        if (newest) found = newest->image.step;
      } catch (const Error&) {
        is_bad = true;
      }
      if (is_bad) return -1;
      max = std::max(max, promised - found);
    }
  }
  return max;
}

TEST_F(CheckpointsOnABadDisk, SurviveALossOfPowerAtAnyMoment) {
  for (const int keep : {1, 2, 3})
    EXPECT_EQ(max_lost(keep, {.sync = true, .sync_folder = true}), 0) << keep;
}

TEST_F(CheckpointsOnABadDisk, AreSeenToBeLostWhereBytesOrNamesDoNotReachTheDisk) {
  EXPECT_EQ(max_lost(2, {.sync = false, .sync_folder = true}), -1) << "files that are not whole";
  EXPECT_GT(max_lost(2, {.sync = true, .sync_folder = false}), 100) << "more than one interval";
}

}  // namespace
}  // namespace barestep
