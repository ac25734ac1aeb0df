// mlp_ddp: trains on many ranks, each a process with one device.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "command_line.h"
#include "core/error.h"
#include "parallel/comm/mpi_transport.h"
#include "session/rank_agreement.h"
#include "session/rank_job.h"
#include "session/run_program.h"
#include "session/session.h"

namespace barestep {
namespace {

constexpr const char* kMlpDdp = "mlp_ddp";

void run_mlp_ddp(const std::vector<std::string>& arguments) {
  // An invalid command line is reported by one rank, once the ranks are connected.
  CommandLine line;
  std::optional<Error> wrong;
  try {
    line = parse_command_line(SchemeKind::kDdp, arguments);
  } catch (const Error& error) {
    wrong = error;
  }
  // A build without MPI still says what its options are.
  if (!line.answer.empty() && !has_mpi()) {
    print_now(line.answer);
    return;
  }
  RankJob job(kMlpDdp, line.config);
  job.together([&] {
    if (wrong) throw Error(*wrong);
  });
  job.together([&] {
    RankSettings settings = settings_of_build(job.place().library);
    settings.emplace_back("task", line.answer.empty() ? "training" : "help");
    require_agreement(*job.ranks(), settings);
  });
  if (!line.answer.empty()) {
    if (job.is_first()) print_now(line.answer);
    return;
  }
  if (job.is_first()) print_note(kMlpDdp, line.note);
  const std::unique_ptr<Place> place = device_of_rank(job);
  if (line.config.training.evaluate_only) return evaluate(*place, line.config, job);
  Session session(*place, line.config, job);
  if (!session.answer().empty()) {
    if (job.is_first()) print_now(session.answer());
    return;
  }
  session.run();
}

}  // namespace
}  // namespace barestep

int main(int argc, char** argv) {
  return barestep::run_program(barestep::kMlpDdp, argc, argv, barestep::run_mlp_ddp);
}
