#include "apps/bad_input_cases.h"

namespace barestep {
namespace {

const std::string kNeedsSteps = "; give first:end, such as 10:20 for the steps 10 to 19";
const std::string kNeedsKey =
    "; use cuda_time_total or self_cuda_time_total or cuda_time or cpu_time_total or "
    "self_cpu_time_total or cpu_time or count";
const std::string kNeedsPhase =
    "use data or injected or forward or loss or recompute or backward or communication or "
    "optimizer";

/// Values out of range are case 3, and so are runs without the requested steps.
BadInput bad(std::vector<std::string> arguments, int exit_code, std::string line) {
  return {3, std::move(arguments), exit_code, std::move(line)};
}

}  // namespace

std::vector<BadInput> bad_profiling() {
  const auto steps = [](const std::string& text, int exit_code, const std::string& why) {
    return bad({"--steps", "20", "--profile", "--profile-steps", text}, exit_code,
               "--profile-steps '" + text + "': " + why);
  };
  return {
      steps("5", 2, "not two numbers" + kNeedsSteps),
      steps("5:6:7", 2, "not two numbers" + kNeedsSteps),
      steps("5:x", 2, "not two whole numbers" + kNeedsSteps),
      steps(":5", 2, "not two whole numbers" + kNeedsSteps),
      steps("5:5", 2, "holds no step" + kNeedsSteps),
      steps("-1:5", 2, "out of range" + kNeedsSteps),
      steps("5:99999999999999999999", 2, "out of range" + kNeedsSteps),
      steps("15:25", 78, "the run has the steps 0 to 19; 15:20 fits, or give more --steps"),
      steps("30:40", 78, "the run has the steps 0 to 19; 19:20 fits, or give more --steps"),
      bad({"--profile", "--sort-by", "time"}, 2,
          "--sort-by 'time': not one of the choices" + kNeedsKey),
      bad({"--profile", "--profile-phases", "forwards"}, 2,
          "--profile-phases 'forwards': not one of the choices; did you mean 'forward'? " +
              kNeedsPhase),
      bad({"--profile", "--profile-phases", "forward,evaluate"}, 2,
          "--profile-phases 'evaluate': not one of the choices; " + kNeedsPhase),
      bad({"--profile", "--profile-phases", "forward,"}, 2,
          "--profile-phases: the value is empty; " + kNeedsPhase),
      bad({"--profile", "--row-limit", "0"}, 2,
          "--row-limit '0': out of range; give a whole number from 1 to 1000000"),
      bad({"--trace", "t.json", "--save", "./t.json"}, 78,
          "--trace 't.json': --save writes to the same file; give two files"),
      bad({"--tensorboard", "d", "--save", "./d"}, 78,
          "--tensorboard 'd': --save writes to the same file; give two files"),
      bad({"--tensorboard", "d/runs", "--save", "d"}, 78,
          "--tensorboard 'd/runs': --save writes the file 'd', which would have to be a folder; "
          "give two names"),
      {3, words("--tensorboard run.json/runs"), 73,
       "folder 'run.json/runs': cannot be created: Not a directory; choose a writable one",
       "a file where a folder should be"},
      bad({"--trace", "missing/t.json"}, 73,
          "output file 'missing/t.json': cannot be created: No such file or directory; choose a "
          "writable path"),
  };
}

}  // namespace barestep
