#include "parallel/comm/gpu_places.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <string_view>

#include "core/error.h"
#include "core/host.h"
#include "core/index.h"
#include "parallel/comm/nccl_transport.h"

namespace barestep {
namespace {

constexpr const char* kSharingVariable = "NCCL_MULTI_RANK_GPU_ENABLE";
constexpr int kFirstThatShares = 23003;

/// The form in which a place is exchanged between ranks: zero-terminated texts.
struct PackedPlace {
  std::array<char, 320> host;
  std::array<char, 32> bus_id;
  std::array<char, 160> why_not_shared;
};

template <std::size_t kSize>
void pack(const std::string& text, std::array<char, kSize>& to) {
  text.copy(to.data(), kSize - 1);
}

/// "2.28.9".
std::string nccl_version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace

std::string host_identity() {
  std::string boot;
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::getline(file, boot);
  return fmt::format("{} {}", host_name(), boot);
}

std::vector<RankGpu> gather_gpu_places(Group& ranks, const std::string& bus_id) {
  PackedPlace mine{};
  pack(host_identity(), mine.host);
  pack(bus_id, mine.bus_id);
  pack(why_gpus_are_not_shared(), mine.why_not_shared);
  std::vector<RankGpu> places;
  for (const PackedPlace& place : gather_values(ranks, mine)) {
    places.push_back({place.host.data(), place.bus_id.data(), place.why_not_shared.data()});
  }
  return places;
}

std::pair<int, int> ranks_on_one_gpu(std::span<const RankGpu> ranks) {
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    for (std::size_t j = i + 1; j < ranks.size(); ++j) {
      const bool same = ranks[i].host == ranks[j].host && ranks[i].bus_id == ranks[j].bus_id;
      if (same && !ranks[i].bus_id.empty()) return {static_cast<int>(i), static_cast<int>(j)};
    }
  }
  return {-1, -1};
}

bool is_first_on_gpu(std::span<const RankGpu> ranks, int rank) {
  const RankGpu& mine = at(ranks, rank);
  if (mine.bus_id.empty()) return false;
  for (const RankGpu& lower : ranks.first(static_cast<std::size_t>(rank))) {
    if (lower.host == mine.host && lower.bus_id == mine.bus_id) return false;
  }
  return true;
}

std::string why_nccl_cannot_join(std::span<const RankGpu> ranks) {
  const auto [one, other] = ranks_on_one_gpu(ranks);
  if (one < 0) return "";
  for (const RankGpu& place : ranks) {
    if (place.why_not_shared.empty()) continue;
    return fmt::format("ranks {} and {} have the same GPU, {}, and NCCL {}", one, other,
                       at(ranks, one).bus_id, place.why_not_shared);
  }
  return "";
}

bool joins_by_nccl(TransportKind requested, std::span<const RankGpu> ranks) {
  if (requested == TransportKind::kAuto)
    return why_no_nccl().empty() && why_nccl_cannot_join(ranks).empty();
  return requested == TransportKind::kNccl;
}

void require_nccl_joins(std::span<const RankGpu> ranks) {
  const std::string why = why_nccl_cannot_join(ranks);
  if (why.empty()) return;
  fail(ExitCode::kConfiguration,
       {"--transport", "nccl", why, "use mpi or auto, or start a rank for each GPU"});
}

std::string why_gpus_are_not_shared(int nccl_version, const char* variable) {
  const bool requested = variable != nullptr && std::string_view(variable) == "1";
  const bool can = nccl_version >= kFirstThatShares;
  if (requested && can) return "";
  std::string why = "takes each GPU once";
  if (can) why += fmt::format(" without {}=1", kSharingVariable);
  if (requested && nccl_version > 0) {
    why += fmt::format(": {} needs NCCL 2.30.3, this is {}", kSharingVariable,
                       nccl_version_text(nccl_version));
  }
  return why;
}

std::string why_gpus_are_not_shared() {
  return why_gpus_are_not_shared(nccl_version_code(), std::getenv(kSharingVariable));
}

}  // namespace barestep
