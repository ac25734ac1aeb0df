#include "data/array_file.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/expect_error.h"
#include "support/idx_bytes.h"
#include "support/npy_bytes.h"
#include "support/sanitized.h"
#include "support/temp_dir.h"
#include "support/testing.h"

namespace barestep {
namespace {

/// Opens the file and loads its elements.
ArrayFile read_idx(const std::filesystem::path& path) {
  ArrayFile array = open_idx(path);
  array.load();
  return array;
}

class Idx : public TempDirTest {
 protected:
  template <class T>
  void expect_round_trip(ElementType type, int code, const std::vector<T>& elements) {
    const auto count = static_cast<std::uint32_t>(elements.size());
    const std::string bytes = idx_bytes(code, {count}, elements);
    // Compressed elements are in memory immediately; others only after load().
    for (const std::string& stored : {bytes, gzipped(bytes)}) {
      const ArrayFile array = read_idx(file("a.idx", stored));
      ASSERT_EQ(array.type(), type);
      ASSERT_EQ(array.elements().size(), elements.size() * sizeof(T));
      EXPECT_EQ(std::memcmp(array.elements().data(), elements.data(), array.elements().size()), 0)
          << name_of(type);
    }
  }
};

TEST_F(Idx, ReadsEveryElementTypeIntoHostOrder) {
  expect_round_trip<std::uint8_t>(ElementType::kU8, 0x08, {0, 1, 255});
  expect_round_trip<std::int8_t>(ElementType::kI8, 0x09, {-128, -1, 127});
  expect_round_trip<std::int16_t>(ElementType::kI16, 0x0B, {-32768, 258, 32767});
  expect_round_trip<std::int32_t>(ElementType::kI32, 0x0C, {-2147483647, 16909060, 5});
  expect_round_trip<float>(ElementType::kF32, 0x0D, {-1.5F, 3.0e38F, 1.0e-40F});
  expect_round_trip<double>(ElementType::kF64, 0x0E, {-1.5, 1e300, 1e-310});
}

TEST_F(Idx, KeepsTheDimensions) {
  const ArrayFile array =
      read_idx(file("a.idx", idx_bytes<std::int16_t>(0x0B, {2, 3, 1}, {1, 2, 3, 4, 5, 6})));
  EXPECT_THAT(array.header().dims, ElementsAre(2, 3, 1));
  EXPECT_EQ(array.rows(), 2);
  EXPECT_EQ(array.cols(), 3);
  EXPECT_EQ(shape_of(array.header()), "2 x 3 x 1 of i16");
}

TEST_F(Idx, LeavesPlainElementsInTheFileUntilTheyAreRead) {
  const auto path = file("a.idx", idx_bytes<std::int16_t>(0x0B, {4, 2}, {1, 2, 3, 4, 5, 6, 7, 8}));
  const ArrayFile array = open_idx(path);
  EXPECT_FALSE(array.is_loaded());
  std::array<std::int16_t, 3> some{};
  array.read(3, std::as_writable_bytes(std::span(some)));
  EXPECT_THAT(some, ElementsAre(4, 5, 6));
  std::filesystem::resize_file(path, 20);
  expect_error(
      ExitCode::kInputOutput,
      "reading idx file '" + path.string() + "': the file became shorter while it was read",
      [&] { array.read(3, std::as_writable_bytes(std::span(some))); });
}

TEST_F(Idx, AcceptsEmptyDimensionsAndEightOfThem) {
  EXPECT_EQ(read_idx(file("a", idx_header(0x08, {0, 28}))).elements().size(), 0U);
  EXPECT_EQ(
      read_idx(file("b", idx_header(0x08, {1, 1, 1, 1, 1, 1, 1, 1}) + "x")).header().dims.size(),
      8U);
}

TEST_F(Idx, SeesGzipByItsFirstBytesAndNotByItsName) {
  const std::string plain = idx_bytes<std::uint8_t>(0x08, {3}, {7, 8, 9});
  for (const auto& path : {file("plain.gz", plain), file("packed.idx", gzipped(plain))}) {
    EXPECT_THAT(read_idx(path).elements(), ElementsAre(std::byte{7}, std::byte{8}, std::byte{9}))
        << path;
  }
}

/// As gzip(1) does; tapes and disks store whole blocks.
TEST_F(Idx, ReadsGzipDataThatZerosPad) {
  const std::string packed = gzipped(idx_bytes<std::uint8_t>(0x08, {3}, {7, 8, 9}));
  for (const std::size_t zeros : {1UL, 512UL, 300000UL}) {
    const std::string padding(zeros, '\0');
    for (const std::string& rest :
         {padding, padding + gzipped(""), padding + gzipped("") + padding}) {
      EXPECT_THAT(read_idx(file("a", packed + rest)).elements(),
                  ElementsAre(std::byte{7}, std::byte{8}, std::byte{9}));
    }
  }
}

TEST_F(Idx, ReadsArraysOfManyChunks) {
  const std::string data(5'000'000, 'z');
  const auto path = file("a", gzipped(idx_header(0x08, {5000, 1000}) + data));
  const ArrayFile array = read_idx(path);
  EXPECT_EQ(std::memcmp(array.elements().data(), data.data(), data.size()), 0);
}

/// The sums and first values were computed from the files with NumPy.
TEST(IdxOfMnist, HoldsTheTenThousandTestDigits) {
  const std::filesystem::path folder = BARESTEP_TEST_DATA "/mnist";
  const ArrayFile images = read_idx(folder / "t10k-images-idx3-ubyte.gz");
  const ArrayFile labels = read_idx(folder / "t10k-labels-idx1-ubyte.gz");
  EXPECT_EQ(shape_of(images.header()), "10000 x 28 x 28 of u8");
  EXPECT_EQ(shape_of(labels.header()), "10000 of u8");
  const auto sum = [&](std::int64_t first, std::int64_t count) {
    const auto* begin =
        reinterpret_cast<const std::uint8_t*>(images.elements().data()) + first * 784;
    return std::accumulate(begin, begin + count * 784, std::int64_t{0});
  };
  EXPECT_EQ(sum(0, 10000), 264923200);
  EXPECT_EQ(sum(0, 1), 18454);
  EXPECT_EQ(sum(9999, 1), 41833);
  EXPECT_EQ(labels.elements().front(), std::byte{7});
  EXPECT_EQ(labels.elements().back(), std::byte{6});
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
      {gzipped(idx_header(0x08, {1U << 20}) + "four"),
       fmt::format("it holds at most {};",
                   1032 * gzipped(idx_header(0x08, {1U << 20}) + "four").size())},
      {gzipped(idx_header(0x08, {1U << 10}) + "four"), "it holds 4;"},
      {packed.substr(0, 5), "too short: 0 bytes before its gzip data is cut off"},
      {packed.substr(0, packed.size() - 10), "it holds 5 before its gzip data is cut off"},
      {packed.substr(0, packed.size() - 3), "its gzip data is cut off after byte 6 of 6"},
      {packed + "rest", "its gzip data is followed by bytes that are no gzip data"},
      {packed + std::string(9, '\0') + "rest",
       "its gzip data is followed by bytes that are no gzip"},
      {packed + "\x1frest", "its gzip data is corrupt: incorrect header check"},
      {corrupt, "its gzip data is corrupt: incorrect data check"},
      {broken, "its gzip data is corrupt: invalid block type"},
  };
  for (const Case& c : cases) {
    const auto path = file("a.idx", c.bytes);
    expect_error(ExitCode::kBadData, c.text, [&] { read_idx(path); });
    expect_error(ExitCode::kBadData, "idx file '" + path.string() + "': ", [&] { read_idx(path); });
  }
}

/// Nothing is decompressed: that would take seconds.
TEST_F(Idx, RefusesGzipDataThatCannotHoldWhatTheirHeaderSays) {
  const std::string packed =
      gzipped(idx_header(0x08, {1U << 20, 1U << 20}) + std::string(std::size_t{1} << 24, '\0'));
  EXPECT_LT(packed.size(), 20'000U);
  const auto path = file("zeros.idx", packed);
  expect_error(ExitCode::kBadData,
               fmt::format("its header says 1048576 x 1048576 of u8 = 1099511627776 bytes, it "
                           "holds at most {}; it is damaged or not an idx file",
                           1032 * packed.size()),
               [&] { open_idx(path); });
}

TEST_F(Idx, RefusesGzipDataLargerThanMemoryBeforeReadingThem) {
  const auto path = file("large.idx", gzipped(idx_header(0x08, {1U << 16, 1U << 26})));
  std::filesystem::resize_file(path, std::uintmax_t{1} << 33);  // sparse
  expect_error(ExitCode::kMemory, "': does not fit into this machine's memory; use fewer samples",
               [&] { open_idx(path); });
}

TEST_F(Idx, RefusesGzipDataCutAtTheirEndWhateverTheirSize) {
  // Sizes around zlib's buffers and around the pieces that are read.
  for (const std::size_t size : {1'000U, 262'136U, 262'143U, 300'000U, 1'048'575U, 1'048'576U,
                                 1'048'577U, 2'097'152U, 3'000'000U, 4'194'304U}) {
    const std::string packed =
        gzipped(idx_header(0x08, {static_cast<std::uint32_t>(size)}) + std::string(size, 'a'));
    EXPECT_EQ(read_idx(file("whole.idx", packed)).elements().size(), size);
    for (const std::size_t cut : {1U, 4U, 8U}) {
      const auto path = file("a.idx", packed.substr(0, packed.size() - cut));
      expect_error(ExitCode::kBadData, "its gzip data is cut off", [&] { read_idx(path); });
    }
  }
}

TEST_F(Idx, ReadsGzipDataOfSeveralMembers) {
  const std::string plain = idx_bytes<std::uint8_t>(0x08, {3}, {7, 8, 9});
  const std::string head = gzipped(plain.substr(0, 2)) + gzipped(plain.substr(2, 7));
  EXPECT_THAT(read_idx(file("a.idx", head + gzipped(plain.substr(9)))).elements(),
              ElementsAre(std::byte{7}, std::byte{8}, std::byte{9}));
  expect_error(ExitCode::kBadData, "its gzip data is corrupt: incorrect header check",
               [&] { read_idx(file("b.idx", head + "\x1F?")); });
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
  // Address 0 of a process cannot be read, so the file opens but its first read fails.
  expect_error(ExitCode::kInputOutput, "reading idx file '/proc/self/mem': Input/output error",
               [] { read_idx("/proc/self/mem"); });
}

TEST_F(Idx, SaysThatAnArrayDoesNotFitIntoMemory) {
  if (kAddressSanitized || kThreadSanitized) {
    GTEST_SKIP() << "a sanitizer reserves address space that the limit forbids";
  }
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
              "data '.*large.idx': does not fit into this machine's memory; use fewer samples");
}

class Npy : public TempDirTest {
 protected:
  template <class T>
  std::vector<T> elements_of(const std::string& bytes) {
    ArrayFile array = open_npy(file("a.npy", bytes));
    array.load();
    std::vector<T> elements(array.elements().size() / sizeof(T));
    std::ranges::copy(array.elements(), std::as_writable_bytes(std::span(elements)).begin());
    return elements;
  }

  void expect_refused(const std::string& text, const std::string& bytes) {
    const auto path = file("a.npy", bytes);
    expect_error(ExitCode::kBadData, text, [&] { open_npy(path); });
    expect_error(ExitCode::kBadData, "npy file '" + path.string() + "': ", [&] { open_npy(path); });
  }
};

/// The exact bytes that numpy.save (1.24) writes for numpy.array([[1, 2], [3, 4.5]], '<f4').
TEST_F(Npy, ReadsWhatNumPyWrites) {
  std::string bytes("\x93NUMPY\x01\x00v\x00", 10);
  bytes += "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), }";
  bytes.resize(127, ' ');
  bytes += '\n';
  bytes += std::string("\0\0\x80?\0\0\0@\0\0@@\0\0\x90@", 16);
  const ArrayFile array = open_npy(file("numpy.npy", bytes));
  EXPECT_EQ(shape_of(array.header()), "2 x 2 of f32");
  EXPECT_FALSE(array.is_loaded());
  EXPECT_THAT(elements_of<float>(bytes), ElementsAre(1, 2, 3, 4.5F));
  EXPECT_EQ(npy_bytes<float>("<f4", "2, 2", {1, 2, 3, 4.5F}), bytes);
}

TEST_F(Npy, ReadsEveryPlainTypeInBothByteOrders) {
  EXPECT_THAT(elements_of<std::uint8_t>(npy_bytes<std::uint8_t>("|u1", "3,", {0, 1, 255})),
              ElementsAre(0, 1, 255));
  EXPECT_THAT(elements_of<std::uint8_t>(npy_bytes<std::uint8_t>("|b1", "2,", {1, 0})),
              ElementsAre(1, 0));
  EXPECT_THAT(elements_of<std::int8_t>(npy_bytes<std::int8_t>("|i1", "2,", {-128, 5})),
              ElementsAre(-128, 5));
  EXPECT_THAT(elements_of<std::int16_t>(npy_bytes<std::int16_t>("<i2", "1,", {-300})),
              ElementsAre(-300));
  EXPECT_THAT(elements_of<std::int32_t>(npy_bytes<std::int32_t>("<i4", "1,", {70000})),
              ElementsAre(70000));
  EXPECT_THAT(elements_of<std::int64_t>(npy_bytes<std::int64_t>("<i8", "1,", {1LL << 40})),
              ElementsAre(1LL << 40));
  EXPECT_THAT(elements_of<double>(npy_bytes<double>("<f8", "2,", {1e300, -0.5})),
              ElementsAre(1e300, -0.5));
  EXPECT_THAT(elements_of<std::int16_t>(
                  npy_with_header(npy_header(">i2", "3,"), std::string("\0\1\xFF\xFE\0\3", 6))),
              ElementsAre(1, -2, 3));
}

TEST_F(Npy, TakesAnyOrderOfKeysAndEitherQuote) {
  const std::string header = "{\"shape\": (1, 2), 'fortran_order': False, \"descr\": \"|u1\"}";
  EXPECT_THAT(elements_of<std::uint8_t>(npy_with_header(header, "ab")), ElementsAre('a', 'b'));
}

/// Each of them was read by numpy.load (2.4), with these shapes and numbers.
TEST_F(Npy, TakesEveryHeaderThatNumPyReads) {
  const auto shape_of_header = [](const std::string& header) {
    return shape_of(parse_npy_header(header, "a.npy"));
  };
  const auto with_shape = [&](const std::string& shape) {
    return shape_of_header("{'descr': '<f4', 'fortran_order': False, 'shape': " + shape + "}");
  };
  EXPECT_EQ(with_shape("(64L, 4L)"), "64 x 4 of f32") << "as Python 2 wrote it";
  EXPECT_EQ(with_shape("(64L,)"), "64 of f32");
  EXPECT_EQ(with_shape("(\n64 , # (64 of them)\n\t4,\f)"), "64 x 4 of f32");
  EXPECT_EQ(with_shape("(1, 1, 1, 1, 1, 1, 1, 1, 2)"), "1 x 1 x 1 x 1 x 1 x 1 x 1 x 1 x 2 of f32");
  EXPECT_EQ(shape_of_header(" {\n # a comment, with a }\n u'descr': u\"<f8\",\n"
                            " 'fortran_order' :\tFalse, # and another\n U'shape':(3,) }\n#"),
            "3 of f64");
  EXPECT_EQ(shape_of_header("{'descr': '<f4', 'shape': (9,), 'fortran_order': False, 'descr': "
                            "'<i2', 'shape': (2, 3)}"),
            "2 x 3 of i16")
      << "the last of equal keys counts";
  for (const char* const shape : {"()", "(5,)", "(5, 1)", "(1, 5)", "(1, 5, 1)", "(0, 5)"}) {
    const std::string rest = std::string("'descr': '<f4', 'shape': ") + shape + "}";
    EXPECT_EQ(shape_of_header("{'fortran_order': True, " + rest),
              shape_of_header("{'fortran_order': False, " + rest));
  }
}

TEST_F(Npy, TakesEveryNameOfATypeThatNumPyReads) {
  const std::pair<const char*, std::vector<const char*>> names[] = {
      {"u8", {"|u1", "u1", "<u1", ">u1", "=u1", "B", "uint8", "|b1", "b1", "?", "|?", "bool"}},
      {"i8", {"|i1", "i1", "b", "<b", "int8"}},
      {"i16", {"i2", "=i2", "|i2", "h", "int16"}},
      {"i32", {"i4", "=i4", "|i4", "i", "<i", "int32"}},
      {"i64", {"i8", "=i8", "|i8", "l", "q", "int64", "int"}},
      {"f32", {"f4", "=f4", "|f4", "f", "<f", "float32", "single"}},
      {"f64", {"f8", "=f8", "|f8", "d", "float64", "double", "float"}}};
  for (const auto& [type, descrs] : names) {
    for (const char* const descr : descrs) {
      EXPECT_EQ(shape_of(parse_npy_header(npy_header(descr, "2,"), "a.npy")),
                std::string("2 of ") + type)
          << descr;
    }
  }
  EXPECT_THAT(elements_of<std::int32_t>(
                  npy_with_header(npy_header(">i", "1,"), std::string("\0\0\1\2", 4))),
              ElementsAre(258));
}

TEST_F(Npy, TakesScalarsEmptyArraysAndTheLaterVersions) {
  EXPECT_THAT(elements_of<double>(npy_bytes<double>("<f8", "", {7})), ElementsAre(7));
  EXPECT_TRUE(elements_of<std::uint8_t>(npy_bytes<std::uint8_t>("|u1", "0, 3", {})).empty());
  const std::string header = npy_header("|u1", "1,") + "\n";
  std::string bytes("\x93NUMPY\x03\x00", 8);
  bytes += std::string{static_cast<char>(header.size()), 0, 0, 0} + header + "z";
  EXPECT_THAT(elements_of<std::uint8_t>(bytes), ElementsAre('z'));
}

TEST_F(Npy, RefusesWhatIsNoNpyFile) {
  const std::string good = npy_bytes<std::uint8_t>("|u1", "3,", {1, 2, 3});
  expect_refused("too short: 0 bytes, its header needs 6", "");
  expect_refused("too short: 7 bytes, its header needs 8", good.substr(0, 7));
  expect_refused("too short: 9 bytes, its header needs 10", good.substr(0, 9));
  expect_refused("does not start with \\x93NUMPY; it is damaged or not an npy file", "PK\3\4....");
  std::string version = good;
  version[6] = 4;
  expect_refused("its version 4.0 is unknown, 1.0 to 3.0 are known; save it with numpy.save",
                 version);
  expect_refused("states a header of 118 bytes, 90 follow", good.substr(0, 100));
  std::string longer = good;
  longer[9] = '\x7F';
  expect_refused("states a header of 32630 bytes, 10000 are allowed", longer);
}

TEST_F(Npy, RefusesHeadersItsGrammarDoesNotKnow) {
  const auto refused = [this](const std::string& text, const std::string& header) {
    expect_refused("': its header has " + text, npy_with_header(header, ""));
  };
  refused("'__import__('' where '{' belongs", "__import__('os').system('true')");
  refused("', }' where ''' belongs", "{'descr': '|u1',, }");
  refused("'__import__('os')}' where a value belongs", "{'descr': __import__('os')}");
  refused("no closing '", "{'descr");
  refused("no closing )", "{'shape': (1, 2");
  refused("no 'descr'", "{'fortran_order': False, 'shape': (1,)}");
  refused("no 'shape'", "{'fortran_order': False, 'descr': '|u1'}");
  refused("4 keys, 3 are known",
          "{'descr': '|u1', 'fortran_order': False, 'shape': (1,), 'x': True}");
  refused("more after its dictionary", npy_header("|u1", "1,") + "x");
}

TEST_F(Npy, RefusesShapesThatAreNone) {
  const auto refused = [this](const std::string& text, const std::string& shape) {
    expect_refused(text, npy_with_header(npy_header("<f4", shape), ""));
  };
  refused("its shape '(3)' is not a tuple of whole numbers", "3");
  refused("its shape '(-1,)' is not a tuple of whole numbers", "-1,");
  refused("its shape '(1.5,)' is not a tuple of whole numbers", "1.5,");
  refused("its shape '(1,,2)' is not a tuple of whole numbers", "1,,2");
  refused("its shape (99999999999999999999,) overflows", "99999999999999999999,");
  refused("its size, 4294967296 x 4294967296 of f32, overflows", "4294967296, 4294967296");
  std::string dims = "1";
  for (int i = 0; i < 64; ++i) dims += ",1";
  refused("has 65 dimensions, 64 are allowed", dims);
  refused("its header says 4 of f32 = 16 bytes, it holds 0", "4,");
  expect_refused("its header says 1 of u8 = 1 bytes, it holds 2",
                 npy_bytes<std::uint8_t>("|u1", "1,", {1, 2}));
}

/// numpy.save(file, numpy.asfortranarray(a)) of the array a with a[i, j, k] == 100 i + 10 j + k.
TEST_F(Npy, ReadsColumnsAsRows) {
  const auto npy = [](const std::string& type, const std::string& elements) {
    return npy_with_header("{'descr': '" + type + "', 'fortran_order': True, 'shape': (2, 3, 2), }",
                           elements);
  };
  const std::string columns = {0, 100, 10, 110, 20, 120, 1, 101, 11, 111, 21, 121};
  const ArrayFile array = open_npy(file("a.npy", npy("|u1", columns)));
  EXPECT_TRUE(array.is_loaded());
  EXPECT_EQ(array.cols(), 6);
  EXPECT_THAT(elements_of<std::uint8_t>(npy("|u1", columns)),
              ElementsAre(0, 1, 10, 11, 20, 21, 100, 101, 110, 111, 120, 121));
  std::string wide;
  for (const char each : columns) wide += std::string{'\0', each};
  EXPECT_THAT(elements_of<std::int16_t>(npy(">i2", wide)),
              ElementsAre(0, 1, 10, 11, 20, 21, 100, 101, 110, 111, 120, 121));
  expect_refused("its header says 2 x 3 x 2 of u8 = 12 bytes, it holds 0", npy("|u1", ""));
}

TEST_F(Npy, RefusesWhatItCannotRead) {
  expect_refused("its fortran_order is 'no', not True or False",
                 npy_with_header("{'descr': '<f4', 'fortran_order': 'no', 'shape': (0,), }", ""));
  for (const std::string descr :
       {"|O", "<c16", "<f16", "<U3", "|i16", "<float32", "<half", "=", ""}) {
    expect_refused(
        "holds elements of type '" + descr + "'; save it as whole numbers, float32 or float64",
        npy_with_header(npy_header(descr, "0,"), ""));
  }
  expect_refused(
      "holds elements of a structured type; save it as whole",
      npy_with_header("{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': ()}", ""));
  expect_error(ExitCode::kNoInput, "npy file '/dev/null': is not a regular file",
               [] { open_npy("/dev/null"); });
}

}  // namespace
}  // namespace barestep
