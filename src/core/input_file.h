// Files that are read: opened without ever blocking, with every way of not being readable said in
// one line; found by a pattern; identified by a hash.
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
  /// when the file is missing, may not be read, or is no regular file; a FIFO does not block.
  InputFile(std::filesystem::path path, std::string what);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  [[nodiscard]] std::int64_t size_bytes() const { return size_bytes_; }

  /// Fills `out` with the next bytes. Throws Error(kInputOutput) when reading fails or the file has
  /// become shorter than it was.
  void read(std::span<std::byte> out);

  /// Fills `out` with the bytes from `offset_bytes` on, with the errors of read(). Leaves alone
  /// where read() goes on; several threads may read at once.
  void read_at(std::int64_t offset_bytes, std::span<std::byte> out) const;

  /// The whole file, of which nothing may be read yet, with the errors of read(). Throws
  /// Error(kNoInput) if it has more than `most_bytes`.
  std::string text(std::int64_t most_bytes);

  /// Skips the next `bytes`.
  void skip(std::int64_t bytes);

  /// Gives the descriptor away; the caller closes it.
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

/// The file of this very name if there is one, else those that fit it as a shell's pattern (*, ?,
/// [...]), sorted by name byte for byte. A name without such characters stands for itself, be there
/// a file or not. Throws Error(kNoInput) when a pattern fits nothing.
std::vector<std::filesystem::path> matching_files(const std::filesystem::path& pattern);

/// Size and XXH3-128 (hexadecimal) of a file's bytes, "47040016 bytes, hash 0a1b...". Of a file
/// above 64 MiB 64 pieces of 1 MiB are read, evenly spread, the first and the last among them.
/// Throws Error: kNoInput, kInputOutput. Blocks.
std::string content_hash(const std::filesystem::path& path);

/// The same hash of all these bytes, "0a1b...": 32 digits.
std::string hash_of_bytes(std::string_view bytes);
std::string hash_of_bytes(std::span<const std::byte> bytes);

/// hash_of_bytes() of bytes that come piece by piece.
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
