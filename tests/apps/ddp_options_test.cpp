// Messages of mlp_ddp about options that it cannot follow.
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "command_line.h"
#include "core/error.h"
#include "options/options.h"
#include "support/arguments.h"

namespace barestep {
namespace {

TEST(DdpOptions, RefuseBadInputInOneLine) {
  const std::vector<std::tuple<Arguments, int, std::string>> cases = {
      {{"--batch-size", "4", "--global-batch-size", "8"},
       78,
       "--batch-size: does not go with --global-batch-size; give one of the two"},
      {{"--batch-size", "4,8"},
       2,
       "--batch-size '4,8': not a whole number; give a whole number from 1 to 2147483647"},
      {{"--bucket-mib", "0"},
       2,
       "--bucket-mib '0': out of range; give a number above 0 to below 1000000"},
      {{"--slow-rank", "20"},
       2,
       "--slow-rank '20': not a rank and milliseconds; give them as 1:20"},
      {{"--slow-rank", "-1:20"},
       2,
       "--slow-rank '-1:20': not a rank and milliseconds; give them as 1:20"},
      {{"--slow-rank", "1:x"},
       2,
       "--slow-rank '1:x': not a rank and milliseconds; give them as 1:20"},
      {{"--jitter-ms", "-1"},
       2,
       "--jitter-ms '-1': out of range; give a number from 0 to below 1000000"},
      {{"--delay-ms", "-1"},
       2,
       "--delay-ms '-1': out of range; give a number from 0 to below 1000000"},
      {{"--scheme", "zero2"},
       2,
       "--scheme 'zero2': not one of the choices; did you mean 'zero1'? use ddp or zero1 or "
       "factor"},
      {{"--scheme", "factor", "--no-overlap"},
       78,
       "--no-overlap: is about the buckets of --scheme ddp; leave it out, or use --scheme ddp"},
      {{"--scheme", "zero1", "--grad-dtype", "bf16"},
       78,
       "--grad-dtype bf16: is about the buckets of --scheme ddp; leave it out, or use --scheme "
       "ddp"},
      {{"--scheme", "factor", "--grad-dtype", "bf16"},
       78,
       "--grad-dtype bf16: is about the buckets of --scheme ddp; leave it out, or use --scheme "
       "ddp"},
      {{"--grad-dtype", "fp16"},
       2,
       "--grad-dtype 'fp16': not one of the choices; use fp32 or bf16"},
      {{"--scheme", "factor", "--recompute", "2"},
       78,
       "--recompute '2': --scheme factor gathers and keeps the activations of all layers; use "
       "--scheme ddp or zero1"},
      {{"--scheme", "zero1", "--update", "per-bucket"},
       78,
       "--update per-bucket: is about the buckets of --scheme ddp; leave it out, or use --scheme "
       "ddp"},
      {{"--timeout", "0"},
       2,
       "--timeout '0': out of range; give a number above 0 to below 1000000000"},
      {{"--transport", "tcp"},
       2,
       "--transport 'tcp': not one of the choices; use auto or nccl or mpi"},
      {{"--update", "never"},
       2,
       "--update 'never': not one of the choices; use auto or separate or fused or per-bucket"},
      {{"--update", "per-bucket", "--clip-norm", "1"},
       78,
       "--update 'per-bucket': --clip-norm needs the gradients of all buckets first; use --update "
       "separate"},
      {{"--data-seeding", "x"},
       2,
       "--data-seeding 'x': not one of the choices; use global or per-rank"},
      {{"--first-bucket", "x"}, 2, "--first-bucket 'x': not one of the choices; use same or whole"},
      {{"--data", "idx:a,b", "--data-seeding", "per-rank"},
       78,
       "--data-seeding 'per-rank': files hold the same samples for every rank; leave it out, or "
       "use "
       "--data randn"},
  };
  for (const auto& [arguments, code, line] : cases) {
    try {
      validate(parse_command_line(TrainerKind::kDdp, arguments).config, TrainerKind::kDdp);
      ADD_FAILURE() << line;
    } catch (const Error& error) {
      EXPECT_EQ(error.what(), line);
      EXPECT_EQ(static_cast<int>(error.code()), code) << line;
    }
  }
}

}  // namespace
}  // namespace barestep
