// Files that are written: streams of lines, whole files that appear at once or not at all, gzip,
// and locks that keep two programs from writing one file or folder at the same time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/file_system.h"

namespace barestep {

/// A file written piece by piece, e.g. one line a step. Of what was there before as many bytes stay
/// as are asked for. A FIFO needs
/// a reader already; opening one never blocks. As long as it is open no other OutputFile of any
/// program is opened on the same regular file.
class OutputFile {
 public:
  /// Creates the file. Throws Error with the reason: kCannotCreate when it cannot be created,
  /// kTryAgain when another program writes to it, whose lines stay.
  explicit OutputFile(std::filesystem::path path, std::int64_t kept_bytes = 0);

  /// Buffered; what reaches the file ends with a whole `text`, so that a program that is killed
  /// leaves whole lines. Throws Error(kInputOutput), as flush() does, as soon as a write is known
  /// to have failed.
  void write(std::string_view text);

  /// Hands everything to the operating system.
  void flush();

  /// Flushes and closes. Throws Error(kInputOutput) if any byte may be missing. The destructor
  /// closes too, but says nothing.
  void close();

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  /// Throws unless `done`, with the reason of the first failure.
  void check(bool done);

  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Close> file_;
  std::size_t buffered_ = 0;
  int first_error_ = 0;  // errno
};

/// Why a file was not written.
struct WriteFailure {
  bool creating = false;  // else writing, or bringing the bytes or the name to the disk
  int error = 0;          // errno
};

/// Makes `path` hold the parts, one behind the other. Readers, and whoever looks after a loss of
/// power, see the old file or the whole new one: the bytes go to a temporary file in the same
/// folder, ".<name>-<process>-<number>.tmp", are brought to the disk and renamed, and the name is
/// brought to the disk too. The file has these permissions where they are given. `prove`, where
/// there is one, is called with the path of the temporary file when its bytes are on the disk; what
/// it throws ends this as a failure does. Then an old file is untouched and nothing is left behind;
/// only if the name alone cannot be brought to the disk the new file stands there already. Blocks.
std::optional<WriteFailure> write_beside(
    FileSystem& files, const std::filesystem::path& path,
    std::span<const std::span<const std::byte>> parts, std::optional<unsigned> permissions = {},
    const std::function<void(const std::filesystem::path&)>& prove = {});

/// write_beside() with its failures as Errors: kCannotCreate when the file cannot be created,
/// kInputOutput when writing fails. The permissions of an old file stay; a symbolic link keeps
/// pointing to its file. Something that is no regular file, such as /dev/null, is written directly.
void replace_file(const std::filesystem::path& path,
                  std::span<const std::span<const std::byte>> parts);

/// Throws Error(kCannotCreate) where replace_file would, so that a long run fails at its start and
/// not at its end, and Error(kTryAgain) for what another program has open as an OutputFile. Changes
/// nothing.
void require_writable(const std::filesystem::path& path);

/// Makes a folder, and those above it, where they are missing, and brings their names to the disk.
/// Throws Error(kCannotCreate).
void make_folder(const std::filesystem::path& path, FileSystem& files = real_files());

/// Throws Error(kCannotCreate) where make_folder() would, or where the folder takes no file.
/// Changes nothing.
void require_writable_folder(const std::filesystem::path& path);

/// A whole gzip file (RFC 1952), at the level that gzip takes by default. Throws std::bad_alloc.
std::vector<std::byte> gzip_of(std::string_view text);

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
