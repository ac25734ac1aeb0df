// Disks that fail, and disks that lose power.
#pragma once

#include "core/file_system.h"
#include "support/testing.h"

namespace barestep {

/// Forwards all calls to `files` except one, which fails as requested.
class FaultyDisk : public FileSystem {
 public:
  enum class Kind {
    kError,       // the call does nothing and returns the error
    kShortWrite,  // a write takes half of the bytes; other calls succeed
    kDeath,       // this call and all later ones do nothing and fail: the program was killed
  };
  struct Fault {
    Kind kind = Kind::kError;
    int error = 0;     // errno
    std::size_t at{};  // counted from 0
  };

  FaultyDisk(FileSystem& files, const Fault& fault) : files_(files), fault_(fault) {}

  /// The names of all calls so far.
  [[nodiscard]] const std::vector<std::string>& calls() const { return calls_; }
  [[nodiscard]] bool has_failed() const { return calls_.size() > fault_.at; }

  int create(const std::filesystem::path& path) override;
  std::int64_t write(int descriptor, std::span<const std::byte> bytes) override;
  int sync(int descriptor) override;
  int sync_folder(const std::filesystem::path& folder) override;
  int close(int descriptor) override;
  int rename(const std::filesystem::path& from, const std::filesystem::path& to) override;
  int unlink(const std::filesystem::path& path) override;
  int make_folder(const std::filesystem::path& path) override;
  int list(const std::filesystem::path& folder, std::vector<std::string>& names) override;

 private:
  /// Counts the call; returns 0 if it should be carried out, otherwise its result.
  int next(const char* call);

  FileSystem& files_;
  Fault fault_;
  std::vector<std::string> calls_;
};

/// Does everything in a folder of the real disk and records the order, to derive the possible
/// contents of a disk with a volatile cache after a power cut at any time.
class RecordingDisk : public FileSystem {
 public:
  /// The sync calls that the disk carries out; with both, it is a correct disk.
  struct Obeys {
    bool sync = true;
    bool sync_folder = true;
  };

  RecordingDisk(std::filesystem::path root, Obeys obeys) : root_(std::move(root)), obeys_(obeys) {}

  [[nodiscard]] std::size_t operations() const { return operations_.size(); }

  /// The contents of the disk: folders, and files with their bytes. Paths are relative to the root.
  struct State {
    std::vector<std::filesystem::path> folders;
    std::map<std::filesystem::path, std::string> files;
    bool operator==(const State&) const = default;
  };

  /// Every possible state of the disk if power is lost after the first `count` operations. Of the
  /// folder changes that were not synced, any subset is present; of the unsynced bytes none, half,
  /// zeros, every other block or all.
  [[nodiscard]] std::vector<State> states_after_power_cut(std::size_t count) const;

  int create(const std::filesystem::path& path) override;
  std::int64_t write(int descriptor, std::span<const std::byte> bytes) override;
  int sync(int descriptor) override;
  int sync_folder(const std::filesystem::path& folder) override;
  int close(int descriptor) override;
  int rename(const std::filesystem::path& from, const std::filesystem::path& to) override;
  int unlink(const std::filesystem::path& path) override;
  int make_folder(const std::filesystem::path& path) override;
  int list(const std::filesystem::path& folder, std::vector<std::string>& names) override;

 private:
  enum class What { kCreate, kWrite, kSync, kSyncFolder, kRename, kUnlink, kMakeFolder };
  struct Operation {
    What what;
    int file = -1;                    // index in order of creation
    std::filesystem::path path{};     // relative to the root
    std::filesystem::path renamed{};  // renamed to this
    std::string bytes{};
  };
  struct File {
    std::string on_disk, cached;
  };
  enum class Unsynced { kNone, kHalf, kZeros, kHoles, kAll };

  [[nodiscard]] State state_of(const std::vector<const Operation*>& changes,
                               const std::map<int, File>& files, Unsynced unsynced) const;
  static std::string bytes_on_disk(const File& file, Unsynced unsynced);
  [[nodiscard]] std::filesystem::path relative(const std::filesystem::path& path) const;

  std::filesystem::path root_;
  Obeys obeys_;
  std::vector<Operation> operations_;
  std::map<int, int> open_;                     // descriptor -> file
  std::map<std::filesystem::path, int> named_;  // from the program's view
};

}  // namespace barestep
