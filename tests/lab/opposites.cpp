#include "lab/opposites.h"

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
           {"dp-vs-ddp.acceptable", "ddp"},
           {"model-parallel.devices-2", "devices-2"},
           {"two-splits.batch-64", "batch-64"},
           {"two-splits.layers-64", "layers-64"},
           {"two-splits.layers-against-batch", "layers-64"},
           {"two-splits.layers-32", "layers-32"},
           {"sharding.factor", "factor"},
           {"sharding.tensor", "tensor"},
           {"sharding.more-servers", "all-serve"},
           {"sharding.layers-shared", "tensor"},
           {"local-sgd.late-1", "late-1"},
           {"local-sgd.every-32", "every-32"},
           {"network.ddp", "ddp"},
           {"network.factor", "factor"},
           {"network.every-8", "every-8"},
           {"ddp-ladder.flat", "flat"},
           {"ddp-ladder.overlapped", "overlapped"},
           {"ddp-ladder.buckets", "buckets"},
           {"no-sync.once-8", "once-8"},
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
           {"attention.flash-2048", "flash-2048"},
           {"attention.flash", "flash"},
           {"pytorch.single-ours", "single-ours"},
           {"pytorch.ddp-ours", "ddp-ours"},
           {"io-delay.throughput", "workers-0"},
           {"io-delay.workers", "no-delay-loaded"},
           {"batch-sweep.efficiency", "batch-128"}}) {
    all.push_back(word_of_case(finding, key));
  }
  // Of samples, of which these cases have so many times more.
  for (Opposites& each : all) {
    for (const auto& [finding, key, times] :
         {std::tuple{"ddp-amp.accumulation", "accumulate-4", 4.0},
          {"ddp-amp.more-in-fp16", "both-32", 8.0},
          {"batch-sweep.efficiency", "batch-128", 4.0}}) {
      if (each.finding != finding) continue;
      each.one = takes(key, times / 2);
      each.other = takes(key, times * 2);
      each.tie = takes(key, times, 0.2);
    }
  }
  return all;
}

/// A figure on either side of a border, and one whose interval has it within.
Opposites sides(const std::string& finding, const HowCasesWent& above, const HowCasesWent& below,
                const HowCasesWent& open = {}) {
  return {finding, above, "above", below, "below", open, "open"};
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
  add("network", "factor", "every-8");
  add("pipeline", "1f1b-8", "gpipe-8");
  add("strong-scaling", "ranks-4", "ranks-1", "4 ranks", "1 rank");
  add("hybrid", "2x2-batch-64-micro-8", "2x2-batch-64-micro-2", "8 micro-batches",
      "2 micro-batches");
  add("ddp-ladder", "buckets-12", "flat", "buckets of 12 MiB during backward",
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
  const HowCasesWent near_80 = by_ranks([](int ranks) {
    return MadeUpStep{.step_s = ranks == 1 ? 0.1 : 0.125 / ranks, .noise = 0.1};
  });
  const HowCasesWent both_parts = [](const Case&) {
    return MadeUpStep{
        .step_s = 0.1, .noise = 0.1, .phase_s = {{"communication", 0.04}, {"forward", 0.04}}};
  };
  const HowCasesWent some = [](const Case&) {
    return MadeUpStep{.step_s = 0.1, .noise = 0.1, .phase_s = {{"communication", 0.01}}};
  };
  return {{"amdahl.serial",
           by_ranks([](int ranks) { return MadeUpStep{.step_s = 0.03 + 0.07 / ranks}; }),
           "the limit for any number of ranks is 3.33x", by_ranks(communicating),
           "No serial fraction below 1 fits", even, "Whether a serial fraction below 1 fits"},
          sides("strong-scaling.efficiency", by_ranks(divided), by_ranks(communicating), near_80),
          sides("strong-scaling.linear", on_ranks(0.1, 0.025), on_ranks(0.1, 0.2)),
          sides("data-parallel.proportion", on_ranks(0.1, 0.05), on_ranks(0.1, 0.11)),
          sides("comm-vs-compute.gains", models(0.5, 1.8), models(1.8, 0.5), models(1, 1, 0.1)),
          {"comm-vs-compute.small", models(0.5, 1.8), "bottleneck is exposed communication: 75.",
           models(1.8, 1.8), "bottleneck is computing: 72.", both_parts,
           "the largest parts of a step of 4 ranks are"},
          {"batch-scaling.pays", pays(100), "pay off from a batch of 128 on; at 64 they are slower",
           pays(1000), "are slower than one up to a batch of 256", pays(256, 0.1),
           "are not measurably faster than one"},
          {"batch-scaling.pays", pays(16), "from a batch of 32 on, the smallest here", pays(100),
           "from a batch of 128", pays(64, 0.1), "at 64 they may or may not"},
          sides("batch-scaling.exposed", exposed(0.05), exposed(0.001), some),
          sides("batch-scaling.improves", gaining(1, 2), gaining(2, 1))};
}

std::vector<Opposites> of_data() {
  const auto sweep = [](double fixed_s, double of_sample_s, double noise = 0.003) {
    return by_batch([=](double batch) { return fixed_s + of_sample_s * batch; }, noise);
  };
  const auto disk = [](double hidden_s, double noise = 0.003) {
    return [=](const Case& what) {
      const bool inside = what.key == "workers-0";
      const double delay_s = what.key.starts_with("no-delay") ? 0 : inside ? 0.01 : hidden_s;
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
      if (what.key.starts_with("no-delay")) return step;
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
  const auto with_loss = [](double loss) {
    return [=](const Case&) { return MadeUpStep{.step_s = 1, .loss = loss}; };
  };
  return {
      {"batch-sweep.growth", sweep(0.05, 1e-5), "above", sweep(0, 1e-3), "below"},
      {"batch-sweep.saturation", sweep(0.01, 1e-3), "saturates at batch 64:", sweep(0.01, 0),
       "does not saturate up to batch 512",
       by_batch([](double batch) { return 1e-3 * std::pow(batch, 0.9); }, 0.2),
       "Whether throughput saturates up to batch 512"},
      {"batch-sweep.saturation", sweep(0, 1e-3), "saturates at batch 16:",
       by_batch([](double batch) { return batch < 64 ? 0.01 : 0.01 * batch / 64 * 2 / 1.1; }, 0.02),
       "saturates between batch 32 and 64"},
      sides("batch-sweep.linear", sweep(1, 0), sweep(0, 1)),
      {"batch-sweep.efficiency-why", sweep(1, 0), "is shared by more samples", sweep(0, 1),
       "a larger one gains nothing", sweep(0, 1, 0.1), "unclear here"},
      {"batch-sweep.loss", with_loss(1.01), "A loss near 1 is right: the last loss is 1.010",
       with_loss(3), "The loss is not near 1: the last loss is 3.000"},
      sides("io-delay.hidden", disk(0.01), disk(0), disk(0.0001, 0.2)),
      sides("io-delay.hidden", bursts(4.45e-3), bursts(1.85e-3)),
      {"io-delay.bottleneck", parts(0.09, 0.01), "bottleneck is the injected delay: 90.0 %",
       parts(0.01, 0.09), "bottleneck is backward: 90.", parts(0.05, 0.05, 0.2),
       "the largest parts of a step are"},
      {"io-delay.bottleneck", parts(0.0505, 0.02, 0.001), "bottleneck is the injected delay: 50.",
       parts(0.048, 0.02), "no part is more than half; the largest is the injected delay: 48.",
       parts(0.05, 0.02), "the largest part, perhaps more than half, is the injected"},
      sides("io-delay.utilization", waiting(0.05), waiting(0.5)),
      sides("io-delay.free-computing", waiting(0.5), waiting(0.1))};
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
      sides("model-parallel.depth", layers(0.6, 0.01), layers(0.3, 0.01)),
      sides("model-parallel.update", layers(0.4, 0.01), layers(0.4, 0.04), layers(0.4, 0.02, 0.2)),
      sides("data-parallel.alone-devices-2", device_0(0.08), device_0(0.001), device_0(0.04, 0.1)),
      sides("data-parallel.load", loaded(0.06, 0.02), loaded(0.02, 0.04)),
      sides("data-parallel.where", loaded(0.06, 0.02), loaded(0.02, 0.06)),
      {"data-parallel.equal", loaded(0.06, 0.02), "not used equally: they compute during 60.0 %",
       loaded(0.04, 0.04), "used equally, within a tenth"},
      sides("dp-vs-ddp.variance", varies("data-parallel"), varies("ddp"), varies("none")),
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
  const auto bubble_of = [](const std::string& schedule, double share) {
    return [=](const Case& what) {
      const double waits_s = 0.1 * (what.key.starts_with(schedule) ? share : 0.1);
      MadeUpStep step{.step_s = 0.1, .noise = 0.0001, .phase_s = {{"other_stages", waits_s}}};
      step.other_ranks.resize(static_cast<std::size_t>(what.workload.ranks) - 1, step);
      return step;
    };
  };
  const auto bubble = [=](double share) { return bubble_of("", share); };
  const auto losses = [](double loss, std::int64_t skipped = 0) {
    return [=](const Case& what) {
      const bool is_other =
          what.key != "naive" && what.key != "ddp" && !what.key.starts_with("accumulate");
      return MadeUpStep{.step_s = 0.1, .loss = is_other ? loss : 1, .skipped = skipped};
    };
  };
  return {
      // With steps much longer than the pause, the loss is nearly linear.
      {"delay.linear", paused(0.02, 0.01), "above", paused(1, 0.5, 1e-5), "below",
       paused(0.2, 0.1, 0.006), "open"},
      {"delay.linear", paused(0.02, 0.01, 0.006), "above", paused(0.02, 0.04),
       "No loss of speed-up is seen: without a pause it is 0."},
      sides("delay.law", paused(0.1, 0.05, 0.003, 5), paused(0.1, 0.05, 0.003)),
      {"imbalance.waiting", waits(-5e-4, 0.02), "Rank 1 waits for rank 0", waits(0.02, 0),
       "Rank 0 waits for rank 1", waits(0.02, 0.02), "Whether one rank waits for the other"},
      sides("no-sync.exposed", exposed("each-8"), exposed("once-8"), exposed("none", 0.2)),
      sides("pipeline.bubble", bubble(0.3), bubble(0.05), bubble(1.0 / 9)),
      sides("pipeline.bubbles", bubble_of("1f1b", 0.3), bubble_of("gpipe", 0.3), bubble(0.2)),
      {"pipeline.losses", losses(1.000001), "does not change the losses", losses(1.1),
       "changes the losses"},
      {"ddp-amp.stability", losses(1),
       "0 of 60 steps in fp16 overflowed and were skipped; losses differ from fp32's by a share of "
       "0 at most.",
       losses(1.01, 1),
       "5 of 60 steps in fp16 overflowed and were skipped; losses differ from fp32's by a share of "
       "1.0e-02 at most."}};
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
  return {
      sides("profile.backward", profile(0.002, 0.004, 1), profile(0.004, 0.002, 1),
            profile(0.002, 0.002, 1, 0.1)),
      {"profile.longest", profile(0.002, 0.004, 5), "The longest op: gemm, backward of net.2",
       profile(0.0002, 0.0004, 1), "The longest op: adam, optimizer", profile(0.02, 0.02, 1, 0.1),
       "indistinguishable"},
      {"profile.layers", profile(0.002, 0.004, 50), "What stands out: net.2 with 90.",
       profile(0.002, 0.004, 1), "No layer takes 30 % more than", profile(0.002, 0.004, 1.38, 0.1),
       "Whether a layer stands out is unclear: net.2"},
      sides("profile.clock", profile(1e-3, 1e-3, 1, 0.003, 0.0099),
            profile(1e-3, 1e-3, 1, 0.003, 0.0001), profile(1e-3, 1e-3, 1, 0.1, 0.008)),
      {"profile.most", region(1, 2, 0.1), "Takes most: aten::mm, 64.", region(1, 1, 9),
       "Takes most: aten::relu, 81.", region(1, 1, 0.1), "are indistinguishable"},
      {"profile.most-why", region(2, 1, 0.1), "takes long although it has fewer", region(1, 1, 9),
       "aten::relu computes less than products"},
      sides("warmup.first-step", first_steps(0.03), first_steps(0.01), first_steps(0.0109, 0.2)),
      {"warmup.first-step-why", reasons(0.02, 0.002), "Most of the extra time is forward",
       reasons(0.01, 0.018), "Most of the extra time is waiting for data", reasons(0.004, 0.001),
       "Which part of the extra time is largest is unclear"},
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
      sides("matmul.rows", rows(64), rows(1))};
}

Watched host(double busy, double mib, double mhz) {
  return {.source = "host",
          .gauges = {{"own_percent", {busy, busy, busy}},
                     {"resident_mib", {mib, mib, mib}},
                     {"clock_mhz", {2000, 2000, mhz}}}};
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
  /// Whether a flip is found by those who verify, and by which share it changes the loss.
  const auto flips = [](double found, double change) {
    return [=](const Case&) {
      const auto flip = [&](double bit, double norm) {
        return Watched{.gauges = {{"bit", {bit, bit, bit}},
                                  {"every", {found, found, found}},
                                  {"norm", {norm, norm, norm}},
                                  {"change", {change, change, change}}}};
      };
      return MadeUpStep{.step_s = 0.1, .watched = {flip(3, 0), flip(30, 1 - found)}};
    };
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
  return {
      sides("monitor.busy", busy(40, 95), busy(60, 62), busy(50, 60, 0.1)),
      {"monitor.busy", busy(60, 62), "below", watched({}, {}), "cannot be read here."},
      sides("monitor.memory", memory(100, 103), memory(103, 100), memory(100, 101, 0.1)),
      {"monitor.energy", watched(energy(0.001), energy(0.004)), ": batch 16, 1.00 mJ.",
       watched(energy(0.004), energy(0.001)),
       ": undecided among batch 64, 1.00 mJ and batch 256, 1.00 mJ",
       watched(energy(0.001), energy(0.001), 0.1), ": undecided among "},
      {"bit-flips.verified", flips(1, 0), "--verify-every 1 finds 100 % of", flips(0, 0),
       "--verify-every 1 finds 0 % of"},
      {"bit-flips.others", flips(1, 0), "The norm of the gradients finds 0 %", flips(0, 0),
       "The norm of the gradients finds 50 %"},
      {"bit-flips.harmless", flips(1, 0), "100 % have changed the loss by less", flips(1, 2),
       "1 %, and 100 % have doubled it"},
      {"monitor.mark", watched(marked, marked), "with care: cuda:0 was held back: power.",
       busy(40, 95), ""},
      {"precision.claim", takes("fp16-512", 0.4), "is reached here: fp16 at a batch of 512, 2.50x",
       takes("bf16-64", 0.8), "is not reached here: at most bf16 at a batch of 64, 1.25x",
       takes("bf16-512", 0.5, 0.2), "is reached here is unclear: bf16"},
      {"attention.claim", takes("standard-8192", 3),
       "is reached here: flash attention at a length of 8,192, 3.00x", takes("standard-512", 1.5),
       "is not reached here: at most flash attention at a length of 512, 1.50x",
       takes("standard-512", 2, 0.2), "is unclear: flash attention"},
      sides("memory.claim", takes("recompute", 1.5), takes("recompute", 1.1),
            takes("recompute", 1.3, 0.2)),
      {"pytorch.same-model", side_by_side(1 + 1e-7), "their losses agree step by step",
       side_by_side(1.01), "they do not train the same model"},
      {"pytorch.same-model", side_by_side(1, 1 + 3e-5),
       "losses of the first 3 steps agree. Rounding then grows from step to step, to 3.0e-05 of a "
       "loss",
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
