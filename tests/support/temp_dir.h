// A temporary folder for a test, with functions to read and write whole files in it.
#pragma once

#include <unistd.h>

#include "support/testing.h"

namespace barestep {

/// Writes `bytes` to `path`; the folder must exist.
inline void write_file(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(file.flush().good()) << path;
}

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

/// A test with an empty folder that is removed afterwards.
class TempDirTest : public testing::Test {
 protected:
  TempDirTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "barestep-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) std::abort();
    folder_ = pattern;
  }
  ~TempDirTest() override { std::filesystem::remove_all(folder_); }

  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }

  /// Writes a file into the folder and returns its path.
  std::filesystem::path file(const std::string& name, std::string_view bytes) {
    write_file(folder_ / name, bytes);
    return folder_ / name;
  }

  /// The names of all entries in the folder, or in a folder in it.
  [[nodiscard]] std::vector<std::string> names(const std::string& folder = "") const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / folder)) {
      found.push_back(entry.path().filename().string());
    }
    return found;
  }

 private:
  std::filesystem::path folder_;
};

}  // namespace barestep
