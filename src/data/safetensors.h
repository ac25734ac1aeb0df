// safetensors files: named tensors after a JSON header.
//
// Layout: header length as a little-endian u64, the header as JSON, then the tensors' bytes without
// gaps. The format is Hugging Face's (safetensors/src/tensor.rs). save_safetensors writes the same
// bytes as the reference; SafetensorsReader refuses whatever the reference refuses, and slightly
// more.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/array_file.h"

namespace barestep {

/// A tensor to be saved as F32. Owns the name and the shape, not the values.
struct NamedTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::span<const float> values;  // row-major; their number matches the shape
};

/// Writes all tensors through replace_file; throws as it does. The names must be distinct and
/// UTF-8. The order of `tensors` does not matter.
void save_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors);

/// A tensor of any type, without its bytes.
struct TensorForm {
  std::string name;
  std::string dtype;  // "F32", "BF16", ...
  std::vector<std::int64_t> shape;
  std::int64_t bytes = 0;  // must match shape and dtype
};

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

/// A tensor in a file. Its bytes are begin .. end - 1, counted from the end of the header.
struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // "F32", "BF16", ...
  std::vector<std::int64_t> shape;
  std::int64_t begin_bytes = 0;
  std::int64_t end_bytes = 0;

  [[nodiscard]] std::int64_t bytes() const { return end_bytes - begin_bytes; }
};

/// Opens one tensor of a file; its elements stay there. Throws Error as SafetensorsReader does, and
/// kBadData if the tensor does not exist or its dtype is not U8, I8, I16, I32, I64, F32, F64 or
/// BOOL (as u8).
ArrayFile open_safetensors(const std::filesystem::path& path, std::string_view name);

/// A file with its header read and checked; the tensors stay in the file. Copies share the file.
class SafetensorsReader {
 public:
  /// `what` names the kind of file in messages. Throws Error: kNoInput if the file cannot be
  /// opened; kBadData if the reference reader would refuse it, and for duplicate names, unknown
  /// fields of a tensor, more than 8 dimensions, dimensions beyond 2^63 - 1 and names longer than
  /// 512 bytes; kInputOutput if reading fails.
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

  /// Fills `out` with the tensor's bytes from `first_byte` on. Throws Error(kInputOutput). Several
  /// threads may read at once.
  void read(const SafetensorsEntry& entry, std::int64_t first_byte, std::span<std::byte> out) const;

  [[nodiscard]] const std::shared_ptr<InputFile>& file() const { return file_; }

 private:
  std::shared_ptr<InputFile> file_;
  std::string head_;
  std::map<std::string, std::string, std::less<>> metadata_;
  std::vector<SafetensorsEntry> entries_;
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
