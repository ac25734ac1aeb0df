#include "fuzz/targets.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <string>
#include <vector>

#include "config_file.h"
#include "core/config.h"
#include "core/error.h"
#include "core/idx.h"
#include "core/npy.h"
#include "core/safetensors.h"
#include "options.h"

namespace barestep {
namespace {

[[noreturn]] void finding(const std::string& what) {
  std::fprintf(stderr, "finding: %s\n", what.c_str());
  std::abort();
}

/// The bytes as a file that lives in memory alone.
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

/// Reads; what is refused must be refused with one of these codes, in one printable line.
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

/// Every element can be read, and there are as many as the header says.
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
    const auto given = read_config_file("mlp_single", file.path());
    for (const Option& option : options_of("mlp_single")) {
      const auto found = given.find(option.name);
      if (found != given.end() && option.apply) option.apply(found->second, config);
    }
    validate(config);
  });
}

}  // namespace

std::span<const FuzzTarget> fuzz_targets() {
  static constexpr FuzzTarget kTargets[] = {
      {"idx", run_idx}, {"npy", run_npy}, {"safetensors", run_safetensors}, {"config", run_config}};
  return kTargets;
}

}  // namespace barestep
