#include "core/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <limits>
#include <new>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>

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

namespace {

namespace fs = std::filesystem;

/// The least that the C library puts between a program and a file.
constexpr std::size_t kBufferBytes = 4096;

[[noreturn]] void fail_creating(const fs::path& path, int error) {
  fail(ExitCode::kCannotCreate, {.what = "output file",
                                 .value = path.string(),
                                 .why = fmt::format("cannot be created: {}", std::strerror(error)),
                                 .remedy = "choose a path that can be written"});
}

[[noreturn]] void fail_making(const fs::path& folder, int error) {
  fail(ExitCode::kCannotCreate, {.what = "folder",
                                 .value = folder.string(),
                                 .why = fmt::format("cannot be created: {}", std::strerror(error)),
                                 .remedy = "choose one that can be written"});
}

[[noreturn]] void fail_writing(const fs::path& path, int error) {
  fail(ExitCode::kInputOutput, {.what = "output file",
                                .value = path.string(),
                                .why = fmt::format("writing failed: {}", std::strerror(error)),
                                .remedy = "free space or choose another disk"});
}

[[noreturn]] void fail_held(const fs::path& path, const std::string& holder) {
  fail(ExitCode::kTryAgain, {.what = "output file",
                             .value = path.string(),
                             .why = holder + " writes to it",
                             .remedy = "wait until it ends, or choose another file"});
}

/// Opens what is not replaced but written to. O_NONBLOCK while opening: a FIFO without a reader is
/// an error instead of a wait. Returns -1 with errno set on failure.
int open_for_writing(const fs::path& path, int flags) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | flags, 0666);
  if (descriptor < 0) return -1;
  const int now = ::fcntl(descriptor, F_GETFL);
  ::fcntl(descriptor, F_SETFL, now & ~O_NONBLOCK);
  return descriptor;
}

/// A descriptor and, until keep(), a file that vanishes with this object.
class DraftFile {
 public:
  /// A new file in `folder`. Where that fails, it is not open, and errno tells why.
  explicit DraftFile(const fs::path& folder) {
    do {
      static std::atomic<int> count = 0;
      path_ = folder / fmt::format(".barestep-{}-{}.tmp", ::getpid(), count++);
      descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (descriptor_ < 0 && errno == EEXIST);
    is_made_ = descriptor_ >= 0;
  }

  ~DraftFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
    if (is_made_ && !kept_) ::unlink(path_.c_str());
  }
  DraftFile(const DraftFile&) = delete;
  DraftFile& operator=(const DraftFile&) = delete;

  [[nodiscard]] bool is_open() const { return descriptor_ >= 0; }
  [[nodiscard]] int descriptor() const { return descriptor_; }

  /// Returns false with errno set when the disk refuses.
  bool keep_as(const fs::path& target) {
    if (::fsync(descriptor_) != 0) return false;
    if (::close(std::exchange(descriptor_, -1)) != 0) return false;
    kept_ = ::rename(path_.c_str(), target.c_str()) == 0;
    return kept_;
  }

 private:
  fs::path path_;
  int descriptor_ = -1;
  bool is_made_ = false;
  bool kept_ = false;
};

/// Where a file is to be written: links followed, and what is there now.
struct Target {
  fs::path path;
  fs::path folder;
  bool exists = false;
  struct stat status {};
};

Target find_target(const fs::path& path) {
  Target target{.path = path, .folder = {}};
  target.exists = ::stat(path.c_str(), &target.status) == 0;
  if (!target.exists && errno != ENOENT) fail_creating(path, errno);
  if (path.filename().empty() && !target.exists) fail_creating(path, ENOENT);
  if (target.exists && S_ISDIR(target.status.st_mode)) fail_creating(path, EISDIR);
  if (target.exists && S_ISREG(target.status.st_mode)) {
    std::error_code error;
    target.path = fs::canonical(path, error);
    if (error) fail_creating(path, error.value());
  }
  target.folder = target.path.has_parent_path() ? target.path.parent_path() : fs::path(".");
  return target;
}

bool is_special(const Target& target) {
  return target.exists && !S_ISREG(target.status.st_mode);
}

/// Returns false with errno set on failure.
bool write_all(int descriptor, std::span<const std::span<const std::byte>> parts) {
  for (std::span<const std::byte> rest : parts) {
    while (!rest.empty()) {
      const ssize_t written = ::write(descriptor, rest.data(), rest.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return false;
      rest = rest.subspan(static_cast<std::size_t>(written));
    }
  }
  return true;
}

void write_special(const fs::path& path, std::span<const std::span<const std::byte>> parts) {
  const int descriptor = open_for_writing(path, 0);
  if (descriptor < 0) fail_creating(path, errno);
  const int error = write_all(descriptor, parts) ? 0 : errno;
  const bool closed = ::close(descriptor) == 0;
  if (error != 0 || !closed) fail_writing(path, error != 0 ? error : errno);
}

/// Brings a rename to the disk. Folders that may not be read and file systems that cannot do this
/// are left alone: the file itself is complete.
void sync_folder(const Target& target) {
  const int descriptor = ::open(target.folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  const int error = ::fsync(descriptor) == 0 ? 0 : errno;
  ::close(descriptor);
  if (error != 0 && error != EINVAL) fail_writing(target.path, error);
}

}  // namespace

OutputFile::OutputFile(fs::path path, std::int64_t kept_bytes) : path_(std::move(path)) {
  // Locked before it is cut: what another program has written so far stays.
  const int descriptor = open_for_writing(path_, O_CREAT);
  if (descriptor < 0) fail_creating(path_, errno);
  file_.reset(::fdopen(descriptor, "w"));
  BARESTEP_REQUIRE(file_ != nullptr, "a descriptor just opened for writing makes a stream");
  const std::string holder = lock_or_holder(descriptor);
  if (!holder.empty()) fail_held(path_, holder);
  // EINVAL: it is no regular file, and has no length.
  if (::ftruncate(descriptor, kept_bytes) != 0 && errno != EINVAL) fail_creating(path_, errno);
  if (kept_bytes > 0) ::lseek(descriptor, 0, SEEK_END);
}

void OutputFile::write(std::string_view text) {
  BARESTEP_REQUIRE(file_ != nullptr, "written to after close()");
  if (buffered_ + text.size() > kBufferBytes) flush();
  check(std::fwrite(text.data(), 1, text.size(), file_.get()) == text.size());
  buffered_ += text.size();
}

void OutputFile::flush() {
  BARESTEP_REQUIRE(file_ != nullptr, "flushed after close()");
  check(std::fflush(file_.get()) == 0);
  buffered_ = 0;
}

void OutputFile::close() {
  if (file_ == nullptr) return;
  check(std::fclose(file_.release()) == 0);
}

void OutputFile::check(bool done) {
  if (!done && first_error_ == 0) first_error_ = errno;
  if (first_error_ != 0) fail_writing(path_, first_error_);
}

void replace_file(const fs::path& path, std::span<const std::span<const std::byte>> parts) {
  const Target target = find_target(path);
  if (is_special(target)) return write_special(path, parts);
  DraftFile draft(target.folder);
  if (!draft.is_open()) fail_creating(path, errno);
  if (target.exists) ::fchmod(draft.descriptor(), target.status.st_mode & 0777U);
  if (!write_all(draft.descriptor(), parts)) fail_writing(path, errno);
  if (!draft.keep_as(target.path)) fail_writing(path, errno);
  sync_folder(target);
}

void require_writable(const fs::path& path) {
  const Target target = find_target(path);
  if (is_special(target)) {
    const int descriptor = open_for_writing(path, 0);
    if (descriptor < 0) fail_creating(path, errno);
    ::close(descriptor);
    return;
  }
  const std::string holder = target.exists ? holder_of(target.path) : "";
  if (!holder.empty()) fail_held(path, holder);
  if (!DraftFile(target.folder).is_open()) fail_creating(path, errno);
}

void make_folder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) fail_making(path, error.value());
}

void require_writable_folder(const fs::path& path) {
  fs::path made = path;
  struct stat status {};
  while (::stat(made.c_str(), &status) != 0) {
    if (errno != ENOENT) fail_making(path, errno);
    std::error_code ignored;
    if (fs::is_symlink(made, ignored)) fail_making(path, ENOENT);  // to nothing
    made = made.has_parent_path() ? made.parent_path() : fs::path(".");
  }
  if (!S_ISDIR(status.st_mode)) fail_making(path, ENOTDIR);
  if (!DraftFile(made).is_open()) fail_making(path, errno);
}

std::vector<std::byte> gzip_of(std::string_view text) {
  constexpr int kWindowBits = 15 + 16;  // 16 asks for gzip's frame
  constexpr int kMemoryLevel = 8;
  constexpr std::size_t kMostAtOnce = std::numeric_limits<uInt>::max() / 2;
  z_stream stream{};
  if (deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, kWindowBits, kMemoryLevel,
                   Z_DEFAULT_STRATEGY) != Z_OK) {
    throw std::bad_alloc();
  }
  std::vector<std::byte> out;
  std::vector<std::byte> piece(1 << 18);
  int status = Z_OK;
  while (status != Z_STREAM_END) {
    if (stream.avail_in == 0) {
      const std::size_t count = std::min(text.size(), kMostAtOnce);
      // zlib only reads from it.
      stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
      stream.avail_in = static_cast<uInt>(count);
      text.remove_prefix(count);
    }
    stream.next_out = reinterpret_cast<Bytef*>(piece.data());
    stream.avail_out = static_cast<uInt>(piece.size());
    status = deflate(&stream, text.empty() ? Z_FINISH : Z_NO_FLUSH);
    out.insert(out.end(), piece.begin(), piece.end() - stream.avail_out);
  }
  deflateEnd(&stream);
  return out;
}

}  // namespace barestep
