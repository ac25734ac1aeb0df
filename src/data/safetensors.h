// safetensors files: named tensors after a JSON header.
//
// Layout: header length as a little-endian u64, the header as JSON, then the tensors' bytes without
// gaps. The format is Hugging Face's (safetensors/src/tensor.rs). safetensors_parts lays files out
// as the reference does; SafetensorsReader refuses whatever the reference refuses, and slightly
// more.
//
// The files that barestep writes have checksums in their metadata, which cover every byte.
// `checksum` comes first: the hash_of_bytes() of all that precedes the tensors, with 32 zeros in
// its own place. `checksums` is a JSON object with the hash_of_bytes() of every tensor; for a
// tensor that several programs wrote, an array of {"bytes", "hash"} for its consecutive pieces.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/array_file.h"

namespace barestep {

/// A tensor of any type, without its bytes.
struct TensorForm {
  std::string name;
  std::string dtype;  // "F32", "BF16", ...
  std::vector<std::int64_t> shape;
  std::int64_t bytes = 0;  // must match shape and dtype
};

/// How a tensor of a file differs from the expected one: "net.0.bias is [4], not [5]". Empty if it
/// does not; nothing in the file means that it is missing.
std::string difference_of(const std::optional<TensorForm>& stored, const TensorForm& expected);

/// The first three of these differences, and how many more there are.
std::string text_of_differences(std::span<const std::string> differences);

/// The metadata in a header next to the tensors; all of it UTF-8.
using SafetensorsMetadata = std::vector<std::pair<std::string, std::string>>;

/// A file without the bytes of its tensors.
struct SafetensorsParts {
  std::string head;                   // length and header: everything before the tensors
  std::vector<std::int64_t> offsets;  // the given tensors' offsets in the file
  std::int64_t file_bytes = 0;
};

/// Lays out a file: the metadata in the given order, if any; then the tensors by alignment, largest
/// first, then by name. The names must be distinct and UTF-8.
SafetensorsParts safetensors_parts(std::span<const TensorForm> tensors,
                                   const SafetensorsMetadata& metadata = {});

/// Consecutive bytes of a tensor.
struct TensorPiece {
  std::int64_t tensor = 0;  // index in the file's tensors
  std::int64_t first_byte = 0;
  std::span<const std::byte> bytes;
};

/// The checksum of a piece. Trivially copyable, so ranks can exchange it as bytes.
struct PieceChecksum {
  std::int64_t tensor = 0;
  std::int64_t first_byte = 0;
  std::int64_t bytes = 0;
  std::array<char, 32> hash{};  // hash_of_bytes()
};
PieceChecksum checksum_of(const TensorPiece& piece);

/// As safetensors_parts(), with the checksums of the pieces that make up all tensors, in any order.
SafetensorsParts checked_safetensors_parts(std::span<const TensorForm> tensors,
                                           const SafetensorsMetadata& metadata,
                                           std::vector<PieceChecksum> checksums);

/// A tensor in a file. Its bytes are begin .. end - 1, counted from the end of the header.
struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // "F32", "BF16", ...
  std::vector<std::int64_t> shape;
  std::int64_t begin_bytes = 0;
  std::int64_t end_bytes = 0;

  [[nodiscard]] std::int64_t bytes() const { return end_bytes - begin_bytes; }
  [[nodiscard]] TensorForm form() const { return {name, dtype, shape, bytes()}; }
};

/// Opens one tensor of a file; its elements stay there. Throws Error as SafetensorsReader does, and
/// kBadData if the tensor does not exist or its dtype is not BOOL (as u8), U8 to U64, I8 to I64,
/// F16, BF16, F32 or F64.
ArrayFile open_safetensors(const std::filesystem::path& path, std::string_view name);

/// A file with its header read and checked; the tensors stay in the file, and are compared with
/// their checksums, if the file has any, when they are read. Copies share the file.
class SafetensorsReader {
 public:
  /// `what` names the kind of file in messages. Throws Error: kNoInput if the file cannot be
  /// opened; kBadData if the reference reader would refuse it, for a header that is not the one its
  /// checksum was made for, and for duplicate names, unknown fields of a tensor, more than 8
  /// dimensions, dimensions beyond 2^63 - 1 and names longer than 512 bytes; kInputOutput if
  /// reading fails.
  explicit SafetensorsReader(std::filesystem::path path, std::string what = "safetensors file");

  /// In the order of their bytes.
  [[nodiscard]] std::span<const SafetensorsEntry> tensors() const { return entries_; }

  /// Null if no tensor has this name.
  [[nodiscard]] const SafetensorsEntry* find(std::string_view name) const;

  [[nodiscard]] const std::map<std::string, std::string, std::less<>>& metadata() const {
    return metadata_;
  }

  /// All bytes before the tensors, in the form that safetensors_parts() writes.
  [[nodiscard]] const std::string& head() const { return head_; }

  [[nodiscard]] bool has_checksums() const;

  /// Fills `out`, which has the tensor's size. Throws Error: kBadData naming the tensor if its
  /// bytes have another checksum, kInputOutput if reading fails. Several threads may read at once.
  void read(const SafetensorsEntry& entry, std::span<std::byte> out) const;

  /// Whether read() would find the tensor's checksums; true without any. Holds only part of the
  /// tensor in memory at a time.
  [[nodiscard]] bool is_whole(const SafetensorsEntry& entry) const;

  /// Throws what read() would throw. Holds only part of the tensor in memory at a time.
  void require_whole(const SafetensorsEntry& entry) const;

  [[nodiscard]] const std::shared_ptr<InputFile>& file() const { return file_; }

 private:
  struct Piece {
    std::int64_t bytes = 0;
    std::string hash;
  };

  [[noreturn]] void refuse(const std::string& why,
                           const std::string& remedy = "it is damaged; use another one") const;
  [[noreturn]] void refuse_tensor(const SafetensorsEntry& entry) const;
  void read_checksums();
  [[nodiscard]] std::int64_t offset_of(const SafetensorsEntry& entry) const {
    return static_cast<std::int64_t>(head_.size()) + entry.begin_bytes;
  }
  [[nodiscard]] std::span<const Piece> pieces_of(const SafetensorsEntry& entry) const;

  std::filesystem::path path_;
  std::string what_;
  std::shared_ptr<InputFile> file_;
  std::string head_;
  std::map<std::string, std::string, std::less<>> metadata_;
  std::vector<SafetensorsEntry> entries_;
  std::map<std::string, std::vector<Piece>, std::less<>> pieces_;  // by tensor, consecutive
};

/// A complete file, read and checked. Owns the values of its F32 tensors; does not keep the bytes
/// of others.
class SafetensorsFile {
 public:
  /// Throws Error as SafetensorsReader does, and kMemory if the values do not fit.
  explicit SafetensorsFile(const std::filesystem::path& path);

  /// In the order of their bytes.
  [[nodiscard]] std::span<const SafetensorsEntry> tensors() const { return reader_.tensors(); }

  /// Null if no tensor has this name.
  [[nodiscard]] const SafetensorsEntry* find(std::string_view name) const {
    return reader_.find(name);
  }

  /// The values of tensor `name`, valid as long as this object. Throws Error(kBadData) if there is
  /// none or its dtype is not F32.
  [[nodiscard]] std::span<const float> f32(std::string_view name) const;

 private:
  std::filesystem::path path_;
  SafetensorsReader reader_;
  std::map<std::string, std::vector<float>, std::less<>> values_;
};

}  // namespace barestep
