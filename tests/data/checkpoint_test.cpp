#include <gmock/gmock.h>

#include <cstring>
#include <string>

#include "data/checkpoint_folder.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace barestep {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

StoredTensor stored(const std::string& name, const std::vector<float>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {name, "F32", {static_cast<std::int64_t>(values.size())}, {bytes.begin(), bytes.end()}};
}

/// An image that no other step has, with tensors of several types and of no bytes.
CheckpointImage image_of(std::int64_t step) {
  const auto value = static_cast<float>(step);
  StoredTensor random{"random", "U8", {3}, {std::byte{1}, std::byte{2}, std::byte(step & 0xFF)}};
  return {.step = step,
          .state = R"({"step": )" + std::to_string(step) + R"(, "text": "\"checksum\":\"é"})",
          .tensors = {std::move(random),
                      stored("net.0.weight", {value, 1, 2}),
                      stored("net.0.bias", {-value}),
                      stored("empty", {}),
                      {"updates", "I64", {}, std::vector<std::byte>(8, std::byte{7})}}};
}

std::string text_of(const CheckpointImage& image) {
  std::string text = std::to_string(image.step) + "\n" + image.state + "\n";
  std::map<std::string, std::string> tensors;
  for (const StoredTensor& tensor : image.tensors) {
    std::string& each = tensors[tensor.name];
    each = tensor.dtype + " " + testing::PrintToString(tensor.shape) + " ";
    each.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
  }
  return text + testing::PrintToString(tensors);
}

class Checkpoints : public TempDirTest {
 protected:
  [[nodiscard]] fs::path dir() const { return folder() / "checkpoints"; }
  [[nodiscard]] fs::path path_of(const std::string& step) const {
    return dir() / ("step-" + step + ".safetensors");
  }
};

TEST_F(Checkpoints, HoldWhatWasWrittenAndTheNewestIsFound) {
  CheckpointFolder checkpoints(dir() / "a", 2);
  EXPECT_FALSE(checkpoints.newest_whole([](const std::string& why) { FAIL() << why; }));
  for (const int step : {0, 400, 1'000'000'000}) checkpoints.write(image_of(step));
  const auto found = checkpoints.newest_whole([](const std::string& why) { FAIL() << why; });
  ASSERT_TRUE(found);
  EXPECT_EQ(found->file, dir() / "a/step-1000000000.safetensors");
  EXPECT_EQ(text_of(found->image), text_of(image_of(1'000'000'000)));
  EXPECT_THAT(checkpoint_steps(dir() / "a"), ElementsAre(400, 1'000'000'000));
}

}  // namespace
}  // namespace barestep
