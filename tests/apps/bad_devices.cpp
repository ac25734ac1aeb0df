// Bad input to mlp_dp, and the expected error lines.
#include "apps/bad_input_cases.h"
#include "support/arguments.h"

namespace barestep {
namespace {

const std::string kNotADevice = " is not a device; list cpu, cuda or cuda:N, such as cuda:0,cuda:1";

std::vector<BadInput> bad_device_options() {
  const std::string none = "mlp_dp has no such option; ";
  std::string many = "cpu";
  for (int i = 1; i < 65; ++i) many += ",cpu";
  return {
      {0, words("--devces cpu,cpu"), 2,
       "unknown option '--devces': " + none + "did you mean --devices?"},
      {0, {"--evaluate-only"}, 2, "unknown option '--evaluate-only': " + none + "--help lists all"},
      {0, words("--tensorboard runs"), 2,
       "unknown option '--tensorboard': " + none + "--help lists all"},
      {0, words("--scheme zero2"), 2,
       "--scheme 'zero2': mlp_ddp shares steps so, not mlp_dp; start mlp_ddp"},
      {0, words("--devices cpu,cpu --pipeline 3"), 78,
       "--pipeline '3': each stage is on a device of its own, and there are 2 devices; list as "
       "many "
       "--devices; one may be named several times"},
      {0, words("--pipeline 3 --depth 2"), 78,
       "--pipeline '3': the model has 2 layers, and each stage needs one; use at most --pipeline "
       "2"},
      {0, words("--devices 0,9"), 2, "--devices '0,9': '0'" + kNotADevice},
      {0, words("--devices -1"), 2, "--devices '-1': '-1'" + kNotADevice},
      {0, words("--devices gpu"), 2, "--devices 'gpu': 'gpu'" + kNotADevice},
      {0, words("--devices auto"), 2, "--devices 'auto': 'auto'" + kNotADevice},
      {0, words("--devices cpu,,cpu"), 2, "--devices 'cpu,,cpu': ''" + kNotADevice},
      {0, words("--devices cuda:1000"), 2, "--devices 'cuda:1000': 'cuda:1000'" + kNotADevice},
      {0,
       {"--devices", ""},
       2,
       "--devices: the value is empty; list cpu, cuda or cuda:N, such as cuda:0,cuda:1"},
      {0, words("--devices cpu --devices cpu"), 2, "option '--devices': given twice; give it once"},
      {0, {"--devices"}, 2, "option '--devices': needs a value; --help shows which"},
      {0, words("--devices cpu,cuda:0"), 78,
       "--devices 'cpu,cuda:0': names the CPU and GPUs; give devices of one kind"},
      {0, {"--devices", many}, 78, "--devices '" + many + "': names 65 devices; give at most 64"},
      {0, words("--batch-size 4,8"), 2,
       "--batch-size '4,8': not a whole number; give a whole number from 1 to 2147483647"},
      {0, words("--transport mpi"), 2,
       "--transport 'mpi': not one of the choices; use auto or nccl or peer"},
      {0, words("--update per-bucket"), 2,
       "--update 'per-bucket': not one of the choices; use auto or separate or fused"},
      {0, words("--timeout 0"), 2,
       "--timeout '0': out of range; give a number above 0 and below 1000000000"},
      {0, {"--show-split=1"}, 2, "--show-split '1': takes no value; leave the value out"},
  };
}

}  // namespace

std::vector<BadInput> bad_devices() {
  const auto two = [](const Arguments& more) {
    return Arguments{"--devices", "cpu,cpu"} + kTiny + more;
  };
  const auto nccl = [](const std::string& devices) {
    return Arguments{"--devices", devices, "--transport", "nccl"};
  };
  std::vector<BadInput> all = bad_device_options();
  const std::vector<BadInput> of_devices = {
      {0, words("--device cpu --graph"), 78,
       "--graph: captures the work of one device, and there are 2; leave it out, or give one "
       "device"},
      {0, nccl("cpu,cpu"), 78,
       "--transport 'nccl': joins GPUs, and these are CPU devices; use peer or auto"},
      {0, nccl("cuda:0"), 78,
       "--transport 'nccl': joins several GPUs, and there is one; use peer or auto"},
      {0, nccl("cuda:0,cuda:1,cuda:0"), 78,
       "--transport 'nccl': takes each GPU once, and cuda:0 is given 2 times; use peer or auto"},
      {0, two({"--update", "fused"}), 78,
       "--update 'fused': stores no gradients, which several ranks or devices exchange; use "
       "--update separate"},
      {0, two({"--autotune", "f"}), 78,
       "--autotune 'f': there is nothing to choose from on the CPU; leave it out, or use --device "
       "cuda"},
      {0, two({"--precision", "tf32"}), 78,
       "--precision 'tf32': the CPU has no tf32; use --precision fp32 or bf16, or --device cuda"},
      {0, two({"--memory", "50KiB", "--batch-size", "1024"}), 71,
       "too little memory: needs 198.50 KiB, cpu:0, as --memory states, has 50.00 KiB free; "
       "--batch-size 128 fits"},
      {0, two({"--memory", "1KiB"}), 71,
       "too little memory: needs 18.50 KiB, cpu:0, as --memory states, has 1.00 KiB free; no batch "
       "size fits, use a smaller --dim, --depth or --layers"},
      {0, two({"--load", "none"}), 66,
       "safetensors file 'none': No such file or directory; check the path"},
      {0, two({"--metrics", "none/m"}), 73,
       "output file 'none/m': cannot be created: No such file or directory; choose a "
       "writable path"},
      {0, two({"--trace", "none/t.json"}), 73,
       "output file 'none/t.device0.json': cannot be created: No such file or directory; choose a "
       "writable path"},
      {0, two({"--trace", "v.json", "--save", "v.device0.json"}), 78,
       "--trace 'v.device0.json': --save writes to the same file; give two files"},
      {0, two({"--trace", "v.json", "--metrics", "./v.device1.json"}), 78,
       "--trace 'v.device1.json': --metrics writes to the same file; give two files"},
  };
  all.insert(all.end(), of_devices.begin(), of_devices.end());
  return all;
}

}  // namespace barestep
