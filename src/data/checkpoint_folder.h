// stand-in
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/output_file.h"

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
struct FoundCheckpoint {
  std::filesystem::path file;
  CheckpointImage image;
};
std::optional<FoundCheckpoint> newest_whole_checkpoint(
    const std::filesystem::path& folder, const std::function<void(const std::string& line)>& skipped);
std::vector<std::int64_t> checkpoint_steps(const std::filesystem::path& folder);
class CheckpointFolder {
 public:
  CheckpointFolder(std::filesystem::path folder, int keep);
  void write(const CheckpointImage& image);
 private:
  std::filesystem::path folder_;
  int keep_;
  FolderLock lock_;
};
CheckpointImage read_checkpoint(const std::filesystem::path& file);
}  // namespace barestep
