#include "lab/opposites.h"

#include <cmath>
#include <iterator>

namespace barestep {

MadeUpStep divided(int ranks) {
  return {.step_s = 0.1 / ranks, .phase_s = {{"forward", 0.1 / ranks}}};
}

MadeUpStep communicating(int ranks) {
  const double reduce = ranks == 1 ? 0 : 0.2;
  return {.step_s = 0.1 / ranks + reduce,
          .phase_s = {{"forward", 0.1 / ranks}, {"communication", reduce}}};
}

HowCasesWent by_ranks(const std::function<MadeUpStep(int)>& how) {
  return [how](const Case& what) { return how(what.workload.ranks); };
}

HowCasesWent by_key(const std::function<MadeUpStep(const std::string&)>& how) {
  return [how](const Case& what) { return how(what.key); };
}

namespace {

constexpr const char *kSaysFaster = "faster", *kSaysSlower = "slower",
                     *kSaysTie = "indistinguishable";

/// A finding about a comparison: the case that is faster or slower than all others decides.
HowCasesWent takes(const std::string& key, double times, double noise = 0.003) {
  return by_key([=](const std::string& each) {
    MadeUpStep step{.step_s = each == key ? 0.1 * times : 0.1, .noise = noise};
    step.other_ranks = {step};
    return step;
  });
}

Opposites word_of_case(const std::string& finding, const std::string& key) {
  return {finding,     takes(key, 0.5),    kSaysFaster, takes(key, 2),
          kSaysSlower, takes(key, 1, 0.2), kSaysTie};
}

/// Each comparison of these cases has the word that its times say.
std::vector<Opposites> words() {
  std::vector<Opposites> all;
  for (const auto& [finding, key] : std::vector<std::pair<std::string, std::string>>{
           {"data-parallel.gain", "devices-2"},
           {"dp-vs-ddp.gain", "ddp"},
           {"model-parallel.devices-2", "devices-2"},
           {"two-splits.batch-64", "batch-64"},
           {"two-splits.layers-64", "layers-64"},
           {"two-splits.layers-against-batch", "layers-64"},
           {"two-splits.layers-32", "layers-32"},
           {"sharding.factor", "factor"},
           {"sharding.tensor", "tensor"},
           {"server.star", "star"},
           {"server.all-serve", "all-serve"},
           {"server.tree", "tree"},
           {"staleness.gain", "ranks-late-1"},
           {"local-sgd.gain", "every-32"},
           {"ddp-ladder.flat", "flat"},
           {"ddp-ladder.overlapped", "overlapped"},
           {"ddp-ladder.buckets", "buckets"},
           {"no-sync.once-8", "once-8"},
           {"same-bits.ddp-reproducible-2", "ddp-reproducible-2"},
           {"tensor.against-ddp-64", "tensor-64"},
           {"tensor.against-one-rank-512", "tensor-512"},
           {"pipeline.against-naive", "1f1b-8"},
           {"pipeline.against-one-rank", "1f1b-8"},
           {"pipeline.against-gpipe", "1f1b-8"},
           {"pipeline.zero-bubble", "zb-h1-8"},
           {"hybrid.2x2-against-2x1", "2x2-batch-64-micro-4"},
           {"ddp-amp.accumulation", "accumulate-4"},
           {"ddp-amp.precision", "amp"},
           {"ddp-amp.more-in-fp16", "both-32"},
           {"precision.bf16-64", "bf16-64"},
           {"memory.precision", "precision"},
           {"affinity.half-spread", "half-spread"},
           {"int8.int8-1", "int8-1"},
           {"int8.int8-512", "int8-512"},
           {"attention.flash-2048", "flash-2048"},
           {"attention.flash", "flash"},
           {"all-reduce.ring-2-4096", "ring-2-4096"},
           {"all-reduce.threads-4-67108864", "threads-4-67108864"},
           {"pytorch.single-ours", "single-ours"},
           {"pytorch.ddp-ours", "ddp-ours"},
           {"io-delay.throughput", "workers-0"},
           {"batch-sweep.efficiency", "batch-128"}}) {
    all.push_back(word_of_case(finding, key));
  }
  // Of samples, of which micro-steps have more in as long a step.
  for (Opposites& each : all) {
    if (each.finding == "ddp-amp.accumulation") each.one = takes("accumulate-4", 2);
    if (each.finding == "ddp-amp.accumulation") each.other = takes("accumulate-4", 8);
    if (each.finding == "ddp-amp.accumulation") each.tie = takes("accumulate-4", 4, 0.2);
    if (each.finding == "ddp-amp.more-in-fp16") each.one = takes("both-32", 4);
    if (each.finding == "ddp-amp.more-in-fp16") each.other = takes("both-32", 16);
    if (each.finding == "ddp-amp.more-in-fp16") each.tie = takes("both-32", 8, 0.2);
    if (each.finding == "batch-sweep.efficiency") each.one = takes("batch-128", 2);
    if (each.finding == "batch-sweep.efficiency") each.other = takes("batch-128", 8);
    if (each.finding == "batch-sweep.efficiency") each.tie = takes("batch-128", 4, 0.2);
  }
  return all;
}

/// Which of several is fastest.
std::vector<Opposites> fastest() {
  std::vector<Opposites> all;
  const auto add = [&](const std::string& experiment, const std::string& a, const std::string& b,
                       const std::string& words_a = "", const std::string& words_b = "") {
    all.push_back({experiment + ".fastest", takes(a, 0.5),
                   ": " + (words_a.empty() ? a : words_a) + ".", takes(b, 0.5),
                   ": " + (words_b.empty() ? b : words_b) + ".", takes("none", 1),
                   ": undecided among "});
  };
  add("sharding", "zero1", "tensor");
  add("pipeline", "1f1b-8", "gpipe-8");
  add("splits", "devices-3", "devices-2", "3 devices", "2 devices");
  add("strong-scaling", "ranks-4", "ranks-1", "4 ranks", "1 rank");
  add("hybrid", "2x2-batch-64-micro-8", "2x2-batch-64-micro-2", "8 micro-batches",
      "2 micro-batches");
  add("ddp-ladder", "buckets", "flat", "buckets during backward",
      "all in one message after backward");
  return all;
}

HowCasesWent by_batch(const std::function<double(double)>& seconds, double noise = 0.003) {
  return [=](const Case& what) {
    return MadeUpStep{.step_s = seconds(static_cast<double>(what.workload.batch_size())),
                      .noise = noise};
  };
}

std::vector<Opposites> of_scaling() {
  const HowCasesWent even = by_ranks([](int) { return MadeUpStep{.step_s = 0.1, .noise = 0.1}; });
  const auto lost_to = [](double to_communication, double to_host, double noise) {
    return by_ranks([=](int ranks) {
      const double lost = ranks == 1 ? 0 : 0.1;
      return MadeUpStep{
          .step_s = 0.1 / ranks + 2 * lost,
          .noise = noise,
          .phase_s = {{"communication", to_communication * lost}, {"host", to_host * lost}}};
    });
  };
  const auto on_ranks = [](double one, double many) {
    return by_ranks([=](int ranks) { return MadeUpStep{.step_s = ranks == 1 ? one : many}; });
  };
  const auto models = [](double small, double large, double noise = 0.003) {
    return [=](const Case& what) {
      const bool two = what.workload.ranks > 1;
      const double gain = !two ? 1 : what.key.starts_with("small") ? small : large;
      return MadeUpStep{
          .step_s = 0.1 / gain,
          .noise = noise,
          .phase_s = {{"communication", two && gain < 1 ? 0.15 : 0.0}, {"forward", 0.04}}};
    };
  };
  const auto pays = [](double from, double noise = 0.003) {
    return [=](const Case& what) {
      const auto batch = static_cast<double>(what.workload.batch_size());
      const bool two = what.workload.ranks == 2;
      return MadeUpStep{.step_s = two ? 1e-3 * (batch / 2 + from / 2) : 1e-3 * batch,
                        .noise = noise,
                        .phase_s = {{"communication", two ? 1e-3 * from / 2 : 0}}};
    };
  };
  const auto gaining = [](double small, double large) {
    return [=](const Case& what) {
      const double gain = what.workload.batch_size() < 100 ? small : large;
      return MadeUpStep{.step_s = what.workload.ranks == 1 ? 0.1 : 0.1 / gain};
    };
  };
  const auto exposed = [](double at_large) {
    return [=](const Case& what) {
      const bool is_large = what.workload.batch_size() == 256;
      return MadeUpStep{.step_s = 0.1, .phase_s = {{"communication", is_large ? at_large : 0.01}}};
    };
  };
  return {
      {"amdahl.serial",
       by_ranks([](int ranks) { return MadeUpStep{.step_s = 0.03 + 0.07 / ranks}; }),
       "so no number of ranks makes it more than 3.33x", by_ranks(communicating),
       "No serial fraction below 1 fits", even, "Whether a serial fraction below 1 fits"},
      {"strong-scaling.efficiency", by_ranks(divided), "stays above 80 %: at 4 ranks it is 100",
       by_ranks(communicating), "falls below 80 % at 2 ranks: it is 20.0 %",
       by_ranks([](int ranks) {
         return MadeUpStep{.step_s = ranks == 1 ? 0.1 : 0.125 / ranks, .noise = 0.1};
       }),
       "Whether efficiency falls below 80 %"},
      {"strong-scaling.efficiency", by_ranks(communicating),
       "most of what is lost is exposed communication", lost_to(0.6, 0.9, 0.001),
       "largest part of what is lost is the host", lost_to(1, 1, 0.05),
       "the main cause of the loss is unclear"},
      {"strong-scaling.linear", on_ranks(0.1, 0.025), "is linear, within a tenth: 4 ranks reach 4",
       on_ranks(0.1, 0.2), "is not linear: 4 ranks reach 0.50x"},
      {"data-parallel.proportion", on_ranks(0.1, 0.05), "In proportion to the devices",
       on_ranks(0.1, 0.11), "Not in proportion to the devices: 0.91x"},
      {"comm-vs-compute.gains", models(0.5, 1.8), "better on the large model: 1.80x",
       models(1.8, 0.5), "better on the small model: 1.80x", models(1, 1, 0.1), kSaysTie},
      {"comm-vs-compute.small", models(0.5, 1.8), "bottleneck is exposed communication: 75.",
       models(1.8, 1.8), "bottleneck is computing: 72.",
       [](const Case&) {
         return MadeUpStep{
             .step_s = 0.1, .noise = 0.1, .phase_s = {{"communication", 0.04}, {"forward", 0.04}}};
       },
       "the largest parts of a step of 4 ranks are"},
      {"batch-scaling.pays", pays(100), "pay off from a batch of 128; at 64 they are slower",
       pays(1000), "are slower than one up to a batch of 256", pays(256, 0.1),
       "are not measurably faster than one"},
      {"batch-scaling.pays", pays(16), "from a batch of 32, the smallest here", pays(100),
       "from a batch of 128", pays(64, 0.1), "whether they already do at 64 is unclear"},
      {"batch-scaling.exposed", exposed(0.001), "falls", exposed(0.05), "grows",
       [](const Case&) {
         return MadeUpStep{.step_s = 0.1, .noise = 0.1, .phase_s = {{"communication", 0.01}}};
       },
       "Whether the share"},
      {"batch-scaling.improves", gaining(1, 2), "improves scaling: 2 ranks reach 1.00x",
       gaining(2, 1), "makes scaling worse: 2 ranks reach 2.00x"}};
}

std::vector<Opposites> of_data() {
  const auto sweep = [](double fixed_s, double of_sample_s, double noise = 0.003) {
    return by_batch([=](double batch) { return fixed_s + of_sample_s * batch; }, noise);
  };
  const auto disk = [](double hidden_s, double noise = 0.003) {
    return [=](const Case& what) {
      const bool inside = what.key == "workers-0";
      const double delay_s = what.key == "no-delay" ? 0 : inside ? 0.01 : hidden_s;
      return MadeUpStep{.step_s = 0.001 + delay_s,
                        .noise = noise,
                        .phase_s = {{"forward", 0.001}, {inside ? "injected" : "data", delay_s}}};
    };
  };
  // A disk of 10 ms for each batch of 64 gives 4 workers 25,600 samples/s: they wait every fourth
  // step.
  const auto bursts = [](double burst_s) {
    return [=](const Case& what) {
      MadeUpStep step{.step_s = 1.85e-3, .phase_s = {{"forward", 1.85e-3}}};
      if (what.key == "no-delay") return step;
      step.burst_every = 4;
      step.burst_s = burst_s;
      step.burst_phase_s = {{"forward", 1.85e-3}, {"data", burst_s - 1.85e-3}};
      return step;
    };
  };
  const auto parts = [](double injected, double backward, double noise = 0.003) {
    return [=](const Case&) {
      return MadeUpStep{.step_s = 0.1,
                        .noise = noise,
                        .phase_s = {{"injected", injected}, {"backward", backward}}};
    };
  };
  const auto waiting = [](double share) {
    return [=](const Case& what) {
      const bool waits = what.workload.config.data.io_delay_ms > 0;
      return MadeUpStep{
          .step_s = waits ? 0.01 / share : 0.01 / share - 0.01,
          .phase_s = {{"injected", waits ? 0.01 : 0}, {"forward", 0.01 / share - 0.01}}};
    };
  };
  const auto loading = [](double per_worker, double pageable, double noise = 0.003) {
    return [=](const Case& what) {
      const double workers = what.workload.config.data.workers == 0 ? 1 : per_worker;
      const bool pinned = !what.key.ends_with("-pageable");
      return MadeUpStep{.step_s = 0.01 * workers * (pinned ? 1 : pageable), .noise = noise};
    };
  };
  const auto with_loss = [](double loss) {
    return [=](const Case&) { return MadeUpStep{.step_s = 1, .loss = loss}; };
  };
  return {
      {"batch-sweep.growth", sweep(0, 1e-3), "in proportion to the batch", sweep(0.05, 1e-5),
       "not proportional; 50.0 ms (49.9 ms to 50.1 ms) of each step does", sweep(0.0022, 1e-3, 0.2),
       "whether growth is proportional is unclear"},
      {"batch-sweep.saturation", sweep(0.01, 1e-3), "saturates at batch 64:", sweep(0.01, 0),
       "does not saturate up to batch 512",
       by_batch([](double batch) { return 1e-3 * std::pow(batch, 0.9); }, 0.2),
       "Whether throughput saturates up to batch 512"},
      {"batch-sweep.saturation", sweep(0, 1e-3), "saturates at batch 16:",
       by_batch([](double batch) { return batch < 64 ? 0.01 : 0.01 * batch / 64 * 2 / 1.1; }, 0.02),
       "saturates between batch 32 and 64"},
      {"batch-sweep.linear", sweep(1, 0), "grows linearly, within a tenth", sweep(0, 1),
       "does not grow linearly"},
      {"batch-sweep.efficiency-why", sweep(1, 0), "is shared by more samples", sweep(0, 1),
       "a larger one gains nothing", sweep(0, 1, 0.1), "unclear here"},
      {"batch-sweep.loss", with_loss(1.01), "A loss near 1 is right: the last loss is 1.010",
       with_loss(3), "The loss is not near 1: the last loss is 3.000"},
      {"io-delay.hidden", disk(0), "1 worker hides the disk: a step takes 1.00x", disk(0.01),
       "No number of workers here hides the disk", disk(0.0001, 0.2),
       "Whether workers hide the disk is unclear"},
      {"io-delay.hidden", bursts(4.45e-3), "No number of workers here hides the disk",
       bursts(1.85e-3), "1 worker hides the disk: a step takes 1.00x"},
      {"io-delay.bottleneck", parts(0.09, 0.01), "bottleneck is the injected delay: 90.0 %",
       parts(0.01, 0.09), "bottleneck is backward: 90.", parts(0.05, 0.05, 0.2),
       "the largest parts of a step are"},
      {"io-delay.bottleneck", parts(0.0505, 0.02, 0.001), "bottleneck is the injected delay: 50.",
       parts(0.048, 0.02), "no part is more than half; the largest is the injected delay: 48.",
       parts(0.05, 0.02), "the largest part, perhaps more than half, is the injected"},
      {"io-delay.utilization", waiting(0.5), "not fully used: it computes during 50", waiting(0.05),
       "nearly fully used: it computes during 95"},
      {"io-delay.free-computing", waiting(0.5), "less than the 3.33x", waiting(0.1),
       "more than the 3.33x"},
      {"data-loading.workers", loading(0.5, 1), "workers-1 is 2.00x", loading(1, 1),
       "No number of workers is measurably faster than none", loading(1, 1, 0.1),
       "No number of workers is measurably faster"},
      {"data-loading.pinned", loading(1, 1.5), "makes a step faster: workers-0 1.50x",
       loading(1, 0.5), "makes a step slower: workers-0 2.00x", loading(1, 1, 0.1),
       "faster or slower is unclear", true},
      {"data-loading.pinned",
       loading(1, 1.5),
       "makes a step faster",
       loading(1, 1),
       "no difference beyond 5 %",
       {},
       "",
       true}};
}

std::vector<Opposites> of_devices() {
  const auto layers = [](double deep, double adam, double noise = 0.003) {
    return by_key([=](const std::string& key) {
      return MadeUpStep{.step_s = key == "depth-24" ? deep : 0.1,
                        .noise = noise,
                        .phase_s = {{"optimizer", key == "devices-2" ? adam : 0.02}}};
    });
  };
  const auto device_0 = [](double loss, double noise = 0.003) {
    return [=](const Case&) {
      return MadeUpStep{
          .step_s = 0.1, .noise = noise, .phase_s = {{"loss", loss}, {"communication", 0.01}}};
    };
  };
  const auto loaded = [](double first, double others, double update = 0, double exchange = 0) {
    return [=](const Case& what) {
      MadeUpStep step{.step_s = 0.1,
                      .phase_s = {{"optimizer", update}, {"communication", exchange}}};
      for (int device = 0; device < what.workload.ranks; ++device) {
        step.ops.push_back({"gemm", "forward", "net.0", device == 0 ? first : others, device});
      }
      return step;
    };
  };
  const auto varies = [](const std::string& who) {
    return by_key([=](const std::string& key) {
      return MadeUpStep{.step_s = 0.1, .burst_s = key == who ? 0.2 : 0};
    });
  };
  const auto stalls = [](const std::string& who) {
    return by_key([=](const std::string& key) {
      return MadeUpStep{.step_s = 0.02, .burst_s = key == who ? 0.03 : 0.02};
    });
  };
  return {
      // One of ten steps is longer: the medians agree, the means differ.
      {"data-parallel.gain", stalls("devices-2"), kSaysSlower, stalls("devices-1"), kSaysFaster,
       stalls("none"), "no difference beyond the margin"},
      {"model-parallel.depth", layers(0.6, 0.01), "more than in proportion", layers(0.3, 0.01),
       "less than in proportion"},
      {"model-parallel.update", layers(0.4, 0.01), "which saves time", layers(0.4, 0.04),
       "which costs time", layers(0.4, 0.02, 0.2), "so it is unclear"},
      {"gpu0-bottleneck.devices-2", device_0(0.08), "device 0 is the bottleneck", device_0(0.001),
       "device 0 is not the bottleneck", device_0(0.04, 0.1), "more than half of it is unclear"},
      {"gpu0-bottleneck.load", loaded(0.06, 0.02),
       "is more loaded than the others: it is busy for "
       "60.0 ms (59.9 ms to 60.2 ms) in a step, 3.00x",
       loaded(0.02, 0.04), "is less loaded than the others: it is busy for 20.0 ms"},
      {"gpu0-bottleneck.equal", loaded(0.06, 0.02), "not used equally: they compute during 60.0 %",
       loaded(0.04, 0.04), "used equally, within a tenth"},
      {"gpu0-bottleneck.where", loaded(0.06, 0.02, 0.03, 0.01), "is the update: 30.0 %",
       loaded(0.06, 0.02, 0.01, 0.03), "is the exchange of parameters, rows and gradients"},
      {"gpu0-bottleneck.where", loaded(0.06, 0.02), "bottleneck is at device 0", loaded(0.02, 0.06),
       "bottleneck is not what device 0 computes"},
      {"dp-vs-ddp.variance", varies("data-parallel"), "DDP's steps vary less", varies("ddp"),
       "DataParallel's steps vary less", varies("none"), "Which step times vary less"},
      {"dp-vs-ddp.acceptable", takes("ddp", 2), "acceptable here, for one", takes("ddp", 0.5),
       "not acceptable for speed", takes("ddp", 1, 0.2), "is unclear"},
      {"dp-vs-ddp.acceptable", takes("ddp", 2), "acceptable here, for one", takes("ddp", 1),
       "Where speed decides, both are"},
      {"two-splits.layers-32-computing", loaded(0.02, 0.06), "device 0 computes during 20.0",
       loaded(0.06, 0.02), "device 0 computes during 60.0"}};
}

std::vector<Opposites> of_ranks() {
  const auto paused = [](double one, double two, double noise = 0.0001, double of_pause = 1) {
    return [=](const Case& what) {
      const double pause = 1e-3 * what.workload.config.injected.delay_ms;
      const bool is_one = what.workload.ranks == 1;
      return MadeUpStep{.step_s = (is_one ? one : two) + pause * (is_one ? 1 : of_pause),
                        .noise = noise};
    };
  };
  const auto waits = [](double first_s, double second_s) {
    return [=](const Case& what) {
      const bool slow = what.key == "slow-rank-0";
      const auto rank = [&](double reduce_s) {
        return MadeUpStep{.step_s = slow ? 0.03 : 0.01,
                          .phase_s = {{"communication", 1e-3 + (slow ? reduce_s : 0.0)}}};
      };
      MadeUpStep first = rank(first_s);
      first.other_ranks = {rank(second_s)};
      return first;
    };
  };
  const auto exposed = [](const std::string& more, double noise = 0.003) {
    return by_key([=](const std::string& key) {
      return MadeUpStep{.step_s = 0.1,
                        .noise = noise,
                        .phase_s = {{"communication", key.starts_with(more) ? 0.04 : 0.01}}};
    });
  };
  const auto bits = [](const char* of_two, const char* of_zero1) {
    return by_key([=](const std::string& key) {
      return MadeUpStep{.step_s = 0.1,
                        .weights_hash = key == "ddp-reproducible-2" ? of_two
                                        : key.starts_with("zero1-") ? of_zero1
                                        : key.starts_with("ddp-r")  ? "a"
                                                                    : key};
    });
  };
  const auto bubble = [](double share) {
    return [=](const Case& what) {
      MadeUpStep step{.step_s = 0.1, .noise = 0.0001, .phase_s = {{"other_stages", 0.1 * share}}};
      step.other_ranks.resize(static_cast<std::size_t>(what.workload.ranks) - 1, step);
      return step;
    };
  };
  const auto losses = [](double loss, std::int64_t skipped = 0) {
    return [=](const Case& what) {
      const bool is_other =
          what.key != "naive" && what.key != "ddp" && !what.key.starts_with("accumulate");
      return MadeUpStep{.step_s = 0.1, .loss = is_other ? loss : 1, .skipped = skipped};
    };
  };
  /// Steps of 50 ms, with so much more for each bucket, and for each layer in the last one, of
  /// twelve layers.
  const auto by_buckets = [](double bucket_s, double layer_s, double noise = 1e-5) {
    return [=](const Case& what) {
      const double layers = std::stod(what.key.substr(what.key.find('-') + 1));
      return MadeUpStep{.step_s = 0.05 + bucket_s * 12 / layers + layer_s * layers, .noise = noise};
    };
  };
  return {
      // With steps much longer than the pause, the loss is nearly linear.
      {"delay.linear", paused(0.02, 0.01), "is not linear", paused(1, 0.5, 1e-5), "is linear",
       paused(0.2, 0.1, 0.05), "Whether a pause costs speed-up is unclear"},
      {"delay.linear", paused(0.02, 0.01, 0.006), "is not linear", paused(0.02, 0.04),
       "There was no speed-up to lose: without a pause it is 0.", paused(0.2, 0.1, 0.006),
       "Whether the loss is linear is unclear"},
      {"delay.law", paused(0.1, 0.05, 0.003), "holds within a tenth", paused(0.1, 0.05, 0.003, 5),
       "does not hold here"},
      {"imbalance.waiting", waits(-5e-4, 0.02), "Rank 1 waits for rank 0", waits(0.02, 0),
       "Rank 0 waits for rank 1", waits(0.02, 0.02), "Whether one rank waits for the other"},
      {"no-sync.exposed", exposed("each-8"), "more communication is exposed: 40.0 ms",
       exposed("once-8"), "less communication is exposed: 10.0 ms", exposed("none", 0.2),
       "exposes more communication is unclear"},
      {"same-bits.ddp-reproducible", bits("a", "a"), "1, 2 and 4 ranks end with the same weights",
       bits("b", "a"), "1, 2 and 4 ranks end with 2 different sets of weights"},
      {"same-bits.schemes", bits("a", "a"), "have the same weights", bits("a", "b"),
       "have different weights"},
      {"pipeline.bubble", bubble(0.3), "wait longer than equal stages would, 11.1 %", bubble(0.05),
       "wait less than equal stages would, 11.1 %", bubble(1.0 / 9), "wait about as long as"},
      {"pipeline.losses", losses(1.000001), "does not change the losses", losses(1.1),
       "changes the losses"},
      {"ddp-amp.stability", losses(1),
       "0 of 60 steps in fp16 overflowed and were skipped; losses "
       "differ from fp32's by a share of 0 at most.",
       losses(1.01, 1),
       "5 of 60 steps in fp16 overflowed and were skipped; losses differ from fp32's by a share of "
       "1.0e-02 at most."},
      {"bucket-model.latency", by_buckets(2e-3, 4e-3), "Each bucket costs 2.0",
       by_buckets(-2e-3, 4e-3), "each changes it by -2.0", by_buckets(0, 4e-3, 0.2), "Whether"},
      {"bucket-model.last-bucket", by_buckets(1e-3, 4e-3), "Nothing hides the last bucket",
       by_buckets(1e-3, -4e-3), "does not cost time here", by_buckets(1e-3, 0, 0.2), "Whether"},
      {"bucket-model.best", by_buckets(1e-3, 4e-3), "By the model 6.93 buckets of 6.9",
       by_buckets(-1e-3, 4e-3), "names no best size; fastest measured: 12 buckets.",
       by_buckets(0, 4e-3, 0.2), "names no best size"}};
}

std::vector<Opposites> of_one_step() {
  const auto profile = [](double forward, double backward, double layer_1, double noise = 0.003,
                          double queued_s = 0) {
    return [=](const Case&) {
      MadeUpStep step{.step_s = 0.01,
                      .noise = noise,
                      .queued_s = queued_s,
                      .ops = {{"adam", "optimizer", "", 0.001}}};
      for (int layer = 0; layer < 6; ++layer) {
        const double times = layer == 1 ? layer_1 : 1;
        const std::string block = "net." + std::to_string(2 * layer);
        step.ops.push_back({"gemm", "forward", block, forward / 6 * times});
        step.ops.push_back({"gemm", "backward", block, backward / 6 * times});
      }
      return step;
    };
  };
  const auto region = [](double forward, double backward, double relu) {
    return [=](const Case&) {
      return MadeUpStep{.step_s = 1,
                        .ops = {{"gemm", "forward", "net.0", forward},
                                {"gemm", "backward", "net.0", backward},
                                {"bias_relu", "forward", "net.0", relu},
                                {"adam", "optimizer", "", 9}}};
    };
  };
  const auto first_steps = [](double first, double noise = 0.003) {
    return [=](const Case&) {
      return MadeUpStep{
          .step_s = 0.01, .noise = noise, .phase_s = {{"forward", 0.004}}, .first_s = {first}};
    };
  };
  const auto reasons = [](double forward, double data) {
    return [=](const Case&) {
      return MadeUpStep{.step_s = 0.01,
                        .phase_s = {{"forward", 0.004}, {"data", 0.001}},
                        .first_s = {0.03},
                        .first_phase_s = {{"forward", forward}, {"data", data}}};
    };
  };
  const auto seeds = [](const char* again, const char* other) {
    return by_key([=](const std::string& key) {
      return MadeUpStep{.step_s = 0.01,
                        .weights_hash = key == "seed-0-again" ? again
                                        : key == "seed-1"     ? other
                                                              : "a"};
    });
  };
  /// Products of a millisecond for each layer; those of cases whose key has `part` take `times` as
  /// long.
  const auto products = [](const std::string& part, double times, double noise = 0.003) {
    return [=](const Case& what) {
      const double seconds = what.key.find(part) == std::string::npos ? 1e-3 : 1e-3 * times;
      return MadeUpStep{
          .step_s = 0.1,
          .noise = noise,
          .ops = {{"gemm", "forward", "net.0", seconds}, {"gemm", "backward", "net.0", seconds}}};
    };
  };
  const auto rows = [](double times) {
    return [=](const Case& what) {
      const double seconds = what.workload.batch_size() > 1 ? 1e-3 * times : 1e-3;
      return MadeUpStep{.step_s = 0.1, .ops = {{"gemm", "forward", "net.0", seconds}}};
    };
  };
  return {{"profile.backward", profile(0.002, 0.004, 1), "takes 2.00x", profile(0.004, 0.002, 1),
           "is shorter than forward, 0.50x", profile(0.002, 0.002, 1, 0.1), kSaysTie},
          {"profile.longest", profile(0.002, 0.004, 5), "The longest op is gemm, backward of net.2",
           profile(0.0002, 0.0004, 1), "The longest op is adam, optimizer",
           profile(0.02, 0.02, 1, 0.1), "The longest ops are"},
          {"profile.layers", profile(0.002, 0.004, 50), "What stands out: net.2 with 90.",
           profile(0.002, 0.004, 1), "No layer takes 30 % more than",
           profile(0.002, 0.004, 1.38, 0.1), "Whether a layer stands out is unclear: net.2"},
          {"profile.clock", profile(1e-3, 1e-3, 1, 0.003, 0.0001), "It shows 1.0 %",
           profile(1e-3, 1e-3, 1, 0.003, 0.0099), "Here it is nearly right",
           profile(1e-3, 1e-3, 1, 0.1, 0.008), "How wrong it is remains unclear"},
          {"profile.most", region(1, 2, 0.1), "aten::mm takes most: 64.", region(1, 1, 9),
           "aten::relu takes most: 81.", region(1, 1, 0.1), "are indistinguishable"},
          {"profile.most-why", region(2, 1, 0.1), "takes longer although it has fewer",
           region(1, 1, 9), "aten::relu computes less than either"},
          {"warmup.first-step", first_steps(0.03), "takes 3.00x", first_steps(0.01),
           "is not slower than others by more than 10 %", first_steps(0.0109, 0.2), "Whether"},
          {"warmup.first-step", reasons(0.02, 0.002), "Most of the extra time is forward",
           reasons(0.01, 0.018), "Most of the extra time is waiting for data",
           reasons(0.004, 0.001), "Which part of the extra time is largest is unclear"},
          {"warmup.first-step", reasons(0.02, 0.002), "Most of the extra time is forward",
           reasons(0.0135, 0.009), "The largest part of the extra time is forward"},
          {"reproducibility.same-seed", seeds("a", "b"), "repeats to the bit", seeds("c", "b"),
           "does not repeat"},
          {"reproducibility.other-seed", seeds("a", "b"), "gives other losses", seeds("a", "a"),
           "the seed has no effect"},
          {"matmul.bf16-1024", products("bf16", 0.5), kSaysFaster, products("bf16", 2), kSaysSlower,
           products("bf16", 1, 0.2), kSaysTie},
          {"matmul.fp32-64-of-one-thread", products("threads-1", 4), kSaysFaster,
           products("threads-1", 0.5), kSaysSlower},
          // Two products of 64 x 1024 x 1024, or of 1024 rows, and the bias and activation of each.
          {"matmul.highest", products("fp32-1024-threads-1", 0.01), "fp32-1024-threads-1, 4",
           products("fp16-64-threads-1", 0.001), "fp16-64-threads-1, 26"},
          {"matmul.rows", rows(1), "by less than in proportion to its rows: 64 rows take 1.00x",
           rows(64), "in proportion to its rows, within a tenth: 64 rows take 64.00x"}};
}

Watched host(double busy, double mib, double mhz) {
  return {
      .source = "host",
      .gauges = {
          {"own_percent", {busy, busy}}, {"resident_mib", {mib, mib}}, {"clock_mhz", {2000, mhz}}}};
}

std::vector<Opposites> of_the_machine() {
  /// A monitor's readings at the smallest batch and at the others.
  const auto watched = [](const Watched& small, const Watched& large, double noise = 0.003) {
    return [=](const Case& what) {
      return MadeUpStep{.step_s = 0.1,
                        .noise = noise,
                        .watched = {what.workload.batch_size() == 16 ? small : large}};
    };
  };
  const auto busy = [=](double small, double large, double noise = 0.003) {
    return watched(host(small, 100, 2000), host(large, 100, 2000), noise);
  };
  const auto memory = [=](double small, double large, double noise = 0.003) {
    return watched(host(50, small, 2000), host(50, large, 2000), noise);
  };
  const auto energy = [](double joules) {
    Watched of = host(90, 100, 2000);
    of.energy_j_per_sample = joules;
    return of;
  };
  Watched marked = host(90, 100, 2000);
  marked.marks = {"cuda:0 was held back: power"};
  const auto side_by_side = [](double first_loss, double later_loss = 0) {
    return by_key([=](const std::string& key) {
      const bool is_ours = key.ends_with("-ours");
      return MadeUpStep{
          .step_s = 0.1, .loss = is_ours ? 1 : first_loss, .later_loss = is_ours ? 0 : later_loss};
    });
  };
  const auto answers = [](std::int64_t changed) {
    return [=](const Case&) {
      return MadeUpStep{.step_s = 0.1,
                        .evaluated = {{.precision = "fp32",
                                       .samples = 4096,
                                       .accuracy = 0.9,
                                       .weight_bytes = std::int64_t{4} << 20},
                                      {.precision = "int8",
                                       .samples = 4096,
                                       .accuracy = 0.895,
                                       .changed = changed,
                                       .weight_bytes = std::int64_t{1} << 20}}};
    };
  };
  return {
      {"monitor.busy", busy(40, 95),
       "keeps the cores busier: 40 % (40 % to 40 %) at batch 16, 95 % (95 % to 95 %) at batch 256. "
       "At batch 256 less than 10 % of the time is idle.",
       busy(60, 62), "does not keep the cores busier by 10 percentage points or more",
       busy(50, 60, 0.1), "Whether a larger batch keeps the cores busier"},
      {"monitor.busy", busy(60, 62), "At batch 256 38 % of the time is idle.", watched({}, {}),
       "How busy the cores were cannot be measured here."},
      {"monitor.memory", memory(100, 103), "grows with the batch", memory(103, 100),
       "is less with a larger batch", memory(100, 101, 0.1), "Whether memory depends on the batch"},
      {"monitor.memory", memory(100, 300), "grows with the batch", memory(300, 301),
       "hardly depends on the batch"},
      {"monitor.clock", busy(40, 95), "was steady: 2000 MHz",
       watched(host(60, 300, 2000), host(62, 301, 3000)),
       "changed between 2000 and 3000 MHz, so times measured at different moments may differ by "
       "50.0 %"},
      {"monitor.energy", watched(energy(0.001), energy(0.004)), ": batch 16, 1.00 mJ.",
       watched(energy(0.004), energy(0.001)),
       ": undecided among batch 64, 1.00 mJ and batch 256, 1.00 mJ",
       watched(energy(0.001), energy(0.001), 0.1), ": undecided among "},
      {"monitor.mark", watched(marked, marked), "with care: cuda:0 was held back: power.",
       busy(40, 95), ""},
      {"affinity.binding", takes("compact", 0.8), "saves time here.", takes("half-spread", 1.5),
       "costs time here.", takes("compact", 1, 0.2), "is unclear."},
      {"affinity.binding", takes("compact", 0.8), "saves time here.", takes("compact", 1),
       "makes no difference beyond 5 % here."},
      {"precision.claim", takes("fp16-512", 0.4), "is reached here: fp16 at a batch of 512, 2.50x",
       takes("bf16-64", 0.8), "is not reached here: at most bf16 at a batch of 64, 1.25x",
       takes("bf16-512", 0.5, 0.2), "is reached here is unclear: bf16"},
      {"attention.claim", takes("standard-8192", 3),
       "is reached here: flash attention at a length "
       "of 8,192, 3.00x",
       takes("standard-512", 1.5),
       "is not reached here: at most flash attention "
       "at a length of 512, 1.50x",
       takes("standard-512", 2, 0.2), "is unclear: flash attention"},
      {"memory.claim", takes("recompute", 1.5), "costs more than the claimed 30 %: 1.50x",
       takes("recompute", 1.1), "costs less than the claimed 30 %: 1.10x",
       takes("recompute", 1.3, 0.2), "Whether recomputation costs more or less"},
      {"int8.answers", answers(1),
       "1 of 4,096 answers changes; the accuracy is 89.50 % instead of "
       "90.00 %",
       answers(7), "7 of 4,096 answers change;"},
      {"int8.answers", answers(1), "A batch reads 1.00 MiB of weights instead of 4.00 MiB.",
       takes("none", 1), "was not reported."},
      {"pytorch.same-model", side_by_side(1 + 1e-7), "their losses agree step by step",
       side_by_side(1.01), "they do not train the same model"},
      {"pytorch.same-model", side_by_side(1, 1 + 3e-5),
       "losses of the first 3 steps agree. Rounding "
       "then grows from step to step, to 3.0e-05 of a loss",
       side_by_side(1.01, 1), "they do not train the same model"}};
}

}  // namespace

std::vector<Opposites> opposites() {
  std::vector<Opposites> all = words();
  for (std::vector<Opposites> more : std::vector{fastest(), of_scaling(), of_data(), of_devices(),
                                                 of_ranks(), of_one_step(), of_the_machine()}) {
    std::ranges::move(more, std::back_inserter(all));
  }
  return all;
}

}  // namespace barestep
