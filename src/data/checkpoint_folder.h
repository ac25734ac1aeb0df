// stand-in
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace barestep {

struct StoredTensor {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;
};
struct CheckpointImage {
  std::int64_t step = 0;
  std::string state;
  std::vector<StoredTensor> tensors;
};
class CheckpointFolder {
 public:
  struct Found {
    std::filesystem::path file;
    CheckpointImage image;
  };
  CheckpointFolder(std::filesystem::path folder, int keep);
  void write(const CheckpointImage& image);
  std::optional<Found> newest_whole(
      const std::function<void(const std::string& line)>& skipped) const;

 private:
  std::filesystem::path folder_;
  int keep_;
};
CheckpointImage read_checkpoint(const std::filesystem::path& file);
}  // namespace barestep
