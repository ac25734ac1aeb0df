#include "core/idx.h"

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <numeric>

#include "support/expect_error.h"
#include "support/idx_bytes.h"
#include "support/temp_dir.h"

namespace barestep {
namespace {

using testing::ElementsAre;

class Idx : public TempDirTest {
 protected:
  template <class T>
  void expect_round_trip(IdxType type, const std::vector<T>& elements) {
    const auto count = static_cast<std::uint32_t>(elements.size());
    const IdxArray array =
        read_idx(file("a.idx", idx_bytes(static_cast<int>(type), {count}, elements)));
    ASSERT_EQ(array.type, type);
    ASSERT_EQ(array.data.size(), elements.size() * sizeof(T));
    EXPECT_EQ(std::memcmp(array.data.data(), elements.data(), array.data.size()), 0)
        << name_of(type);
  }
};

TEST_F(Idx, ReadsEveryElementTypeIntoHostOrder) {
  expect_round_trip<std::uint8_t>(IdxType::kU8, {0, 1, 255});
  expect_round_trip<std::int8_t>(IdxType::kI8, {-128, -1, 127});
  expect_round_trip<std::int16_t>(IdxType::kI16, {-32768, 258, 32767});
  expect_round_trip<std::int32_t>(IdxType::kI32, {-2147483647, 16909060, 5});
  expect_round_trip<float>(IdxType::kF32, {-1.5F, 3.0e38F, 1.0e-40F});
  expect_round_trip<double>(IdxType::kF64, {-1.5, 1e300, 1e-310});
}

TEST_F(Idx, KeepsTheDimensions) {
  const IdxArray array =
      read_idx(file("a.idx", idx_bytes<std::int16_t>(0x0B, {2, 3, 1}, {1, 2, 3, 4, 5, 6})));
  EXPECT_THAT(array.dims, ElementsAre(2, 3, 1));
  EXPECT_EQ(array.rows(), 2);
  EXPECT_EQ(array.cols(), 3);
  EXPECT_EQ(shape_of(array), "2 x 3 x 1 of i16");
}

TEST_F(Idx, AcceptsEmptyDimensionsAndEightOfThem) {
  EXPECT_EQ(read_idx(file("a", idx_header(0x08, {0, 28}))).data.size(), 0U);
  EXPECT_EQ(read_idx(file("b", idx_header(0x08, {1, 1, 1, 1, 1, 1, 1, 1}) + "x")).dims.size(), 8U);
}

TEST_F(Idx, SeesGzipByItsFirstBytesAndNotByItsName) {
  const std::string plain = idx_bytes<std::uint8_t>(0x08, {3}, {7, 8, 9});
  for (const auto& path : {file("plain.gz", plain), file("packed.idx", gzipped(plain))}) {
    EXPECT_THAT(read_idx(path).data, ElementsAre(std::byte{7}, std::byte{8}, std::byte{9})) << path;
  }
}

TEST_F(Idx, ReadsConcatenatedGzipMembers) {
  const std::string plain = idx_bytes<std::uint8_t>(0x08, {3}, {7, 8, 9});
  const auto path = file(
      "a", gzipped(plain.substr(0, 2)) + gzipped(plain.substr(2, 7)) + gzipped(plain.substr(9)));
  EXPECT_THAT(read_idx(path).data, ElementsAre(std::byte{7}, std::byte{8}, std::byte{9}));
}

TEST_F(Idx, ReadsArraysOfManyChunks) {
  const std::string data(5'000'000, 'z');
  const auto path = file("a", gzipped(idx_header(0x08, {5000, 1000}) + data));
  const IdxArray array = read_idx(path);
  EXPECT_EQ(std::memcmp(array.data.data(), data.data(), data.size()), 0);
}

/// Sums and first values were taken from the files with NumPy.
TEST(IdxOfMnist, HoldsTheTenThousandTestDigits) {
  const std::filesystem::path folder = BARESTEP_TEST_DATA "/mnist";
  const IdxArray images = read_idx(folder / "t10k-images-idx3-ubyte.gz");
  const IdxArray labels = read_idx(folder / "t10k-labels-idx1-ubyte.gz");
  EXPECT_EQ(shape_of(images), "10000 x 28 x 28 of u8");
  EXPECT_EQ(shape_of(labels), "10000 of u8");
  const auto sum = [&](std::int64_t first, std::int64_t count) {
    const auto* begin = reinterpret_cast<const std::uint8_t*>(images.data.data()) + first * 784;
    return std::accumulate(begin, begin + count * 784, std::int64_t{0});
  };
  EXPECT_EQ(sum(0, 10000), 264923200);
  EXPECT_EQ(sum(0, 1), 18454);
  EXPECT_EQ(sum(9999, 1), 41833);
  EXPECT_EQ(labels.data.front(), std::byte{7});
  EXPECT_EQ(labels.data.back(), std::byte{6});
}

TEST_F(Idx, RefusesDamagedFilesWithBothNumbers) {
  const std::string good = idx_bytes<std::uint8_t>(0x08, {2, 3}, {1, 2, 3, 4, 5, 6});
  const std::string packed = gzipped(good);
  std::string corrupt = packed;
  corrupt[packed.size() - 6] ^= 1;  // the checksum
  std::string broken = packed;
  broken[10] = '\xFF';  // the first block's type
  struct Case {
    std::string bytes, text;
  };
  const std::vector<Case> cases = {
      {"", "too short: 0 bytes, its header needs 4"},
      {good.substr(0, 3), "too short: 3 bytes, its header needs 4"},
      {good.substr(0, 11), "too short: 11 bytes, its header needs 12"},
      {"\x89PNG....", "starts with bytes 89 50, an idx file starts with 00 00"},
      {idx_header(0x07, {1}) + "x", "element type 0x07 is unknown"},
      {idx_header(0x08, {}), "has 0 dimensions, 1 to 8 are allowed"},
      {idx_header(0x08, std::vector<std::uint32_t>(200, 1)) + "x", "has 200 dimensions"},
      {idx_header(0x0E, {4294967295U, 4294967295U}),
       "its size, 4294967295 x 4294967295 of f64, overflows"},
      {idx_header(0x08, {0, 4294967295U, 4294967295U}), "overflows"},
      {good.substr(0, 17), "its header says 2 x 3 of u8 = 6 bytes, it holds 5"},
      {good + "xy", "its header says 2 x 3 of u8 = 6 bytes, it holds 8"},
      {gzipped(good + "xy"), "its header says 2 x 3 of u8 = 6 bytes, it holds more than that"},
      {gzipped(good.substr(0, 17)), "its header says 2 x 3 of u8 = 6 bytes, it holds 5;"},
      {idx_header(0x08, {1U << 20, 1U << 20, 1U << 20}) + "four",
       "its header says 1048576 x 1048576 x 1048576 of u8 = 1152921504606846976 bytes, it holds 4"},
      {gzipped(idx_header(0x08, {1U << 20, 1U << 20, 1U << 20}) + "four"), "it holds 4;"},
      {packed.substr(0, 5), "too short: 0 bytes before its gzip data is cut off"},
      {packed.substr(0, packed.size() - 3), "its gzip data is cut off behind byte 6 of 6"},
      {corrupt, "its gzip data is corrupt: incorrect data check"},
      {broken, "its gzip data is corrupt: invalid block type"},
  };
  for (const Case& c : cases) {
    const auto path = file("a.idx", c.bytes);
    expect_error(ExitCode::kBadData, c.text, [&] { read_idx(path); });
    expect_error(ExitCode::kBadData, "idx file '" + path.string() + "': ", [&] { read_idx(path); });
  }
}

TEST_F(Idx, RefusesGzipDataCutInItsMiddle) {
  std::string data(100'000, 'a');
  unsigned random = 1;
  for (char& c : data) c = static_cast<char>((random = random * 1664525U + 1013904223U) >> 24U);
  const std::string packed = gzipped(idx_header(0x08, {100'000}) + data);
  const auto path = file("a.idx", packed.substr(0, 50'000));
  expect_error(ExitCode::kBadData, "its header says 100000 of u8 = 100000 bytes, it holds 4",
               [&] { read_idx(path); });
  expect_error(ExitCode::kBadData, " before its gzip data is cut off", [&] { read_idx(path); });
}

TEST_F(Idx, SaysWhyAFileCannotBeRead) {
  expect_error(ExitCode::kNoInput, "/none.idx': No such file or directory; check the path",
               [&] { read_idx(folder() / "none.idx"); });
  expect_error(ExitCode::kNoInput, "Not a directory",
               [&] { read_idx(file("plain", "x") / "below.idx"); });
  expect_error(ExitCode::kNoInput, "': Is a directory", [&] { read_idx(folder()); });
  expect_error(ExitCode::kNoInput, "': is not a regular file", [] { read_idx("/dev/null"); });
  const auto fifo = folder() / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  expect_error(ExitCode::kNoInput, "/fifo': is a FIFO, not a regular file",
               [&] { read_idx(fifo); });
}

TEST_F(Idx, SaysThatAFileMayNotBeRead) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may read everything";
  const auto path = file("secret", "x");
  std::filesystem::permissions(path, std::filesystem::perms::none);
  expect_error(ExitCode::kNoInput, "Permission denied", [&] { read_idx(path); });
}

TEST(IdxOfABrokenDisk, ReportsTheReason) {
  // Address 0 of a process cannot be read, so the file opens and its first read fails.
  expect_error(ExitCode::kInputOutput, "reading idx file '/proc/self/mem': Input/output error",
               [] { read_idx("/proc/self/mem"); });
}

/// Sanitizers reserve address space that the limit forbids.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kCanLimitMemory = false;
#else
constexpr bool kCanLimitMemory = true;
#endif

TEST_F(Idx, SaysThatAnArrayDoesNotFitIntoMemory) {
  if (!kCanLimitMemory) GTEST_SKIP() << "memory cannot be limited under a sanitizer";
  const auto path = file("large.idx", idx_header(0x08, {1U << 16, 1U << 16}));
  std::filesystem::resize_file(path, 12 + (std::uintmax_t{1} << 32));
  const auto read_with_little_memory = [&] {
    const rlimit limit{std::size_t{1} << 30, std::size_t{1} << 30};
    ::setrlimit(RLIMIT_AS, &limit);
    try {
      read_idx(path);
    } catch (const Error& error) {
      ::fputs(error.what(), stderr);
      std::exit(static_cast<int>(error.code()));
    }
  };
  EXPECT_EXIT(read_with_little_memory(), testing::ExitedWithCode(71),
              "large.idx': does not fit into this machine's memory; use fewer samples");
}

}  // namespace
}  // namespace barestep
