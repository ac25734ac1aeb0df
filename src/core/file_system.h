// The calls through which files reach a disk, as an interface: tests substitute a disk that fails
// or loses power.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace barestep {

/// Each call does what the system call of the same name does. It returns that call's result, or the
/// negated errno if it fails. None throws. All block.
class FileSystem {
 public:
  FileSystem() = default;
  virtual ~FileSystem() = default;
  FileSystem(const FileSystem&) = delete;
  FileSystem& operator=(const FileSystem&) = delete;

  /// Creates a file; -EEXIST if there is one. Returns a descriptor open for writing.
  virtual int create(const std::filesystem::path& path) = 0;
  /// Opens an existing file. Returns a descriptor open for writing. Only files that several
  /// programs write need this call and the next two.
  virtual int open(const std::filesystem::path& /*path*/) { return -ENOSYS; }
  /// Truncates a file, or appends zeros.
  virtual int resize(int /*descriptor*/, std::int64_t /*bytes*/) { return -ENOSYS; }
  /// Sets where the next write begins, counted from the beginning of the file.
  virtual int seek(int /*descriptor*/, std::int64_t /*offset*/) { return -ENOSYS; }
  /// Returns how many bytes were written, which may be fewer than all.
  virtual std::int64_t write(int descriptor, std::span<const std::byte> bytes) = 0;
  /// fsync(2): returns once the bytes survive a loss of power. sync_folder() does the same for the
  /// names in a folder.
  virtual int sync(int descriptor) = 0;
  virtual int sync_folder(const std::filesystem::path& folder) = 0;
  virtual int close(int descriptor) = 0;
  virtual int rename(const std::filesystem::path& from, const std::filesystem::path& to) = 0;
  virtual int unlink(const std::filesystem::path& path) = 0;
  virtual int make_folder(const std::filesystem::path& path) = 0;
  /// Appends the names in a folder, except . and .., in no particular order.
  virtual int list(const std::filesystem::path& folder, std::vector<std::string>& names) = 0;
};

/// The operating system's file system. Several threads may use it at once.
FileSystem& real_files();

}  // namespace barestep
