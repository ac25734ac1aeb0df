// Bad files, for the command lines in bad_input.txt that name them.
#include <sys/stat.h>

#include <limits>

#include "apps/bad_input.h"
#include "support/idx_bytes.h"
#include "support/npy_bytes.h"
#include "support/saved_weights.h"
#include "support/temp_dir.h"

namespace barestep {
namespace {

constexpr int kU8 = 0x08, kI8 = 0x09, kI32 = 0x0C, kF32 = 0x0D;

/// A safetensors file: the header, then this many bytes of values.
std::string safetensors(const std::string& header, std::size_t bytes) {
  std::string length(8, '\0');
  length[0] = static_cast<char>(header.size());
  return length + header + std::string(bytes, '\0');
}

/// The weights of a model of 2 inputs and 2 outputs.
std::string two_by_two(const std::vector<float>& weight, const std::vector<float>& bias) {
  std::vector<float> values = weight;
  values.insert(values.end(), bias.begin(), bias.end());
  const std::string header =
      R"({"net.0.weight":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
      R"("net.0.bias":{"dtype":"F32","shape":[2],"data_offsets":[16,24]}})";
  const std::string bytes = safetensors(header, 0);
  return bytes + std::string(reinterpret_cast<const char*>(values.data()), 4 * values.size());
}

/// Writes weights of the same model with checksums, and then turns a bit of the byte that
/// precedes `tail` others.
void write_damaged_weights(const std::filesystem::path& path, std::size_t tail) {
  const std::vector<float> weight = {1, 2, 3, 4};
  const std::vector<float> bias = {5, 6};
  save_safetensors(
      path, std::vector<NamedTensor>{{"net.0.weight", {2, 2}, weight}, {"net.0.bias", {2}, bias}});
  std::string bytes = read_file(path);
  char& byte = bytes.at(bytes.size() - 1 - tail);
  byte = static_cast<char>(byte ^ 1);
  write_file(path, bytes);
}

const std::string kHeader = npy_header("<f4", "2, 2");

}  // namespace

void write_bad_files(const std::filesystem::path& folder) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::uint8_t> pixels(16, 9);
  const std::string images = idx_bytes(kU8, {4, 2, 2}, pixels);
  const auto write = [&](const char* name, const std::string& bytes) {
    write_file(folder / name, bytes);
  };
  write("images", images);
  write("labels", idx_bytes<std::uint8_t>(kU8, {4}, {0, 1, 2, 0}));
  write("three_labels", idx_bytes<std::uint8_t>(kU8, {3}, {0, 1, 2}));
  write("large_label", idx_bytes<std::uint8_t>(kU8, {4}, {0, 1, 3, 0}));
  write("negative_label", idx_bytes<std::int8_t>(kI8, {4}, {0, -1, 2, 0}));
  write("huge_label", idx_bytes<std::int32_t>(kI32, {4}, {0, 1, 2, 2147483647}));
  write("float_labels", idx_bytes<float>(kF32, {4}, {0, 1, 2, 0}));
  write("wide_labels", idx_bytes<std::uint8_t>(kU8, {4, 2}, std::vector<std::uint8_t>(8)));
  write("no_images", idx_header(kU8, {0, 2, 2}));
  write("no_labels", idx_header(kU8, {0}));
  write("empty", "");
  write("three_bytes", "\x01\x02\x03");
  write("magic", "PK\x03\x04 not an idx file");
  write("type", idx_header(0x0A, {4, 2, 2}) + std::string(16, 'x'));
  write("dims_0", idx_header(kU8, {}));
  write("dims_200", std::string("\0\0\x08\xC8", 4) + std::string(800, '\x01'));
  write("overflow", idx_header(kU8, std::vector<std::uint32_t>(3, 0xFFFFFFFF)));
  write("lying", idx_header(kU8, {4000000000, 1000, 1000}) + std::string(16, 'x'));
  write("cut", images.substr(0, images.size() - 5));
  write("longer", images + "x");
  write("cut.gz", gzipped(images).substr(0, 30));
  write("long.gz", gzipped(images) + "rubbish");
  write("good", idx_bytes<float>(kF32, {2, 2}, {1, 2, 3, 4}));
  write("wide", idx_bytes<float>(kF32, {2, 3}, {1, 2, 3, 4, 5, 6}));
  write("nan", idx_bytes<float>(kF32, {2, 2}, {1, 2, 3, nan}));
  write("inf",
        idx_bytes<float>(kF32, {2, 2}, {-std::numeric_limits<float>::infinity(), nan, 3, 4}));
  write("short.safetensors", "abc");
  write("hole.safetensors",
        safetensors(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8));
  write("other.safetensors",
        safetensors(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4));
  write_damaged_weights(folder / "damaged.safetensors", 0);
  write_damaged_weights(folder / "changed.safetensors", 300);  // in the metadata
  write("nan.safetensors", two_by_two({1, 2, -nan, 4}, {5, 6}));
  write("inf.safetensors", two_by_two({1, 2, 3, 4}, {5, -std::numeric_limits<float>::infinity()}));
  write("kept", "kept");
  std::filesystem::create_symlink("/dev/full", folder / "full");
  std::filesystem::create_symlink("images", folder / "to_images");
  std::filesystem::create_symlink("run.json", folder / "to_run");
  std::filesystem::create_symlink("new", folder / "to_new");
  write("run.json", "{}");
  ::mkfifo((folder / "pipe").c_str(), 0600);
}

void write_bad_arrays(const std::filesystem::path& folder) {
  const auto write = [&](const char* name, const std::string& bytes) {
    write_file(folder / name, bytes);
  };
  const auto headed = [&](const char* name, const std::string& header) {
    write(name, npy_with_header(header, std::string(16, '\0')));
  };
  const std::string good = npy_with_header(kHeader, std::string(16, '\0'));
  write("x.npy", good);
  write("y.npy", npy_with_header(npy_header("<f4", "2, 1"), std::string(8, '\0')));
  write("y3.npy", npy_with_header(npy_header("<f4", "3, 1"), std::string(12, '\0')));
  write("magic.npy", "NUMPY" + good);
  write("version.npy", std::string(good).replace(6, 1, 1, '\x04'));
  write("header.npy", std::string(good).replace(8, 2, "\xff\x20"));
  headed("object.npy", npy_header("|O", "2, 2"));
  headed("fields.npy", "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2, 2), }");
  headed("code.npy",
         "{'descr': '<f4', 'fortran_order': False, 'shape': __import__('os').abort(), }");
  headed("overflow.npy", npy_header("<f4", "4294967296, 4294967296"));
  headed("negative.npy", npy_header("<f4", "-2, 2"));
  headed("cut.npy", npy_header("<f4", "2, 3"));
  headed("longer.npy", npy_header("<f4", "2, 1"));
  headed("scalar.npy", npy_header("<f4", ""));
  write("no_columns.npy", npy_with_header(npy_header("<f4", "2, 0"), ""));
  write("good.safetensors",
        safetensors(R"({"x":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
                    R"("y":{"dtype":"F32","shape":[2,1],"data_offsets":[16,24]}})",
                    24));
  write("long.safetensors",
        safetensors(R"({"x":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}})", 20));
  write("no_y.safetensors",
        safetensors(R"({"x":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}})", 16));
  write("byte.safetensors",
        safetensors(R"({"x":{"dtype":"F8_E4M3","shape":[2,2],"data_offsets":[8,12]},)"
                    R"("y":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]}})",
                    12));
}

}  // namespace barestep
