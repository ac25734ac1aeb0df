#include "lab/opposites.h"

namespace barestep {
namespace {

/// A monitor's readings at the smallest batch and at the others.
HowCasesWent watched(const Watched& small, const Watched& large, double noise = 0.003) {
  return [=](const Case& what) {
    return MadeUpStep{.step_s = 0.1,
                      .noise = noise,
                      .watched = {what.workload.batch_size() == 16 ? small : large}};
  };
}

Watched host(double busy, double mib, double mhz) {
  return {
      .source = "host",
      .gauges = {
          {"own_percent", {busy, busy}}, {"resident_mib", {mib, mib}}, {"clock_mhz", {2000, mhz}}}};
}

}  // namespace

std::vector<Opposites> opposites_of_monitor() {
  std::vector<Opposites> all;
  const HowCasesWent grows = watched(host(40, 100, 2000), host(95, 300, 2000));
  const HowCasesWent stays = watched(host(60, 300, 2000), host(62, 301, 3000));
  all.push_back(
      {"monitor", grows,
       "A larger batch keeps the cores busier: 40 % (40 % to 40 %) at batch 16, 95 % (95 % "
       "to 95 %) at batch 256. At batch 256 less than 10 % of the time is idle.",
       stays,
       "does not keep the cores busier by 10 percentage points or more: 60 % (60 % to 60 %) at "
       "batch 16, "
       "62 "
       "% (62 % to 62 %) at batch 256. At batch 256 38 % of the time is idle.",
       watched(host(50, 100, 2000), host(60, 100, 2000), 0.1),
       "Whether a larger batch keeps the cores busier is unclear"});
  all.push_back({"monitor", grows, "Memory grows with the batch", stays,
                 "Memory hardly depends on the batch"});
  const auto memory = [](double small, double large, double noise = 0.003) {
    return watched(host(50, small, 2000), host(50, large, 2000), noise);
  };
  all.push_back({"monitor", memory(100, 103), "Memory grows with the batch", memory(103, 100),
                 "Memory is less with a larger batch", memory(100, 101, 0.1),
                 "Whether memory depends on the batch is unclear"});
  all.push_back({"monitor", grows, "The clock was steady: 2000 MHz", stays,
                 "The clock changed between 2000 and 3000 MHz, so times measured at different "
                 "moments may differ by 50.0 %"});
  Watched thrifty = host(90, 100, 2000), wasteful = thrifty;
  thrifty.energy_j_per_sample = 0.001;
  wasteful.energy_j_per_sample = 0.004;
  all.push_back(
      {"monitor", watched(thrifty, wasteful), "Least energy per sample: batch 16, 1.00 mJ.",
       watched(wasteful, thrifty),
       "Least energy per sample: undecided among batch 64, 1.00 mJ and batch 256, 1.00 mJ",
       watched(thrifty, thrifty, 0.1), "Least energy per sample: undecided among "});
  Watched marked = host(90, 100, 2000);
  marked.marks = {"cuda:0 was held back: power"};
  all.push_back({"monitor", watched(marked, marked),
                 "Read these figures with care: cuda:0 was held back: power.", watched({}, {}),
                 "How busy the cores were cannot be measured here."});
  return all;
}

namespace {

HowCasesWent slow_key(const std::string& slow, double times, double noise = 0.003) {
  return [=](const Case& what) {
    return MadeUpStep{.step_s = what.key == slow ? 0.1 * times : 0.1, .noise = noise};
  };
}

/// Batches in int8 take this multiple of the time of those in fp32, and change this many answers.
HowCasesWent in_int8(double times, std::int64_t changed, double noise = 0.003) {
  return [=](const Case& what) {
    const bool is_int8 = what.key.starts_with("int8-");
    MadeUpStep step{.step_s = is_int8 ? 0.01 * times : 0.01, .noise = noise};
    if (is_int8) {
      step.evaluated = {{.precision = "fp32",
                         .samples = 4096,
                         .accuracy = 0.9,
                         .weight_bytes = std::int64_t{4} << 20},
                        {.precision = "int8",
                         .samples = 4096,
                         .accuracy = 0.895,
                         .changed = changed,
                         .weight_bytes = std::int64_t{1} << 20}};
    }
    return step;
  };
}

}  // namespace

std::vector<Opposites> opposites_of_int8() {
  std::vector<Opposites> all;
  for (const int batch : {1, 8, 64, 512}) {
    const std::string what = "In int8 a batch of " + std::to_string(batch);
    all.push_back({"int8", in_int8(0.5, 3), what + " is faster than in fp32: 2.00x", in_int8(2, 3),
                   what + " is slower than in fp32: ", in_int8(1, 3, 0.2),
                   "are indistinguishable"});
  }
  all.push_back({"int8", in_int8(1, 1),
                 "In int8 1 of 4,096 answers changes; the accuracy is 89.50 % instead of 90.00 %",
                 in_int8(1, 7), "In int8 7 of 4,096 answers change;"});
  all.push_back({"int8", in_int8(1, 1), "A batch reads 1.00 MiB of weights instead of 4.00 MiB.",
                 slow_key("none", 1), "The effect of int8 on the answers was not reported."});
  return all;
}

std::vector<Opposites> opposites_of_attention() {
  return {
      {"attention", slow_key("standard-2048", 3),
       "With flash attention at a length of 2,048 a step is faster than with standard attention: "
       "3.00x",
       slow_key("flash-2048", 2),
       "With flash attention at a length of 2,048 a step is slower than with standard attention: ",
       slow_key("flash-2048", 1, 0.2), "are indistinguishable"},
      {"attention", slow_key("standard-8192", 3),
       "The claimed factor of 2 to 4 is reached here: flash attention makes a step 3.00x",
       slow_key("standard-512", 1.5),
       "The claimed factor of 2 to 4 is not reached here: flash attention makes a step at most "
       "1.50x",
       slow_key("standard-512", 2, 0.2),
       "Whether the claimed factor of 2 to 4 is reached here is unclear: with flash attention a "
       "step is "},
      {"attention", slow_key("flash", 2),
       "With flash attention a sample is slower than without: ", slow_key("flash", 0.5),
       "With flash attention a sample is faster than without: 2.00x", slow_key("flash", 1, 0.2),
       "A sample with flash attention and a sample without are indistinguishable"}};
}

std::vector<Opposites> opposites_of_model_options() {
  return {{"precision", slow_key("bf16-64", 1.5),
           "In bf16 a step of 64 samples is slower than in fp32: ", slow_key("bf16-64", 0.5),
           "In bf16 a step of 64 samples is faster than in fp32: ", slow_key("bf16-64", 1, 0.2),
           "are indistinguishable"},
          {"precision", slow_key("fp16-512", 0.4),
           "The claimed factor of 2 to 3 is reached here: fp16 at a batch of 512, 2.50x",
           slow_key("bf16-64", 0.8),
           "The claimed factor of 2 to 3 is not reached here: at most bf16 at a batch of 64, 1.25x",
           slow_key("bf16-512", 0.5, 0.2),
           "Whether the claimed factor of 2 to 3 is reached here is unclear: bf16"},
          {"memory", slow_key("recompute", 1.5),
           "Recomputation costs more than the claimed 30 %: 1.50x", slow_key("recompute", 1.1),
           "Recomputation costs less than the claimed 30 %: 1.10x", slow_key("recompute", 1.3, 0.2),
           "Whether recomputation costs more or less than the claimed 30 % is unclear"},
          {"memory", slow_key("precision", 0.5),
           "With 16-bit numbers a sample is faster than without: 2.00x", slow_key("precision", 2),
           "With 16-bit numbers a sample is slower than without: ", slow_key("precision", 1, 0.2),
           "A sample with 16-bit numbers and a sample without are indistinguishable"},
          {"affinity", slow_key("compact", 0.8), "Binding threads to cores saves time here.",
           slow_key("compact", 1), "Binding threads to cores makes no difference beyond 5 % here.",
           slow_key("compact", 1, 0.2),
           "Whether binding threads to cores saves or costs time here is unclear."},
          {"affinity", slow_key("half-spread", 0.8), "bound spread a step is faster than with ",
           slow_key("half-spread", 1.5), "Binding threads to cores costs time here.",
           slow_key("half-spread", 1, 0.2), "are indistinguishable"}};
}

namespace {

/// Steps of 50 ms, with so much more for each bucket, and for each layer in the last one, of twelve
/// layers.
HowCasesWent by_buckets(double bucket_s, double layer_s, double noise = 1e-5) {
  return [=](const Case& what) {
    const double layers = std::stod(what.key.substr(what.key.find('-') + 1));
    return MadeUpStep{.step_s = 0.05 + bucket_s * 12 / layers + layer_s * layers, .noise = noise};
  };
}

/// Products of a millisecond for each layer; those of cases whose key has `part` take `times` as
/// long.
HowCasesWent products(const std::string& part, double times, double noise = 0.003) {
  return [=](const Case& what) {
    const double seconds = what.key.find(part) == std::string::npos ? 1e-3 : 1e-3 * times;
    return MadeUpStep{
        .step_s = 0.1,
        .noise = noise,
        .ops = {{"gemm", "forward", "net.0", seconds}, {"gemm", "backward", "net.0", seconds}}};
  };
}

}  // namespace

std::vector<Opposites> opposites_of_buckets() {
  return {
      {"bucket-model", by_buckets(2e-3, 4e-3), "Each bucket costs 2.0", by_buckets(-2e-3, 4e-3),
       "More buckets shorten a step here: each changes it by -2.0", by_buckets(0, 4e-3, 0.2),
       "Whether a bucket costs time of its own is unclear: "},
      {"bucket-model", by_buckets(1e-3, 4e-3),
       "Nothing hides the last bucket: ", by_buckets(1e-3, -4e-3),
       "A larger last bucket does not cost time here: ", by_buckets(1e-3, 0, 0.2),
       "Whether the size of the last bucket costs time is unclear: "},
      {"bucket-model", by_buckets(1e-3, 4e-3), "By the model 6.93 buckets of 6.9",
       by_buckets(-1e-3, 4e-3), "So the model names no best size; fastest measured: 12 buckets.",
       by_buckets(0, 4e-3, 0.2), "So the model names no best size; fastest measured: "}};
}

namespace {

/// All-reduces take a millisecond; those of one way `times` as long.
HowCasesWent sums(const std::string& way, double times, double noise = 0.003) {
  return [=](const Case& what) {
    const bool is_that = what.key.starts_with(way + "-");
    return MadeUpStep{.step_s = is_that ? 1e-3 * times : 1e-3, .noise = noise};
  };
}

}  // namespace

std::vector<Opposites> opposites_of_sums() {
  std::vector<Opposites> all;
  for (const char* const of : {"4.00 KiB among two ranks", "64.00 MiB among two ranks",
                               "4.00 KiB among 4 ranks", "64.00 MiB among 4 ranks"}) {
    const std::string sum = std::string(" a sum of ") + of;
    all.push_back({"all-reduce", sums("ring", 0.5),
                   "In a ring" + sum + " is faster than in a star: 2.00x", sums("ring", 2),
                   "In a ring" + sum + " is slower than in a star: ", sums("ring", 1, 0.2),
                   "are indistinguishable"});
    all.push_back({"all-reduce", sums("threads", 0.5),
                   "Between threads of one process" + sum + " is faster than by MPI: 2.00x",
                   sums("threads", 2),
                   "Between threads of one process" + sum + " is slower than by MPI: "});
  }
  return all;
}

std::vector<Opposites> opposites_of_products() {
  std::vector<Opposites> all;
  for (const char* const rows : {"1 row", "64 rows", "1024 rows"}) {
    const std::string what = std::string(" a forward product of ") + rows;
    all.push_back(
        {"matmul", products("bf16", 0.5),
         "In bf16 with 4 threads" + what + " is faster than in fp32: 2.00x", products("bf16", 2),
         "In bf16 with 4 threads" + what + " is slower than in fp32: ", products("bf16", 1, 0.2),
         "are indistinguishable"});
    all.push_back({"matmul", products("threads-1", 4),
                   "With 4 threads in fp32" + what + " is faster than with one: 4.00x",
                   products("threads-1", 0.5),
                   "With 4 threads in fp32" + what + " is slower than with one: "});
  }
  // Two products of 64 x 1024 x 1024, or of 1024 rows, and the bias and activation of each result.
  all.push_back({"matmul", products("fp32-1024-threads-1", 0.01),
                 "Highest rate of forward products: fp32-1024-threads-1, 4",
                 products("fp16-64-threads-1", 0.001),
                 "Highest rate of forward products: fp16-64-threads-1, 26"});
  return all;
}

namespace {

HowCasesWent side_by_side(double ours, double theirs, double their_loss = 1, double noise = 0.003,
                          double their_later_loss = 0) {
  return [=](const Case& what) {
    const bool is_ours = what.key.ends_with("-ours");
    return MadeUpStep{.step_s = is_ours ? ours : theirs,
                      .noise = noise,
                      .loss = is_ours ? 1 : their_loss,
                      .later_loss = is_ours ? 0 : their_later_loss};
  };
}

}  // namespace

std::vector<Opposites> opposites_of_pytorch() {
  std::vector<Opposites> all;
  all.push_back({"pytorch", side_by_side(0.01, 0.02),
                 "On one device with barestep a step is faster than with PyTorch: 2.00x",
                 side_by_side(0.02, 0.01),
                 "On DDP on two ranks with barestep a step is slower than with PyTorch",
                 side_by_side(0.02, 0.02, 1, 0.1), "are indistinguishable"});
  all.push_back({"pytorch", side_by_side(0.01, 0.02, 1 + 1e-7), "their losses agree step by step",
                 side_by_side(0.01, 0.02, 1.01), "they do not train the same model"});
  all.push_back({"pytorch", side_by_side(0.01, 0.02, 1, 0.003, 1 + 3e-5),
                 "the losses of the first 3 steps agree. Rounding then grows from step to step, to "
                 "3.0e-05 of a loss",
                 side_by_side(0.01, 0.02, 1.01, 0.003, 1), "they do not train the same model"});
  return all;
}

}  // namespace barestep
