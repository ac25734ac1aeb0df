#include "core/file_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <fstream>
#include <sstream>

#include "core/error.h"

namespace barestep {
namespace {

constexpr const char* kUnknownHolder = "another program";

/// /proc/locks (proc(5)) has a line for each lock:
/// "1: FLOCK  ADVISORY  WRITE 4711 fe:00:10952710 0 EOF".
std::string holder_by_status(const struct stat& status) {
  const std::string file =
      fmt::format("{:02x}:{:02x}:{}", major(status.st_dev), minor(status.st_dev), status.st_ino);
  std::ifstream lines("/proc/locks");
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string number, kind, advice, access, held_file;
    std::int64_t process = 0;
    words >> number >> kind >> advice >> access >> process >> held_file;
    if (!words || kind != "FLOCK" || held_file != file || process <= 0) continue;
    std::string name;
    std::getline(std::ifstream(fmt::format("/proc/{}/comm", process)), name);
    return fmt::format("{} (process {})", name.empty() ? kUnknownHolder : name, process);
  }
  return kUnknownHolder;
}

/// `operation` as flock(2) takes it.
std::string try_lock(int descriptor, int operation) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) return "";
  if (!S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode)) return "";
  if (::flock(descriptor, operation | LOCK_NB) == 0 || errno != EWOULDBLOCK) return "";
  return holder_by_status(status);
}

}  // namespace

std::string lock_or_holder(int descriptor) {
  return try_lock(descriptor, LOCK_EX);
}

std::string holder_of(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0) return "";
  // A shared lock, so that two programs that ask at the same time do not meet each other.
  std::string holder = try_lock(descriptor, LOCK_SH);
  ::close(descriptor);
  return holder;
}

FolderLock::FolderLock(const std::filesystem::path& folder, const std::string& option)
    : descriptor_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (descriptor_ < 0) return;  // whoever writes into it says why
  const std::string holder = lock_or_holder(descriptor_);
  if (holder.empty()) return;
  ::close(descriptor_);
  fail(ExitCode::kTryAgain, {.what = option,
                             .value = folder.string(),
                             .why = holder + " writes into this folder",
                             .remedy = "wait until it ends, or name another folder"});
}

FolderLock::~FolderLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

}  // namespace barestep
