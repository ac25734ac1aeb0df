// A checkpoint file: everything a run needs to resume, in one safetensors file whose checksums
// detect any wrong bit. Its metadata are `format`, `step` and `state`, among the checksums.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
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

/// The content of a checkpoint.
struct CheckpointImage {
  std::int64_t step = 0;
  std::string state;  // JSON: everything except tensors
  std::vector<StoredTensor> tensors;
};

/// A checkpoint without the bytes of its tensors.
struct CheckpointForm {
  std::int64_t step = 0;
  std::string state;
  std::vector<TensorForm> tensors;
};

/// The layout of a checkpoint file. `checksums` are those of the pieces that make up all tensors,
/// in any order. The tensors' names must be distinct. Names and state must be UTF-8.
SafetensorsParts checkpoint_parts(const CheckpointForm& form, std::vector<PieceChecksum> checksums);

/// An open checkpoint file, with everything before its tensors already checked.
class CheckpointReader {
 public:
  /// Throws Error: kNoInput if the file cannot be opened, kBadData if it is not a checkpoint or not
  /// complete, kInputOutput if reading fails.
  explicit CheckpointReader(const std::filesystem::path& path);

  [[nodiscard]] std::int64_t step() const { return step_; }
  [[nodiscard]] const std::string& state() const { return state_; }
  /// In the order of their bytes.
  [[nodiscard]] std::span<const SafetensorsEntry> tensors() const { return file_.tensors(); }

  /// Reads a tensor. Throws Error: kBadData naming it if its bytes are not those that were written,
  /// kInputOutput if reading fails.
  [[nodiscard]] std::vector<std::byte> read(const SafetensorsEntry& entry) const;

  /// Whether read() would succeed. Holds only part of the tensor in memory at a time.
  [[nodiscard]] bool is_whole(const SafetensorsEntry& entry) const { return file_.is_whole(entry); }

  /// Throws what read() would throw for any tensor. Holds only part of one in memory at a time.
  void require_whole() const;

 private:
  SafetensorsReader file_;
  std::int64_t step_ = 0;
  std::string state_;
};

/// Reads a complete checkpoint; the tensors are in the order of their bytes. Throws Error as
/// CheckpointReader does, and kMemory if the tensors do not fit.
CheckpointImage read_checkpoint(const std::filesystem::path& path);

}  // namespace barestep
