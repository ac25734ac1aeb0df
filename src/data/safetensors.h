// safetensors files: named tensors behind a JSON header.
//
// Layout: header length as a little-endian u64, the header as JSON, then the tensors' bytes without
// holes. The format is Hugging Face's (safetensors/src/tensor.rs); save_safetensors writes the same
// bytes as theirs, and SafetensorsFile refuses what theirs refuses and a little more.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/array_file.h"

namespace barestep {

/// A tensor to be saved. Owns the name and the shape, not the values.
struct NamedTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::span<const float> values;  // row-major, as many as the shape says
};

/// Writes all tensors as F32, through replace_file, with its errors. The names must differ and be
/// UTF-8; the order of `tensors` does not matter.
void save_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors);

/// A tensor of a file. Its bytes are begin .. end - 1 behind the header.
struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // "F32", "BF16", ...
  std::vector<std::int64_t> shape;
  std::int64_t begin_bytes = 0;
  std::int64_t end_bytes = 0;
};

/// Opens one tensor of a file whose header is checked as SafetensorsFile's is; its elements stay in
/// the file. Throws Error: kNoInput, kBadData, kInputOutput, as SafetensorsFile does, and kBadData
/// when there is no such tensor or its dtype is not U8, I8, I16, I32, I64, F32, F64 or BOOL (as
/// u8).
ArrayFile open_safetensors(const std::filesystem::path& path, std::string_view name);

/// A whole file, read and checked. Owns the values of its F32 tensors; the bytes of others are not
/// kept.
class SafetensorsFile {
 public:
  /// Throws Error: kNoInput when the file cannot be opened, kBadData when the reference reader
  /// would refuse it, and for duplicate names, unknown fields of a tensor, more than 8 dimensions,
  /// dimensions beyond 2^63 - 1 and names of more than 512 bytes; kMemory when the values do not
  /// fit, kInputOutput when reading fails.
  explicit SafetensorsFile(const std::filesystem::path& path);

  /// In the order of their bytes.
  [[nodiscard]] std::span<const SafetensorsEntry> tensors() const { return entries_; }

  /// Null when there is no tensor of this name.
  [[nodiscard]] const SafetensorsEntry* find(std::string_view name) const;

  /// The values of tensor `name`; valid as long as this object. Throws Error(kBadData) when there
  /// is none or its dtype is not F32.
  [[nodiscard]] std::span<const float> f32(std::string_view name) const;

 private:
  std::filesystem::path path_;
  std::vector<SafetensorsEntry> entries_;
  std::map<std::string, std::vector<float>, std::less<>> values_;
};

}  // namespace barestep
