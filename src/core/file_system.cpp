#include "core/file_system.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

namespace barestep {
namespace {

int result_or_negated_errno(int result) {
  return result < 0 ? -errno : result;
}

class RealFiles final : public FileSystem {
 public:
  int create(const std::filesystem::path& path) override {
    return result_or_negated_errno(
        ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  }

  int open(const std::filesystem::path& path) override {
    return result_or_negated_errno(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  }

  int resize(int descriptor, std::int64_t bytes) override {
    return result_or_negated_errno(::ftruncate(descriptor, bytes));
  }

  int seek(int descriptor, std::int64_t offset) override {
    return ::lseek(descriptor, offset, SEEK_SET) < 0 ? -errno : 0;
  }

  std::int64_t write(int descriptor, std::span<const std::byte> bytes) override {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    return written < 0 ? -errno : written;
  }

  int sync(int descriptor) override { return result_or_negated_errno(::fsync(descriptor)); }

  int sync_folder(const std::filesystem::path& folder) override {
    const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) return -errno;
    const int result = sync(descriptor);
    ::close(descriptor);
    return result;
  }

  int close(int descriptor) override { return result_or_negated_errno(::close(descriptor)); }

  int rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
    return result_or_negated_errno(::rename(from.c_str(), to.c_str()));
  }

  int unlink(const std::filesystem::path& path) override {
    return result_or_negated_errno(::unlink(path.c_str()));
  }

  int make_folder(const std::filesystem::path& path) override {
    return result_or_negated_errno(::mkdir(path.c_str(), 0777));
  }

  int list(const std::filesystem::path& folder, std::vector<std::string>& names) override {
    std::error_code error;
    std::filesystem::directory_iterator entry(folder, error);
    while (!error && entry != std::filesystem::directory_iterator()) {
      names.push_back(entry->path().filename().string());
      entry.increment(error);
    }
    return error ? -error.value() : 0;
  }
};

}  // namespace

FileSystem& real_files() {
  static RealFiles files;
  return files;
}

}  // namespace barestep
