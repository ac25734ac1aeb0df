// TensorBoard's event files: numbers by name and step, in the format of its own writers.
//
// The format consists of TensorFlow's tf.train.Event protocol buffers in TFRecord frames: length,
// masked CRC-32C of the length, bytes, masked CRC-32C of the bytes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "core/output_file.h"

namespace barestep {

struct Scalar {
  std::string_view tag;
  double value = 0;
};

class EventFile {
 public:
  /// Creates the folder and a file in it, with a name that TensorBoard reads and that no other
  /// process uses. Throws Error(kCannotCreate).
  explicit EventFile(const std::filesystem::path& folder);

  /// Adds a number and passes it to the operating system. `unix_s` is the time of the measurement.
  /// Throws Error(kInputOutput).
  void add(std::int64_t step, double unix_s, Scalar scalar);

  /// Readers then drop what earlier files of the folder say about `step` and later ones.
  void restart(std::int64_t step);

  /// Throws Error(kInputOutput) if any byte may be missing.
  void close() { file_.close(); }

 private:
  void write_event(const std::string& event);

  OutputFile file_;
};

/// The time of day in seconds since 1970, as in these files.
double unix_now_s();

/// CRC-32C (Castagnoli; RFC 3720, appendix B.4).
std::uint32_t crc32c(std::string_view bytes);

}  // namespace barestep
