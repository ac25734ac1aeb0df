// Bad input to mlp_lab, and the expected error lines.
#include <utility>

#include "apps/bad_input_cases.h"
#include "support/arguments.h"

namespace barestep {
namespace {

BadInput bad_usage(Arguments arguments, std::string line) {
  return {0, std::move(arguments), 2, std::move(line)};
}

std::vector<BadInput> bad_lab_usage() {
  const auto unknown = [](Arguments arguments, const std::string& option,
                          const std::string& command, const std::string& remedy) {
    return bad_usage(std::move(arguments), "unknown option '" + option + "': " + command +
                                               " has no such option; " + remedy);
  };
  const std::string needs_value = "option '--output': needs a value; --help shows which";
  return {
      bad_usage({}, "command: is missing; mlp_lab --help lists all"),
      bad_usage({"nosuch"},
                "unknown command 'nosuch': mlp_lab has no such command; --help lists all"),
      bad_usage({"rnu", "amdahl"},
                "unknown command 'rnu': mlp_lab has no such command; did you mean run?"),
      bad_usage({"measure-rnak"},
                "unknown command 'measure-rnak': mlp_lab has no such command; --help lists all"),
      unknown({"--versoin"}, "--versoin", "mlp_lab", "did you mean --version?"),
      unknown({"run", "amdahl", "--outptu", "x"}, "--outptu", "mlp_lab run",
              "did you mean --output?"),
      unknown({"run", "amdahl", "--fast"}, "--fast", "mlp_lab run", "--help lists all"),
      unknown({"predict", "--machin", "h100-nvlink"}, "--machin", "mlp_lab predict",
              "did you mean --machine?"),
      bad_usage({"report", "a", "b"},
                "argument 'b': belongs to no option; options begin with --, see --help"),
      bad_usage({"run"}, "argument 'name': is missing; mlp_lab run --help describes it"),
      bad_usage({"explain"}, "argument 'trace': is missing; mlp_lab explain --help describes it"),
      bad_usage({"merge-traces"},
                "argument 'out': is missing; mlp_lab merge-traces --help describes it"),
      bad_usage({"merge-traces", "all.json"},
                "argument 'in': is missing; mlp_lab merge-traces --help describes it"),
      bad_usage({"plan"}, "option '--ranks': is missing; mlp_lab plan --help describes it"),
      bad_usage({"card", "--output"}, needs_value),
      bad_usage({"card", "--output", "--quick"}, needs_value),
      bad_usage({"card", "--output=", "x"}, needs_value),
      bad_usage({"card", "--output", "a", "--output", "b"},
                "option '--output': given twice; give it once"),
      bad_usage({"card", "--quick=soon"}, "--quick 'soon': takes no value; leave the value out"),
      bad_usage(
          {"run", "amdahl", "--device", "tpu"},
          "--device 'tpu': not one of the choices; did you mean 'cpu'? use auto or cpu or cuda"),
      bad_usage({"run", "sync", "--starts", "0"},
                "--starts '0': out of range; give a whole number from 1 to 1000"),
      bad_usage({"run", "sync", "--memory", "much"},
                "--memory 'much': is not a number of bytes from 1 to 2^63 - 1; write it like "
                "16GiB, 500MB, 1.5 GiB or 1048576"),
      bad_usage({"report", "nothing", "--margin", "-3"},
                "--margin '-3': out of range; give a number above 0 and below 100"),
      bad_usage({"amdahl", "--serial", "1"},
                "--serial '1': out of range; give a number of at least 0 and below 1"),
      bad_usage({"amdahl", "--ranks", "2,"},
                "--ranks: the value is empty; give a whole number from 1 to 1048576"),
      bad_usage({"amdahl", "--ranks", "2,x"},
                "--ranks 'x': not a whole number; give a whole number from 1 to 1048576"),
      bad_usage({"run", "nosuch"},
                "experiment 'nosuch': no experiment has this name; mlp_lab list shows all"),
      bad_usage({"run", "strong-scalling"},
                "experiment 'strong-scalling': no experiment has this name; did you mean "
                "'strong-scaling'? mlp_lab list shows all"),
      bad_usage(
          {"sheet", "practica3"},
          "sheet 'practica3': no sheet has this name; did you mean 'practical3'? a file's name "
          "ends in .md"),
      bad_usage({"sheet", "exam"},
                "sheet 'exam': no sheet has this name; name one of homework1, homework2, "
                "homework3, homework4, practical2, practical3, practical4, practical5, "
                "practical7, practical8, practical9, practical10, or a file in .md"),
      bad_usage({"sheet"}, "argument 'name': is missing; mlp_lab sheet --help describes it"),
      bad_usage({"sheet", "practical3", "--machine", "h100-nvlnik"},
                "machine card 'h100-nvlnik': there is no such card; did you mean 'h100-nvlink'? a "
                "file's name ends in .json"),
      bad_usage({"sheet", "practical3", "--blank", "--key"},
                "--blank: a copy with --key is not blank; give one of them"),
  };
}

/// The command lines of predictions.
std::vector<BadInput> bad_prediction_options() {
  const auto bad = [](const Arguments& more, std::string line) {
    return bad_usage(Arguments{"predict", "--machine", "h100-nvlink"} + more, std::move(line));
  };
  const auto unknown = [&](const Arguments& more, const std::string& nearest) {
    return bad(more, "unknown option '" + more.front() +
                         "': mlp_lab predict has no such option; did you mean " + nearest + "?");
  };
  return {
      unknown({"--shceme", "ddp"}, "--scheme"),
      unknown({"--precison", "tf32"}, "--precision"),
      unknown({"--delay", "5"}, "--delay-ms"),
      unknown({"--slow-rnak", "1:20"}, "--slow-rank"),
      bad({"--scheme", "2"},
          "--scheme '2': not one of the choices; use ddp or zero1 or zero2 or zero3 or factor or "
          "server or "
          "data-parallel or tensor or pipeline"),
      bad({"--scheme", "dataparallel"},
          "--scheme 'dataparallel': not one of the choices; did you mean 'data-parallel'? use ddp "
          "or zero1 or zero2 or zero3 or factor or server or "
          "data-parallel or tensor or pipeline"),
      bad({"--precision", "fp8"},
          "--precision 'fp8': not one of the choices; use fp32 or tf32 or bf16 or fp16 or int8"),
      bad({"--delay-ms", "-1"},
          "--delay-ms '-1': out of range; give a number of at least 0 and below 1000000"),
      bad({"--slow-rank", "1"},
          "--slow-rank '1': not a rank and milliseconds; give them like 1:20"),
      bad({"--ranks", "1,0"}, "--ranks '0': out of range; give a whole number from 1 to 1048576"),
      bad({"--dim", "wide"},
          "--dim 'wide': not a whole number; give a whole number from 1 to 16777216"),
      bad({"--recompute", "0"},
          "--recompute '0': out of range; give a whole number from 1 to 10000, or auto"),
      bad({"--depth", "1e99"},
          "--depth '1e99': not a whole number; give a whole number from 1 to 10000"),
      bad_usage({"predict", "--machine", "h100-nvlnik"},
                "machine card 'h100-nvlnik': there is no such card; did you mean 'h100-nvlink'? a "
                "file's name ends in .json"),
      bad_usage({"predict", "--machine", "h100"},
                "machine card 'h100': there is no such card; name one of a100-nvlink, "
                "h100-infiniband, h100-nvlink, h200-nvlink, t4, "
                "v100-pcie, or a file in .json"),
  };
}

/// What machines and schemes cannot do.
std::vector<BadInput> bad_predictions() {
  const auto bad = [](const std::string& machine, const Arguments& more,
                      std::string line) -> BadInput {
    return {0, Arguments{"predict", "--machine", machine} + more, 78, std::move(line)};
  };
  const std::string of_products =
      " has no rate of products for it; use --precision fp32, or a card that states device.";
  return {
      bad("h200-nvlink", {"--ranks", "1,16"},
          "--ranks '16': the card of 8 x H200, NVLink has 8 devices; ask for fewer, or for a "
          "machine with a network"),
      bad("t4", {"--ranks", "2"},
          "--ranks '2': the card of one T4 has 1 device; ask for fewer, or for a machine with a "
          "network"),
      bad("h100-infiniband", {"--ranks", "1,16", "--scheme", "data-parallel"},
          "--ranks '16': data-parallel stays in one process, and the card of nodes of 8 x H100, "
          "400 "
          "Gbit/s for each GPU has 8 devices a node; "
          "ask for fewer, or use another --scheme"),
      bad("h200-nvlink", {"--ranks", "1,2", "--scheme", "data-parallel", "--slow-rank", "1:20"},
          "--slow-rank '1:20': data-parallel has none; leave it out"),
      bad("h200-nvlink", {"--ranks", "1", "--slow-rank", "0:20"},
          "--slow-rank '0:20': a single rank keeps no other waiting; use --delay-ms, or ask for "
          "more --ranks"),
      bad("v100-pcie", {"--ranks", "1", "--precision", "tf32"},
          "--precision 'tf32': the card of 2 x V100, PCIe, no NVLink" + of_products +
              "tf32_flops_per_s"),
      bad("t4", {"--ranks", "1", "--precision", "bf16"},
          "--precision 'bf16': the card of one T4" + of_products + "half_flops_per_s"),
      bad("h200-nvlink", {"--ranks", "1,6", "--tensor", "2", "--pipeline", "2"},
          "--tensor '2 --pipeline 2': a copy of the model takes 4 ranks, which do not divide 6 "
          "ranks; start 4 ranks, or a multiple"),
      bad("h200-nvlink", {"--graph"},
          "--graph: machine cards have no rates that it changes; leave it out"),
      bad("h200-nvlink", {"--metrics", "m"},
          "--metrics 'm': is for runs, and a prediction runs nothing; leave it out"),
      bad("h200-nvlink", {"--device", "cpu"},
          "--device 'cpu': the machine's card says what devices it has; leave it out"),
      bad("h200-nvlink", {"--threads", "2"},
          "--threads '2': is for the CPU, and the machine's devices are GPUs; leave it out"),
      bad("h200-nvlink", {"--data", "npy:x,y"},
          "--data 'npy:x,y': a prediction reads no files; leave it out"),
      bad("h200-nvlink", {"--sync-every", "4"},
          "--sync-every '4': the steps of a round differ, and one step is simulated; leave it out"),
      bad("h200-nvlink", {"--update", "fused"},
          "--update 'fused': cards of GPUs have no rate of it; leave it out"),
  };
}

/// Plans of meshes.
std::vector<BadInput> bad_plans() {
  const auto bad = [](const Arguments& more, int code, std::string line) -> BadInput {
    return {0, Arguments{"plan"} + more, code, std::move(line)};
  };
  return {
      bad({"--ranks", "8"}, 2, "option '--memory': is missing; mlp_lab plan --help describes it"),
      bad({"--memory", "2GiB"}, 2,
          "option '--ranks': is missing; mlp_lab plan --help describes it"),
      bad({"--ranks", "2000", "--memory", "2GiB"}, 2,
          "--ranks '2000': out of range; give a whole number from 1 to 1024"),
      bad({"--ranks", "16", "--memory", "2GiB"}, 78,
          "--ranks '16': the card of 8 x H200, NVLink has 8 devices; ask for fewer, or for a "
          "machine with a network"),
      bad({"--ranks", "8", "--memory", "512MiB"}, 71,
          "--memory '512.00 MiB': the least that a rank of 8 needs is 808.75 MiB, with ddp, one "
          "copy on 2 stages of 4 tensor ranks, 1f1b with 16 micro-batches; ask for more --ranks, "
          "or for a smaller --batch-size"),
      bad({"--ranks", "7", "--memory", "2GiB", "--dim", "4", "--depth", "2", "--batch-size", "3"},
          78,
          "--ranks '7': cannot share this model and its batch in any way; ask for fewer, or for a "
          "larger --batch-size"),
      bad({"--ranks", "8", "--memory", "2GiB", "--tensor", "2"}, 78,
          "plan 'ddp, 8192 x 6, batch 64, --tensor 2': finds the scheme, the tensor ranks, the "
          "stages and the micro-batches itself; leave them out, or use mlp_lab predict"),
      bad({"--ranks", "1", "--memory", "2GiB"}, 78,
          "--ranks '1': a single rank shares nothing; ask for several, or use mlp_lab predict"),
      bad({"--ranks", "8", "--memory", "2GiB", "--recompute", "100"}, 78,
          "--recompute '100': the model has 6 layers; give at most 6"),
  };
}

/// All-reduces alone.
std::vector<BadInput> bad_sums() {
  const std::string threads =
      "--ranks '2': ranks that are threads of one process meet in the CPU's memory; leave out "
      "--transport and --device cuda, or start processes by mpirun";
  return {
      bad_usage({"all-reduce", "--ranks", "2", "--device", "cuda"}, threads),
      bad_usage({"all-reduce", "--ranks", "2", "--transport", "mpi"}, threads),
      bad_usage({"all-reduce", "--transport", "peer"},
                "--transport 'peer': not one of the choices; use auto or nccl or mpi"),
      {0, words("all-reduce --device cpu --transport nccl"), 78,
       "--transport 'nccl': joins GPUs, and this rank is on the CPU; use mpi or auto"},
  };
}

/// Schedules to check.
std::vector<BadInput> bad_schedules() {
  return {
      {0,
       {"check-schedule"},
       2,
       "check-schedule: there is nothing to check; give a file, or --write for one to begin with"},
      {0, words("check-schedule --write 2f2b"), 2,
       "--write '2f2b': not one of the choices; use 1f1b or gpipe or naive or zb-h1"},
      {0, words("check-schedule nowhere.json"), 66,
       "schedule 'nowhere.json': No such file or directory; check the path"},
      {0, words("check-schedule run.json"), 65,
       "schedule 'run.json': stages[0][1] is not a pass (\"F0\", \"B0\", \"W0\"), \"send F0\", "
       "\"receive B0\", or both with a comma; mlp_lab check-schedule --write 1f1b shows the form",
       R"({"micro_batches": 1, "stages": [["F0", "B 0"]]})"},
      {0, words("check-schedule run.json"), 65,
       "schedule 'run.json': foward is not known; mlp_lab check-schedule --write 1f1b shows the "
       "form",
       R"({"micro_batches": 1, "foward": 3, "stages": [["F0", "B0"]]})"},
  };
}

/// Studies, and the card of this machine.
std::vector<BadInput> bad_studies() {
  const std::string no_pytorch =
      "; install python3-torch, or name an interpreter that has it with --python";
  const std::string cannot_create = "cannot be created: No such file or directory; choose ";
  const std::string too_little = " --update separate --device cpu has too little memory: needs ";
  return {
      {0, words("run warmup --with-pytorch --python /bin/false"), 66,
       "--with-pytorch '/bin/false': it has no PyTorch" + no_pytorch},
      {0, words("run warmup --with-pytorch --python /nowhere/python"), 66,
       "--with-pytorch '/nowhere/python': there is no such interpreter" + no_pytorch},
      {.case_number = 0,
       .arguments = {"run", "amdahl", "--quick", "--device", "cpu"},
       .exit_code = 66,
       .line = "program 'mpirun': not found on PATH; install Open MPI, or run experiments without "
               "ranks",
       .environment = {"PATH=/nowhere"}},
      {.case_number = 0,
       .arguments = {"run", "warmup", "--device", "cuda"},
       .exit_code = 69,
       .line = "--device 'cuda': there is no GPU here; use --device cpu",
       .environment = {"CUDA_VISIBLE_DEVICES="}},
      {0, words("run warmup --device cpu --output /proc/lab"), 73,
       "folder '/proc/lab': " + cannot_create + "a writable one"},
      {0, words("run warmup --device cpu --output ."), 78,
       "--output '.': it holds files that do not belong to a study; name another folder"},
      {0, words("run warmup --device cpu --memory 98MiB"), 71,
       "experiment 'warmup': mlp_single --dim 1024 --depth 6 --steps 30" + too_little +
           "99.10 MiB, this machine has 98.00 MiB free; --batch-size 32 fits; --quick "
           "takes a smaller model"},
      {0, words("run warmup --device cpu --quick --memory 1MiB"), 71,
       "experiment 'warmup': mlp_single --dim 256 --depth 2 --steps 20" + too_little +
           "2.51 MiB, this machine has 1.00 MiB free; no batch size fits, use a smaller "
           "--dim, --depth or --layers; free some, or leave this experiment out"},
      {0, words("run warmup --quick --device cpu --recompute 3"), 78,
       "experiment 'warmup': mlp_single --dim 256 --depth 2 --steps 20 --recompute 3 --update "
       "separate --device cpu is "
       "refused: --recompute '3': the model has 2 layers; give at most 2; leave out the option, or "
       "this experiment"},
      {0, words("report nothing"), 66,
       "study 'nothing': there is none in this folder; name the --output of an earlier mlp_lab "
       "run"},
      // The study that was refused above.
      {0, words("report lab-results"), 66,
       "study 'lab-results': none of its experiments is complete; run mlp_lab run again to "
       "complete it"},
      {.case_number = 0,
       .arguments = {"card"},
       .exit_code = 73,
       .line = "temporary folder '/nowhere': No such file or directory; set TMPDIR to a writable "
               "folder",
       .environment = {"TMPDIR=/nowhere"}},
      {0, words("card --output link"), 78,
       "--output 'link': mlp_lab card reads this file, which would be lost; write to another one"},
      {0, words("card --output no/card.json"), 73,
       "output file 'no/card.json': " + cannot_create + "a writable path"},
  };
}

/// Sheets, and printing pages.
std::vector<BadInput> bad_sheets() {
  const std::string no_printer =
      "--pdf: neither Chromium nor WeasyPrint is on PATH; install chromium or weasyprint, or leave "
      "it out and print the page in .html from a browser";
  return {
      {0, words("sheet none.md"), 66, "sheet 'none.md': No such file or directory; check the path"},
      {.case_number = 0,
       .arguments = {"sheet", "practical3", "--blank", "--pdf"},
       .exit_code = 69,
       .line = no_printer,
       .environment = {"PATH=/nowhere"}},
      {.case_number = 0,
       .arguments = {"report", "nothing", "--pdf"},
       .exit_code = 69,
       .line = no_printer,
       .environment = {"PATH=/nowhere"}},
  };
}

/// Files that commands read: cards, checkpoints and traces.
std::vector<BadInput> bad_lab_files() {
  const auto card = [](const std::string& file) { return Arguments{"predict", "--machine", file}; };
  const auto trace = [](const std::string& content, const std::string& why) -> BadInput {
    return {0, words("merge-traces all.json run.json"), 65,
            "trace 'run.json': " + why + "; give the files that --trace wrote, each once", content};
  };
  const std::string head = R"({"distributedInfo": {"rank": 0}, "baseTimeNanoseconds": )";
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  BadInput twice = trace(head + R"(1, "traceEvents": []})", "another file also holds rank 0");
  twice.arguments.push_back("run.json");
  return {
      {0, card("none.json"), 66,
       "machine card 'none.json': No such file or directory; check the path"},
      {0, card("fifo.json"), 66,
       "machine card 'fifo.json': is a FIFO, not a regular file; check the path"},
      {0, card("run.json"), 65,
       "machine card 'run.json': name is 7, not a string; see src/lab/cards for valid cards",
       R"({"name": 7})"},
      {0, card("run.json"), 65,
       "machine card 'run.json': name is there twice; see src/lab/cards for valid cards",
       R"({"name": "one", "name": "other"})"},
      {0, card("run.json"), 65,
       "machine card 'run.json': is not JSON: byte 12 is NUL; see src/lab/cards for valid cards",
       std::string("{\"name\":\"x\"}\0", 13)},
      {0, words("checkpoint none"), 66,
       "checkpoint 'none': No such file or directory; check the path"},
      {0, words("merge-traces all.json none"), 66,
       "trace 'none': No such file or directory; check the path"},
      trace("{", "is not the trace of a single rank"),
      trace(R"({"traceEvents": []})", "is not the trace of a single rank"),
      trace(head + R"(1e300, "traceEvents": []})", "is not the trace of a single rank"),
      trace(head + R"(1, "traceEvents": [{"ph": 3}]})", "one of its events is malformed"),
      trace(head + R"(1, "traceEvents": [{"ph": "X", "ts": 1e300, "pid": 1}]})",
            "one of its events is malformed"),
      trace(head + R"(1, "traceEvents": [)" + deep + "]}",
            "is nested deeper than 64 arrays and objects"),
      trace(std::string("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xff\xff\xff", 13),
            "its gzip stream is corrupt"),
      twice,
      {0, words("merge-traces no/all.json run.json"), 73,
       "output file 'no/all.json': cannot be created: No such file or directory; choose a "
       "writable path"},
  };
}

std::vector<BadInput> bad_explained_traces() {
  const auto trace = [](const std::string& content, const std::string& why,
                        const std::string& remedy =
                            "give traces by PyTorch's profiler, or by "
                            "--trace") -> BadInput {
    return {0, words("explain run.json"), 65, "trace 'run.json': " + why + "; " + remedy, content};
  };
  const std::string event =
      R"({"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 1})";
  const std::string twice = R"({"distributedInfo": {"rank": 3}, "traceEvents": [)" + event + "]}";
  BadInput same_rank =
      trace(twice, "another file also holds rank 3", "give each rank's trace once");
  same_rank.line = "trace 'twin.json'" + same_rank.line.substr(same_rank.line.find(':'));
  same_rank.arguments.emplace_back("twin.json");
  BadInput same_file =
      trace(R"({"traceEvents": [)" + event + "]}", "is given twice", "give each rank's trace once");
  same_file.line = "trace './run.json'" + same_file.line.substr(same_file.line.find(':'));
  same_file.arguments.emplace_back("./run.json");
  return {
      {0, words("explain none"), 66, "trace 'none': No such file or directory; check the path"},
      {0, words("explain fifo.json"), 66,
       "trace 'fifo.json': is a FIFO, not a regular file; check the path"},
      trace(" ", "is damaged or cut: it is not complete JSON at byte 2"),
      trace("a report", "is damaged or cut: it is not complete JSON at byte 1"),
      trace(R"({"traceEvents": [)" + event,
            "is damaged or cut: it is not complete JSON at byte 105"),
      trace("[7]", "has no traceEvents"),
      trace(R"({"name": 7})", "has no traceEvents"),
      trace(R"({"traceEvents": []})", "has no event of a program's work"),
      trace(R"({"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1e300}]})",
            "has no event of a program's work"),
      trace(
          R"({"traceEvents": [{"ph": "X", "cat": "cuda_runtime", "name": "a", "ts": 1, "dur": 1}]})",
          "has no op and no work of a device",
          "profile with ProfilerActivity.CPU, and .CUDA on a GPU"),
      trace(std::string("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xff\xff\xff", 13),
            "its gzip stream is corrupt"),
      same_rank,
      same_file,
  };
}

}  // namespace

std::vector<BadInput> bad_lab() {
  std::vector<BadInput> all;
  for (const auto& cases :
       {bad_lab_usage(), bad_prediction_options(), bad_predictions(), bad_plans(), bad_sums(),
        bad_schedules(), bad_studies(), bad_sheets(), bad_lab_files(), bad_explained_traces()}) {
    all.insert(all.end(), cases.begin(), cases.end());
  }
  return all;
}

}  // namespace barestep
