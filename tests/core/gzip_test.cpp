#include "core/gzip.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <string>

#include "support/temp_dir.h"

namespace barestep {
namespace {

class Gzip : public TempDirTest {
 protected:
  /// What zlib's own reader finds in it.
  std::string unpacked(const std::vector<std::byte>& packed) {
    const auto path = file("x.gz", {reinterpret_cast<const char*>(packed.data()), packed.size()});
    const gzFile input = gzopen(path.c_str(), "rb");
    std::string text;
    char piece[4096];
    for (int count = 0; (count = gzread(input, piece, sizeof(piece))) > 0;) {
      text.append(piece, static_cast<std::size_t>(count));
    }
    EXPECT_EQ(gzclose(input), Z_OK);
    return text;
  }
};

TEST_F(Gzip, ReadsBackTheSame) {
  std::string text;
  for (const std::size_t size : {0U, 1U, 100U, 3'000'000U}) {
    while (text.size() < size) text += std::to_string(text.size() * 2654435761U);
    EXPECT_EQ(unpacked(gzip_of(text)), text) << size;
  }
}

}  // namespace
}  // namespace barestep
