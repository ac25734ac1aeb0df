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
#include <cstring>
#include <fstream>
#include <limits>
#include <mutex>
#include <new>
#include <optional>
#include <sstream>
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
  // A shared lock, so that two programs that check at the same time do not see each other.
  std::string holder = try_lock(descriptor, LOCK_SH);
  ::close(descriptor);
  return holder;
}

FolderLock::FolderLock(const std::filesystem::path& folder, const std::string& option)
    : descriptor_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (descriptor_ < 0) return;  // a failure is reported on writing
  const std::string holder = lock_or_holder(descriptor_);
  if (holder.empty()) return;
  ::close(descriptor_);
  fail(ExitCode::kTryAgain, {option, folder.string(), holder + " writes into this folder",
                             "wait until it ends, or name another folder"});
}

FolderLock::~FolderLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

namespace {

namespace fs = std::filesystem;

/// The smallest buffer that the C library puts between a program and a file.
constexpr std::size_t kBufferBytes = 4096;

[[noreturn]] void fail_creating(const fs::path& path, int error) {
  fail(ExitCode::kCannotCreate,
       {"output file", path.string(), fmt::format("cannot be created: {}", std::strerror(error)),
        "choose a writable path"});
}

[[noreturn]] void fail_making(const fs::path& folder, int error) {
  fail(ExitCode::kCannotCreate,
       {"folder", folder.string(), fmt::format("cannot be created: {}", std::strerror(error)),
        "choose a writable one"});
}

[[noreturn]] void fail_writing(const fs::path& path, int error) {
  fail(ExitCode::kInputOutput,
       {"output file", path.string(), fmt::format("writing failed: {}", std::strerror(error)),
        "free space or choose another disk"});
}

[[noreturn]] void fail_held(const fs::path& path, const std::string& holder) {
  fail(ExitCode::kTryAgain, {"output file", path.string(), holder + " writes to it",
                             "wait until it ends, or choose another file"});
}

/// Opens a file to be written in place. O_NONBLOCK makes opening a FIFO without a reader an error
/// instead of a wait. Returns -1 with errno set on failure.
int open_for_writing(const fs::path& path, int flags) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | flags, 0666);
  if (descriptor < 0) return -1;
  const int now = ::fcntl(descriptor, F_GETFL);
  ::fcntl(descriptor, F_SETFL, now & ~O_NONBLOCK);
  return descriptor;
}

/// How much of a file's name its draft's name includes: some file systems limit names to 255 bytes.
constexpr std::size_t kMaxNameInDraft = 200;

/// Repeats a call that a signal has interrupted.
template <class Call>
auto uninterrupted(const Call& call) {
  auto result = call();
  while (result == -EINTR) result = call();
  return result;
}

/// Returns 0 or a negated errno.
int write_all(FileSystem& files, int descriptor, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto written = uninterrupted([&] { return files.write(descriptor, bytes); });
    if (written < 0) return static_cast<int>(written);
    if (written == 0) return -EIO;  // disks never do this; do not retry forever
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return 0;
}

/// Writes from `position` on and advances it. Returns 0 or a negated errno.
int write_parts(FileSystem& files, int descriptor, std::int64_t& position,
                std::span<const FilePart> parts) {
  for (const FilePart& part : parts) {
    int result = 0;
    if (part.offset != position) result = files.seek(descriptor, part.offset);
    if (result == 0) result = write_all(files, descriptor, part.bytes);
    if (result < 0) return result;
    position = part.offset + std::ssize(part.bytes);
  }
  return 0;
}

/// Syncs the bytes to disk unless `result`, from writing them, is a failure; closes in both cases.
int synced_and_closed(FileSystem& files, int descriptor, int result) {
  if (result == 0) result = uninterrupted([&] { return files.sync(descriptor); });
  const int closed = files.close(descriptor);
  // Linux has closed the file even so, and the bytes are on the disk.
  if (result == 0 && closed != -EINTR) result = closed;
  return result;
}

/// Why a test file cannot be created in the folder; 0 if it can.
int why_no_draft(const fs::path& folder) {
  return DraftFile(real_files(), folder / "barestep").error();
}

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

/// Where a file is to be written, with links followed, and what exists there now.
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
  target.folder = folder_of(target.path);
  return target;
}

bool is_special(const Target& target) {
  return target.exists && !S_ISREG(target.status.st_mode);
}

std::mutex unsynced_mutex;
UnsyncedFolder on_unsynced_folder;

/// Never fails: the files are complete, and only a loss of power can undo their names. File systems
/// of networks or of user space that cannot sync a folder give any errno. Folders that may not be
/// read are not worth a note.
void sync_names(FileSystem& files, const fs::path& folder) {
  const int result = uninterrupted([&] { return files.sync_folder(folder); });
  if (result == 0 || result == -EACCES) return;
  const std::scoped_lock lock(unsynced_mutex);
  if (const auto report = std::exchange(on_unsynced_folder, nullptr)) report(folder, -result);
}

}  // namespace

void report_unsynced_folder(UnsyncedFolder report) {
  const std::scoped_lock lock(unsynced_mutex);
  on_unsynced_folder = std::move(report);
}

OutputFile::OutputFile(fs::path path, std::int64_t kept_bytes) : path_(std::move(path)) {
  // Locked before it is truncated, so another program's output stays intact.
  const int descriptor = open_for_writing(path_, O_CREAT);
  if (descriptor < 0) fail_creating(path_, errno);
  file_.reset(::fdopen(descriptor, "w"));
  BARESTEP_REQUIRE(file_ != nullptr, "a descriptor just opened for writing makes a stream");
  const std::string holder = lock_or_holder(descriptor);
  if (!holder.empty()) fail_held(path_, holder);
  // EINVAL: not a regular file, so it has no length.
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

DraftFile::DraftFile(FileSystem& files, const fs::path& target) : files_(files), target_(target) {
  const std::string name = target.filename().string().substr(0, kMaxNameInDraft);
  do {
    static std::atomic<int> count = 0;
    path_ = folder_of(target) / fmt::format(".{}-{}-{}.tmp", name, ::getpid(), count++);
    descriptor_ = uninterrupted([&] { return files_.create(path_); });
  } while (descriptor_ == -EEXIST);
  is_made_ = descriptor_ >= 0;
  if (!is_made_) error_ = -descriptor_;
}

DraftFile::~DraftFile() {
  if (descriptor_ >= 0) files_.close(descriptor_);
  if (is_made_ && !is_kept_) files_.unlink(path_);
}

int DraftFile::write(std::span<const FilePart> parts) {
  return write_parts(files_, descriptor_, position_, parts);
}

int DraftFile::finish() {
  return synced_and_closed(files_, std::exchange(descriptor_, -1), 0);
}

int DraftFile::publish() {
  const int result = files_.rename(path_, target_);
  is_kept_ = result == 0;
  if (is_kept_) sync_names(files_, folder_of(target_));
  return result;
}

int write_into(FileSystem& files, const fs::path& path, std::span<const FilePart> parts) {
  const int descriptor = uninterrupted([&] { return files.open(path); });
  if (descriptor < 0) return descriptor;
  std::int64_t position = 0;
  const int written = write_parts(files, descriptor, position, parts);
  return synced_and_closed(files, descriptor, written);
}

void replace_file_by(const fs::path& path, const FileWriter& write) {
  const Target target = find_target(path);
  if (is_special(target)) {
    OutputFile file(path);
    write([&](std::string_view piece) { file.write(piece); });
    return file.close();
  }
  std::optional<unsigned> permissions;
  if (target.exists) permissions = target.status.st_mode & 0777U;
  DraftFile draft(real_files(), target.path);
  if (draft.error() != 0) fail_creating(path, draft.error());
  if (permissions) ::fchmod(draft.descriptor(), *permissions);
  std::int64_t bytes = 0;
  write([&](std::string_view piece) {
    const FilePart part{bytes, std::as_bytes(std::span(piece))};
    const int result = draft.write(std::span(&part, 1));
    if (result != 0) fail_writing(path, -result);
    bytes += std::ssize(piece);
  });
  int result = draft.finish();
  if (result == 0) result = draft.publish();
  if (result != 0) fail_writing(path, -result);
}

void replace_file(const fs::path& path, std::span<const std::span<const std::byte>> parts) {
  replace_file_by(path, [&](const ByteSink& sink) {
    for (const auto& part : parts) {
      sink({reinterpret_cast<const char*>(part.data()), part.size()});
    }
  });
}

void replace_file(const fs::path& path, std::string_view text) {
  replace_file_by(path, [&](const ByteSink& sink) { sink(text); });
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
  if (const int error = why_no_draft(target.folder); error != 0) fail_creating(path, error);
}

void make_folder(const fs::path& path, FileSystem& files) {
  if (path.empty()) fail_making(path, ENOENT);
  fs::path made;
  for (const fs::path& part : path) {
    made /= part;
    std::error_code ignored;
    if (fs::is_directory(made, ignored)) continue;
    const int result = files.make_folder(made);
    if (result < 0 && result != -EEXIST) fail_making(path, -result);
    // Another program may have created it meanwhile.
    if (result == -EEXIST && !fs::is_directory(made, ignored)) fail_making(path, ENOTDIR);
    sync_names(files, folder_of(made));
  }
}

void require_writable_folder(const fs::path& path) {
  fs::path made = path;
  struct stat status {};
  while (::stat(made.c_str(), &status) != 0) {
    if (errno != ENOENT) fail_making(path, errno);
    std::error_code ignored;
    if (fs::is_symlink(made, ignored)) fail_making(path, ENOENT);  // a dangling link
    made = made.has_parent_path() ? made.parent_path() : fs::path(".");
  }
  if (!S_ISDIR(status.st_mode)) fail_making(path, ENOTDIR);
  if (const int error = why_no_draft(made); error != 0) fail_making(path, error);
}

void gzip(const FileWriter& write, const ByteSink& sink) {
  constexpr int kWindowBits = 15 + 16;  // adding 16 selects the gzip format
  constexpr int kMemoryLevel = 8;
  constexpr std::size_t kMaxAtOnce = std::numeric_limits<uInt>::max() / 2;
  z_stream stream{};
  if (deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, kWindowBits, kMemoryLevel,
                   Z_DEFAULT_STRATEGY) != Z_OK) {
    throw std::bad_alloc();
  }
  const std::unique_ptr<z_stream, int (*)(z_stream*)> end(&stream, deflateEnd);
  std::vector<char> packed(1 << 18);
  const auto deflate_all = [&](int flush) {
    do {
      stream.next_out = reinterpret_cast<Bytef*>(packed.data());
      stream.avail_out = static_cast<uInt>(packed.size());
      deflate(&stream, flush);
      sink({packed.data(), packed.size() - stream.avail_out});
    } while (stream.avail_out == 0);
  };
  write([&](std::string_view text) {
    while (!text.empty()) {
      const std::string_view next = text.substr(0, kMaxAtOnce);
      // zlib only reads from it.
      stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(next.data()));
      stream.avail_in = static_cast<uInt>(next.size());
      deflate_all(Z_NO_FLUSH);
      text.remove_prefix(next.size());
    }
  });
  deflate_all(Z_FINISH);
}

}  // namespace barestep
