#include "data/safetensors.h"

#include "support/expect_error.h"
#include "support/saved_weights.h"
#include "support/temp_dir.h"
#include "support/testing.h"

namespace barestep {
namespace {

std::string bytes_of(std::uint64_t number) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(number >> (8 * i) & 0xFFU);
  return bytes;
}

/// A file with this header, followed by `data_bytes` zero bytes.
std::string with_header(const std::string& header, std::size_t data_bytes = 0) {
  return bytes_of(header.size()) + header + std::string(data_bytes, '\0');
}

/// The header of a file with the single tensor "a".
std::string one_tensor(const std::string& dtype, const std::string& shape,
                       const std::string& offsets) {
  return R"({"a":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}}";
}

class Safetensors : public TempDirTest {};

TEST(SafetensorsPartsOfFiles, LayOutTheReferencesBytes) {
  // The vectors from the reference's own tests.
  const auto head = [](const std::vector<TensorForm>& tensors) {
    return safetensors_parts(tensors).head;
  };
  EXPECT_EQ(head({{"attn.0", "F32", {1, 2, 3}, 24}}),
            bytes_of(64) + R"({"attn.0":{"dtype":"F32","shape":[1,2,3],"data_offsets":[0,24]}})");
  EXPECT_EQ(
      head({{"attn0", "F32", {1, 1, 2, 3}, 24}}),
      bytes_of(72) + R"({"attn0":{"dtype":"F32","shape":[1,1,2,3],"data_offsets":[0,24]}}       )");
  EXPECT_EQ(head({}), bytes_of(8) + "{}      ");
}

TEST_F(Safetensors, ReadsBackWhatItWroteInTheOrderOfNames) {
  const std::vector<float> weight = {1, -2, 3.5F, 4, 5, 1e-40F};
  const std::vector<float> bias = {-0.0F, 7};
  const std::vector<float> scalar = {9};
  const auto path = folder() / "model.safetensors";
  save_safetensors(path, std::vector<NamedTensor>{{"net.0.weight", {2, 3}, weight},
                                                  {"net.0.bias", {2}, bias},
                                                  {"empty", {0, 5}, {}},
                                                  {"\"odd\\ \xC3\xA4", {}, scalar}});
  const SafetensorsFile file(path);
  std::vector<std::string> names;
  for (const SafetensorsEntry& entry : file.tensors()) names.push_back(entry.name);
  EXPECT_THAT(names, ElementsAre("\"odd\\ \xC3\xA4", "empty", "net.0.bias", "net.0.weight"));
  const SafetensorsEntry* entry = file.find("net.0.weight");
  ASSERT_NE(entry, nullptr);
  EXPECT_EQ(entry->dtype, "F32");
  EXPECT_THAT(entry->shape, ElementsAre(2, 3));
  EXPECT_EQ(entry->begin_bytes, 12);
  EXPECT_EQ(entry->end_bytes, 36);
  EXPECT_THAT(file.f32("net.0.weight"), ElementsAreArray(weight));
  EXPECT_THAT(file.f32("net.0.bias"), ElementsAreArray(bias));
  EXPECT_THAT(file.f32("empty"), IsEmpty());
  EXPECT_EQ(file.find("net.1.bias"), nullptr);
}

TEST_F(Safetensors, RefusesEveryTurnedBitOfAFileThatItWrote) {
  const std::vector<float> weight = {1, -2, 3.5F};
  const std::vector<float> bias = {7};
  save_safetensors(folder() / "a", std::vector<NamedTensor>{{"w", {3}, weight}, {"b", {1}, bias}});
  const std::string whole = read_file(folder() / "a");
  EXPECT_EQ(SafetensorsReader(folder() / "a").metadata().at("format"), "pt");
  for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string bytes = whole;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    const auto path = file("a", bytes);
    ASSERT_THROW(SafetensorsFile{path}, Error) << "bit " << bit;
  }
}

TEST_F(Safetensors, RefusesZeroedBlocksAndTheHalvesOfTwoFiles) {
  std::vector<float> weight(300, 1);
  const std::vector<float> bias = {7};
  const std::vector<NamedTensor> tensors = {{"w", {300}, weight}, {"b", {1}, bias}};
  save_safetensors(folder() / "a", tensors);
  const std::string whole = read_file(folder() / "a");
  weight[299] = 2;
  save_safetensors(folder() / "b", tensors);
  const std::string other = read_file(folder() / "b");
  ASSERT_EQ(whole.size(), other.size());
  for (std::size_t begin = 0; begin < whole.size(); begin += 64) {
    std::string zeroed = whole;
    std::fill_n(zeroed.begin() + static_cast<std::ptrdiff_t>(begin),
                std::min<std::size_t>(64, whole.size() - begin), '\0');
    const auto path = file("c", zeroed);
    EXPECT_THROW(SafetensorsFile{path}, Error) << "zeros from byte " << begin;
    if (begin == 0) continue;
    const auto mixed = file("d", whole.substr(0, begin) + other.substr(begin));
    EXPECT_THROW(SafetensorsFile{mixed}, Error) << "another file from byte " << begin;
  }
}

TEST_F(Safetensors, OfSamplesAreComparedWithTheirChecksumsToo) {
  const std::vector<float> x = {1, 2}, y = {3};
  const auto path = folder() / "a";
  save_safetensors(path, std::vector<NamedTensor>{{"x", {2}, x}, {"y", {1}, y}});
  std::string bytes = read_file(path);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_file(path, bytes);
  EXPECT_NO_THROW((void)open_safetensors(path, "x"));
  expect_error(ExitCode::kBadData,
               "safetensors file '" + path.string() +
                   "': tensor 'y' has a wrong checksum; it is damaged; use another one",
               [&] { (void)open_safetensors(path, "y"); });
}

TEST_F(Safetensors, RefusesTensorsThatCannotBeNamedOrShaped) {
  const std::vector<float> two = {1, 2};
  const auto save = [&](const std::vector<NamedTensor>& tensors) {
    save_safetensors(folder() / "a", tensors);
  };
  expect_error(ExitCode::kBug, "the values of 'w' do not fill its shape", [&] {
    save({{"w", {3}, two}});
  });
  expect_error(ExitCode::kBug, "'w' names two tensors or is reserved", [&] {
    save({{"w", {2}, two}, {"w", {2}, two}});
  });
  expect_error(ExitCode::kBug, "'__metadata__' names two tensors or is reserved", [&] {
    save({{"__metadata__", {2}, two}});
  });
  EXPECT_THAT(names(), IsEmpty());
}

TEST_F(Safetensors, AcceptsWhatTheReferenceAccepts) {
  const std::string f32 = one_tensor("F32", "[2]", "[0,8]");
  const std::vector<std::string> accepted = {
      with_header("{}"),
      with_header(" \n\t{} \r "),
      with_header(R"({"__metadata__":{"format":"pt","":""}})"),
      with_header(R"({"__metadata__":null})"),
      with_header(f32, 8),
      with_header(f32 + "     ", 8),
      with_header(one_tensor("F64", "[]", "[0,8]"), 8),
      with_header(one_tensor("F4", "[2]", "[0,1]"), 1),
      with_header(one_tensor("BF16", "[1,1,1,1,1,1,1,2]", "[0,4]"), 4),
      with_header(one_tensor("F32", "[0,9223372036854775807]", "[0,0]")),
      with_header(R"({"b":{"data_offsets":[3,7],"dtype":"F32","shape":[1]},)"
                  R"("a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                  R"("c":{"dtype":"I8","shape":[0],"data_offsets":[3,3]}})",
                  7),
  };
  for (const std::string& bytes : accepted) {
    EXPECT_NO_THROW(SafetensorsFile(file("a", bytes))) << bytes.substr(8);
  }
}

TEST_F(Safetensors, ReadsF32BehindOtherTypesAtAnyOffset) {
  std::string bytes = with_header(R"({"b":{"dtype":"F32","shape":[1],"data_offsets":[3,7]},)"
                                  R"("a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})",
                                  7);
  const float value = 1.25F;
  std::memcpy(&bytes[bytes.size() - 4], &value, 4);
  const SafetensorsFile read(file("a", bytes));
  EXPECT_THAT(read.f32("b"), ElementsAre(1.25F));
  expect_error(ExitCode::kBadData, "a': tensor 'a' is U8, not F32; save the weights again in F32",
               [&] { (void)read.f32("a"); });
  expect_error(ExitCode::kBadData, "has no tensor 'z'", [&] { (void)read.f32("z"); });
}

struct Refused {
  std::string bytes, text;
};

void expect_all_refused(const std::filesystem::path& path, const std::vector<Refused>& cases) {
  for (const Refused& c : cases) {
    write_file(path, c.bytes);
    expect_error(ExitCode::kBadData, "safetensors file '" + path.string() + "': " + c.text,
                 [&] { SafetensorsFile{path}; });
  }
}

TEST_F(Safetensors, RefusesFilesWithoutAWholeHeader) {
  expect_all_refused(folder() / "a",
                     {
                         {"", "too short: 0 bytes, it needs at least 8"},
                         {"1234567", "too short: 7 bytes"},
                         {bytes_of(~std::uint64_t{0}),
                          "states a header of 18446744073709551615 bytes, 100000000 are allowed"},
                         {bytes_of(100'000'001), "states a header of 100000001 bytes"},
                         {bytes_of(3) + "{}", "states a header of 3 bytes, 2 follow"},
                     });
}

TEST_F(Safetensors, RefusesHeadersThatAreNotJson) {
  using namespace std::string_literals;
  const std::string good = one_tensor("F32", "[2]", "[0,8]");
  std::vector<Refused> cases;
  for (const std::string& header :
       {""s, " "s, "{"s, "{}{}"s, "{}x"s, "{}\0"s, "{\0}"s, "{\"\xFF\":1}"s, R"({"\ud800":{}})"s,
        "/**/{}"s, "{'a':1}"s, good + ","s, "{\"a\":NaN}"s,
        one_tensor("F32", "[1e999]", "[0,4]")}) {
    cases.push_back({with_header(header, 8), "is not JSON"});
  }
  expect_all_refused(folder() / "a", cases);
}

TEST_F(Safetensors, RefusesHeadersOfAnotherForm) {
  const auto header = [](const std::string& text) { return with_header(text, 8); };
  expect_all_refused(
      folder() / "a",
      {
          {header("[]"), "the whole of it is an array, not an object;"},
          {header("\xEF\xBB\xBF{}"), "the whole of it begins with a byte order mark;"},
          {header("null"), "the whole of it is null, not an object"},
          {header("\"x\""), "the whole of it is \"x\", not an object"},
          {header("7"), "the whole of it is 7, not an object"},
          {header(std::string(100'000, '[')), "is nested deeper than 64 arrays"},
          {header(R"({"a":7})"), "a is 7, not an object"},
          {header(R"({"a":null})"), "a is null, not an object"},
          {header(R"({"a":{"dtype":{}}})"), "a.shape is missing"},
          {header(R"({"__metadata__":{"k":1}})"), "__metadata__.k is 1, not a string"},
          {header(R"({"__metadata__":{"k":{}}})"), "__metadata__.k is an object, not a string"},
          {header(R"({"__metadata__":[]})"), "__metadata__ is an array, not an object"},
          {header(R"({"a":{"shape":[2],"data_offsets":[0,8]}})"), "a.dtype is missing"},
          {header(R"({"a":{"dtype":"F32","data_offsets":[0,8]}})"), "a.shape is missing"},
          {header(R"({"a":{"dtype":"F32","shape":[2]}})"), "a.data_offsets is missing"},
          {header(one_tensor("F33", "[2]", "[0,8]")), "a.dtype is 'F33', which is no type"},
          {header(one_tensor("F32", "2", "[0,8]")), "a.shape is 2, not an array"},
          {header(one_tensor("F32", "[[2]]", "[0,8]")), "a.shape[0] is an array, not a whole"},
          {header(one_tensor("F32", "[-2]", "[0,8]")), "a.shape[0] is -2, not a whole number"},
          {header(one_tensor("F32", "[2.0]", "[0,8]")), "a.shape[0] is 2.0, not a whole number"},
          {header(one_tensor("F32", "[true]", "[0,8]")), "a.shape[0] is true, not a whole"},
          {header(one_tensor("F32", "[18446744073709551616]", "[0,8]")),
           "a.shape[0] is 1.8446744073709552e+19, not a whole number"},
          {header(one_tensor("F32", "[2]", "[0]")), "a.data_offsets has 1 items, not 2"},
          {header(one_tensor("F32", "[2]", "[0,4,8]")), "a.data_offsets has 3 items, not 2"},
      });
}

TEST_F(Safetensors, RefusesRangesThatDoNotFit) {
  const auto two = [](const std::string& a, const std::string& b) {
    return R"({"a":{"dtype":"F32","shape":[1],"data_offsets":)" + a +
           R"(},"b":{"dtype":"F32","shape":[1],"data_offsets":)" + b + "}}";
  };
  const auto one = [](const std::string& dtype, const std::string& shape,
                      const std::string& offsets, std::size_t bytes) {
    return with_header(one_tensor(dtype, shape, offsets), bytes);
  };
  expect_all_refused(
      folder() / "a",
      {
          {with_header(two("[0,4]", "[8,12]"), 12),
           "b has the data_offsets [8, 12], which leave a hole or overlap: byte 4 is next"},
          {with_header(two("[0,4]", "[0,4]"), 4), "b has the data_offsets"},
          {with_header(two("[0,4]", "[2,6]"), 6), "b has the data_offsets"},
          {one("F32", "[1]", "[4,8]", 8), "a has the data_offsets [4, 8]"},
          {one("F32", "[1]", "[0,18446744073709551615]", 4),
           "a.data_offsets[1] is 18446744073709551615, not a whole number"},
          {with_header(two("[4,0]", "[0,4]"), 4), "a has -4 bytes, its shape and dtype need 4"},
          {one("F32", "[4294967296,4294967296]", "[0,4]", 4), "a.shape of F32 overflows"},
          {one("F32", "[1152921504606846976]", "[0,4]", 4), "a.shape of F32 overflows"},
          {one("F4", "[3]", "[0,1]", 1), "a has 12 bits, which is not a whole number of bytes"},
          {one("F32", "[2]", "[0,4]", 4), "a has 4 bytes, its shape and dtype need 8"},
          {one("F32", "[2]", "[0,8]", 7), "its tensors have 8 bytes, 7 follow the header"},
          {one("F32", "[2]", "[0,8]", 9), "its tensors have 8 bytes, 9 follow the header"},
          {with_header("{}", 1), "its tensors have 0 bytes, 1 follow the header"},
      });
}

TEST_F(Safetensors, RefusesWhatTheReferenceLetsPass) {
  const std::string field = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],)";
  const std::string tensor = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  expect_all_refused(
      folder() / "a",
      {
          {with_header("{" + tensor + "," + tensor + "}", 8), "a is there twice"},
          {with_header(R"({"__metadata__":{"k":"","k":""}})"), "__metadata__.k is there twice"},
          {with_header(R"({"__metadata__":{},"__metadata__":{}})"), "__metadata__ is there twice"},
          {with_header(field + R"("shape":[2]}})", 8), "a.shape is there twice"},
          {with_header(one_tensor("F32", "[1,1,1,1,1,1,1,1,2]", "[0,8]"), 8),
           "a.shape has more than 8 dimensions"},
          {with_header("{\"" + std::string(513, 'n') + "\":{}}"),
           std::string(240, 'n') + "..." + std::string(240 - 44, 'n')},
      });
}

TEST_F(Safetensors, SkipsFieldsOfATensorThatOnlyOtherProgramsKnow) {
  for (const std::string extra :
       {"1", "-1.5", "null", "true", R"("hi")", "[]", "{}", R"([1,{"dtype":["F32",null]}])",
        R"({"shape":[[3],-1],"x":{}})"}) {
    SCOPED_TRACE(extra);
    const SafetensorsFile read(
        file("a", with_header(R"({"a":{"note":)" + extra + R"(,"dtype":"F32","more":)" + extra +
                                  R"(,"shape":[2],"data_offsets":[0,8]}})",
                              8)));
    ASSERT_EQ(read.tensors().size(), 1U);
    EXPECT_EQ(read.tensors()[0].shape, std::vector<std::int64_t>{2});
  }
}

TEST_F(Safetensors, SaysWhyAFileCannotBeRead) {
  expect_error(ExitCode::kNoInput, "/none': No such file or directory; check the path",
               [&] { SafetensorsFile{folder() / "none"}; });
  expect_error(ExitCode::kNoInput, "': Is a directory", [&] { SafetensorsFile{folder()}; });
  expect_error(ExitCode::kCannotCreate, "cannot be created: Is a directory",
               [&] { save_safetensors(folder(), {}); });
}

}  // namespace
}  // namespace barestep
