// mlp_lab doctor: what this machine has, what it lacks, what each absence costs, and how to mend
// it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/host.h"
#include "core/index.h"
#include "lab/study/core_users.h"

namespace barestep {

/// What libraries and the environment say. Everything else is read from the machine's files.
struct MachineFacts {
  std::string gpus{};         // "2 x NVIDIA H200, driver for CUDA 13.0"; empty if there is none
  std::string why_no_gpu{};   // empty also in a build without CUDA
  std::string nccl{};         // version; empty if it cannot be used
  std::string why_no_nccl{};  // empty if it can
  std::string cupti{};        // version; empty if it cannot be used
  std::string why_no_cupti{};
  bool has_mpi = false;   // this build
  std::string mpirun{};   // path; empty if there is none
  std::string hwloc{};    // version; empty in a build without it
  std::string printer{};  // of PDF files: path; empty if there is none
  std::string page{};     // the module of the page of mlp_lab explore: path; empty if there is none
  CpuSet allowed{};
  OpenFiles files{};
  CoreUsers others{};
  std::int64_t shared_memory_bytes = 0;      // of /dev/shm; 0 if there is none
  std::int64_t needed_bytes = 0;             // of the default run of mlp_single
  int compared_runs = 0;                     // with the hashes of weights that other machines have
  std::vector<std::string> other_weights{};  // the options of those that end with others here
};

/// Runs mlp_single for each line of a file of hashes, "HASH OPTIONS". Nothing where it is missing.
/// Blocks.
void compare_weights(const std::filesystem::path& mlp_single, const std::filesystem::path& hashes,
                     MachineFacts& facts);

/// Asks the libraries of this build, and watches the cores for a second. Where there is a GPU,
/// opens it and loads CUPTI.
MachineFacts facts_of_this_machine();

/// kMissing: part of barestep cannot be used. kLimited: it works, with the cost that is named.
enum class Health { kGood, kLimited, kMissing };
template <>
inline constexpr std::string_view kNamesOf<Health>[] = {"ok", "limited", "missing"};

struct Diagnosis {
  std::string what{};    // "clock source"
  std::string is{};      // "tsc"
  std::string cost{};    // empty if nothing is amiss
  std::string remedy{};  // likewise
  Health health = Health::kGood;
  bool is_needed = false;  // without it, no run works
};

/// Reads proc and sys under `root`. What a machine does not report is good.
std::vector<Diagnosis> diagnoses(const MachineFacts& facts,
                                 const std::filesystem::path& root = "/");

/// A line for each, and below what is amiss its cost and its remedy.
std::string text_of(const std::vector<Diagnosis>& all);

/// Throws Error(kMemory) if something is missing without which no run works.
void require_needed(const std::vector<Diagnosis>& all);

/// Prints the diagnoses of this machine. Throws as require_needed() does.
void examine_machine();

}  // namespace barestep
