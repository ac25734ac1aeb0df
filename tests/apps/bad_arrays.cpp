// Bad npy and safetensors files of samples, and the expected error lines.

#include "apps/bad_input_cases.h"
#include "support/arguments.h"
#include "support/npy_bytes.h"
#include "support/temp_dir.h"

namespace barestep {
namespace {

Arguments npy(const std::string& x, const std::string& y = "y.npy") {
  return {"--data", "npy:" + x + "," + y, "--layers", "2,1", "--batch-size", "2"};
}

Arguments safetensors_data(const std::string& file) {
  return {"--data", "safetensors:" + file, "--layers", "2,1", "--batch-size", "2"};
}

std::string safetensors_bytes(const std::string& header, std::size_t bytes) {
  std::string length(8, '\0');
  length[0] = static_cast<char>(header.size());
  return length + header + std::string(bytes, '\0');
}

const std::string kHeader = npy_header("<f4", "2, 2");

}  // namespace

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
        safetensors_bytes(R"({"x":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
                          R"("y":{"dtype":"F32","shape":[2,1],"data_offsets":[16,24]}})",
                          24));
  write("long.safetensors",
        safetensors_bytes(R"({"x":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}})", 20));
  write("no_y.safetensors",
        safetensors_bytes(R"({"x":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}})", 16));
  write("byte.safetensors",
        safetensors_bytes(R"({"x":{"dtype":"F8_E4M3","shape":[2,2],"data_offsets":[8,12]},)"
                          R"("y":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]}})",
                          12));
}

std::vector<BadInput> bad_arrays() {
  const std::string no_npy = "; it is damaged or not an npy file";
  const std::string plain = "; save it as whole numbers, float32 or float64";
  return {
      {14, npy("magic.npy"), 65, "npy file 'magic.npy': does not start with \\x93NUMPY" + no_npy},
      {14, npy("version.npy"), 65,
       "npy file 'version.npy': its version 4.0 is unknown, 1.0 to 3.0 are known; save it with "
       "numpy.save"},
      {14, npy("header.npy"), 65,
       "npy file 'header.npy': states a header of 8447 bytes, 134 follow" + no_npy},
      {15, npy("object.npy"), 65, "npy file 'object.npy': holds elements of type '|O'" + plain},
      {15, npy("fields.npy"), 65,
       "npy file 'fields.npy': holds elements of a structured type" + plain},
      {15, npy("code.npy"), 65,
       "npy file 'code.npy': its header has '__import__('os').abort(), }' where a value belongs" +
           no_npy},
      {16, npy("overflow.npy"), 65,
       "npy file 'overflow.npy': its size, 4294967296 x 4294967296 of f32, overflows" + no_npy},
      {16, npy("negative.npy"), 65,
       "npy file 'negative.npy': its shape '(-2, 2)' is not a tuple of whole numbers" + no_npy},
      {16, npy("cut.npy"), 65,
       "npy file 'cut.npy': its header says 2 x 3 of f32 = 24 bytes, it holds 16" + no_npy},
      {16, npy("longer.npy"), 65,
       "npy file 'longer.npy': its header says 2 x 1 of f32 = 8 bytes, it holds 16" + no_npy},
      {16, npy("scalar.npy"), 65,
       "npy file 'scalar.npy': its header says a scalar of f32 = 4 bytes, it holds 16" + no_npy},
      {16, npy("no_columns.npy"), 65,
       "data 'no_columns.npy': its samples have no features; use a file that has some"},
      {16, npy("x.npy", "no_columns.npy"), 65,
       "data 'no_columns.npy': its samples have no targets; use a file that has some"},
      {18, safetensors_data("long.safetensors"), 65,
       "safetensors file 'long.safetensors': its tensors have 16 bytes, 20 follow the header; it "
       "is damaged or not a safetensors file"},
      {18, safetensors_data("no_y.safetensors"), 65,
       "safetensors file 'no_y.safetensors': has no tensor 'y', but x; name the samples 'x' and "
       "their labels or targets 'y'"},
      {18, safetensors_data("byte.safetensors"), 65,
       "safetensors file 'byte.safetensors': tensor 'x' is F8_E4M3; save it as whole numbers, F32 "
       "or "
       "F64"},
      {19, npy("x.npy", "y3.npy"), 65,
       "data 'x.npy': has 2 samples, 'y3.npy' has 3; use files that belong together"},
      {12, npy("missing-*.npy"), 66,
       "data 'missing-*.npy': no file fits this pattern; check the path"},
  };
}

}  // namespace barestep
