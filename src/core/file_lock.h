// Locks that keep two programs from writing one file or folder at the same time.
#pragma once

#include <filesystem>
#include <string>

namespace barestep {

/// Locks the regular file or the folder behind `descriptor` for this program, with flock(2), until
/// every copy of the descriptor is closed. Returns who holds it, "mlp_dp (process 4711)", where
/// that is another program, else an empty string. What cannot be locked, such as a device or a file
/// on some network file systems, counts as locked. Never blocks.
std::string lock_or_holder(int descriptor);

/// Who holds a lock on `path`; empty if nobody does, or if it cannot be found out. Never blocks.
std::string holder_of(const std::filesystem::path& path);

/// Holds the lock of a folder as long as it lives.
class FolderLock {
 public:
  /// Throws Error(kTryAgain), which names `option` and who holds the lock, if another program does.
  FolderLock(const std::filesystem::path& folder, const std::string& option);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int descriptor_ = -1;
};

}  // namespace barestep
