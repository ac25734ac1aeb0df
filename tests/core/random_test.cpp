#include "core/random.h"

#include <nlohmann/json.hpp>

#include "support/expect_error.h"
#include "support/golden.h"
#include "support/testing.h"

namespace barestep {
namespace {

using nlohmann::json;

std::vector<float> drawn_randn(TorchGenerator& generator, std::size_t size) {
  std::vector<float> numbers(size);
  generator.randn(numbers);
  return numbers;
}

std::vector<float> drawn_rand(TorchGenerator& generator, std::size_t size) {
  std::vector<float> numbers(size);
  generator.uniform(numbers, 0.0, 1.0);
  return numbers;
}

std::vector<std::uint32_t> bits(std::span<const float> values) {
  std::vector<std::uint32_t> result;
  for (const float value : values) result.push_back(std::bit_cast<std::uint32_t>(value));
  return result;
}

// A seed as typed by a user: -1 means 2^64 - 1.
std::uint64_t parse_seed(const std::string& text) {
  return text.starts_with('-') ? static_cast<std::uint64_t>(std::stoll(text)) : std::stoull(text);
}

std::uint64_t drawn_hash(TorchGenerator& generator, const std::string& draw, std::size_t size) {
  if (draw == "rand") return xxh3(drawn_rand(generator, size));
  if (draw == "randn") return xxh3(drawn_randn(generator, size));
  EXPECT_EQ(draw, "randperm");
  return xxh3(generator.randperm(static_cast<std::int64_t>(size)));
}

// The streams of eight seeds, as drawn by PyTorch.
class GoldenStreams : public ::testing::Test {
 protected:
  GoldenStreams() : file_(json::parse(std::ifstream(golden_path("rng_cpu")))) {}

  [[nodiscard]] const json& file() const { return file_; }
  [[nodiscard]] const json& streams() const { return file_.at("streams"); }

  static TorchGenerator generator_of(const json& stream) {
    return TorchGenerator(parse_seed(stream.at("seed")));
  }

  // Draws and compares call by call; each of `sequences` is a list of calls on a new generator.
  void expect_draws(const char* sequences) const {
    for (const json& stream : streams()) {
      for (const json& calls : stream.at(sequences)) {
        TorchGenerator generator = generator_of(stream);
        for (const json& call : calls) {
          EXPECT_EQ(drawn_hash(generator, call.at("draw"), call.at("size")),
                    parse_hash(call.at("xxh3")))
              << "seed " << stream.at("seed") << ", " << call << " of " << calls;
        }
      }
    }
  }

 private:
  json file_;
};

TEST_F(GoldenStreams, AreOfEightSeeds) {
  EXPECT_EQ(streams().size(), 8U);
}

TEST_F(GoldenStreams, HaveTheSameWords) {
  for (const json& stream : streams()) {
    TorchGenerator generator = generator_of(stream);
    std::vector<std::uint32_t> words(1000);
    for (std::uint32_t& word : words) {
      generator.next();
      word = generator.next();
    }
    const std::vector<std::uint32_t> first = stream.at("every_second_word");
    EXPECT_THAT(std::span(words).first(first.size()), ElementsAreArray(first));
    EXPECT_EQ(xxh3(words), parse_hash(stream.at("every_second_word_of_2000_xxh3")));
  }
}

TEST_F(GoldenStreams, HaveTheSameUniformNumbersOfEverySize) {
  expect_draws("rand");
}

TEST_F(GoldenStreams, HaveTheSameNormalNumbersAndStandAtTheSamePlaceAfterwards) {
  expect_draws("randn_then_rand");
}

TEST_F(GoldenStreams, AreTheSameWhateverIsDrawnInTurn) {
  expect_draws("interleaved");
}

TEST_F(GoldenStreams, RoundUniformRangesTheSameWay) {
  for (const json& stream : streams()) {
    for (const json& drawn : stream.at("uniform")) {
      TorchGenerator generator = generator_of(stream);
      std::vector<float> numbers(drawn.at("size").get<std::size_t>());
      generator.uniform(numbers, std::stod(drawn.at("low").get<std::string>()),
                        std::stod(drawn.at("high").get<std::string>()));
      EXPECT_EQ(xxh3(numbers), parse_hash(drawn.at("xxh3"))) << drawn;
    }
  }
}

/// nn.Linear's default initialization.
void init_linear(TorchGenerator& generator, std::span<float> weight, std::span<float> bias,
                 std::int64_t inputs) {
  const double bound = 1.0 / std::sqrt(static_cast<double>(inputs));
  generator.uniform(weight, -bound, bound);
  generator.uniform(bias, -bound, bound);
}

TEST_F(GoldenStreams, InitializeLinearLayersTheSameWay) {
  for (const json& stream : streams()) {
    for (const json& linear : stream.at("linear")) {
      TorchGenerator generator = generator_of(stream);
      const std::int64_t inputs = linear.at("inputs");
      const auto outputs = linear.at("outputs").get<std::size_t>();
      std::vector<float> weight(outputs * static_cast<std::size_t>(inputs));
      std::vector<float> bias(outputs);
      init_linear(generator, weight, bias, inputs);
      EXPECT_EQ(xxh3(weight), parse_hash(linear.at("weight"))) << linear;
      EXPECT_EQ(xxh3(bias), parse_hash(linear.at("bias"))) << linear;
    }
  }
}

TEST_F(GoldenStreams, ShuffleTheSameWay) {
  for (const json& stream : streams()) {
    TorchGenerator few = generator_of(stream);
    EXPECT_EQ(few.randperm(10), stream.at("randperm_10").get<std::vector<std::int64_t>>());
    TorchGenerator many = generator_of(stream);
    EXPECT_EQ(xxh3(many.randperm(5000)), parse_hash(stream.at("randperm_5000_xxh3")));
  }
}

TEST_F(GoldenStreams, HaveTheSameNormalNumbersAtTheEdges) {
  const json& edges = file().at("normal_edges");
  std::vector<float> numbers;
  for (const json& low_bits : edges.at("low_24_bits")) {
    numbers.push_back(low_bits.get<float>() * 0x1p-24F);
  }
  box_muller(numbers);
  EXPECT_EQ(bits(numbers), bits(edges.at("randn").get<std::vector<float>>()));
}

TEST(TorchGenerator, TakesSeedsByTheirLow32Bits) {
  for (const auto& [one, other] : {std::pair{~0ULL, 0xFFFFFFFFULL}, std::pair{1ULL << 32U, 0ULL},
                                   std::pair{static_cast<unsigned long long>(-1LL), ~0ULL}}) {
    TorchGenerator first(one);
    TorchGenerator second(other);
    for (int i = 0; i < 1000; ++i) ASSERT_EQ(first.next(), second.next());
  }
}

TEST(TorchGenerator, DrawsNothingForNothing) {
  TorchGenerator drawing(5);
  drawing.randn({});
  drawing.uniform({}, 0.0, 1.0);
  EXPECT_TRUE(drawing.randperm(0).empty());
  EXPECT_EQ(drawing.randperm(1), std::vector<std::int64_t>{0});
  EXPECT_EQ(drawing.next(), TorchGenerator(5).next());
}

TEST(TorchGenerator, RefusesAPermutationOfNegativeSize) {
  TorchGenerator generator(0);
  expect_error(ExitCode::kBug, "a permutation has a size", [&] { generator.randperm(-1); });
}

TEST(BoxMuller, RefusesAnUnfinishedBlock) {
  std::vector<float> numbers(17);
  expect_error(ExitCode::kBug, "normals are made in blocks of 16", [&] { box_muller(numbers); });
}

TEST(TorchGenerator, DrawsOnFromItsState) {
  // Before any draw, within a block of words, at its end, and with a cached normal number.
  for (const std::size_t words : {0U, 3U, 624U, 625U}) {
    TorchGenerator generator(7);
    for (std::size_t i = 0; i < words; ++i) generator.next();
    if (words == 3) static_cast<void>(drawn_randn(generator, 1));
    const std::vector<std::byte> state = generator.state();
    EXPECT_EQ(state.size(), kTorchStateBytes);
    auto again = TorchGenerator::from_state(state);
    ASSERT_TRUE(again.has_value());
    EXPECT_EQ(drawn_randn(*again, 5), drawn_randn(generator, 5));
    EXPECT_EQ(drawn_rand(*again, 2000), drawn_rand(generator, 2000));
    EXPECT_EQ(again->state(), generator.state());
  }
}

/// In PyTorch 1.13.1's layout: the seed at byte 0, the number of words left in the block at byte 8,
/// the index of the next one at 16, the words as 64 bits each from 24 on, a cached normal at 5024
/// and whether there is one.
TEST(TorchGenerator, HasTheStateOfPyTorch) {
  TorchGenerator generator(0x123456789AU);
  static_cast<void>(drawn_randn(generator, 1));  // four words
  const std::vector<std::byte> state = generator.state();
  const auto number_at = [&]<class T>(std::size_t place, T number) {
    std::memcpy(&number, &state.at(place), sizeof(T));
    return number;
  };
  EXPECT_EQ(number_at(0, std::uint64_t{}), 0x123456789AU) << "torch.initial_seed()";
  EXPECT_EQ(number_at(8, std::int32_t{}), 621);
  EXPECT_EQ(number_at(12, std::int32_t{}), 1);
  EXPECT_EQ(number_at(16, std::uint64_t{}), 4U);
  EXPECT_LE(number_at(24 + 8 * 623, std::uint64_t{}), 0xFFFFFFFFU);
  EXPECT_EQ(number_at(5040, std::int32_t{}), 1);
  EXPECT_EQ(static_cast<float>(number_at(5024, double{})), drawn_randn(generator, 1).at(0));
}

TEST(TorchGenerator, IsNotMadeOfOtherBytes) {
  const std::vector<std::byte> state = TorchGenerator(0).state();
  EXPECT_FALSE(TorchGenerator::from_state({}));
  EXPECT_FALSE(TorchGenerator::from_state(std::span(state).first(5055)));
  for (const std::size_t place : {9U, 12U, 28U}) {  // left, seeded, a word's upper half
    std::vector<std::byte> spoiled = state;
    spoiled.at(place) = std::byte{0xFF};
    EXPECT_FALSE(TorchGenerator::from_state(spoiled)) << place;
  }
}

}  // namespace
}  // namespace barestep
