// Configurations made by code are checked like those typed by users.

#include "core/error.h"
#include "options/options.h"
#include "support/testing.h"

namespace barestep {
namespace {

struct Refusal {
  int code = 0;
  std::string line;
};

/// The refusal of the default configuration after `change`; code 0 if it is not refused.
Refusal refusal_of(const std::function<void(TrainConfig&)>& change) {
  TrainConfig config;
  config.parallel.scheme = SchemeKind::kSingle;
  change(config);
  try {
    validate(config);
  } catch (const Error& error) {
    return {static_cast<int>(error.code()), error.what()};
  }
  return {};
}

void use_files(TrainConfig& c) {
  c.data.kind = DataKind::kIdx;
  c.data.x = "x";
  c.data.y = "y";
  c.model.loss = LossKind::kCrossEntropy;
}

TEST(Config, TheDefaultsAreValid) {
  EXPECT_EQ(refusal_of([](TrainConfig&) {}).line, "");
}

/// Of each kind of values one, and those that no command line can give. What is typed is in
/// tests/apps/bad_input.txt, and for every option in options_test.cpp.
TEST(Config, RefusesValuesOutsideTheirRanges) {
  const std::pair<std::function<void(TrainConfig&)>, std::string> cases[] = {
      {[](auto& c) { c.model.dim = 0; },
       "--dim '0': out of range; give a whole number from 1 to 16777216"},
      {[](auto& c) {
         c.model.layers = {4, 0};
       },
       "--layers '4,0': width 2 is out of range; give 2 to 10001 widths from 1 to 16777216, such "
       "as 784,512,10"},
      {[](auto& c) { c.optimizer.lr = std::numeric_limits<double>::quiet_NaN(); },
       "--lr 'nan': out of range; give a number above 0"},
      {[](auto& c) { c.optimizer.eps = 0x1p-150; },
       "--eps '7.006492321624085e-46': rounds to 0 in float32; give 0 or at least 1e-45"},
      {[](auto& c) { c.optimizer.beta2 = 1; },
       "--betas '0.9,1': out of range; give two numbers of at least 0 and below 1, such as "
       "0.9,0.999"},
      {[](auto& c) {
         c.data.sweep = {4, 0};
       },
       "--batch-size '0': out of range; give a whole number from 1 to 2147483647"},
      {[](auto& c) { c.device.device = "gpu"; },
       "--device 'gpu': not a device; use auto, cpu, cuda or cuda:N"},
      {[](auto& c) {
         c.output.profile = true;
         c.output.profile_steps = StepRange{2, 2};
       },
       "--profile-steps '2:2': holds no step; give first:end, such as 10:20 for the steps 10 to "
       "19"},
      {[](auto& c) { c.training.update = Update::kPerBucket; },
       "--update 'per-bucket': not one of the choices; use auto or separate or fused"},
      {[](auto& c) { c.output.memory = 0; },
       "--memory '0': is not a number of bytes from 1 to 2^63 - 1; write it like 16GiB, 500MB, "
       "1.5 GiB or 1048576"},
  };
  for (const auto& [change, line] : cases) {
    const Refusal refusal = refusal_of(change);
    EXPECT_EQ(refusal.line, line);
    EXPECT_EQ(refusal.code, 2);
  }
}

/// An option of optimizers, and those that have it.
struct OptimizerOption {
  std::string name, those;
  std::function<void(OptimizerConfig&)> give;
};

TEST(Config, TakesNumbersThatTheOptimizerHasOnly) {
  const OptimizerOption options[] = {
      {"betas", "adam or adamw or lion", [](auto& o) { o.beta1 = o.beta2 = 0.5; }},
      {"eps", "adam or adamw or rmsprop or adagrad", [](auto& o) { o.eps = 1e-8; }},
      {"momentum", "sgd or rmsprop", [](auto& o) { o.momentum = 0.9; }},
      {"nesterov", "sgd", [](auto& o) { o.nesterov = true; }},
      {"amsgrad", "adam or adamw", [](auto& o) { o.amsgrad = true; }}};
  for (const OptimizerOption& option : options) {
    const std::string line = "--" + option.name + ": only --optimizer " + option.those +
                             " has it; leave it out, or use --optimizer " + option.those;
    for (const OptimizerKind kind : kValuesOf<OptimizerKind>) {
      SCOPED_TRACE(name_of(kind));
      const auto change = [&](TrainConfig& config) {
        config.optimizer.kind = kind;
        option.give(config.optimizer);
      };
      const std::string word = " or " + std::string(name_of(kind)) + " or ";
      const bool has_it = (" or " + option.those + " or ").find(word) != std::string::npos;
      EXPECT_EQ(refusal_of(change).line == line, !has_it) << refusal_of(change).line;
    }
  }
}

TEST(Conflicts, NameOptionsOfThePrograms) {
  std::set<std::string_view> names;
  for (const TrainingProgram& program : kTrainingPrograms) {
    for (const std::string_view name : names_of_options(program.usual)) names.insert(name);
  }
  for (const OptionConflict& conflict : conflicts()) {
    for (const auto& conditions : {conflict.options, conflict.when}) {
      for (const Condition& each : conditions) EXPECT_TRUE(names.contains(each.name)) << each.name;
    }
  }
}

TEST(Config, TakesEveryNumberThatIsOneInFloat32) {
  for (const double eps : {0.0, 1e-45, 1e-40, 3.4028235e38}) {
    const auto keep = [&](auto& c) {
      c.optimizer.eps = eps;
      c.device.denormals = Denormals::kKeep;
    };
    EXPECT_EQ(refusal_of(keep).line, "");
  }
}

TEST(Config, RefusesADenormalEpsWhereItIsFlushed) {
  const auto with = [](double eps) {
    return refusal_of([&](auto& c) { c.optimizer.eps = eps; }).line;
  };
  for (const double eps : {0.0, 1.1754944e-38, 1e-8}) EXPECT_EQ(with(eps), "") << eps;
  EXPECT_EQ(with(1.1754942e-38),
            "--eps '1.1754942e-38': the CPU counts denormal numbers as 0; give 0 or at least "
            "1.1754944e-38, or --denormals keep");
}

TEST(Config, AllowsWhatPyTorchWouldDo) {
  EXPECT_EQ(refusal_of(use_files).line, "");  // a ReLU between the last Linear and cross-entropy
  EXPECT_EQ(refusal_of([](auto& c) {
              use_files(c);
              c.model.loss = LossKind::kMse;  // numeric targets
            }).line,
            "");
  EXPECT_EQ(refusal_of([](auto& c) { c.training.steps = 1; }).line, "");
  EXPECT_EQ(refusal_of([](auto& c) {
              use_files(c);
              c.training.epochs = 2;
              c.training.warmup = 100;  // the number of steps is known once the files are
            }).line,
            "");
}

TEST(Config, NothingItAllowsOverflows64Bits) {
  using Wide = __int128;
  int allowed = 0;
  for (std::int64_t dim = 1; dim <= limits::kWidths.last; dim *= 2) {
    for (const std::int64_t depth : {1, 6, 100, 10'000}) {
      for (const std::int64_t batch :
           {std::int64_t{1}, std::int64_t{64}, std::int64_t{1} << 20, limits::kBatchSizes.last}) {
        TrainConfig config;
        config.model.dim = dim;
        config.model.depth = depth;
        config.data.batch_size = batch;
        const Wide parameters = Wide{depth} * dim * (dim + 1);
        const Wide bytes = 16 * (parameters + Wide{batch} * dim * (depth + 1));
        const Wide flops = 6 * Wide{batch} * parameters;
        const Wide max = Wide{1} << 60;
        const auto change = [&](TrainConfig& c) { c = config; };
        const Refusal refusal = refusal_of(change);
        EXPECT_EQ(refusal.code == 0, bytes <= max && flops <= max)
            << dim << " " << depth << " " << batch;
        allowed += refusal.code == 0 ? 1 : 0;
      }
    }
  }
  EXPECT_GT(allowed, 100);
}

TEST(Config, CountsScoresInTheStandardFormOnly) {
  const auto line = [](AttentionForm form) {
    return refusal_of([&](auto& c) {
             c.model = {.dim = 4096,
                        .depth = 16,
                        .block = BlockKind::kTransformer,
                        .heads = 4096,
                        .length = 1 << 16,
                        .attention = form};
             c.data.batch_size = 200;
           })
        .line;
  };
  EXPECT_EQ(line(AttentionForm::kFlash), "");
  EXPECT_THAT(line(AttentionForm::kStandard), StartsWith("model: a step takes 1.8e+18 bytes"));
}

/// One reason at a time; on one CPU, nothing prevents the fused update.
TEST(Config, LeavesGradientsUnstoredWhereNothingElseLooksAtThem) {
  const auto choice = [](const std::function<void(TrainConfig&)>& change,
                         SchemeKind scheme = SchemeKind::kSingle,
                         DeviceKind kind = DeviceKind::kCpu) {
    TrainConfig config;
    config.parallel.scheme = scheme;
    change(config);
    const UpdateChoice taken = choose_update(config, kind);
    return std::string(name_of(taken.update)) + ": " + std::string(taken.why);
  };
  const auto nothing = [](TrainConfig&) {};
  const std::string fused = "fused: Adam runs beside the products of the weight gradients";
  EXPECT_EQ(choice(nothing), fused);
  EXPECT_EQ(choice([](TrainConfig& c) {
              c.model.layers = {2047, 1024};
              c.data.batch_size = 256;
            }),
            fused)
      << "both limits are met";
  EXPECT_EQ(choice([](TrainConfig& c) { c.optimizer.kind = OptimizerKind::kAdamW; }), fused);
  EXPECT_EQ(choice(nothing, SchemeKind::kFactor), fused);
  const auto on_gpu = [&](const std::function<void(TrainConfig&)>& change) {
    return choice(change, SchemeKind::kSingle, DeviceKind::kCuda);
  };
  EXPECT_EQ(on_gpu(nothing), fused);
  EXPECT_EQ(on_gpu([](TrainConfig& c) { c.device.precision = Precision::kBf16; }), fused);
  EXPECT_EQ(on_gpu([](TrainConfig& c) { c.device.precision = Precision::kFp16; }),
            "separate: loss scaling looks at stored gradients");
  EXPECT_EQ(on_gpu([](TrainConfig& c) { c.data.batch_size = 128; }), fused);
  EXPECT_EQ(on_gpu([](TrainConfig& c) { c.data.batch_size = 129; }),
            "separate: beyond 128 rows it was not measured on a GPU");
  EXPECT_EQ(choice(nothing, SchemeKind::kDdp), "separate: gradients are exchanged");
  EXPECT_EQ(choice(nothing, SchemeKind::kDataParallel), "separate: gradients are exchanged");
  const std::pair<std::function<void(TrainConfig&)>, const char*> reasons[] = {
      {[](TrainConfig& c) {
         c.model.layers = {2046, 1024};
       },
       "a model of fewer than 2,097,152 parameters stays in the caches"},
      {[](TrainConfig& c) { c.data.batch_size = 257; },
       "beyond 256 rows the products take longer than Adam's memory accesses"},
      {[](TrainConfig& c) { c.output.profile = true; },
       "--profile times gradients and update separately"},
      {[](TrainConfig& c) { c.device.gemm = GemmProvider::kCblas; },
       "the fused update does not use the products that --gemm selects"},
      {[](TrainConfig& c) { c.device.precision = Precision::kBf16; },
       "the fused update is faster in fp32 alone"},
      {[](TrainConfig& c) { c.optimizer.kind = OptimizerKind::kSgd; },
       "only Adam and AdamW have a fused update"},
      {[](TrainConfig& c) { c.optimizer.amsgrad = true; }, "--amsgrad keeps a maximum"},
      {[](TrainConfig& c) { c.training.zero_grad = false; }, "--no-zero-grad adds up gradients"},
      {[](TrainConfig& c) { c.training.clip_norm = 1; }, "--clip-norm needs all gradients first"},
      {[](TrainConfig& c) { c.training.accumulate = 2; }, "--accumulate adds up gradients"},
      {[](TrainConfig& c) { c.training.chunk_rows = 8; }, "--reproducible adds up gradients"},
      {[](TrainConfig& c) { c.training.recompute = 2; }, "--recompute discards activations"}};
  for (const auto& [change, why] : reasons)
    EXPECT_EQ(choice(change), std::string("separate: ") + why);
}

/// Where both have the same bits and the choice is one of time.
TEST(Config, LetsARunMeasureTheUpdateOnTheCpu) {
  const auto measures = [](const std::function<void(TrainConfig&)>& change,
                           DeviceKind kind = DeviceKind::kCpu) {
    TrainConfig config;
    config.parallel.scheme = SchemeKind::kSingle;
    change(config);
    return choose_update(config, kind).is_to_be_measured;
  };
  EXPECT_TRUE(measures([](TrainConfig&) {}));
  EXPECT_TRUE(measures([](TrainConfig& c) { c.data.batch_size = 257; }));
  EXPECT_TRUE(measures([](TrainConfig& c) { c.parallel.scheme = SchemeKind::kFactor; }));
  EXPECT_FALSE(measures([](TrainConfig&) {}, DeviceKind::kCuda));
  const std::function<void(TrainConfig&)> others[] = {
      [](TrainConfig& c) { c.device.graph = true; },
      [](TrainConfig& c) {
        c.model.layers = {2046, 1024};
      },
      [](TrainConfig& c) { c.output.profile = true; },
      [](TrainConfig& c) { c.device.gemm = GemmProvider::kOneDnn; },
      [](TrainConfig& c) { c.training.accumulate = 2; },
      [](TrainConfig& c) { c.parallel.sync_every = 2; }};
  for (const auto& change : others) EXPECT_FALSE(measures(change));
}

}  // namespace
}  // namespace barestep
