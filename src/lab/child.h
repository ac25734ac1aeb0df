// Starts a program, waits for it, and returns what it wrote.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace barestep {

/// The path of a folder for files that nobody needs later; it is removed with all that is in it.
class TemporaryFolder {
 public:
  /// `use` is a part of its name. Throws Error(kCannotCreate) if there is no place for it.
  explicit TemporaryFolder(std::string_view use);
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder();
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

struct ChildResult {
  int exit_code = 0;  // 128 + n if signal n ended it
  std::string out{};
  std::string err{};
  double wall_s = 0;
  double cpu_s = 0;  // of the program and all children that it waited for
};

/// Runs command[0] with the rest as arguments, without a shell. Blocks. `environment` adds
/// variables that this process's environment does not already have. If stop_children() is called
/// meanwhile, the program and all its children get SIGTERM, and Error(kTryAgain) is thrown. Throws
/// Error(kNoInput) if the program cannot be started.
ChildResult run_child(const std::vector<std::string>& command,
                      const std::vector<std::string>& environment = {});

/// Why a program failed, from what it wrote on stderr: the text after its last "error: ". One that
/// crashed wrote none, so it is its last line, without mpirun's frames of dashes.
std::string error_line(const std::string& err);

/// Safe to call from a signal handler.
void stop_children();
bool children_are_stopped();

/// The full path of a program on PATH; empty if it is not found.
std::string find_on_path(const std::string& program);

}  // namespace barestep
