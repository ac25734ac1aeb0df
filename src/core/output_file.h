// Files that are written: streams of lines, whole files that appear at once or not at all, gzip,
// and locks that keep two programs from writing one file or folder at the same time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
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

/// Bytes of a file, and where they begin in it.
struct FilePart {
  std::int64_t offset = 0;
  std::span<const std::byte> bytes;
};

/// A file under a temporary name, ".<name>-<process>-<number>.tmp" in the folder of the file that
/// it is to become. It vanishes with this object unless it is renamed. All calls block; what
/// returns an int returns 0, or a negated errno.
class DraftFile {
 public:
  /// Creates it. `files` must outlive it.
  DraftFile(FileSystem& files, const std::filesystem::path& target);
  ~DraftFile();
  DraftFile(const DraftFile&) = delete;
  DraftFile& operator=(const DraftFile&) = delete;

  /// Why it could not be created, an errno; 0 where it could.
  [[nodiscard]] int error() const { return error_; }
  [[nodiscard]] int descriptor() const { return descriptor_; }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

  /// Makes room up to `bytes`, so that other programs can write into it too.
  int resize(std::int64_t bytes) { return files_.resize(descriptor_, bytes); }

  /// Writes at the end of what was written before, or wherever a part says.
  int write(std::span<const FilePart> parts);

  /// Brings the bytes to the disk, and closes the file.
  int finish();

  /// Renames it to the target, and brings the name to the disk. If only the latter fails, the
  /// target is there already.
  int publish();

 private:
  FileSystem& files_;
  std::filesystem::path target_, path_;
  int descriptor_ = -1;
  int error_ = 0;
  std::int64_t position_ = 0;
  bool is_made_ = false;
  bool is_kept_ = false;
};

/// Writes parts of a file that another program has created, and brings them to the disk. Returns 0,
/// or a negated errno. Blocks.
int write_into(FileSystem& files, const std::filesystem::path& path,
               std::span<const FilePart> parts);

/// Makes `path` hold the parts, one after the other. Readers, and whoever looks after a loss of
/// power, see the old file or the whole new one: the bytes go to a DraftFile, are brought to the
/// disk, and are renamed. The permissions of an old file stay; a symbolic link keeps pointing to
/// its file. Something that is no regular file, such as /dev/null, is written directly. Throws
/// Error: kCannotCreate when the file cannot be created, kInputOutput when writing fails; an old
/// file is untouched then, and nothing is left behind, unless the name alone cannot be brought to
/// the disk. Blocks.
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

/// Who holds a lock on `path`; empty if no program does, or if that cannot be determined. Never
/// blocks.
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
