#include "profiler/event_file.h"

#include "support/expect_error.h"
#include "support/temp_dir.h"
#include "support/testing.h"

namespace barestep {
namespace {

/// RFC 3720, appendix B.4, and the check value in the catalogue of CRCs.
TEST(Crc32c, GivesThePublishedValues) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43U);
  EXPECT_EQ(crc32c(""), 0U);
}

class EventFileTest : public TempDirTest {
 protected:
  /// The bytes of each frame; its checksums must be correct.
  static std::vector<std::string> frames_of(std::string_view bytes) {
    const auto take = [&](auto number) {
      std::memcpy(&number, bytes.data(), sizeof(number));
      bytes.remove_prefix(sizeof(number));
      return number;
    };
    const auto unmasked = [](std::uint32_t crc) { return std::rotl(crc - 0xa282ead8U, 15); };
    std::vector<std::string> frames;
    while (!bytes.empty()) {
      const std::string_view length_bytes = bytes.substr(0, 8);
      const auto length = take(std::uint64_t{});
      EXPECT_EQ(unmasked(take(std::uint32_t{})), crc32c(length_bytes));
      frames.emplace_back(bytes.substr(0, length));
      bytes.remove_prefix(length);
      EXPECT_EQ(unmasked(take(std::uint32_t{})), crc32c(frames.back()));
    }
    return frames;
  }
};

TEST_F(EventFileTest, HoldsTheVersionAndThenTheNumbers) {
  const auto path = folder() / "runs" / "one";
  EventFile file(path);
  file.add(300, 1.5, {"loss", 0.25});
  file.close();
  const auto entry = *std::filesystem::directory_iterator(path);
  EXPECT_THAT(entry.path().filename().string(), StartsWith("events.out.tfevents."));
  const auto frames = frames_of(read_file(entry.path()));
  ASSERT_EQ(frames.size(), 2U);
  EXPECT_EQ(frames[0].substr(9),
            "\x1a\x0d"
            "brain.Event:2");
  // Written by hand from the protocol buffers in tensorflow/core/util/event.proto: wall_time = 1.5,
  // step = 300, summary { value { tag: "loss" simple_value: 0.25 } }.
  const std::string expected(
      "\x09\x00\x00\x00\x00\x00\x00\xf8\x3f"
      "\x10\xac\x02"
      "\x2a\x0d\x0a\x0b\x0a\x04loss\x15\x00\x00\x80\x3e",
      27);
  EXPECT_EQ(frames[1], expected);
}

/// By hand from the same file: step = 300, session_log { status: START }.
TEST_F(EventFileTest, TellsReadersWhatToDrop) {
  EventFile file(folder());
  file.restart(300);
  file.close();
  const auto frames = frames_of(read_file(*std::filesystem::directory_iterator(folder())));
  ASSERT_EQ(frames.size(), 2U);
  EXPECT_EQ(frames[1].substr(9), "\x10\xac\x02\x3a\x02\x08\x01");
}

TEST_F(EventFileTest, IsAnotherOneForEachRun) {
  EventFile one(folder());
  EventFile two(folder());
  EXPECT_EQ(names().size(), 2U);
}

TEST_F(EventFileTest, SaysWhyItsFolderCannotBeMade) {
  file("taken", "a file");
  expect_error(ExitCode::kCannotCreate, "cannot be created: Not a directory; choose a writable one",
               [&] { EventFile(folder() / "taken" / "runs"); });
}

}  // namespace
}  // namespace barestep
