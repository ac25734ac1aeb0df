// merge_traces: the traces of several ranks as one, for Perfetto.
#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/output_file.h"
#include "profiler/trace_file.h"
#include "run_program.h"
#include "trace_merge.h"

namespace barestep {
namespace {

constexpr const char* kName = "merge_traces";
constexpr const char* kHelp = R"(
Usage: merge_traces OUT IN...

Writes the traces IN of several ranks, on one axis of time, to OUT. Names may end in .gz.

Example:
  merge_traces all.json.gz trace.rank0.json trace.rank1.json
)";

void run(const std::vector<std::string>& arguments) {
  if (arguments.size() == 1 && (arguments[0] == "--help" || arguments[0] == "-h")) {
    return print_now(kHelp);
  }
  if (arguments.size() < 2) {
    fail(ExitCode::kUsage, {.what = "command line",
                            .why = "needs the file to write and the files to read",
                            .remedy = "see --help"});
  }
  const std::filesystem::path out = arguments[0];
  require_writable(out);
  const std::vector<std::filesystem::path> paths(arguments.begin() + 1, arguments.end());
  write_trace(out, merge_traces(paths, out.string()));
}

}  // namespace
}  // namespace barestep

int main(int argc, char** argv) {
  return barestep::run_program(barestep::kName, argc, argv, barestep::run);
}
