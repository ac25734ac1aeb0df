// A file that a run writes as it goes, and that may fail without ending the run.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "core/error.h"
#include "run_program.h"

namespace barestep {

/// `File` is made of a path, throws Error as soon as a write has failed, and has close().
template <class File>
class RunFile {
 public:
  /// `program` must outlive it. Throws Error(kCannotCreate).
  RunFile(std::string_view program, const std::filesystem::path& path)
      : program_(program), file_(path) {}

  /// Does `write(file)`. Once that has failed, which a note on stderr says, it does nothing.
  template <class Write>
  void write(const Write& write) {
    if (failure_) return;
    try {
      write(file_);
    } catch (const Error& error) {
      failure_ = error;
      print_note(program_, fmt::format("{}; the run goes on without it", error.what()));
    }
  }

  /// Closes the file. Throws Error(kInputOutput) if it is incomplete.
  void close() {
    if (failure_) throw Error(*failure_);
    file_.close();
  }

 private:
  std::string_view program_;
  File file_;
  std::optional<Error> failure_;
};

}  // namespace barestep
