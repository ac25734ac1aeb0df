// A checkpoint's file: all that a run needs to go on, in one safetensors file in which a wrong bit
// is found.
//
// Its metadata are `checksum`, `format`, `step`, `state` and `checksums`: a JSON object with the
// hash_of_bytes() of every tensor. `checksum` is the first of them and the hash of all bytes ahead
// of the tensors, with 32 zeros in its own place; so it vouches for every byte of the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/safetensors.h"

namespace barestep {

/// A tensor with its bytes, row-major and little-endian.
struct StoredTensor {
  std::string name;
  std::string dtype;  // safetensors' name: "F32", "I64", "U8", ...
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;
};

/// What a checkpoint holds.
struct CheckpointImage {
  std::int64_t step = 0;
  std::string state;  // JSON: all that is no tensor
  std::vector<StoredTensor> tensors;
};

/// The file of an image. The parts refer to the image's bytes. The tensors' names must differ and
/// be UTF-8, as must be the state.
SafetensorsParts checkpoint_parts(const CheckpointImage& image);

/// A checkpoint's file, opened. Everything ahead of its tensors is checked.
class CheckpointReader {
 public:
  /// Throws Error: kNoInput when the file cannot be opened, kBadData when it is no checkpoint or
  /// not the whole of one, kInputOutput when reading fails.
  explicit CheckpointReader(const std::filesystem::path& path);

  [[nodiscard]] std::int64_t step() const { return step_; }
  [[nodiscard]] const std::string& state() const { return state_; }
  /// In the order of their bytes.
  [[nodiscard]] std::span<const SafetensorsEntry> tensors() const { return file_.tensors(); }

  /// Reads a tensor. Throws Error: kBadData with its name if these are not the bytes that were
  /// written, kInputOutput when reading fails.
  [[nodiscard]] std::vector<std::byte> read(const SafetensorsEntry& entry) const;

  /// Whether read() would return. Keeps a part of the tensor at a time.
  [[nodiscard]] bool is_whole(const SafetensorsEntry& entry) const;

  /// Throws what read() would of any tensor. Keeps a part of one at a time.
  void require_whole() const;

 private:
  [[noreturn]] void refuse(const SafetensorsEntry& entry) const;

  std::filesystem::path path_;
  SafetensorsReader file_;
  std::int64_t step_ = 0;
  std::string state_;
  std::map<std::string, std::string, std::less<>> checksums_;
};

/// Reads all of a checkpoint; the tensors come in the order of their bytes. Throws Error as
/// CheckpointReader does, and kMemory when the tensors do not fit.
CheckpointImage read_checkpoint(const std::filesystem::path& path);

}  // namespace barestep
