#include "core/output_file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <csignal>

#include "support/expect_error.h"
#include "support/temp_dir.h"
#include "support/testing.h"

namespace barestep {
namespace {

namespace fs = std::filesystem;

void replace_with(const fs::path& path, std::string_view a, std::string_view b = "") {
  const std::array parts = {std::as_bytes(std::span(a)), std::as_bytes(std::span(b))};
  replace_file(path, parts);
}

/// Limits files to `bytes` while this object exists: simulates a full disk, even for root.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : signal_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit now{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &now);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, signal_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  void (*signal_)(int);
  rlimit before_{};
};

class Output : public TempDirTest {
 protected:
  /// Paths that cannot be created, even by root, with the reason.
  struct Uncreatable {
    fs::path path;
    std::string reason;
  };
  std::vector<Uncreatable> uncreatable() {
    const fs::path fifo = folder() / "fifo";
    ::mkfifo(fifo.c_str(), 0600);
    return {
        {folder() / "missing" / "out", "No such file or directory"},
        {folder(), "Is a directory"},
        {folder() / "", "Is a directory"},
        {file("plain", "") / "out", "Not a directory"},
        {folder() / std::string(300, 'n'), "File name too long"},
        {"/proc/barestep-out", "No such file or directory"},
        {fifo, "No such device or address"},
        {"", "No such file or directory"},
    };
  }

  static void expect_refused(const Uncreatable& target, void (*action)(const fs::path&)) {
    const std::string value = target.path.empty() ? "" : " '" + target.path.string() + "'";
    expect_error(ExitCode::kCannotCreate,
                 "output file" + value + ": cannot be created: " + target.reason +
                     "; choose a writable path",
                 [&] { action(target.path); });
  }
};

TEST_F(Output, HoldsWholeTextsWheneverAProgramIsKilled) {
  const fs::path path = folder() / "lines";
  OutputFile output(path);
  const std::string line = std::string(99, 'x') + "\n";
  for (int i = 0; i < 200; ++i) {
    output.write(line);
    EXPECT_EQ(fs::file_size(path) % line.size(), 0U);
  }
  EXPECT_GT(fs::file_size(path), 0U);
  output.close();
  EXPECT_EQ(fs::file_size(path), 200 * line.size());
}

TEST_F(Output, StreamsLinesAndReplacesWhatWasThere) {
  const fs::path path = file("metrics.jsonl", "something longer that was there before\n");
  OutputFile out(path);
  out.write("{\"step\":0}\n");
  out.flush();
  EXPECT_EQ(read_file(path), "{\"step\":0}\n");
  out.write("{\"step\":1}\n");
  out.close();
  EXPECT_EQ(read_file(path), "{\"step\":0}\n{\"step\":1}\n");
  out.close();
}

TEST_F(Output, StreamWritesTheRestWhenItIsDestroyed) {
  { OutputFile(folder() / "a").write("rest"); }
  EXPECT_EQ(read_file(folder() / "a"), "rest");
}

TEST_F(Output, IsRefusedWhereItCannotBeCreated) {
  for (const Uncreatable& target : uncreatable()) {
    expect_refused(target, [](const fs::path& path) { OutputFile{path}; });
    expect_refused(target, [](const fs::path& path) { replace_with(path, "x"); });
    expect_refused(target, [](const fs::path& path) { require_writable(path); });
  }
  EXPECT_THAT(names(), UnorderedElementsAre("plain", "fifo"));
}

TEST_F(Output, StreamIsOfOneProgramAtATime) {
  const fs::path path = folder() / "lines";
  OutputFile first(path);
  first.write("kept\n");
  first.flush();
  fs::create_symlink(path, folder() / "link");
  for (const fs::path& name : {path, folder() / "link"}) {
    const std::string line = fmt::format(
        "output file '{}': core_test (process {}) writes to it; wait until it ends, or "
        "choose another file",
        name.string(), ::getpid());
    expect_error(ExitCode::kTryAgain, line, [&] { const OutputFile second(name); });
    expect_error(ExitCode::kTryAgain, line, [&] { require_writable(name); });
  }
  EXPECT_EQ(read_file(path), "kept\n") << "it is not emptied before it is locked";
  first.close();
  EXPECT_NO_THROW(require_writable(path));
  const OutputFile next(path);
  EXPECT_EQ(read_file(path), "");
}

TEST_F(Output, StreamsIntoADeviceAreNotLocked) {
  EXPECT_NO_THROW(OutputFile("/dev/null").write("a"));
  OutputFile first("/dev/null");
  OutputFile second("/dev/null");
  EXPECT_NO_THROW(second.write("b"));
}

TEST(OutputToAFullDisk, IsReportedByFlushAndByClose) {
  const std::string text =
      "output file '/dev/full': writing failed: No space left on device; free space or choose "
      "another disk";
  OutputFile flushed("/dev/full");
  flushed.write("line\n");
  expect_error(ExitCode::kInputOutput, text, [&] { flushed.flush(); });
  expect_error(ExitCode::kInputOutput, text, [&] { flushed.close(); });
  OutputFile closed("/dev/full");
  closed.write("line\n");
  expect_error(ExitCode::kInputOutput, text, [&] { closed.close(); });
  OutputFile large("/dev/full");
  expect_error(ExitCode::kInputOutput, text, [&] { large.write(std::string(1 << 20, 'x')); });
  OutputFile destroyed("/dev/full");
  destroyed.write("line\n");
}

TEST_F(Output, ReplaceWritesAllPartsAndLeavesNothingElse) {
  replace_with(folder() / "new", "head", "tail");
  EXPECT_EQ(read_file(folder() / "new"), "headtail");
  replace_with(folder() / "new", "x");
  EXPECT_EQ(read_file(folder() / "new"), "x");
  EXPECT_THAT(names(), ElementsAre("new"));
}

TEST_F(Output, ReplaceTakesAPathWithoutAFolder) {
  const fs::path before = fs::current_path();
  fs::current_path(folder());
  replace_with("bare", "x");
  require_writable("bare2");
  fs::current_path(before);
  EXPECT_THAT(names(), ElementsAre("bare"));
}

TEST_F(Output, ReplaceKeepsPermissionsAndLinks) {
  const fs::path real = file("real", "old");
  fs::permissions(real, fs::perms::owner_read | fs::perms::owner_write);
  fs::create_symlink("real", folder() / "link");
  replace_with(folder() / "link", "new");
  EXPECT_EQ(read_file(real), "new");
  EXPECT_TRUE(fs::is_symlink(folder() / "link"));
  EXPECT_EQ(fs::status(real).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(Output, ReplaceGivesNewFilesTheUsualPermissions) {
  const mode_t before = ::umask(027);
  replace_with(folder() / "new", "x");
  ::umask(before);
  EXPECT_EQ(static_cast<unsigned>(fs::status(folder() / "new").permissions()), 0640U);
}

TEST_F(Output, ReplaceKeepsTheOldFileWhenTheDiskIsFull) {
  const fs::path path = file("weights", "old");
  {
    const FileSizeLimit limit(1000);
    expect_error(ExitCode::kInputOutput,
                 "weights': writing failed: File too large; free space or choose another disk",
                 [&] { replace_with(path, std::string(900, 'a'), std::string(900, 'b')); });
  }
  EXPECT_EQ(read_file(path), "old");
  EXPECT_THAT(names(), ElementsAre("weights"));
}

/// Devices are opened through links in the test's folder, so a rename by mistake, as root, would
/// replace the link and not the machine's device.
TEST_F(Output, ReplaceWritesDirectlyIntoADevice) {
  const fs::path null = folder() / "null";
  const fs::path full = folder() / "full";
  fs::create_symlink("/dev/null", null);
  fs::create_symlink("/dev/full", full);
  replace_with(null, "x");
  expect_error(ExitCode::kInputOutput, "full': writing failed: No space left on device",
               [&] { replace_with(full, "x"); });
  require_writable(null);
  EXPECT_TRUE(fs::is_symlink(null));
  EXPECT_TRUE(fs::is_symlink(full));
  EXPECT_THAT(names(), UnorderedElementsAre("null", "full"));
}

TEST_F(Output, ReplaceWritesIntoAFifoThatHasAReader) {
  const fs::path fifo = folder() / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const int reader = ::open(fifo.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(reader, 0);
  replace_with(fifo, "ab", "c");
  std::array<char, 8> buffer{};
  EXPECT_EQ(::read(reader, buffer.data(), buffer.size()), 3);
  ::close(reader);
}

TEST_F(Output, RequireWritableChangesNothing) {
  const fs::path old = file("old", "content");
  require_writable(old);
  require_writable(folder() / "new");
  EXPECT_EQ(read_file(old), "content");
  EXPECT_THAT(names(), ElementsAre("old"));
}

TEST_F(Output, RequireWritableRefusesAFolderThatMayNotBeWritten) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  fs::permissions(folder(), fs::perms::owner_read | fs::perms::owner_exec);
  expect_refused({folder() / "new", "Permission denied"},
                 [](const fs::path& path) { require_writable(path); });
  fs::permissions(folder(), fs::perms::owner_all);
  EXPECT_THAT(names(), IsEmpty());
}

TEST_F(Output, MakesItsFolderAndThoseAboveOrRefusesIt) {
  file("file", "");
  fs::create_symlink("nowhere", folder() / "link");
  const std::string choose = "; choose a writable one";
  for (const auto& [name, why] :
       {std::pair("file", "Not a directory"), std::pair("file/a/b", "Not a directory"),
        std::pair("link/a", "No such file or directory")}) {
    const fs::path path = folder() / name;
    expect_error(ExitCode::kCannotCreate,
                 "folder '" + path.string() + "': cannot be created: " + why + choose,
                 [&] { require_writable_folder(path); });
  }
  expect_error(ExitCode::kCannotCreate, "folder '/proc/none/a': cannot be created: ", [] {
    require_writable_folder("/proc/none/a");
  });
  require_writable_folder(folder());
  require_writable_folder(folder() / "a/b");
  require_writable_folder("none/a");
  EXPECT_THAT(names(), UnorderedElementsAre("file", "link"));
  make_folder(folder() / "a/b");
  EXPECT_TRUE(fs::is_directory(folder() / "a/b"));
  expect_error(ExitCode::kCannotCreate, "cannot be created: Not a directory" + choose,
               [&] { make_folder(folder() / "file/a"); });
}

class Gzip : public TempDirTest {
 protected:
  static std::string packed(std::string_view text) {
    std::string all;
    gzip([&](const ByteSink& sink) { sink(text); }, [&](std::string_view piece) { all += piece; });
    return all;
  }
  /// The contents as read by zlib itself.
  std::string unpacked(const std::string& packed) {
    const auto path = file("x.gz", packed);
    const gzFile input = gzopen(path.c_str(), "rb");
    std::string text;
    char piece[4096];
    for (int count = 0; (count = gzread(input, piece, sizeof(piece))) > 0;) {
      text.append(piece, static_cast<std::size_t>(count));
    }
    EXPECT_EQ(gzclose(input), Z_OK);
    return text;
  }
};

TEST_F(Gzip, ReadsBackTheSame) {
  std::string text;
  for (const std::size_t size : {0U, 1U, 100U, 3'000'000U}) {
    while (text.size() < size) text += std::to_string(text.size() * 2654435761U);
    EXPECT_EQ(unpacked(packed(text)), text) << size;
  }
}

}  // namespace
}  // namespace barestep
