// Bad files, command lines that name them, and the expected error lines.
#include <sys/stat.h>

#include <limits>
#include <utility>

#include "apps/bad_input_cases.h"
#include "support/idx_bytes.h"
#include "support/saved_weights.h"
#include "support/temp_dir.h"

namespace barestep {
namespace {

constexpr int kU8 = 0x08, kI8 = 0x09, kI32 = 0x0C, kF32 = 0x0D;

using Arguments = std::vector<std::string>;

/// Four images of 2 x 2 pixels in three classes, unless the test makes something else wrong.
Arguments classes(const std::string& x, const std::string& y) {
  return {"--data", "idx:" + x + "," + y, "--layers",     "4,3",
          "--loss", "cross-entropy",      "--batch-size", "2"};
}

Arguments numbers(const std::string& x, const std::string& y) {
  return {"--data", "idx:" + x + "," + y, "--layers", "2,2", "--batch-size", "2"};
}

Arguments with(Arguments all, const Arguments& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

Arguments numbers_with_weights(const std::string& weights) {
  return with(numbers("good", "good"), {"--load", weights});
}

Arguments small(const Arguments& more) {
  return with(
      {"--dim", "8", "--depth", "1", "--steps", "3", "--warmup", "0", "--gemm", "reference"}, more);
}

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

std::vector<BadInput> bad_data_files() {
  const std::string no_idx = "; it is damaged or not an idx file";
  const std::string belong = "; use files that belong together";
  const std::string correct =
      ", the last of --layers gives 3 classes, numbered from 0; correct the labels or widen the "
      "last layer";
  const std::string replace = "; remove or replace such samples";
  return {
      {12, classes("missing", "labels"), 66,
       "idx file 'missing': No such file or directory; check the path"},
      {12, classes("images", "missing"), 66,
       "idx file 'missing': No such file or directory; check the path"},
      {12, classes(".", "labels"), 66, "idx file '.': Is a directory; check the path"},
      {12, classes("pipe", "labels"), 66,
       "idx file 'pipe': is a FIFO, not a regular file; check the path"},
      {12, classes("full", "labels"), 66, "idx file 'full': is not a regular file; check the path"},

      {13, classes("empty", "labels"), 65,
       "idx file 'empty': too short: 0 bytes, its header needs 4" + no_idx},
      {13, classes("images", "three_bytes"), 65,
       "idx file 'three_bytes': too short: 3 bytes, its header needs 4" + no_idx},

      {17, classes("magic", "labels"), 65,
       "idx file 'magic': starts with bytes 50 4b, an idx file starts with 00 00" + no_idx},
      {17, classes("type", "labels"), 65, "idx file 'type': element type 0x0a is unknown" + no_idx},
      {17, classes("dims_0", "labels"), 65,
       "idx file 'dims_0': has 0 dimensions, 1 to 8 are allowed" + no_idx},
      {17, classes("dims_200", "labels"), 65,
       "idx file 'dims_200': has 200 dimensions, 1 to 8 are allowed" + no_idx},
      {17, classes("overflow", "labels"), 65,
       "idx file 'overflow': its size, 4294967295 x 4294967295 x 4294967295 of u8, overflows" +
           no_idx},
      {17, classes("lying", "labels"), 65,
       "idx file 'lying': its header says 4000000000 x 1000 x 1000 of u8 = 4000000000000000 bytes, "
       "it holds 16" +
           no_idx},
      {17, classes("cut", "labels"), 65,
       "idx file 'cut': its header says 4 x 2 x 2 of u8 = 16 bytes, it holds 11" + no_idx},
      {17, classes("longer", "labels"), 65,
       "idx file 'longer': its header says 4 x 2 x 2 of u8 = 16 bytes, it holds 17" + no_idx},
      {17, classes("long.gz", "labels"), 65,
       "idx file 'long.gz': its gzip data is followed by bytes that are no gzip data" + no_idx},
      {17, classes("cut.gz", "labels"), 65,
       "idx file 'cut.gz': its gzip data is cut off after byte 16 of 16" + no_idx},

      {19, classes("images", "three_labels"), 65,
       "data 'images': has 4 samples, 'three_labels' has 3" + belong},
      {19, classes("no_images", "labels"), 65,
       "data 'no_images': has 0 samples, 'labels' has 4" + belong},
      {19, classes("no_images", "no_labels"), 65,
       "data 'no_images': has no samples; use a file that has some"},

      {20, numbers("images", "good"), 65, "data 'images': has 4 samples, 'good' has 2" + belong},
      {20, numbers("good", "wide"), 65,
       "data 'wide': data has 3 targets per sample, the model gives 2; make it give 3, by "
       "--layers, "
       "--dim or --length"},
      {20, numbers("wide", "good"), 65,
       "data 'wide': data has 3 features, the model takes 2; make it take 3, by --layers, --dim or "
       "--length"},
      {20, words("--data idx:images,labels --layers 4,3"), 65,
       "data 'labels': data has 1 target per sample, the model gives 3; make it give 1, by "
       "--layers, --dim or --length, or use --loss cross-entropy if they are labels"},

      {21, classes("images", "large_label"), 65, "data 'large_label': row 2 has label 3" + correct},
      {21, classes("images", "negative_label"), 65,
       "data 'negative_label': row 1 has label -1" + correct},
      {21, classes("images", "huge_label"), 65,
       "data 'huge_label': row 3 has label 2147483647" + correct},
      {21, classes("images", "float_labels"), 65,
       "data 'float_labels': labels are f32, cross-entropy needs integers; use integer labels or "
       "--loss mse"},
      {21, classes("images", "wide_labels"), 65,
       "data 'wide_labels': has 2 numbers per sample, cross-entropy needs 1; use one label per "
       "sample or --loss mse"},

      {22, numbers("nan", "good"), 65,
       "data 'nan': row 1, column 1 is not a finite 32-bit number, the first of 1" + replace},
      {22, numbers("inf", "good"), 65,
       "data 'inf': row 0, column 0 is not a finite 32-bit number, the first of 2" + replace},
      {22, numbers("good", "nan"), 65,
       "data 'nan': row 1, column 1 is not a finite 32-bit number, the first of 1" + replace},

      {7, with(numbers("good", "good"), {"--test-split", "0.4"}), 78,
       "--test-split '0.4': of 2 samples leaves 0 to test with; give a larger share, or leave it "
       "out"},
      {7, with(numbers("good", "good"), {"--epochs", "2", "--warmup", "2"}), 78,
       "--warmup '2': the run has 2 steps, and none would be left to measure; --warmup 1 or "
       "--steps 3 fits"},
  };
}

std::vector<BadInput> bad_weights_and_outputs() {
  const std::string no_weights = "; it is damaged or not a safetensors file";
  const std::string choose = "; choose a writable path";
  const std::string lost = " this file, which would be lost; write to another one";
  const std::string full =
      "output file 'full': writing failed: No space left on device; free space or choose another "
      "disk";
  const std::string diverged =
      "training diverged: the loss is inf at step 1, it was 1.2372018 at step 0; use a smaller "
      "--lr (it is 1e+30)";
  return {
      {12, small({"--load", "missing"}), 66,
       "safetensors file 'missing': No such file or directory; check the path"},
      {12, small({"--load", "pipe"}), 66,
       "safetensors file 'pipe': is a FIFO, not a regular file; check the path"},

      {18, small({"--load", "short.safetensors"}), 65,
       "safetensors file 'short.safetensors': too short: 3 bytes, it needs at least 8" +
           no_weights},
      {18, small({"--load", "hole.safetensors"}), 65,
       "safetensors file 'hole.safetensors': its header: tensor 'a' has the data_offsets [4, 8], "
       "which leave a hole or overlap: byte 0 is next" +
           no_weights},
      {18, small({"--load", "other.safetensors"}), 65,
       "weights 'other.safetensors': the weights are not this model's: net.0.weight is missing, "
       "net.0.bias is missing, a is not in the model; give the options the file was saved with"},
      {18, numbers_with_weights("damaged.safetensors"), 65,
       "safetensors file 'damaged.safetensors': tensor 'net.0.weight' has a wrong checksum; it is "
       "damaged; use another one"},
      {18, numbers_with_weights("changed.safetensors"), 65,
       "safetensors file 'changed.safetensors': its header has a wrong checksum; it is damaged; "
       "use another one"},
      {18, numbers_with_weights("nan.safetensors"), 65,
       "weights 'nan.safetensors': net.0.weight[1, 0] is nan; load weights of a training run that "
       "did not diverge"},
      {18, numbers_with_weights("inf.safetensors"), 65,
       "weights 'inf.safetensors': net.0.bias[1] is -inf; load weights of a training run that did "
       "not diverge"},

      {24, small({"--lr", "1e30", "--save", "kept"}), 76, diverged, "", true},

      {28, small({"--memory", "1KiB"}), 71,
       "too little memory: needs 18.50 KiB, the device that --memory states has 1.00 KiB free; no "
       "batch size fits, use a smaller --dim, --depth or --layers"},
      {28, small({"--memory", "10KiB"}), 71,
       "too little memory: needs 18.50 KiB, the device that --memory states has 10.00 KiB free; "
       "--batch-size 16 fits"},
      {28, small({"--memory", "10KiB", "--plan"}), 71,
       "too little memory: needs 18.50 KiB, the device that --memory states has 10.00 KiB free; "
       "--batch-size 16 fits"},

      {38, small({"--save", "nowhere/x"}), 73,
       "output file 'nowhere/x': cannot be created: No such file or directory" + choose},
      {38, small({"--save", "."}), 73,
       "output file '.': cannot be created: Is a directory" + choose},
      {38, small({"--save", "kept/x"}), 73,
       "output file 'kept/x': cannot be created: Not a directory" + choose},
      {38, small({"--metrics", "nowhere/x"}), 73,
       "output file 'nowhere/x': cannot be created: No such file or directory" + choose},
      {38, small({"--metrics", "."}), 73,
       "output file '.': cannot be created: Is a directory" + choose},

      {7, with(classes("images", "labels"), {"--save", "images"}), 78,
       "--save 'images': --data reads" + lost},
      {7, with(classes("imag?s", "labels"), {"--metrics", "./labels"}), 78,
       "--metrics './labels': --data reads" + lost},
      {7, with(classes("images", "labels"), {"--trace", "to_images"}), 78,
       "--trace 'to_images': --data reads" + lost},
      {7, small({"--load", "kept", "--metrics", "kept"}), 78,
       "--metrics 'kept': --load reads" + lost},
      {7, small({"--config", "to_run", "--save", "run.json"}), 78,
       "--save 'run.json': --config reads" + lost, "{}"},
      {7, small({"--metrics", "new", "--save", "to_new"}), 78,
       "--save 'to_new': --metrics writes to the same file; give two files"},

      {39, small({"--metrics", "full"}), 74, full, "", true},
      {39, small({"--save", "full"}), 74, full, "", true},
      {39, small({"--trace", "full"}), 74, full, "", true},
  };
}

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

std::vector<BadInput> bad_files() {
  std::vector<BadInput> all = bad_data_files();
  for (BadInput& bad : bad_weights_and_outputs()) all.push_back(std::move(bad));
  return all;
}

}  // namespace barestep
