// A checkpoint's file: all that a run needs to go on, in one safetensors file in which a wrong bit
// is found.
//
// Its metadata are `checksum`, `format`, `step`, `state` and `checksums`: a JSON object with the
// hash_of_bytes() of every tensor, or, of a tensor that several programs wrote, an array of
// {"bytes", "hash"} for its pieces in their order. `checksum` is the first of them and the hash of
// all bytes that precede the tensors, with 32 zeros in its own place; so it vouches for every byte
// of the file.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/json_document.h"
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

/// A checkpoint without the bytes of its tensors.
struct CheckpointForm {
  std::int64_t step = 0;
  std::string state;
  std::vector<TensorForm> tensors;
};

/// Consecutive bytes of a tensor.
struct CheckpointPiece {
  std::int64_t tensor = 0;  // its place in the form
  std::int64_t first_byte = 0;
  std::span<const std::byte> bytes;
};

/// What a piece is checked by. It may travel between ranks as it is.
struct PieceChecksum {
  std::int64_t tensor = 0;
  std::int64_t first_byte = 0;
  std::int64_t bytes = 0;
  std::array<char, 32> hash{};  // hash_of_bytes()
};
PieceChecksum checksum_of(const CheckpointPiece& piece);

/// The layout of a checkpoint's file. `checksums` are those of pieces that make up all tensors, in
/// any order. The tensors' names must differ and be UTF-8, as must be the state.
SafetensorsParts checkpoint_parts(const CheckpointForm& form, std::vector<PieceChecksum> checksums);

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
  struct Piece {
    std::int64_t bytes = 0;
    std::string hash;
  };

  [[noreturn]] void refuse(const SafetensorsEntry& entry) const;
  [[nodiscard]] static std::vector<Piece> pieces_of(const SafetensorsEntry& entry,
                                                    const JsonValue& checksum);

  std::filesystem::path path_;
  SafetensorsReader file_;
  std::int64_t step_ = 0;
  std::string state_;
  std::map<std::string, std::vector<Piece>, std::less<>> pieces_;  // by tensor, in their order
};

/// Reads all of a checkpoint; the tensors come in the order of their bytes. Throws Error as
/// CheckpointReader does, and kMemory when the tensors do not fit.
CheckpointImage read_checkpoint(const std::filesystem::path& path);

}  // namespace barestep
