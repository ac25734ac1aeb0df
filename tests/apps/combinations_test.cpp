// Every pair of the options of mlp_ddp: the ranks train the same model as a single rank, or the run
// is refused. Ranks are threads of this process.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "command_line.h"
#include "core/error.h"
#include "options/options.h"
#include "parallel/schemes/scheme_of.h"
#include "support/covering_set.h"
#include "support/idx_bytes.h"
#include "support/npy_bytes.h"
#include "support/rank_run.h"
#include "support/temp_dir.h"

namespace barestep {
namespace {

/// The options of mlp_ddp, each level as typed after mpirun. A new option is a new line. Ranks and
/// scheme form one factor, so every option meets every scheme with every number of ranks: faults
/// between ranks need more than one rank.
const std::vector<Factor>& options() {
  static const std::vector<Factor> all = {
      {"-np 1 --scheme ddp", "-np 2 --scheme ddp", "-np 3 --scheme ddp", "-np 4 --scheme ddp",
       "-np 1 --scheme zero1", "-np 2 --scheme zero1", "-np 3 --scheme zero1",
       "-np 4 --scheme zero1", "-np 1 --scheme factor", "-np 2 --scheme factor",
       "-np 3 --scheme factor", "-np 4 --scheme factor"},
      {"--data randn", "--data idx:x.idx,y.idx", "--data npy:x.npy,y.npy",
       "--data idx:x.idx,classes.idx --loss cross-entropy",
       "--data npy:x.npy,classes.npy --loss cross-entropy --label-smoothing 0.1",
       "--data npy:x.npy,y.npy --loss huber",
       "--data npy:x.npy,bits.npy --loss bce --layers 6,12,7,9,1"},
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
      {"", "--recompute 2"},
      {"", "--clip-norm 0.05"},
      {"", "--no-zero-grad"},
      {"", "--grad-dtype bf16"},
      {"", "--precision bf16", "--precision fp16 --loss-scale dynamic:1024"},
      {"", "--lr-warmup 3", "--lr-schedule cosine --lr-min 0.001"},
      {"", "--first-bucket whole"},
      {"", "--no-overlap"},
      {"", "--log-every 3"},
      {"", "--profile --profile-phases forward,loss,backward"},
  };
  return all;
}

/// Two options that are refused together, whatever the other options are, and the error text.
/// `beside` are options they need so that nothing else is refused first.
struct Refusal {
  const char* one;
  const char* other;
  const char* text;
  const char* beside = "";
};

constexpr Refusal kRefusals[] = {
    {"--scheme zero1", "--update per-bucket",
     "--update 'per-bucket': is about the buckets of --scheme ddp; leave it out, or use --scheme "
     "ddp"},
    {"--scheme factor", "--update per-bucket",
     "--update 'per-bucket': is about the buckets of --scheme ddp; leave it out, or use --scheme "
     "ddp"},
    {"--scheme zero1", "--first-bucket whole",
     "--first-bucket 'whole': is about the buckets of --scheme ddp; leave it out, or use --scheme "
     "ddp"},
    {"--scheme factor", "--first-bucket whole",
     "--first-bucket 'whole': is about the buckets of --scheme ddp; leave it out, or use --scheme "
     "ddp"},
    {"--scheme zero1", "--grad-dtype bf16",
     "--grad-dtype 'bf16': is about the buckets of --scheme ddp; leave it out, or use --scheme "
     "ddp"},
    {"--scheme factor", "--grad-dtype bf16",
     "--grad-dtype 'bf16': is about the buckets of --scheme ddp; leave it out, or use --scheme "
     "ddp"},
    {"--scheme zero1", "--no-overlap",
     "--no-overlap: is about the buckets of --scheme ddp; leave it out, or use --scheme ddp"},
    {"--scheme factor", "--no-overlap",
     "--no-overlap: is about the buckets of --scheme ddp; leave it out, or use --scheme ddp"},
    {"--scheme ddp", "--update fused",
     "--update 'fused': stores no gradients, which several ranks or devices exchange; use --update "
     "separate"},
    {"--scheme zero1", "--update fused",
     "--update 'fused': stores no gradients, which several ranks or devices exchange; use --update "
     "separate"},
    {"--update fused", "--optimizer sgd",
     "--update 'fused': only Adam and AdamW can run inside the weight gradient; use --optimizer "
     "adam or adamw, or --update separate"},
    {"--update fused", "--amsgrad",
     "--update 'fused': the Adam step inside the weight gradient keeps no maximum for --amsgrad; "
     "leave out --amsgrad, or use --update separate"},
    {"--update fused", "--optimizer rmsprop",
     "--update 'fused': only Adam and AdamW can run inside the weight gradient; use --optimizer "
     "adam or adamw, or --update separate"},
    {"--update fused", "--optimizer adagrad",
     "--update 'fused': only Adam and AdamW can run inside the weight gradient; use --optimizer "
     "adam or adamw, or --update separate"},
    {"--update fused", "--optimizer lion",
     "--update 'fused': only Adam and AdamW can run inside the weight gradient; use --optimizer "
     "adam or adamw, or --update separate"},
    {"--update fused", "--no-zero-grad",
     "--no-zero-grad: --update fused stores no gradients that could add up; use --update "
     "separate"},
    {"--update fused", "--clip-norm 0.05",
     "--clip-norm '0.05': --scheme factor clips stored gradients only; use --update separate",
     "--scheme factor"},
    {"--update fused", "--recompute 2",
     "--recompute '2': --update fused makes gradients and update from the activations of all "
     "layers "
     "at the end of the step; use --update separate"},
    {"--scheme factor", "--recompute 2",
     "--recompute '2': --scheme factor gathers and keeps the activations of all layers; use "
     "--scheme ddp or zero1"},
    {"--no-zero-grad", "--grad-dtype bf16",
     "--no-zero-grad: --grad-dtype bf16 rounds the whole sum in each step, which loses the "
     "gradients added; use --grad-dtype fp32"},
    {"--update per-bucket", "--clip-norm 0.05",
     "--update 'per-bucket': --clip-norm needs the gradients of all buckets first; use --update "
     "separate"},
    {"--precision fp16", "--update fused",
     "--update 'fused': with --precision fp16 no weight may change before all gradients are known "
     "to be finite; use --update separate, or --precision bf16"},
    {"--precision fp16", "--update per-bucket",
     "--update 'per-bucket': with --precision fp16 no weight may change before all gradients are "
     "known to be finite; use --update separate, or --precision bf16"},
    {"--precision fp16", "--no-zero-grad",
     "--no-zero-grad: gradients of different loss scales would add up; use --precision bf16"},
    {"--no-zero-grad", "--clip-norm 0.05",
     "--no-zero-grad: it adds up gradients that are not clipped, so --clip-norm cannot be used; "
     "give one of the two"},
    {"--data randn", "--no-shuffle",
     "--no-shuffle: --data randn has no order to keep; use --data with files"},
    {"--data randn", "--input-scale 4",
     "--input-scale: --data randn reads no numbers from files; use --data with files"},
    {"--data randn", "--standardize",
     "--standardize: --data randn is drawn with mean 0 and standard deviation 1; use --data with "
     "files"},
    {"--data randn", "--test-split 0.25",
     "--test-split: --data randn is not a fixed set of samples; use --data with files"},
};

const Refusal* refusal_of(const std::string& a, const std::string& b) {
  const auto gives = [](const std::string& level, const char* option) {
    return level.find(option) != std::string::npos;
  };
  const auto* const found = std::ranges::find_if(kRefusals, [&](const Refusal& refusal) {
    return (gives(a, refusal.one) && gives(b, refusal.other)) ||
           (gives(b, refusal.one) && gives(a, refusal.other));
  });
  return found == std::end(kRefusals) ? nullptr : found;
}

bool may_meet(const std::string& a, const std::string& b) {
  return refusal_of(a, b) == nullptr;
}

/// 36 samples for training and 12 for testing, or 48: 1 to 4 ranks have equal shares of both. If
/// they do not, ranks train on the first samples again, as in PyTorch.
constexpr std::uint32_t kSamples = 48;
constexpr std::uint32_t kFeatures = 6;
constexpr std::uint32_t kTargets = 4;
constexpr const char* kSame =
    "--no-last-relu --steps 8 --lr 0.01 --device cpu --threads 1 "
    "--gemm reference --bucket-mib 0.0002";

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
  const bool has_layers = command.find("--layers") != std::string::npos;
  std::istringstream words(command + (has_layers ? " " : " --layers 6,12,7,9,4 ") + kSame);
  for (std::string word; words >> word;) {
    if (word == "-np") {
      words >> run.ranks;
    } else {
      arguments.push_back(word);
    }
  }
  run.config = parse_command_line(TrainerKind::kDdp, arguments).config;
  for (auto* const path : {&run.config.data.x, &run.config.data.y}) *path = folder() / *path;
  return run;
}

/// The error that mlp_ddp finds before it trains: from the options alone, then from the programs.
std::optional<Error> error_of(const RankCase& run, int rank) {
  const TrainConfig& config = run.config;
  try {
    validate(config, TrainerKind::kDdp);
    std::optional<Dataset> data;
    if (config.data.kind != DataKind::kRandn) {
      data.emplace(load_dataset(config.data, widths_of(config.model, 1), config.model.loss));
    }
    const auto scheme = scheme_of(config, TrainerKind::kDdp);
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
/// gradient nearly cancels, only rounding remains, and Adam's step goes elsewhere.
constexpr double kBf16Bound = 1.0 / 256;
constexpr double kBf16WeightBound = 1.0 / 64;

void expect_near(const Trained& rank, const Trained& one, const RankCase& run) {
  // With 16 bits, each rank's gradients are rounded before the sum over ranks.
  const bool bf16 =
      run.config.parallel.bf16_gradients || type_of(run.config.device.precision) != DType::kF32;
  const double bound = bf16 ? kBf16Bound : kBound;
  ASSERT_EQ(rank.losses.size(), one.losses.size());  // including those of evaluations
  for (std::size_t i = 0; i < one.losses.size(); ++i) {
    EXPECT_NEAR(rank.losses[i], one.losses[i], bound * one.losses[i]) << "loss " << i;
  }
  ASSERT_EQ(rank.evaluations.size(), one.evaluations.size());
  for (std::size_t i = 0; i < one.evaluations.size(); ++i) {
    EXPECT_EQ(rank.evaluations[i].samples, one.evaluations[i].samples);
    if (!bf16) EXPECT_EQ(rank.evaluations[i].accuracy, one.evaluations[i].accuracy);
  }
  EXPECT_LT(largest_distance({.widths = run.config.model.layers}, rank.parameters, one.parameters),
            bf16 ? kBf16WeightBound : kBound);
}

/// The time at which buckets are reduced and updated does not change any bit of the bf16 results.
void expect_bits_of_plain_ddp(const std::vector<Trained>& all, const RankCase& run) {
  TrainConfig plain;
  plain.parallel.bf16_gradients = run.config.parallel.bf16_gradients;
  EXPECT_EQ(all, train_threads_by(*scheme_of(plain, TrainerKind::kDdp), run.ranks, run.config));
}

TEST_F(Combinations, TrainWhatOneRankDoes) {
  for (const Case& levels : cover_pairs(options(), may_meet).cases) {
    const std::string command = command_of(levels);
    SCOPED_TRACE(command);
    const RankCase run = parsed(command);
    ASSERT_EQ(refused(run), std::nullopt);
    const Trained one = train_single(run.config);
    const auto scheme =
        scheme_of(run.config, TrainerKind::kDdp, {.first_bucket_bytes = kFirstBucket});
    const auto all = train_threads_by(*scheme, run.ranks, run.config);
    for (const Trained& rank : all) {
      expect_near(rank, one, run);
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
TEST_F(Combinations, GoOnFromTheStateBetweenTwoStepsToTheBit) {
  std::int64_t number = 0;
  for (const Case& levels : cover_pairs(options(), may_meet).cases) {
    RankCase run = parsed(command_of(levels));
    run.config.checkpoint.folder = "checkpoints";
    const std::int64_t cut = 1 + number % 7;
    const int way = static_cast<int>(number / 7 % 3);
    ++number;
    SCOPED_TRACE(fmt::format("{} cut after {} steps, way {}", command_of(levels), cut, way));
    const auto scheme =
        scheme_of(run.config, TrainerKind::kDdp, {.first_bucket_bytes = kFirstBucket});
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
      {"-np 4 --scheme zero1", "-np 2 --scheme factor", "-np 3 --scheme zero1"}};
  const char* const options[] = {
      "", "--accumulate 3 --optimizer sgd --momentum 0.9", "--no-zero-grad",
      "--data idx:x.idx,y.idx --test-split 0.25 --optimizer adamw --log-every 3"};
  for (const std::vector<std::string>& world : worlds) {
    for (const std::string option : options) {
      const std::string all = option + " --global-batch-size 12";
      SCOPED_TRACE(fmt::format("{} {}", fmt::join(world, ", "), all));
      RankCase run = parsed(all + " " + world.front());
      const Trained one = train_single(run.config);
      TrainingState state;
      Trained joined;
      for (const std::string& part : world) {
        run = parsed(all + " " + part);
        run.config.checkpoint.folder = "checkpoints";
        const TrainingState start = std::exchange(state, {});
        const auto scheme = scheme_of(run.config, TrainerKind::kDdp);
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
    }
  }
}

TEST_F(Combinations, AreRefusedInOneLineOrElseTrain) {
  const CoveringSet set = cover_pairs(options(), [](const auto&, const auto&) { return true; });
  for (const Case& levels : set.cases) {
    const std::string command = command_of(levels);
    SCOPED_TRACE(command);
    std::vector<std::string> reasons;  // possible reasons for a refusal
    for (std::size_t a = 0; a < levels.size(); ++a) {
      for (std::size_t b = a + 1; b < levels.size(); ++b) {
        if (const Refusal* refusal = refusal_of(levels[a], levels[b])) {
          reasons.emplace_back(refusal->text);
        }
      }
    }
    const std::optional<std::string> line = refused(parsed(command));
    EXPECT_EQ(line.has_value(), !reasons.empty()) << line.value_or("");
    if (line) EXPECT_THAT(reasons, testing::Contains(*line));
  }
}

TEST_F(Combinations, AreRefusedForTwoOptionsAlone) {
  for (const Refusal& refusal : kRefusals) {
    const std::string command =
        fmt::format("-np 2 {} {} {}", refusal.beside, refusal.one, refusal.other);
    SCOPED_TRACE(command);
    EXPECT_EQ(refused(parsed(command)), refusal.text);
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
      EXPECT_THAT(options()[a], testing::Contains(levels[a]));
      for (std::size_t b = a + 1; b < levels.size(); ++b) {
        EXPECT_TRUE(may_meet(levels[a], levels[b])) << levels[a] << " and " << levels[b];
      }
    }
  }
  const auto [all, covered] = pairs_in(options(), set.cases);
  EXPECT_EQ(covered + set.impossible.size(), all);
  EXPECT_LT(set.impossible.size(), all / 10) << "most options go together";
  EXPECT_LT(set.cases.size(), 150U);
  EXPECT_EQ(cover_pairs(options(), may_meet).cases, set.cases) << "not the same cases again";
}

TEST(CoveringSet, TellsThePairsThatNoCaseCanHave) {
  const auto may_meet = [](const std::string& a, const std::string& b) {
    return a + b != "ae" && a + b != "cf";
  };
  const CoveringSet set = cover_pairs({{"a", "b"}, {"c", "d"}, {"e", "f"}}, may_meet);
  // a leaves only f of the last factor, and f is not allowed with c.
  EXPECT_THAT(set.impossible, testing::ElementsAre(testing::Pair("a", "c"), testing::Pair("a", "e"),
                                                   testing::Pair("c", "f")));
  EXPECT_THAT(set.cases, testing::UnorderedElementsAre(testing::ElementsAre("a", "d", "f"),
                                                       testing::ElementsAre("b", "c", "e"),
                                                       testing::ElementsAre("b", "d", "e"),
                                                       testing::ElementsAre("b", "d", "f")));
}

}  // namespace
}  // namespace barestep
