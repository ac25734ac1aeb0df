// Input files: opening without ever blocking, with a one-line message for every reason that a file
// cannot be read; finding by pattern; identifying by hash.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace barestep {

/// An open regular file; owns its descriptor.
class InputFile {
 public:
  /// Opens `path`. `what` names the kind of file in messages ("idx file"). Throws Error(kNoInput)
  /// if the file is missing, may not be read, or is not a regular file; a FIFO does not block.
  InputFile(std::filesystem::path path, std::string what);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  [[nodiscard]] std::int64_t size_bytes() const { return size_bytes_; }

  /// Fills `out` with the next bytes. Throws Error(kInputOutput) if reading fails or the file has
  /// become shorter.
  void read(std::span<std::byte> out);

  /// Fills `out` with the bytes from `offset_bytes` on; throws as read() does. Does not move the
  /// position of read(). Several threads may call it at once.
  void read_at(std::int64_t offset_bytes, std::span<std::byte> out) const;

  /// Reads the whole file; throws as read() does. Nothing may have been read before. Throws
  /// Error(kNoInput) if the file has more than `max_bytes`.
  std::string text(std::int64_t max_bytes);

  /// Closes the file. From now on, read_at() opens it for each call.
  void close();

  /// Releases the descriptor; the caller closes it.
  int release();

 private:
  template <class ReadSome>
  void fill(std::span<std::byte> out, const ReadSome& read_some) const;
  [[noreturn]] void fail_reading(const std::string& why) const;

  std::filesystem::path path_;
  std::string what_;
  int descriptor_ = -1;
  std::int64_t size_bytes_ = 0;
};

/// The file with this exact name if there is one, else all files that match the name as a shell
/// pattern (*, ?, [...]), sorted by name bytewise. A name without those characters stands for
/// itself, whether or not the file exists. Throws Error(kNoInput) if a pattern matches nothing.
std::vector<std::filesystem::path> matching_files(const std::filesystem::path& pattern);

/// The folder of the program that runs.
std::filesystem::path folder_of_program();

/// A file or folder that programs are installed with: share/barestep/NAME beside their folder. If
/// they are not installed, it is in `source_folder`.
std::filesystem::path installed_file(const std::filesystem::path& source_folder,
                                     const std::string& name);

/// The names, without this ending (".json"), of the files in a folder that programs are installed
/// with, sorted bytewise; none if the folder is missing.
std::vector<std::string> installed_names(const std::filesystem::path& folder,
                                         std::string_view ending);

/// A file whose name ends so, or else the one of this name in a folder that is installed, which has
/// these `names`. Throws Error: kUsage, with the nearest name, if it has none such; kNoInput if it
/// is not there.
std::filesystem::path given_or_installed(const char* what, const std::string& name_or_file,
                                         const std::filesystem::path& folder,
                                         std::span<const std::string> names,
                                         const std::string& ending);

/// Size and XXH3-128 (hexadecimal) of a file's bytes, "47040016 bytes, hash 0a1b...". From a file
/// above 64 MiB, only 64 pieces of 1 MiB are hashed: evenly spread, including the first and the
/// last. Throws Error: kNoInput, kInputOutput. Blocks.
std::string content_hash(const std::filesystem::path& path);

/// The XXH3-128 of these bytes, "0a1b...": 32 digits.
std::string hash_of_bytes(std::string_view bytes);
std::string hash_of_bytes(std::span<const std::byte> bytes);

/// hash_of_bytes() for bytes that arrive in pieces.
class ByteHash {
 public:
  ByteHash();
  void add(std::span<const std::byte> bytes);
  [[nodiscard]] std::string text() const;

 private:
  struct Free {
    void operator()(void* state) const;
  };
  std::unique_ptr<void, Free> state_;  // xxHash's, which headers do not include
};

}  // namespace barestep
