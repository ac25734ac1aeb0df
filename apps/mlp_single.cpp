// mlp_single: trains on one device.
#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <vector>

#include "command_line.h"
#include "core/config.h"
#include "program.h"

namespace {

constexpr const char* kName = "mlp_single";

// The one place where training begins.
void train(const barestep::TrainConfig& /*config*/) {}

}  // namespace

int main(int argc, char** argv) {
  return barestep::run_program(kName, argc, argv, [](const std::vector<std::string>& arguments) {
    const barestep::CommandLine line = barestep::parse_command_line(kName, arguments);
    if (!line.answer.empty()) return barestep::print_now(line.answer);
    if (!line.note.empty()) fmt::print(stderr, "{}: note: {}\n", kName, line.note);
    barestep::validate(line.config);
    train(line.config);
  });
}
