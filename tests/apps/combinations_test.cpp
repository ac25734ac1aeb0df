// Every pair of the options of mlp_ddp: the ranks train the same model as a single rank, or the run
// is refused. Ranks are threads of this process.

#include "command_line.h"
#include "core/error.h"
#include "options/options.h"
#include "parallel/schemes/run.h"
#include "parallel/schemes/scheme_of.h"
#include "support/covering_set.h"
#include "support/idx_bytes.h"
#include "support/npy_bytes.h"
#include "support/rank_run.h"
#include "support/temp_dir.h"
#include "support/testing.h"
#include "support/trainer_harness.h"

namespace barestep {
namespace {

/// The options of mlp_ddp, each level as typed after mpirun. A new option is a new line. Ranks and
/// scheme form one factor, so every option meets every scheme with every number of ranks: faults
/// between ranks need more than one rank.
const std::vector<Factor>& options() {
  static const std::vector<Factor> all = {
      {"-np 1 --scheme ddp --tensor 1 --sync-every 1",
       "-np 2 --scheme ddp --tensor 1 --sync-every 1",
       "-np 3 --scheme ddp --tensor 1 --sync-every 1",
       "-np 4 --scheme ddp --tensor 1 --sync-every 1",
       "-np 2 --scheme ddp --tensor 2 --sync-every 1",
       "-np 3 --scheme ddp --tensor 3 --sync-every 1",
       "-np 2 --scheme ddp --tensor 1 --pipeline 2 --sync-every 1",
       "-np 4 --scheme ddp --tensor 1 --pipeline 2 --schedule gpipe --micro-batches 3 --sync-every "
       "1",
       "-np 4 --scheme zero1 --tensor 2 --pipeline 2",
       "-np 3 --scheme ddp --tensor 1 --sync-every 3",
       "-np 4 --scheme ddp --tensor 2 --sync-every 2 --outer diloco",
       "-np 1 --scheme zero1",
       "-np 2 --scheme zero1",
       "-np 3 --scheme zero1",
       "-np 4 --scheme zero1",
       "-np 4 --scheme zero1 --tensor 2",
       "-np 1 --scheme zero3",
       "-np 2 --scheme zero3",
       "-np 3 --scheme zero3",
       "-np 4 --scheme zero3",
       "-np 4 --scheme zero3 --tensor 2",
       "-np 1 --scheme zero2",
       "-np 2 --scheme zero2",
       "-np 3 --scheme zero2",
       "-np 4 --scheme zero2 --tensor 2",
       "-np 1 --scheme server",
       "-np 2 --scheme server --server-reduce tree",
       "-np 3 --scheme server --servers 2",
       "-np 4 --scheme server --tensor 2",
       "-np 1 --scheme factor",
       "-np 2 --scheme factor",
       "-np 3 --scheme factor",
       "-np 4 --scheme factor"},
      {"--data randn", "--data teacher --teacher-noise 0.5", "--data idx:x.idx,y.idx",
       "--data npy:x.npy,y.npy", "--data idx:x.idx,classes.idx --loss cross-entropy",
       "--data npy:x.npy,classes.npy --loss cross-entropy --label-smoothing 0.1",
       "--data npy:x.npy,y.npy --loss huber",
       "--data npy:x.npy,bits.npy --loss bce --layers 8,12,7,9,1"},
      {"", "--block transformer --dim 4 --depth 4 --heads 4 --length 2 --ffn 6",
       "--block transformer --dim 4 --depth 4 --heads 4 --length 2 --ffn 6 --causal --attention "
       "standard"},
      {"--update separate", "--update fused", "--update per-bucket"},
      {"--optimizer adam", "--optimizer adamw", "--optimizer sgd --momentum 0.9",
       "--optimizer adamw --amsgrad", "--optimizer rmsprop --momentum 0.5 --eps 0.1",
       "--optimizer adagrad", "--optimizer lion --weight-decay 0.1"},
      // 1 to 4 ranks have equal shares of 12. A batch size of 7 leaves a last batch of 1 in the
      // training set.
      {"--global-batch-size 12", "--global-batch-size 10", "--global-batch-size 7"},
      {"--activation relu", "--activation gelu", "--activation tanh"},
      {"", "--dropout 0.3"},
      {"", "--test-split 0.25"},
      {"", "--no-shuffle", "--standardize"},
      {"", "--input-scale 4"},
      {"", "--accumulate 3"},
      // Chunks of two samples: as many as ranks in every batch.
      {"", "--reproducible 2"},
      {"", "--recompute 2"},
      {"", "--clip-norm 0.05"},
      {"", "--no-zero-grad"},
      {"", "--staleness 2"},
      {"", "--grad-dtype bf16"},
      {"", "--precision bf16", "--precision fp16 --loss-scale dynamic:1024"},
      {"", "--lr-warmup 3", "--lr-schedule cosine --lr-min 0.001"},
      {"", "--first-bucket whole"},
      {"", "--no-overlap", "--reduce-every-micro-step"},
      {"", "--log-every 3"},
      {"", "--denormals keep"},
      {"", "--instructions plain"},
      {"", "--fusion off"},
      {"", "--profile --profile-phases forward,loss,backward"},
      {"", "--verify-every 2", "--verify-every 1"},
  };
  return all;
}

/// The options of levels, with their values as typed.
std::map<std::string, std::string> typed(std::initializer_list<std::string> levels) {
  std::map<std::string, std::string> values;
  for (const std::string& level : levels) {
    std::istringstream words(level);
    std::string name;
    for (std::string word; words >> word;) {
      if (word.starts_with("--")) {
        values[name = word.substr(2)] = "true";
      } else if (word != "-np") {
        values[name] = word;
      }
    }
  }
  return values;
}

/// The default of each option that some case gives.
const std::map<std::string, std::optional<std::string>, std::less<>>& defaults() {
  static const auto all = [] {
    std::map<std::string, std::optional<std::string>, std::less<>> found;
    for (const Factor& factor : options()) {
      for (const std::string& level : factor) {
        for (const auto& [name, value] : typed({level})) {
          if (name.empty()) continue;  // the number of ranks
          const auto option = std::ranges::find(options_of(SchemeKind::kDdp), name, &Option::name);
          found.try_emplace(name, option->value.text({}));
        }
      }
    }
    return found;
  }();
  return all;
}

/// Whether the condition holds for every case with these options: they decide it, or it is about
/// an option that no case gives.
bool always_holds(const Condition& condition, const std::map<std::string, std::string>& values) {
  const auto usual = defaults().find(condition.name);
  if (usual == defaults().end()) return condition.holds({}, {});
  const auto found = values.find(usual->first);
  return found != values.end() && condition.holds(found->second, usual->second);
}

/// The lines of the table of conflicts that some case may meet; the others are about options that
/// no case gives.
const std::vector<OptionConflict>& conflicts_in_cases() {
  static const auto all = [] {
    std::vector<OptionConflict> rows(conflicts().begin(), conflicts().end());
    const auto never_holds = [](const Condition& each) {
      return !defaults().contains(each.name) && !each.holds({}, {});
    };
    std::erase_if(rows, [&](const OptionConflict& row) {
      return std::ranges::any_of(row.when, never_holds) ||
             std::ranges::all_of(row.options, never_holds);
    });
    return rows;
  }();
  return all;
}

/// The lines of the table of conflicts that refuse every case with these options.
std::vector<std::string> reasons(const std::map<std::string, std::string>& values) {
  std::vector<std::string> lines;
  for (const OptionConflict& conflict : conflicts_in_cases()) {
    const bool is_refused = std::ranges::all_of(
        conflict.when, [&](const Condition& each) { return always_holds(each, values); });
    if (!is_refused) continue;
    for (const Condition& given : conflict.options) {
      if (!always_holds(given, values)) continue;
      const std::string name(given.name);
      const std::string value = given.values.empty() ? "" : fmt::format(" '{}'", values.at(name));
      std::string why = conflict.why;
      for (std::size_t at = 0; (at = why.find('{', at)) != std::string::npos;) {
        const std::size_t end = why.find('}', at);
        why.replace(at, end + 1 - at, values.at(why.substr(at + 1, end - at - 1)));
      }
      lines.push_back(fmt::format("--{}{}: {}; {}", name, value, why, conflict.remedy));
    }
  }
  return lines;
}

/// Whether a level or a case is local SGD, which reduces no gradients.
bool is_local(const std::string& command) {
  return command.find("--sync-every") != std::string::npos &&
         command.find("--sync-every 1") == std::string::npos;
}

/// Levels do not meet if the table refuses them, or refuses them with each level of some factor:
/// --update fused and --clip-norm with each scheme. Local SGD allows them together, but then cases
/// would give them to other schemes too.
bool may_meet_now(const std::string& a, const std::string& b) {
  if (!reasons(typed({a, b})).empty()) return false;
  return std::ranges::none_of(options(), [&](const Factor& factor) {
    return std::ranges::all_of(factor, [&](const std::string& level) {
      return level != a && level != b &&
             (is_local(level) || !reasons(typed({a, b, level})).empty());
    });
  });
}

/// Remembers the answers, which are asked for again and again.
bool may_meet(const std::string& a, const std::string& b) {
  static std::map<std::pair<std::string, std::string>, bool> known;
  const auto [answer, is_new] = known.try_emplace(std::minmax(a, b), false);
  if (is_new) answer->second = may_meet_now(a, b);
  return answer->second;
}

/// 36 samples for training and 12 for testing, or 48: 1 to 4 ranks have equal shares of both. If
/// they do not, ranks train on the first samples again, as in PyTorch.
constexpr std::uint32_t kSamples = 48;
constexpr std::uint32_t kFeatures = 8;
constexpr std::uint32_t kTargets = 8;
constexpr const char* kSame = " --steps 8 --lr 0.01 --device cpu --threads 1 --gemm reference";
constexpr const char* kMlp = " --no-last-relu";
constexpr const char* kSmallBuckets = " --bucket-mib 0.0002";

constexpr std::int64_t kFirstBucket = 100;  // bytes; --bucket-mib is just as small

struct RankCase {
  int ranks = 1;
  TrainConfig config;
};

class Combinations : public TempDirTest {
 protected:
  void SetUp() override;

  /// The configuration of the case's command line, as mlp_ddp reads it.
  [[nodiscard]] RankCase parsed(const std::string& command) const;
};

void Combinations::SetUp() {
  std::vector<float> x;
  std::vector<float> y;
  std::vector<std::uint8_t> classes;
  std::vector<std::int64_t> wide_classes;
  for (std::uint32_t i = 0; i < kSamples; ++i) {
    for (std::uint32_t f = 0; f < kFeatures; ++f) {
      x.push_back(static_cast<float>((37 * i + 91 * f * f + 5 * i * f) % 64) / 32 - 1);
    }
    for (std::uint32_t t = 0; t < kTargets; ++t) y.push_back(static_cast<float>((i + t) % 5) / 4);
    classes.push_back(static_cast<std::uint8_t>((i * i + 1) % kTargets));
    wide_classes.push_back(classes.back());
  }
  file("x.idx", idx_bytes(0x0D, {kSamples, kFeatures}, x));
  file("y.idx", idx_bytes(0x0D, {kSamples, kTargets}, y));
  file("classes.idx", idx_bytes(0x08, {kSamples}, classes));
  file("x.npy", npy_bytes("<f4", fmt::format("{}, {}", kSamples, kFeatures), x));
  file("y.npy", npy_bytes("<f4", fmt::format("{}, {}", kSamples, kTargets), y));
  file("classes.npy", npy_bytes("<i8", fmt::format("{},", kSamples), wide_classes));
  for (std::int64_t& wide : wide_classes) wide %= 2;
  file("bits.npy", npy_bytes("<i8", fmt::format("{}, 1", kSamples), wide_classes));
}

RankCase Combinations::parsed(const std::string& command) const {
  RankCase run;
  std::vector<std::string> arguments;
  const bool is_mlp = command.find("--block") == std::string::npos;
  const bool has_layers = command.find("--layers") != std::string::npos;
  std::istringstream words(command + (is_mlp && !has_layers ? " --layers 8,12,7,9,8" : "") +
                           (is_mlp ? kMlp : "") + kSame + (is_local(command) ? "" : kSmallBuckets));
  for (std::string word; words >> word;) {
    if (word == "-np") {
      words >> run.ranks;
    } else {
      arguments.push_back(word);
    }
  }
  run.config = parse_command_line(SchemeKind::kDdp, arguments).config;
  for (auto* const path : {&run.config.data.x, &run.config.data.y}) *path = folder() / *path;
  return run;
}

/// The error that mlp_ddp finds before it trains: from the options alone, then from the programs.
std::optional<Error> error_of(const RankCase& run, int rank) {
  const TrainConfig& config = run.config;
  try {
    require({.ranks = run.ranks, .config = config});
    const std::optional<Dataset> data = dataset_of(config);
    const auto scheme = scheme_of(config);
    const StepPrograms programs(
        spec_of_rank(config, DeviceKind::kCpu, data ? &*data : nullptr, rank, run.ranks),
        scheme.get());
    return std::nullopt;
  } catch (const Error& error) {
    return error;
  }
}

/// Whether the run is refused, by all ranks in the same way, with one line.
std::optional<std::string> refused(const RankCase& run) {
  const std::optional<Error> first = error_of(run, 0);
  for (int rank = 1; rank < run.ranks; ++rank) {
    const std::optional<Error> other = error_of(run, rank);
    EXPECT_EQ(other.has_value(), first.has_value());
    if (first && other) EXPECT_STREQ(other->what(), first->what());
  }
  if (!first) return std::nullopt;
  const std::string text = first->what();
  EXPECT_EQ(first->code(), ExitCode::kConfiguration) << text;
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  EXPECT_NE(text.find("; "), std::string::npos) << "says what to do: " << text;
  return text;
}

std::string command_of(const Case& levels) {
  std::string command;
  for (const std::string& level : levels) {
    if (!level.empty()) command += (command.empty() ? "" : " ") + level;
  }
  return command;
}

/// A gradient is a sum over ranks instead of a single rank's sum over rows, so rounding differs: by
/// about 1e-7 in a loss or a tensor of weights after these few steps. Wrong numbers differ by 1e-4
/// and more.
constexpr double kBound = 1e-6;
/// Gradients rounded to bf16 are within 1/256 (parallel/schemes/ddp.h), and so are losses. If a
/// gradient nearly cancels, only rounding remains, and the step of Adam or Lion goes the other way:
/// 0.02 from there with a learning rate of 0.01, 1/27 of the norm of a bias of seven numbers of
/// 0.2.
constexpr double kBf16Bound = 1.0 / 256;
constexpr double kBf16WeightBound = 1.0 / 24;
/// Lion's step has the same size whatever the gradient, so it changes more numbers in this way, and
/// one of them is 1/20 of the norm of a bias of four.
constexpr double kBf16LionBound = 1.0 / 8;

void expect_near(const Trained& rank, const Trained& one, const RankCase& run) {
  // With 16 bits, each rank's gradients are rounded before the sum over ranks.
  const bool bf16 =
      run.config.parallel.bf16_gradients || type_of(run.config.device.precision) != DType::kF32;
  const ModelSpec model = spec_of(run.config, DeviceKind::kCpu, nullptr).model;
  // A loss depends on a block's weights through norms of four numbers, of which each is a large
  // part. And a block's gradients differ more, so Adam's weights do (2e-5 in large models).
  const double of_losses = model.transformer ? 4 : 1, of_weights = model.transformer ? 10 : 1;
  const double bound = of_losses * (bf16 ? kBf16Bound : kBound);
  ASSERT_EQ(rank.losses.size(), one.losses.size());  // including those of evaluations
  for (std::size_t i = 0; i < one.losses.size(); ++i) {
    // The error of outputs of 16 bits does not shrink with the loss, nor does that of one sample's
    // loss average out.
    const float scale = bf16 ? std::max(one.losses[i], one.losses[0]) : one.losses[i];
    EXPECT_NEAR(rank.losses[i], one.losses[i], bound * scale) << "loss " << i;
  }
  ASSERT_EQ(rank.evaluations.size(), one.evaluations.size());
  for (std::size_t i = 0; i < one.evaluations.size(); ++i) {
    EXPECT_EQ(rank.evaluations[i].samples, one.evaluations[i].samples);
    if (!bf16) EXPECT_EQ(rank.evaluations[i].accuracy, one.evaluations[i].accuracy);
  }
  if (rank.parameters.empty()) return;  // another rank has those of the whole model
  // A transformer's biases start at 0, so a few such steps are all that some of them have.
  EXPECT_LT(bf16 && model.transformer ? relative_distance(rank.parameters, one.parameters)
                                      : largest_distance(model, rank.parameters, one.parameters),
            !bf16                                               ? of_weights * kBound
            : run.config.optimizer.kind == OptimizerKind::kLion ? kBf16LionBound
                                                                : kBf16WeightBound);
}

/// The time at which buckets are reduced and updated does not change any bit of the bf16 results.
void expect_bits_of_plain_ddp(const std::vector<Trained>& all, const RankCase& run) {
  TrainConfig plain;
  plain.parallel.bf16_gradients = run.config.parallel.bf16_gradients;
  plain.parallel.reduces_every_micro_step = run.config.parallel.reduces_every_micro_step;
  EXPECT_EQ(all, train_threads_by(*scheme_of(plain), run.ranks, run.config));
}

/// The cases that have each level once, or the other cases, which all together have each pair of
/// levels. A pair that goes wrong shows in results; a sanitizer is to see the code of each option,
/// and each pair would take it a quarter of an hour. So the other cases are labeled slow.
enum class Covered { kLevels, kOtherPairs };

class TrainedCombinations : public Combinations, public testing::WithParamInterface<Covered> {
 protected:
  static std::vector<Case> cases() {
    std::vector<Case> chosen = cover_pairs(options(), may_meet).cases;
    std::set<std::string> met;
    std::erase_if(chosen, [&](const Case& levels) {
      const std::size_t before = met.size();
      met.insert(levels.begin(), levels.end());
      return (met.size() > before) != (GetParam() == Covered::kLevels);
    });
    return chosen;
  }
};

INSTANTIATE_TEST_SUITE_P(, TrainedCombinations,
                         testing::Values(Covered::kLevels, Covered::kOtherPairs),
                         [](const auto& covers) {
                           return covers.param == Covered::kLevels ? "EachLevel" : "EachOtherPair";
                         });

TEST_P(TrainedCombinations, DoWhatOneRankDoes) {
  for (const Case& levels : cases()) {
    const std::string command = command_of(levels);
    SCOPED_TRACE(command);
    const RankCase run = parsed(command);
    ASSERT_EQ(refused(run), std::nullopt);
    TrainConfig alone = run.config;
    alone.parallel.pipeline = 1;
    const bool is_local = run.config.parallel.sync_every > 1;  // not what one rank does
    const Trained one = is_local ? Trained{} : train_single(alone);
    const auto scheme = scheme_of(run.config, {.first_bucket_bytes = kFirstBucket});
    const auto all = train_threads_by(*scheme, run.ranks, run.config);
    for (const Trained& rank : all) {
      if (!is_local) expect_near(rank, one, run);
      if (run.config.training.chunk_rows) EXPECT_EQ(rank.parameters, one.parameters) << "the bits";
      // The first rank has all weights.
      if (run.config.parallel.tensor * run.config.parallel.pipeline > 1) continue;
      EXPECT_EQ(rank.parameters, all[0].parameters) << "ranks differ";
    }
    if (run.config.parallel.bf16_gradients) expect_bits_of_plain_ddp(all, run);
  }
}

/// The rest of a run after `steps` of it: losses, including those of evaluations, and the end
/// state.
void expect_tail(const Trained& rest, const Trained& whole) {
  ASSERT_LE(rest.losses.size(), whole.losses.size());
  const auto skipped = static_cast<std::ptrdiff_t>(whole.losses.size() - rest.losses.size());
  EXPECT_EQ(rest.losses, std::vector<float>(whole.losses.begin() + skipped, whole.losses.end()));
  EXPECT_EQ(rest.parameters, whole.parameters);
}

/// The state is taken after a step that was set before, or as soon as a request comes, in runs in
/// which the next step's data may already be loaded.
TEST_P(TrainedCombinations, GoOnFromTheStateBetweenTwoStepsToTheBit) {
  std::int64_t number = 0;
  for (const Case& levels : cases()) {
    RankCase run = parsed(command_of(levels));
    run.config.checkpoint.folder = "checkpoints";
    // The last round of local steps before the end is over after 6 of 8.
    const std::int64_t cut = 1 + number % (run.config.parallel.sync_every > 1 ? 6 : 7);
    const int way = static_cast<int>(number / 7 % 3);
    ++number;
    SCOPED_TRACE(fmt::format("{} cut after {} steps, way {}", command_of(levels), cut, way));
    const auto scheme = scheme_of(run.config, {.first_bucket_bytes = kFirstBucket});
    const auto whole = train_threads_by(*scheme, run.ranks, run.config);
    TrainingState state;
    Interruption cutting{.kept = &state};
    if (way == 0) {
      cutting.pause_every = cut;
    } else {
      cutting.asks_after_step = cut - 1;
      cutting.asks_for = way == 1 ? StepRequest::kPause : StepRequest::kStop;
    }
    const auto paused = train_threads_by(*scheme, run.ranks, run.config, cutting);
    if (way < 2) EXPECT_EQ(paused, whole) << "a pause changes nothing";
    EXPECT_GE(state.position.steps, cut);
    const auto rest = train_threads_by(*scheme, run.ranks, run.config, {.start = &state});
    for (int rank = 0; rank < run.ranks; ++rank) {
      const auto place = static_cast<std::size_t>(rank);
      expect_tail(rest[place], whole[place]);
      EXPECT_EQ(rest[place].losses.empty(), state.position.steps == 8);
    }
  }
}

/// The ranks and schemes that a run uses in turn, two steps each. The different order of sums
/// changes results by about 1e-7.
TEST_F(Combinations, GoOnWithOtherRanksAndSchemes) {
  const std::vector<std::vector<std::string>> worlds = {
      {"-np 1 --scheme ddp", "-np 4 --scheme ddp", "-np 3 --scheme ddp"},
      {"-np 3 --scheme ddp", "-np 3 --scheme zero1", "-np 3 --scheme ddp"},
      {"-np 4 --scheme zero1", "-np 2 --scheme factor", "-np 3 --scheme zero1"},
      {"-np 4 --scheme zero2", "-np 3 --scheme zero3", "-np 1 --scheme zero1"},
      {"-np 3 --scheme server", "-np 2 --scheme zero1", "-np 4 --scheme server --servers 3"},
      {"-np 2 --scheme zero3", "-np 3 --scheme ddp", "-np 4 --scheme zero3"},
      {"-np 1 --reproducible 3", "-np 4 --scheme zero1 --reproducible 3",
       "-np 3 --scheme ddp --reproducible 3"}};
  const char* const options[] = {
      "", "--accumulate 3 --optimizer sgd --momentum 0.9", "--no-zero-grad",
      "--data idx:x.idx,y.idx --test-split 0.25 --optimizer adamw --log-every 3"};
  for (const std::vector<std::string>& world : worlds) {
    for (const std::string option : options) {
      const std::string all = option + " --global-batch-size 12";
      SCOPED_TRACE(fmt::format("{} {}", fmt::join(world, ", "), all));
      const auto is_refused = [&](const std::string& part) {
        return refused(parsed(all + " " + part)).has_value();
      };
      if (std::ranges::any_of(world, is_refused)) continue;
      RankCase run = parsed(all + " " + world.front());
      const Trained one = train_single(run.config);
      TrainingState state;
      Trained joined;
      for (const std::string& part : world) {
        run = parsed(all + " " + part);
        run.config.checkpoint.folder = "checkpoints";
        const TrainingState start = std::exchange(state, {});
        const auto scheme = scheme_of(run.config);
        Interruption cutting{.start = start.tensors.empty() ? nullptr : &start, .kept = &state};
        if (&part != &world.back()) cutting.asks_for = StepRequest::kStop;
        cutting.asks_after_step = start.position.steps + 1;
        const Trained rank = train_threads_by(*scheme, run.ranks, run.config, cutting)[0];
        joined.losses.insert(joined.losses.end(), rank.losses.begin(), rank.losses.end());
        joined.evaluations.insert(joined.evaluations.end(), rank.evaluations.begin(),
                                  rank.evaluations.end());
        joined.parameters = rank.parameters;
      }
      expect_near(joined, one, run);
      if (run.config.training.chunk_rows) EXPECT_EQ(joined.parameters, one.parameters);
    }
  }
}

/// With every pair of levels, also those that the table refuses.
TEST_F(Combinations, AreRefusedInOneLineOrElseTrain) {
  const CoveringSet set = cover_pairs(options(), [](const auto&, const auto&) { return true; });
  for (const Case& levels : set.cases) {
    const std::string command = command_of(levels);
    SCOPED_TRACE(command);
    const std::vector<std::string> lines = reasons(typed({command}));
    const std::optional<std::string> line = refused(parsed(command));
    EXPECT_EQ(line.has_value(), !lines.empty()) << line.value_or("");
    if (line) EXPECT_THAT(lines, Contains(*line));
  }
}

/// Number of pairs of levels, and how many of them the cases contain.
std::pair<std::size_t, std::size_t> pairs_in(const std::vector<Factor>& factors,
                                             const std::vector<Case>& cases) {
  std::size_t all = 0;
  std::size_t covered = 0;
  for (std::size_t f = 0; f < factors.size(); ++f) {
    for (std::size_t g = f + 1; g < factors.size(); ++g) {
      std::set<std::pair<std::string, std::string>> met;
      for (const Case& levels : cases) met.emplace(levels.at(f), levels.at(g));
      all += factors[f].size() * factors[g].size();
      covered += met.size();
    }
  }
  return {all, covered};
}

TEST(CoveringSet, HasEveryPairOfOptionsButThoseRefused) {
  const CoveringSet set = cover_pairs(options(), may_meet);
  for (const Case& levels : set.cases) {
    for (std::size_t a = 0; a < levels.size(); ++a) {
      EXPECT_THAT(options()[a], Contains(levels[a]));
      for (std::size_t b = a + 1; b < levels.size(); ++b) {
        EXPECT_TRUE(may_meet(levels[a], levels[b])) << levels[a] << " and " << levels[b];
      }
    }
  }
  const auto [all, covered] = pairs_in(options(), set.cases);
  EXPECT_EQ(covered + set.impossible.size(), all);
  EXPECT_LT(set.impossible.size(), all / 10) << "most options go together";
  const std::size_t fewest = options()[0].size() * options()[1].size();  // the largest factors
  EXPECT_LT(set.cases.size(), fewest + fewest / 4);
  EXPECT_EQ(cover_pairs(options(), may_meet).cases, set.cases) << "not the same cases again";
}

TEST(CoveringSet, TellsThePairsThatNoCaseCanHave) {
  const auto may_meet = [](const std::string& a, const std::string& b) {
    return a + b != "ae" && a + b != "cf";
  };
  const CoveringSet set = cover_pairs({{"a", "b"}, {"c", "d"}, {"e", "f"}}, may_meet);
  // a leaves only f of the last factor, and f is not allowed with c.
  EXPECT_THAT(set.impossible, ElementsAre(testing::Pair("a", "c"), testing::Pair("a", "e"),
                                          testing::Pair("c", "f")));
  EXPECT_THAT(set.cases,
              UnorderedElementsAre(ElementsAre("a", "d", "f"), ElementsAre("b", "c", "e"),
                                   ElementsAre("b", "d", "e"), ElementsAre("b", "d", "f")));
}

}  // namespace
}  // namespace barestep
