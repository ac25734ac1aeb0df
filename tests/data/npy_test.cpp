#include "data/npy.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "support/expect_error.h"
#include "support/npy_bytes.h"
#include "support/temp_dir.h"

namespace barestep {
namespace {

using testing::ElementsAre;

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

/// What numpy.save (1.24) writes for numpy.array([[1, 2], [3, 4.5]], '<f4'), byte for byte.
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
  expect_refused("does not start with \\x93NUMPY; it is damaged or no npy file", "PK\3\4....");
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
  refused("'descr' twice", "{'descr': '|u1', 'descr': '|u1'}");
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
  refused("its shape '(3)' is no tuple of whole numbers", "3");
  refused("its shape '(-1,)' is no tuple of whole numbers", "-1,");
  refused("its shape '(1.5,)' is no tuple of whole numbers", "1.5,");
  refused("its shape '(1,,2)' is no tuple of whole numbers", "1,,2");
  refused("its shape (99999999999999999999,) overflows", "99999999999999999999,");
  refused("its size, 4294967296 x 4294967296 of f32, overflows", "4294967296, 4294967296");
  refused("has 9 dimensions, 8 are allowed", "1,1,1,1,1,1,1,1,1");
  refused("its header says 4 of f32 = 16 bytes, it holds 0", "4,");
  expect_refused("its header says 1 of u8 = 1 bytes, it holds 2",
                 npy_bytes<std::uint8_t>("|u1", "1,", {1, 2}));
}

TEST_F(Npy, RefusesWhatItCannotRead) {
  expect_refused("is column-major (fortran_order is True); save numpy.ascontiguousarray()",
                 npy_with_header("{'descr': '<f4', 'fortran_order': True, 'shape': (0,), }", ""));
  expect_refused("its fortran_order is 'no', not True or False",
                 npy_with_header("{'descr': '<f4', 'fortran_order': 'no', 'shape': (0,), }", ""));
  for (const std::string descr : {"|O", "<c16", "<f2", "<u4", "<U3", "|i4", "f4", "=f4", ""}) {
    expect_refused("holds elements of type '" + descr +
                       "'; save it as uint8, int8, int16, int32, int64, float32 or float64",
                   npy_with_header(npy_header(descr, "0,"), ""));
  }
  expect_refused(
      "holds elements of a structured type; save it as uint8",
      npy_with_header("{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': ()}", ""));
  expect_error(ExitCode::kNoInput, "npy file '/dev/null': is not a regular file",
               [] { open_npy("/dev/null"); });
}

}  // namespace
}  // namespace barestep
