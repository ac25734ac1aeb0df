#include "profiler/event_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <chrono>

namespace barestep {
namespace {

namespace fs = std::filesystem;

/// Little-endian, as in both formats.
template <class Number>
std::string bytes_of_number(Number number) {
  static_assert(std::endian::native == std::endian::little);
  return {reinterpret_cast<const char*>(&number), sizeof(number)};
}

// Protocol buffers: each value is preceded by its field number and type.
enum class Wire { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}

std::string field(int number, Wire wire, std::string_view value) {
  std::string bytes = varint(static_cast<std::uint64_t>(number) << 3 | static_cast<unsigned>(wire));
  if (wire == Wire::kBytes) bytes += varint(value.size());
  return bytes.append(value);
}

/// TensorFlow masks checksums because the checksum of data that contain checksums would be weak.
std::uint32_t masked(std::uint32_t crc) {
  return std::rotr(crc, 15) + 0xa282ead8U;
}

fs::path new_path(const fs::path& folder) {
  make_folder(folder);
  static std::atomic<int> count = 0;
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host = {"localhost"};
  return folder / fmt::format("events.out.tfevents.{:010}.{}.{}.{}",
                              static_cast<std::int64_t>(unix_now_s()), host.data(), ::getpid(),
                              count++);
}

std::array<std::uint32_t, 256> crc_table() {
  constexpr std::uint32_t kPolynomial = 0x82F63B78;  // bit-reversed
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? kPolynomial : 0);
    table[i] = crc;
  }
  return table;
}

}  // namespace

double unix_now_s() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

std::uint32_t crc32c(std::string_view bytes) {
  static const std::array<std::uint32_t, 256> table = crc_table();
  std::uint32_t crc = ~0U;
  for (const char byte : bytes) {
    crc = crc >> 8 ^ table[(crc ^ static_cast<unsigned char>(byte)) & 0xFF];
  }
  return ~crc;
}

EventFile::EventFile(const fs::path& folder) : file_(new_path(folder)) {
  write_event(field(1, Wire::kFixed64, bytes_of_number(unix_now_s())) +
              field(3, Wire::kBytes, "brain.Event:2"));
}

void EventFile::add(std::int64_t step, double unix_s, Scalar scalar) {
  const std::string value =
      field(1, Wire::kBytes, scalar.tag) +
      field(2, Wire::kFixed32, bytes_of_number(static_cast<float>(scalar.value)));
  write_event(field(1, Wire::kFixed64, bytes_of_number(unix_s)) +
              field(2, Wire::kVarint, varint(static_cast<std::uint64_t>(step))) +
              field(5, Wire::kBytes, field(1, Wire::kBytes, value)));
}

void EventFile::restart(std::int64_t step) {
  // session_log { status: START }
  constexpr std::uint64_t kStart = 1;
  write_event(field(1, Wire::kFixed64, bytes_of_number(unix_now_s())) +
              field(2, Wire::kVarint, varint(static_cast<std::uint64_t>(step))) +
              field(7, Wire::kBytes, field(1, Wire::kVarint, varint(kStart))));
}

void EventFile::write_event(const std::string& event) {
  const std::string length = bytes_of_number(static_cast<std::uint64_t>(event.size()));
  file_.write(length + bytes_of_number(masked(crc32c(length))) + event +
              bytes_of_number(masked(crc32c(event))));
  file_.flush();
}

}  // namespace barestep
