#include "core/input_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <glob.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <new>
#include <system_error>
#include <utility>

// Compiled with our own flags: after code for AVX, whose upper halves of registers it must keep,
// the library's code for any x86 processor takes four times as long.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/error.h"

namespace barestep {
namespace {

/// Empty for a regular file; otherwise why a file of this `mode` cannot be read as one.
std::string why_not_regular(mode_t mode) {
  if (S_ISREG(mode)) return "";
  if (S_ISDIR(mode)) return std::strerror(EISDIR);
  if (S_ISFIFO(mode)) return "is a FIFO, not a regular file";
  return "is not a regular file";
}

}  // namespace

InputFile::InputFile(std::filesystem::path path, std::string what)
    : path_(std::move(path)), what_(std::move(what)) {
  const auto refuse = [this](const std::string& why) {
    close();
    fail(ExitCode::kNoInput, {what_, path_.string(), why, "check the path"});
  };
  // O_NONBLOCK: opening a FIFO returns at once instead of waiting for a writer. It has no effect on
  // regular files.
  descriptor_ = ::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (descriptor_ < 0) refuse(std::strerror(errno));
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) refuse(std::strerror(errno));
  const std::string why = why_not_regular(status.st_mode);
  if (!why.empty()) refuse(why);
  size_bytes_ = status.st_size;
}

InputFile::~InputFile() {
  close();
}

void InputFile::close() {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

template <class ReadSome>
void InputFile::fill(std::span<std::byte> out, const ReadSome& read_some) const {
  while (!out.empty()) {
    const ssize_t got = read_some(out);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_reading(std::strerror(errno));
    if (got == 0) fail_reading("the file became shorter while it was read");
    out = out.subspan(static_cast<std::size_t>(got));
  }
}

void InputFile::read(std::span<std::byte> out) {
  fill(out,
       [this](std::span<std::byte> rest) { return ::read(descriptor_, rest.data(), rest.size()); });
}

void InputFile::read_at(std::int64_t offset_bytes, std::span<std::byte> out) const {
  if (descriptor_ < 0) return InputFile(path_, what_).read_at(offset_bytes, out);
  fill(out, [&, this](std::span<std::byte> rest) {
    const ssize_t got = ::pread(descriptor_, rest.data(), rest.size(), offset_bytes);
    offset_bytes += std::max<ssize_t>(got, 0);
    return got;
  });
}

std::string InputFile::text(std::int64_t max_bytes) {
  if (size_bytes_ > max_bytes) {
    fail(ExitCode::kNoInput,
         {what_, path_.string(), fmt::format("is larger than {} MiB", max_bytes >> 20),
          "check the path"});
  }
  std::string text(static_cast<std::size_t>(size_bytes_), '\0');
  read(std::as_writable_bytes(std::span(text)));
  return text;
}

int InputFile::release() {
  return std::exchange(descriptor_, -1);
}

void InputFile::fail_reading(const std::string& why) const {
  fail(ExitCode::kInputOutput,
       {"reading " + what_, path_.string(), why, "check the disk and try again"});
}

std::filesystem::path folder_of_program() {
  std::error_code no_proc;
  std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", no_proc);
  // As it was started.
  if (no_proc)
    program = std::filesystem::canonical(std::bit_cast<const char*>(::getauxval(AT_EXECFN)));
  return program.parent_path();
}

std::filesystem::path installed_file(const std::filesystem::path& source_folder,
                                     const std::string& name) {
  const std::filesystem::path installed =
      folder_of_program().parent_path() / "share" / "barestep" / name;
  std::error_code ignored;
  return std::filesystem::exists(installed, ignored) ? installed : source_folder / name;
}

std::vector<std::string> installed_names(const std::filesystem::path& folder,
                                         std::string_view ending) {
  std::vector<std::string> names;
  std::error_code missing;
  for (const auto& entry : std::filesystem::directory_iterator(folder, missing)) {
    if (entry.path().extension() == ending) names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::filesystem::path given_or_installed(const char* what, const std::string& name_or_file,
                                         const std::filesystem::path& folder,
                                         std::span<const std::string> names,
                                         const std::string& ending) {
  if (name_or_file.ends_with(ending)) return name_or_file;
  if (std::ranges::find(names, name_or_file) != names.end()) {
    return folder / (name_or_file + ending);
  }
  if (names.empty()) {
    fail(ExitCode::kNoInput, {what, name_or_file, "there is no folder '" + folder.string() + "'",
                              "install barestep again, or give a file"});
  }
  const std::string_view near =
      nearest(name_or_file, std::vector<std::string_view>(names.begin(), names.end()));
  fail(
      ExitCode::kUsage,
      {what, name_or_file, fmt::format("no {} has this name", what),
       near.empty() ? fmt::format("name one of {}, or a file in {}", fmt::join(names, ", "), ending)
                    : fmt::format("did you mean '{}'? a file's name ends in {}", near, ending)});
}

std::vector<std::filesystem::path> matching_files(const std::filesystem::path& pattern) {
  std::error_code error;
  const bool is_pattern = pattern.native().find_first_of("*?[") != std::string::npos;
  if (!is_pattern || std::filesystem::exists(pattern, error)) return {pattern};
  glob_t found = {};
  // glob would sort by locale; sorted below in the C locale's order.
  const int status = ::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found);
  std::vector<std::filesystem::path> paths(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  if (status == GLOB_NOSPACE) throw std::bad_alloc();
  if (paths.empty()) {
    fail(ExitCode::kNoInput,
         {"data", pattern.string(), "no file fits this pattern", "check the path"});
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

namespace {

constexpr std::int64_t kPieceBytes = std::int64_t{1} << 20;
constexpr std::int64_t kPieces = 64;

XXH3_state_t* xxhash_of(void* state) {
  return static_cast<XXH3_state_t*>(state);
}

std::string text_of(const XXH128_hash_t& hash) {
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace

ByteHash::ByteHash() : state_(XXH3_createState()) {
  if (state_ == nullptr) throw std::bad_alloc();
  XXH3_128bits_reset(xxhash_of(state_.get()));
}

void ByteHash::add(std::span<const std::byte> bytes) {
  XXH3_128bits_update(xxhash_of(state_.get()), bytes.data(), bytes.size());
}

std::string ByteHash::text() const {
  return text_of(XXH3_128bits_digest(xxhash_of(state_.get())));
}

void ByteHash::Free::operator()(void* state) const {
  XXH3_freeState(xxhash_of(state));
}

std::string content_hash(const std::filesystem::path& path) {
  const InputFile file(path, "file");
  const std::int64_t size = file.size_bytes();
  const bool whole = size <= kPieces * kPieceBytes;
  const std::int64_t pieces = whole ? (size + kPieceBytes - 1) / kPieceBytes : kPieces;
  ByteHash hash;
  std::vector<std::byte> piece(static_cast<std::size_t>(std::min(size, kPieceBytes)));
  for (std::int64_t i = 0; i < pieces; ++i) {
    // A whole file is read in consecutive pieces; otherwise the last piece ends at the end of the
    // file.
    const std::int64_t first = whole ? i * kPieceBytes : (size - kPieceBytes) / (pieces - 1) * i;
    const std::int64_t start = !whole && i + 1 == pieces ? size - kPieceBytes : first;
    const auto bytes =
        std::span(piece).first(static_cast<std::size_t>(std::min(kPieceBytes, size - start)));
    file.read_at(start, bytes);
    hash.add(bytes);
  }
  return fmt::format("{} bytes, hash {}", size, hash.text());
}

std::string hash_of_bytes(std::string_view bytes) {
  return hash_of_bytes(std::as_bytes(std::span(bytes)));
}

std::string hash_of_bytes(std::span<const std::byte> bytes) {
  return text_of(XXH3_128bits(bytes.data(), bytes.size()));
}

}  // namespace barestep
