// Bad input to mlp_ddp, and the expected error lines.
#include "apps/bad_input_cases.h"
#include "support/arguments.h"

namespace barestep {
namespace {

/// Several ranks of mpirun.
BadInput by_ranks(int ranks, const Arguments& arguments, int exit_code, const std::string& line) {
  return {.case_number = 0,
          .arguments = arguments,
          .exit_code = exit_code,
          .line = line,
          .ranks = ranks};
}

/// Environments in which other launchers start copies that are alone.
BadInput launched_by(const Arguments& environment, const std::string& line) {
  return {.case_number = 0,
          .arguments = kTiny,
          .exit_code = 78,
          .line = line,
          .environment = environment};
}

std::vector<BadInput> bad_rank_options() {
  const std::string not_a_rank = ": not a rank and milliseconds; give them like 1:20";
  return {
      {0, words("--devices cpu,cpu"), 2,
       "unknown option '--devices': mlp_ddp has no such option; did you mean --device?"},
      {0, words("--batch-size 4 --global-batch-size 8"), 78,
       "--batch-size: cannot be combined with --global-batch-size; give one of the two"},
      {0, words("--batch-size 4,8"), 2,
       "--batch-size '4,8': not a whole number; give a whole number from 1 to 2147483647"},
      {0, words("--bucket-mib 0"), 2,
       "--bucket-mib '0': out of range; give a number above 0 and below 1000000"},
      {0, words("--slow-rank 20"), 2, "--slow-rank '20'" + not_a_rank},
      {0, words("--slow-rank -1:20"), 2, "--slow-rank '-1:20'" + not_a_rank},
      {0, words("--slow-rank 1:x"), 2, "--slow-rank '1:x'" + not_a_rank},
      {0, words("--jitter-ms -1"), 2,
       "--jitter-ms '-1': out of range; give a number of at least 0 and below 1000000"},
      {0, words("--delay-ms -1"), 2,
       "--delay-ms '-1': out of range; give a number of at least 0 and below 1000000"},
      {0, words("--timeout 0"), 2,
       "--timeout '0': out of range; give a number above 0 and below 1000000000"},
      {0, words("--scheme single"), 2,
       "--scheme 'single': mlp_single shares steps so, not mlp_ddp; start mlp_single"},
      {0, words("--scheme data-parallel"), 2,
       "--scheme 'data-parallel': mlp_dp shares steps so, not mlp_ddp; start mlp_dp"},
      {0, words("--scheme zero4"), 2,
       "--scheme 'zero4': not one of the choices; use ddp or zero1 or zero2 or zero3 or "
       "factor or server"},
      {0, words("--grad-dtype fp16"), 2,
       "--grad-dtype 'fp16': not one of the choices; use fp32 or bf16"},
      {0, words("--transport tcp"), 2,
       "--transport 'tcp': not one of the choices; use auto or nccl or mpi"},
      {0, words("--update never"), 2,
       "--update 'never': not one of the choices; use auto or separate or fused or per-bucket"},
      {0, words("--data-seeding x"), 2,
       "--data-seeding 'x': not one of the choices; use global or per-rank"},
      {0, words("--first-bucket x"), 2,
       "--first-bucket 'x': not one of the choices; use same or whole"},
  };
}

}  // namespace

std::vector<BadInput> bad_ranks() {
  const std::string alone = " copies that do not see each other; ";
  const Arguments two_layers = {"--device", "cpu", "--layers", "4,4,4", "--steps", "2"};
  std::vector<BadInput> all = bad_rank_options();
  const std::vector<BadInput> of_ranks = {
      {0, kTiny + Arguments{"--transport", "nccl"}, 78,
       "--transport 'nccl': joins GPUs, and this rank is on the CPU; use mpi or auto"},
      {0, kTiny + Arguments{"--transport", "nccl", "--plan"}, 78,
       "--transport 'nccl': joins GPUs, and this rank is on the CPU; use mpi or auto"},
      {0, kTiny + Arguments{"--slow-rank", "1:20"}, 78,
       "--slow-rank '1:20': there is 1 rank; ranks are numbered from 0 to 0"},
      by_ranks(2, kTiny + Arguments{"--slow-rank", "2:20"}, 78,
               "--slow-rank '2:20': there are 2 ranks; ranks are numbered from 0 to 1"),
      by_ranks(2, kTiny + Arguments{"--global-batch-size", "1"}, 78,
               "--global-batch-size '1': leaves some of 2 ranks without a sample; give at least 2, "
               "or start fewer ranks"),
      by_ranks(2, kTiny + Arguments{"--global-batch-size", "8", "--reproducible", "8"}, 78,
               "--reproducible '8': a step of 8 samples has 1 chunk, and 2 ranks share it; give at "
               "most 7, or start at most 1 rank"),
      by_ranks(2, kTiny + Arguments{"--global-batch-size", "1", "--reproducible", "1"}, 78,
               "--reproducible '1': a step of 1 sample has 1 chunk, and 2 ranks share it; start at "
               "most 1 rank"),
      by_ranks(2, kTiny + Arguments{"--batch-size", "2147483647"}, 78,
               "--batch-size '2147483647': 2 ranks make 4294967294 samples in a step; a step has "
               "at most 2147483647"),
      by_ranks(2, kTiny + Arguments{"--memory", "10KiB"}, 71,
               "too little memory: needs 14.00 KiB, the device that --memory states has 10.00 KiB "
               "free; --global-batch-size 16 fits"),
      by_ranks(2, kTiny + Arguments{"--trace", "f.json", "--save", "f.rank1.json"}, 78,
               "--trace 'f.rank1.json': --save writes to the same file; give two files"),
      by_ranks(2, kTiny + Arguments{"--metrics", "m", "--save", "m.flight"}, 78,
               "--metrics 'm.flight': --save writes to the same file; give two files"),
      by_ranks(3, two_layers + Arguments{"--tensor", "2"}, 78,
               "--tensor '2': a copy of the model takes 2 ranks, which do not divide 3 ranks; "
               "start 2 ranks, or a multiple"),
      by_ranks(3, two_layers + Arguments{"--pipeline", "2"}, 78,
               "--pipeline '2': a copy of the model takes 2 ranks, which do not divide 3 ranks; "
               "start 2 ranks, or a multiple"),
      by_ranks(2, {"--evaluate-only"}, 78,
               "--evaluate-only: there are no weights to evaluate; give --load FILE"),
      launched_by({"SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=2"},
                  "ranks: srun started 2" + alone + "use srun --mpi=pmix"),
      // No first rank has reported it.
      launched_by({"SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=2"},
                  "ranks: srun started 2" + alone + "use srun --mpi=pmix"),
      launched_by({"SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=2", "PMI_RANK=0", "PMI_SIZE=2"},
                  "ranks: srun started 2" + alone + "use srun --mpi=pmix"),
      launched_by({"OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_SIZE=4"},
                  "ranks: mpirun started 4" + alone +
                      "use the mpirun of the MPI that barestep was built with"),
      launched_by({"RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0"},
                  "ranks: torchrun started 2" + alone +
                      "start them with mpirun -np 2, or srun --mpi=pmix -n 2"),
  };
  all.insert(all.end(), of_ranks.begin(), of_ranks.end());
  return all;
}

}  // namespace barestep
