// Output files: streams of lines, whole files that appear completely or not at all, gzip, and locks
// that keep two programs from writing the same file or folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/file_system.h"

namespace barestep {

/// A file written in pieces, e.g. one line per step. Keeps the first `kept_bytes` of the previous
/// content. A FIFO must already have a reader; opening one never blocks. While this is open, no
/// program can open another OutputFile on the same regular file.
class OutputFile {
 public:
  /// Creates the file. Throws Error with the reason: kCannotCreate if it cannot be created,
  /// kTryAgain if another program is writing to it; that program's lines stay.
  explicit OutputFile(std::filesystem::path path, std::int64_t kept_bytes = 0);

  /// Buffered. The file always ends with a complete `text`, so a killed program leaves complete
  /// lines. Throws Error(kInputOutput), as flush() does, once a write is known to have failed.
  void write(std::string_view text);

  /// Passes everything to the operating system.
  void flush();

  /// Flushes and closes. Throws Error(kInputOutput) if any byte may be missing. The destructor
  /// closes too, but reports no error.
  void close();

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  /// Throws the reason of the first failure unless `done`.
  void check(bool done);

  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Close> file_;
  std::size_t buffered_ = 0;
  int first_error_ = 0;  // errno
};

/// Receives a folder that cannot be synced, and the errno that it gave.
using UnsyncedFolder = std::function<void(const std::filesystem::path& folder, int error)>;

/// Calls `report` when a file is published into such a folder, the first time only. Until it is
/// called, any thread may do so.
void report_unsynced_folder(UnsyncedFolder report);

/// Bytes of a file and their offset in it.
struct FilePart {
  std::int64_t offset = 0;
  std::span<const std::byte> bytes;
};

/// A file with a temporary name, ".<name>-<process>-<number>.tmp", in the target file's folder. The
/// destructor deletes it unless it was published. All calls block; those that return an int return
/// 0 or a negated errno.
class DraftFile {
 public:
  /// Creates it. `files` must outlive it.
  DraftFile(FileSystem& files, const std::filesystem::path& target);
  ~DraftFile();
  DraftFile(const DraftFile&) = delete;
  DraftFile& operator=(const DraftFile&) = delete;

  /// The errno of a failed creation; 0 if the file was created.
  [[nodiscard]] int error() const { return error_; }
  [[nodiscard]] int descriptor() const { return descriptor_; }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

  /// Extends the file to `bytes`, so that other programs can write into it too.
  int resize(std::int64_t bytes) { return files_.resize(descriptor_, bytes); }

  /// Writes after the previous write, or at the offset that a part gives.
  int write(std::span<const FilePart> parts);

  /// Syncs the bytes to disk and closes the file.
  int finish();

  /// Renames the file to the target and syncs the name to disk, where the folder can be synced.
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

/// Writes parts of a file that another program has created, and syncs them to disk. Returns 0 or a
/// negated errno. Blocks.
int write_into(FileSystem& files, const std::filesystem::path& path,
               std::span<const FilePart> parts);

/// Takes bytes of a file, one piece after another, and a function that hands over all of them.
using ByteSink = std::function<void(std::string_view)>;
using FileWriter = std::function<void(const ByteSink&)>;

/// Replaces the content of `path` with the parts, one after another. Readers, and anyone after a
/// loss of power, see either the old file or the complete new one: the bytes go to a DraftFile,
/// which is synced to disk and renamed. An old file's permissions stay; a symbolic link keeps
/// pointing to its file. A path that is not a regular file, such as /dev/null, is written directly.
/// Throws Error: kCannotCreate if the file cannot be created, kInputOutput if writing fails. Then
/// an old file is untouched and no draft remains. Blocks.
void replace_file(const std::filesystem::path& path,
                  std::span<const std::span<const std::byte>> parts);
void replace_file(const std::filesystem::path& path, std::string_view text);

/// The same for bytes that are made while they are written. If `write` throws, an old file is
/// untouched too.
void replace_file_by(const std::filesystem::path& path, const FileWriter& write);

/// Throws Error(kCannotCreate) if replace_file would, so a long run fails at its start, not at its
/// end, and Error(kTryAgain) if another program has the path open as an OutputFile. Changes
/// nothing.
void require_writable(const std::filesystem::path& path);

/// Creates a folder and its missing parents, and syncs their names to disk. Throws
/// Error(kCannotCreate).
void make_folder(const std::filesystem::path& path, FileSystem& files = real_files());

/// Throws Error(kCannotCreate) if make_folder() would, or if no file can be created in the folder.
/// Changes nothing.
void require_writable_folder(const std::filesystem::path& path);

/// Hands over a complete gzip file (RFC 1952) of what `write` makes, at gzip's default level.
/// Throws std::bad_alloc, and what the two functions throw.
void gzip(const FileWriter& write, const ByteSink& sink);

/// Locks the regular file or folder open at `descriptor` for this program, with flock(2), until
/// every copy of the descriptor is closed. If another program holds the lock, returns its name,
/// "mlp_dp (process 4711)"; else an empty string. A file that cannot be locked, such as a device or
/// a file on some network file systems, counts as locked. Never blocks.
std::string lock_or_holder(int descriptor);

/// The program that holds a lock on `path`; empty if there is none or if it cannot be determined.
/// Never blocks.
std::string holder_of(const std::filesystem::path& path);

/// Holds the lock of a folder until destruction.
class FolderLock {
 public:
  /// If another program holds the lock, throws Error(kTryAgain) naming `option` and that program.
  FolderLock(const std::filesystem::path& folder, const std::string& option);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int descriptor_ = -1;
};

}  // namespace barestep
