// mlp_single: trains on one device.
#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "command_line.h"
#include "parallel/job/launcher.h"
#include "session/run_program.h"
#include "session/session.h"

namespace barestep {
namespace {

constexpr const char* kMlpSingle = "mlp_single";

/// A run for each batch size, then a table of all.
void train_each(Place& place, TrainConfig config, Job& job) {
  std::vector<SweepRow> rows;
  std::shared_ptr<const Dataset> data;
  const std::vector<std::int64_t> sizes = batch_sizes_of(config);
  for (const std::int64_t size : sizes) {
    config.data.batch_size = size;
    if (size != sizes.front()) show("\n");
    Session session(place, config, job, data);
    data = session.data();
    if (!session.answer().empty()) {
      print_now(session.answer());
      continue;
    }
    session.run();
    if (!config.data.sweep.empty()) rows.push_back(session.row());
  }
  if (!rows.empty()) show(fmt::format("\n{}", sweep_table(rows)));
}

void run_mlp_single(const std::vector<std::string>& arguments) {
  const CommandLine line = parse_command_line(SchemeKind::kSingle, arguments);
  if (!line.answer.empty()) return print_now(line.answer);
  print_note(kMlpSingle, line.note);
  print_note(kMlpSingle, note_of_copies(launched_rank()));
  Job alone;
  const std::unique_ptr<Place> place = one_device();
  if (line.config.training.evaluate_only) return evaluate(*place, line.config, alone);
  train_each(*place, line.config, alone);
}

}  // namespace
}  // namespace barestep

int main(int argc, char** argv) {
  return barestep::run_program(barestep::kMlpSingle, argc, argv, barestep::run_mlp_single);
}
