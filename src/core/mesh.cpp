#include "core/mesh.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

namespace barestep {

std::string Mesh::text() const {
  if (!cuts_model()) return fmt::format("rank {}", rank);
  std::vector<std::string> places;
  if (data > 1) places.push_back(fmt::format("data {}", data_rank()));
  if (tensor > 1) places.push_back(fmt::format("tensor {}", tensor_rank()));
  if (pipeline > 1) places.push_back(fmt::format("stage {}", stage()));
  return fmt::format("rank {} ({})", rank, fmt::join(places, ", "));
}

}  // namespace barestep
