#include "lab/data_set.h"

#include <fmt/format.h>

#include <array>
#include <random>
#include <span>
#include <vector>

#include "core/output_file.h"

namespace barestep {
namespace {

/// Version 1.0; the elements begin at a multiple of 64 bytes.
std::string npy_header(std::int64_t rows, std::int64_t dim) {
  std::string text =
      fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows, dim);
  constexpr std::size_t kBeforeText = 10;
  text.append(63 - (kBeforeText + text.size()) % 64, ' ');
  text += '\n';
  std::string header = "\x93NUMPY\x01";
  header += '\0';
  header += static_cast<char>(text.size() % 256);
  header += static_cast<char>(text.size() / 256);
  return header + text;
}

void write_npy(const std::filesystem::path& path, std::int64_t rows, std::int64_t dim,
               unsigned seed) {
  if (std::filesystem::exists(path)) return;
  std::minstd_rand random(seed);
  std::vector<float> numbers(static_cast<std::size_t>(rows * dim));
  const auto range = static_cast<float>(std::minstd_rand::max());
  for (float& each : numbers) each = 2 * (static_cast<float>(random()) / range) - 1;
  const std::string header = npy_header(rows, dim);
  const std::array parts = {std::as_bytes(std::span(header)), std::as_bytes(std::span(numbers))};
  replace_file(path, parts);
}

}  // namespace

void make_data_set(const std::filesystem::path& folder, std::int64_t rows, std::int64_t dim) {
  std::filesystem::create_directories(folder);
  write_npy(folder / "x.npy", rows, dim, 1);
  write_npy(folder / "y.npy", rows, dim, 2);
}

void read_data_set(DataConfig& data, const std::filesystem::path& folder) {
  data.kind = DataKind::kNpy;
  data.x = folder / "x.npy";
  data.y = folder / "y.npy";
}

}  // namespace barestep
