// Ranks that write one checkpoint together.
#include "session/shared_checkpoint.h"

#include "support/expect_error.h"
#include "support/rank_run.h"
#include "support/temp_dir.h"
#include "support/testing.h"

namespace barestep {
namespace {

/// The real disk, except for calls that fail.
class FullDisk final : public FileSystem {
 public:
  bool creates = true, resizes = true, writes = true;

  int create(const std::filesystem::path& path) override {
    return creates ? real_files().create(path) : -ENOSPC;
  }
  int open(const std::filesystem::path& path) override { return real_files().open(path); }
  int resize(int descriptor, std::int64_t bytes) override {
    return resizes ? real_files().resize(descriptor, bytes) : -ENOSPC;
  }
  int seek(int descriptor, std::int64_t offset) override {
    return real_files().seek(descriptor, offset);
  }
  std::int64_t write(int descriptor, std::span<const std::byte> bytes) override {
    return writes ? real_files().write(descriptor, bytes) : -ENOSPC;
  }
  int sync(int descriptor) override { return real_files().sync(descriptor); }
  int sync_folder(const std::filesystem::path& folder) override {
    return real_files().sync_folder(folder);
  }
  int close(int descriptor) override { return real_files().close(descriptor); }
  int rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
    return real_files().rename(from, to);
  }
  int unlink(const std::filesystem::path& path) override { return real_files().unlink(path); }
  int make_folder(const std::filesystem::path& path) override {
    return real_files().make_folder(path);
  }
  int list(const std::filesystem::path& folder, std::vector<std::string>& names) override {
    return real_files().list(folder, names);
  }
};

class SharedCheckpoints : public TempDirTest {
 protected:
  /// Rank r of `ranks` writes every ranks-th block of seven bytes of each tensor.
  [[nodiscard]] CheckpointShare share_of(int rank, int ranks, std::int64_t step) const {
    CheckpointShare share{.form = {.step = step, .state = "{}", .tensors = {}}, .pieces = {}};
    for (const auto& [name, bytes] : tensors_) {
      const std::span all = std::as_bytes(std::span(bytes));
      const auto tensor = std::ssize(share.form.tensors);
      share.form.tensors.push_back({name, "U8", {std::ssize(bytes)}, std::ssize(bytes)});
      for (std::size_t block = 0; 7 * block < all.size(); ++block) {
        if (static_cast<int>(block) % ranks != rank) continue;
        const std::size_t first = 7 * block;
        share.pieces.push_back({tensor, static_cast<std::int64_t>(first),
                                all.subspan(first, std::min<std::size_t>(7, all.size() - first))});
      }
    }
    return share;
  }

  void write(int ranks, std::int64_t step,
             const std::function<void(int rank, CheckpointShare&)>& change = {}) {
    on_threads(ranks, [&](Group& self) {
      std::optional<CheckpointFolder> folder;
      const int rank = self.rank();
      if (rank == 0) folder.emplace(this->folder() / "c", 9, disk_);
      CheckpointShare share = share_of(rank, ranks, step);
      if (change) change(rank, share);
      std::optional<Error> failure;
      try {
        write_checkpoint(&self, folder ? &*folder : nullptr, share,
                         rank == 2 ? disk_of_rank_2_ : disk_);
      } catch (const Error& error) {
        failure = error;
      }
      self.barrier();
      if (failure) throw Error(*failure);
    });
  }

  [[nodiscard]] std::map<std::string, std::string> read(const std::string& name) const {
    std::map<std::string, std::string> tensors;
    for (const StoredTensor& tensor : read_checkpoint(folder() / "c" / name).tensors) {
      const auto* const bytes = reinterpret_cast<const char*>(tensor.bytes.data());
      tensors[tensor.name] = {bytes, tensor.bytes.size()};
    }
    return tensors;
  }

  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder() / "c")) {
      found.push_back(entry.path().filename().string());
    }
    return found;
  }

  const std::map<std::string, std::string> tensors_ = {
      {"a", "one"}, {"b", "twenty-two bytes of it"}, {"c", std::string(1000, 'x')}};
  FullDisk disk_, disk_of_rank_2_;
};

TEST_F(SharedCheckpoints, HoldWhatAllRanksHaveWritten) {
  for (const int ranks : {1, 2, 3}) {
    SCOPED_TRACE(ranks);
    write(ranks, ranks);
    EXPECT_EQ(read(name_of_checkpoint(ranks)), tensors_);
  }
  EXPECT_EQ(names().size(), 3U);
}

TEST_F(SharedCheckpoints, AreRefusedWithOneBitWrong) {
  write(3, 1);
  const std::filesystem::path path = folder() / "c" / name_of_checkpoint(1);
  const std::string whole = read_file(path);
  for (std::size_t i = 0; i < whole.size(); i += 13) {
    std::string flipped = whole;
    flipped[i] = static_cast<char>(flipped[i] ^ 0x10);
    write_file(path, flipped);
    EXPECT_THROW(read_checkpoint(path), Error) << "byte " << i;
    EXPECT_THROW(CheckpointReader(path).require_whole(), Error) << "byte " << i;
  }
}

TEST_F(SharedCheckpoints, AreNotWrittenWhereARankHasNothingToWrite) {
  write(3, 1);
  expect_error(ExitCode::kDiverged,
               "checkpoint '" + (folder() / "c").string() + "': rank 1: w holds nan; be careful",
               [&] {
                 write(3, 2, [](int rank, CheckpointShare& share) {
                   if (rank == 0) return;
                   share.failure = {ExitCode::kDiverged, "w holds nan", "be careful"};
                 });
               });
  EXPECT_THAT(names(), ElementsAre(name_of_checkpoint(1)));
}

TEST_F(SharedCheckpoints, LeaveTheFolderAsItWasOnAFullDisk) {
  write(3, 1);
  const std::string path = (folder() / "c" / name_of_checkpoint(2)).string();
  disk_.creates = false;
  expect_error(ExitCode::kInputOutput,
               "checkpoint '" + path +
                   "': cannot be created: No space left on device; free space or choose another "
                   "disk",
               [&] { write(3, 2); });
  disk_.creates = true;
  disk_.resizes = false;
  expect_error(ExitCode::kInputOutput,
               "checkpoint '" + path + "': writing failed: No space left on device; ",
               [&] { write(3, 2); });
  EXPECT_THAT(names(), ElementsAre(name_of_checkpoint(1)));
  disk_.resizes = true;
  write(3, 2);
  EXPECT_EQ(names().size(), 2U);
}

TEST_F(SharedCheckpoints, NameTheRankThatCouldNotWrite) {
  write(3, 1);
  disk_of_rank_2_.writes = false;
  expect_error(ExitCode::kInputOutput,
               "checkpoint '" + (folder() / "c" / name_of_checkpoint(2)).string() +
                   "': rank 2: writing failed: No space left on device; free space or choose "
                   "another disk",
               [&] { write(3, 2); });
  EXPECT_THAT(names(), ElementsAre(name_of_checkpoint(1)));
}

}  // namespace
}  // namespace barestep
