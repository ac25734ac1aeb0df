#include "fuzz/targets.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <initializer_list>
#include <string>

#include "command_line.h"
#include "core/config.h"
#include "core/error.h"
#include "data/array_file.h"
#include "data/safetensors.h"
#include "lab/predict/prediction.h"
#include "lab/study/study.h"
#include "options/options.h"
#include "profiler/peaks.h"

namespace barestep {
namespace {

[[noreturn]] void finding(const std::string& what) {
  std::fprintf(stderr, "finding: %s\n", what.c_str());
  std::abort();
}

/// The bytes as a file that exists only in memory.
class FileOfBytes {
 public:
  explicit FileOfBytes(std::span<const std::byte> bytes) : descriptor_(memfd_create("fuzz", 0)) {
    if (descriptor_ < 0 ||
        write(descriptor_, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) {
      finding("no file in memory");
    }
  }
  ~FileOfBytes() { close(descriptor_); }
  FileOfBytes(const FileOfBytes&) = delete;
  FileOfBytes& operator=(const FileOfBytes&) = delete;

  [[nodiscard]] std::string path() const { return fmt::format("/proc/self/fd/{}", descriptor_); }

 private:
  int descriptor_;
};

/// A folder in which a name links to such a file, for readers that check names.
class FolderOfBytes {
 public:
  FolderOfBytes(const char* name, std::span<const std::byte> bytes) : file_(bytes) {
    std::string pattern = (std::filesystem::temp_directory_path() / "barestep-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) finding("no folder");
    path_ = pattern;
    std::filesystem::create_symlink(file_.path(), path_ / name);
  }
  ~FolderOfBytes() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  FolderOfBytes(const FolderOfBytes&) = delete;
  FolderOfBytes& operator=(const FolderOfBytes&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  FileOfBytes file_;
  std::filesystem::path path_;
};

/// Reads; a refusal must have one of these codes and one printable line.
template <class Read>
void reads_or_refuses(std::initializer_list<ExitCode> codes, const Read& read) {
  try {
    read();
  } catch (const Error& error) {
    const std::string text = error.what();
    if (std::ranges::find(codes, error.code()) == codes.end()) {
      finding(fmt::format("code {}: {}", static_cast<int>(error.code()), text));
    }
    const auto control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
    if (text.empty() || std::ranges::any_of(text, control)) finding("message: " + text);
  }
}

/// Every element can be read, and their number is the one in the header.
void read_all(ArrayFile array) {
  array.load();
  if (array.header().bytes() != static_cast<std::int64_t>(array.elements().size())) {
    finding("elements: " + shape_of(array.header()));
  }
}

void run_idx(std::span<const std::byte> bytes) {
  const FileOfBytes file(bytes);
  reads_or_refuses({ExitCode::kBadData}, [&] { read_all(open_idx(file.path())); });
}

void run_npy(std::span<const std::byte> bytes) {
  const FileOfBytes file(bytes);
  reads_or_refuses({ExitCode::kBadData}, [&] { read_all(open_npy(file.path())); });
}

void run_safetensors(std::span<const std::byte> bytes) {
  const FileOfBytes file(bytes);
  reads_or_refuses({ExitCode::kBadData}, [&] {
    const SafetensorsFile tensors(file.path());
    for (const SafetensorsEntry& entry : tensors.tensors()) {
      if (tensors.find(entry.name) != &entry) finding("two tensors of one name");
      reads_or_refuses({ExitCode::kBadData}, [&] {
        read_all(open_safetensors(file.path(), entry.name));
        if (entry.dtype == "F32") std::ignore = tensors.f32(entry.name);
      });
    }
  });
}

void run_config(std::span<const std::byte> bytes) {
  const FileOfBytes file(bytes);
  reads_or_refuses({ExitCode::kConfiguration, ExitCode::kUsage}, [&] {
    TrainConfig config;
    const auto given = read_config_file(SchemeKind::kSingle, file.path());
    for (const Option& option : options_of(SchemeKind::kSingle)) {
      const auto found = given.find(option.name);
      if (found != given.end()) option.value.read(found->second, config);
    }
    validate(config);
  });
}

/// Steps on the machine of every card take a positive time.
void run_card(std::span<const std::byte> bytes) {
  const FolderOfBytes folder("card.json", bytes);
  reads_or_refuses({ExitCode::kBadData}, [&] {
    const MachineCard card = load_card((folder.path() / "card.json").string());
    const Run asked = asked_run({{"dim", "8"}, {"depth", "1"}, {"batch-size", "8"}});
    for (const int ranks : {1, std::min(2, card.max_ranks())}) {
      const double step_s = predicted_step(asked, card, ranks).step_s;
      if (!(step_s > 0) || !std::isfinite(step_s)) finding(fmt::format("a step of {} s", step_s));
    }
  });
}

void run_study(std::span<const std::byte> bytes) {
  const FolderOfBytes folder("study.json", bytes);
  reads_or_refuses({ExitCode::kBadData}, [&] {
    const Study study = Study::open(folder.path());
    if (!study.measured().empty()) finding("an experiment that was not made");
  });
}

void run_peaks(std::span<const std::byte> bytes) {
  const FileOfBytes file(bytes);
  reads_or_refuses({ExitCode::kBadData}, [&] {
    const auto peaks = load_peaks(file.path(), "cpu");
    const double floor_s = peaks ? peaks->min_s({.flops = 1, .bytes = 1}) : 1;
    if (!(floor_s > 0) || !std::isfinite(floor_s)) finding(fmt::format("a floor of {} s", floor_s));
  });
}

}  // namespace

std::span<const FuzzTarget> fuzz_targets() {
  static constexpr FuzzTarget kTargets[] = {
      {"idx", run_idx},       {"npy", run_npy},   {"safetensors", run_safetensors},
      {"config", run_config}, {"card", run_card}, {"study", run_study},
      {"peaks", run_peaks}};
  return kTargets;
}

}  // namespace barestep
