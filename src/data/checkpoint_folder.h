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
}
