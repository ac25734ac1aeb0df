// mlp_dp: trains on several devices of one process.
#include <memory>
#include <string>
#include <vector>

#include "command_line.h"
#include "parallel/job/launcher.h"
#include "session/run_program.h"
#include "session/session.h"

namespace barestep {
namespace {

constexpr const char* kMlpDp = "mlp_dp";

void run_mlp_dp(const std::vector<std::string>& arguments) {
  const CommandLine line = parse_command_line(SchemeKind::kDataParallel, arguments);
  if (!line.answer.empty()) return print_now(line.answer);
  print_note(kMlpDp, line.note);
  print_note(kMlpDp, note_of_copies(launched_rank()));
  const std::unique_ptr<Job> job = watched_job(kMlpDp, line.config);
  const std::unique_ptr<Place> place = several_devices();
  Session session(*place, line.config, *job);
  if (!session.answer().empty()) return print_now(session.answer());
  session.run();
}

}  // namespace
}  // namespace barestep

int main(int argc, char** argv) {
  return barestep::run_program(barestep::kMlpDp, argc, argv, barestep::run_mlp_dp);
}
