#include "data/dataset.h"

#include <sys/resource.h>

#include "support/expect_error.h"
#include "support/idx_bytes.h"
#include "support/npy_bytes.h"
#include "support/saved_weights.h"
#include "support/temp_dir.h"
#include "support/testing.h"

namespace barestep {
namespace {

constexpr int kU8 = 0x08, kI8 = 0x09, kI32 = 0x0C, kF32 = 0x0D, kF64 = 0x0E;

/// Features, and targets or labels, one sample after the other.
template <class Y = float>
struct Samples {
  std::vector<float> x;
  std::vector<Y> y;
};

template <class Y = float>
Samples<Y> gathered(const Dataset& data, const std::vector<std::int64_t>& rows,
                    std::size_t targets = 1) {
  Samples<Y> samples{
      .x = std::vector<float>(rows.size() * static_cast<std::size_t>(data.features())),
      .y = std::vector<Y>(rows.size() * targets)};
  data.gather(rows, samples.x.data(), samples.y.data());
  return samples;
}

class DatasetFiles : public TempDirTest {
 protected:
  /// Loads x and y, given as the bytes of idx files, for a model of these widths.
  Dataset load(const std::string& x, const std::string& y, std::vector<std::int64_t> widths,
               LossKind loss, double test_split = 0,
               std::int64_t memory_bytes = std::numeric_limits<std::int64_t>::max()) {
    const DataConfig config{.kind = DataKind::kIdx,
                            .x = file("x.idx", x),
                            .y = file("y.idx", y),
                            .test_split = test_split};
    return load_dataset(config, widths, loss, memory_bytes);
  }

  void expect_refused(const std::string& text, const std::string& x, const std::string& y,
                      const std::vector<std::int64_t>& widths, LossKind loss) {
    expect_error(ExitCode::kBadData, text, [&] { load(x, y, widths, loss); });
  }
};

const std::string kTwoImages = idx_bytes<std::uint8_t>(kU8, {2, 1, 3}, {0, 51, 255, 1, 2, 3});
const std::string kTwoLabels = idx_bytes<std::uint8_t>(kU8, {2}, {1, 0});

TEST_F(DatasetFiles, GathersPixelsAsFractionsAndLabelsInTheAskedOrder) {
  const Dataset data = load(kTwoImages, kTwoLabels, {3, 2}, LossKind::kCrossEntropy);
  EXPECT_EQ(data.train_rows(), 2);
  EXPECT_EQ(data.test_rows(), 0);
  EXPECT_EQ(data.features(), 3);
  EXPECT_TRUE(data.has_labels());
  const auto [x, y] = gathered<std::int32_t>(data, {1, 0, 1});
  EXPECT_THAT(x, ElementsAre(1.0F / 255, 2.0F / 255, 3.0F / 255, 0, 51.0F / 255, 1, 1.0F / 255,
                             2.0F / 255, 3.0F / 255));
  EXPECT_THAT(y, ElementsAre(0, 1, 0));
}

// From the training set only: the mean of 1, 2, 6 is 3 and the variance 14 / 3.
TEST_F(DatasetFiles, HaveMeanZeroAndDeviationOneWhenStandardized) {
  const std::string x = idx_bytes<float>(kF32, {4, 2}, {1, 5, 2, 5, 6, 5, 100, 7});
  const std::string y = idx_bytes<float>(kF32, {4, 1}, {1, 2, 3, 4});
  for (const std::int64_t memory_bytes : {std::int64_t{1} << 20, std::int64_t{0}}) {
    DataConfig config{.kind = DataKind::kIdx,
                      .x = file("x.idx", x),
                      .y = file("y.idx", y),
                      .standardize = true,
                      .test_split = 0.25};
    const Dataset data =
        load_dataset(config, std::array<std::int64_t, 2>{2, 1}, LossKind::kMse, memory_bytes);
    EXPECT_EQ(data.is_loaded(), memory_bytes > 0);
    const double deviation = std::sqrt(14.0 / 3);
    EXPECT_THAT(data.standard().mean, ElementsAre(3, 5));
    EXPECT_THAT(data.standard().deviation, ElementsAre(deviation, 1)) << "the second never changes";
    const auto [features, targets] = gathered(data, {0, 1, 2, 3});
    const auto scaled = [&](double distance) { return static_cast<float>(distance / deviation); };
    EXPECT_THAT(features, ElementsAre(scaled(-2), 0, scaled(-1), 0, scaled(3), 0, scaled(97), 2));
    EXPECT_THAT(targets, ElementsAre(1, 2, 3, 4)) << "as they are";
  }
}

TEST_F(DatasetFiles, StandardizePixelsAsFractions) {
  const DataConfig config{.kind = DataKind::kIdx,
                          .x = file("x.idx", kTwoImages),
                          .y = file("y.idx", kTwoLabels),
                          .standardize = true};
  const Dataset data =
      load_dataset(config, std::array<std::int64_t, 2>{3, 2}, LossKind::kCrossEntropy);
  const auto [x, y] = gathered<std::int32_t>(data, {0, 1});
  const std::array<float, 6> expected = {-1, 1, 1, 1, -1, -1};
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(x[i], expected[i], 1e-6) << i;
}

/// Times since 1970: in float, both samples would be 1,764,547,200.
TEST_F(DatasetFiles, AreStandardizedFromNumbersThatFloatsDoNotHold) {
  for (const std::int64_t memory_bytes : {std::int64_t{1} << 20, std::int64_t{0}}) {
    for (const std::string& x :
         {npy_bytes<double>("<f8", "2, 1", {1764547260.5, 1764547261.5}),
          npy_bytes<std::int64_t>("<i8", "2, 1", {1764547260000, 1764547260002})}) {
      const DataConfig config{.kind = DataKind::kNpy,
                              .x = file("x.npy", x),
                              .y = file("y.npy", npy_bytes<float>("<f4", "2,", {1, 2})),
                              .standardize = true};
      const Dataset data =
          load_dataset(config, std::array<std::int64_t, 2>{1, 1}, LossKind::kMse, memory_bytes);
      EXPECT_THAT(gathered(data, {0, 1}).x, ElementsAre(-1, 1));
    }
  }
}

/// Features and targets of two samples, and what is divided.
struct Divided {
  std::string x, y;
  std::vector<float> features, targets;
  std::string division;
  std::optional<double> input_scale{};
  DataKind kind = DataKind::kNpy;
};

TEST_F(DatasetFiles, AreDividedIfTheyAreImagesOrIfAsked) {
  const std::string pair = npy_bytes<float>("<f4", "2, 1", {1, 2});
  const std::string bytes = npy_bytes<std::uint8_t>("|u1", "2, 2", {1, 0, 255, 51});
  const std::string bits = npy_bytes<std::uint8_t>("|b1", "2, 2", {1, 0, 0, 1});
  const std::string numbers = npy_bytes<float>("<f4", "2, 2", {1, 0, 255, 51});
  const std::string images = idx_bytes<std::uint8_t>(kU8, {2, 1, 2}, {1, 0, 255, 51});
  const std::string wide = idx_bytes<std::uint8_t>(kU8, {2, 3}, {0, 255, 0, 51, 0, 0});
  const std::string column = idx_bytes<std::uint8_t>(kU8, {2, 1}, {7, 200});
  const std::string scalars = idx_bytes<double>(kF64, {2, 2}, {1, 0, 255, 51});
  const std::string small = idx_bytes<std::int8_t>(kI8, {2, 1, 2}, {127, 2, -3, 4});
  const std::vector<float> whole = {1, 0, 255, 51}, parts = {1.0F / 255, 0, 1, 51.0F / 255};
  const std::vector<float> halves = {0.5F, 0, 127.5F, 25.5F};
  const Divided cases[] = {
      {bits, pair, {1, 0, 0, 1}, {1, 2}, ""},
      {bytes, bytes, whole, whole, ""},
      {numbers, bits, whole, {1, 0, 0, 1}, ""},
      {bytes, bytes, parts, parts, "features and targets / 255", 255},
      {numbers, numbers, halves, whole, "features / 2", 2},
      {numbers, bytes, halves, whole, "features / 2", 2},
      {bytes, npy_bytes<std::uint8_t>("|u1", "2,", {7, 8}), halves, {7, 8}, "features / 2", 2},
      {numbers, pair, {10, 0, 2550, 510}, {1, 2}, "features / 0.1", 0.1},
      {images, images, parts, parts, "features and targets / 255", {}, DataKind::kIdx},
      {images, images, halves, halves, "features and targets / 2", 2, DataKind::kIdx},
      {images, images, whole, whole, "", 1, DataKind::kIdx},
      {images, column, parts, {7, 200}, "features / 255", {}, DataKind::kIdx},
      {scalars, small, whole, {127, 2, -3, 4}, "", {}, DataKind::kIdx},
      {scalars, wide, whole, {0, 1, 0, 0.2F, 0, 0}, "targets / 255", {}, DataKind::kIdx},
      {images,
       wide,
       halves,
       {0, 127.5F, 0, 25.5F, 0, 0},
       "features and targets / 2",
       2,
       DataKind::kIdx},
  };
  for (const Divided& one : cases) {
    for (const std::int64_t memory_bytes : {std::int64_t{1} << 20, std::int64_t{0}}) {
      SCOPED_TRACE(testing::Message() << &one - cases << ", memory " << memory_bytes);
      const DataConfig config{.kind = one.kind,
                              .x = file("x", one.x),
                              .y = file("y", one.y),
                              .input_scale = one.input_scale};
      const std::size_t targets = one.targets.size() / 2;
      const std::array<std::int64_t, 2> widths{2, static_cast<std::int64_t>(targets)};
      const Dataset data = load_dataset(config, widths, LossKind::kMse, memory_bytes);
      const auto [x, y] = gathered(data, {0, 1}, targets);
      EXPECT_FALSE(data.has_labels());
      EXPECT_EQ(x, one.features);
      EXPECT_EQ(y, one.targets);
      EXPECT_EQ(data.division(), one.division);
    }
  }
}

TEST_F(DatasetFiles, StayWhereTheyAreWhenMemoryIsTooSmallForThem) {
  std::vector<float> x(3 * 5000);  // rows longer than one read
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i) / 7;
  const std::string x_bytes = idx_bytes<float>(kF32, {3, 5000}, x);
  const std::string y_bytes = idx_bytes<double>(kF64, {3, 2}, {1, 2, 3, 4, 5, 6});
  for (const std::int64_t memory_bytes : {60'048, 60'047}) {
    const Dataset data = load(x_bytes, y_bytes, {5000, 2}, LossKind::kMse, 0, memory_bytes);
    EXPECT_EQ(data.is_loaded(), memory_bytes == 60'048);
    const auto [features, targets] = gathered(data, {2, 0}, 2);
    EXPECT_TRUE(std::ranges::equal(std::span(features).first(5000), std::span(x).last(5000)));
    EXPECT_TRUE(std::ranges::equal(std::span(features).last(5000), std::span(x).first(5000)));
    EXPECT_THAT(targets, ElementsAre(5, 6, 1, 2));
  }
}

TEST_F(DatasetFiles, LoadTheRowsThatAreNeededAndReadOthersFromTheFile) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::string x = idx_bytes<float>(kF32, {6, 2}, {0, 1, 2, 3, nan, 5, 6, 7, 8, 9, 10, 11});
  const std::string y = idx_bytes<double>(kF64, {6, 1}, {0, 1, 2, 3, 4, 5});
  const DataConfig config{
      .kind = DataKind::kIdx, .x = file("x.idx", x), .y = file("y.idx", y), .test_split = 0.5};
  const std::vector<bool> needed = {true, true, false, false, true, false};
  const auto load_needed = [&](std::int64_t max_count, std::int64_t memory_bytes) {
    return load_dataset(config, std::array<std::int64_t, 2>{2, 1}, LossKind::kMse, memory_bytes,
                        [&](std::int64_t train_rows, std::int64_t test_rows) {
                          EXPECT_EQ(train_rows, 3);
                          EXPECT_EQ(test_rows, 3);
                          return NeededRows{needed, max_count};
                        });
  };
  struct Limit {
    std::int64_t max_count, memory_bytes;
    bool is_loaded;
  };
  // Three rows of two floats and a double; another process needs as many or one more.
  for (const Limit& limit : {Limit{3, 48, true}, {3, 47, false}, {4, 64, true}, {4, 63, false}}) {
    const Dataset data = load_needed(limit.max_count, limit.memory_bytes);
    EXPECT_FALSE(data.is_loaded());
    const auto [features, targets] = gathered(data, {5, 4, 0, 1, 3});
    EXPECT_THAT(features, ElementsAre(10, 11, 8, 9, 0, 1, 2, 3, 6, 7));
    EXPECT_THAT(targets, ElementsAre(5, 4, 0, 1, 3));
    expect_error(ExitCode::kBadData, "row 2, column 0 is not a finite 32-bit number",
                 [&] { gathered(data, {2}); });
    std::filesystem::resize_file(config.x, 30);
    // Rows in memory are read even if the file is gone.
    const auto read_row_4 = [&] { gathered(data, {4}); };
    if (limit.is_loaded) {
      EXPECT_NO_THROW(read_row_4());
    } else {
      expect_error(ExitCode::kInputOutput, "became shorter", read_row_4);
    }
    write_file(config.x, x);
  }
}

TEST_F(DatasetFiles, MayBeMoreThanAProcessMayOpen) {
  constexpr int kFiles = 300;
  for (int i = 0; i < kFiles; ++i) {
    const auto value = static_cast<float>(i);
    file(fmt::format("x{:03}.npy", i), npy_bytes<float>("<f4", "1, 1", {value}));
    file(fmt::format("y{:03}.npy", i), npy_bytes<float>("<f4", "1,", {-value}));
  }
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{200, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  for (const std::int64_t memory_bytes : {std::int64_t{1} << 20, std::int64_t{0}}) {
    const Dataset data =
        load_dataset({.kind = DataKind::kNpy, .x = folder() / "x*.npy", .y = folder() / "y*.npy"},
                     std::array<std::int64_t, 2>{1, 1}, LossKind::kMse, memory_bytes);
    const auto [x, y] = gathered(data, {299, 7});
    EXPECT_THAT(x, ElementsAre(299, 7));
    EXPECT_THAT(y, ElementsAre(-299, -7));
  }
  ::setrlimit(RLIMIT_NOFILE, &before);
}

TEST_F(DatasetFiles, KnowTheClassesOfTheTestSetThatTrainingNeverSees) {
  const std::string x = idx_bytes<float>(kF32, {8, 1}, std::vector<float>(8));
  const std::string y = idx_bytes<std::uint8_t>(kU8, {8}, {0, 3, 0, 3, 5, 0, 1, 5});
  EXPECT_THAT(load(x, y, {1, 6}, LossKind::kCrossEntropy, 0.5).untrained_classes(),
              ElementsAre(1, 5));
  EXPECT_THAT(load(x, y, {1, 6}, LossKind::kCrossEntropy, 0.125).untrained_classes(),
              ElementsAre());
  EXPECT_THAT(load(x, y, {1, 6}, LossKind::kCrossEntropy).untrained_classes(), ElementsAre());
  EXPECT_THAT(load(x, x, {1, 1}, LossKind::kMse, 0.5).untrained_classes(), ElementsAre());
}

TEST_F(DatasetFiles, ThatStayWhereTheyAreAreLookedThroughAsTheyAreGathered) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Dataset data = load(idx_bytes<float>(kF32, {2, 2}, {1, 2, 3, nan}),
                            idx_bytes<float>(kF32, {2, 1}, {1, 2}), {2, 1}, LossKind::kMse, 0, 0);
  EXPECT_THAT(gathered(data, {0}).x, ElementsAre(1, 2));
  expect_error(ExitCode::kBadData,
               "/x.idx': row 1, column 1 is not a finite 32-bit number; remove or replace",
               [&] { gathered(data, {1}); });
  // What is compressed is in memory.
  expect_error(ExitCode::kBadData,
               "/x.idx': row 1, column 1 is not a finite 32-bit number, the first of 1; remove",
               [&] {
                 load(gzipped(idx_bytes<float>(kF32, {2, 2}, {1, 2, 3, nan})),
                      idx_bytes<float>(kF32, {2, 1}, {1, 2}), {2, 1}, LossKind::kMse, 0, 0);
               });
}

/// The files of --data, for two features and one target or three classes.
struct Source {
  DataKind kind = DataKind::kIdx;
  std::filesystem::path x, y;
};

Dataset load_source(const Source& source, LossKind loss, std::vector<std::int64_t> widths) {
  return load_dataset({.kind = source.kind, .x = source.x, .y = source.y}, widths, loss);
}

TEST_F(DatasetFiles, OfEveryFormatHoldTheSameSamples) {
  const std::vector<float> x = {1, 2, 3, 4, 5, 6}, y = {7, 8, 9};
  const auto tensors = folder() / "xy.safetensors";
  save_safetensors(tensors, std::vector<NamedTensor>{{"x", {3, 2}, x}, {"y", {3}, y}});
  const Source sources[] = {{DataKind::kIdx, file("x.idx", idx_bytes<float>(kF32, {3, 2}, x)),
                             file("y.idx", idx_bytes<float>(kF32, {3}, y))},
                            {DataKind::kNpy, file("x.npy", npy_bytes<float>("<f4", "3, 2", x)),
                             file("y.npy", npy_bytes<std::int64_t>("<i8", "3,", {7, 8, 9}))},
                            {DataKind::kSafetensors, tensors, {}}};
  for (const Source& source : sources) {
    const Dataset data = load_source(source, LossKind::kMse, {2, 1});
    const auto samples = gathered(data, {0, 1, 2});
    EXPECT_EQ(samples.x, x) << source.x;
    EXPECT_EQ(samples.y, y) << source.x;
  }
}

TEST_F(DatasetFiles, HaveTheNumbersOfEveryType) {
  const auto numbers_of = [this](const std::string& bytes) {
    const Source source{DataKind::kNpy, file("x.npy", bytes), file("x.npy", bytes)};
    const auto [x, y] = gathered(load_source(source, LossKind::kMse, {2, 2}), {0}, 2);
    EXPECT_EQ(x, y);
    return x;
  };
  using U16 = std::uint16_t;
  const std::string shape = "1, 2";
  EXPECT_THAT(numbers_of(npy_bytes<U16>("<u2", shape, {1, 65535})), ElementsAre(1, 65535));
  EXPECT_THAT(numbers_of(npy_bytes<U16>(">u2", shape, {1, 0xFF00})), ElementsAre(256, 255));
  EXPECT_THAT(numbers_of(npy_bytes<std::uint32_t>("<u4", shape, {7, 0x80000000})),
              ElementsAre(7, 0x1p31F));
  EXPECT_THAT(numbers_of(npy_bytes<std::uint64_t>("<u8", shape, {7, 1ULL << 63U})),
              ElementsAre(7, 0x1p63F));
  // IEEE 754's binary16: a sign, 5 bits of exponent, 10 of fraction.
  EXPECT_THAT(numbers_of(npy_bytes<U16>("<f2", shape, {0x3E00, 0x8001})),
              ElementsAre(1.5F, -0x1p-24F));
  expect_error(ExitCode::kBadData, "row 0, column 1 is not a finite 32-bit number", [&] {
    numbers_of(npy_bytes<U16>("<f2", shape, {0, 0x7C00}));
  });

  const std::string header = R"({"x":{"dtype":"F16","shape":[1,2],"data_offsets":[0,4]},)"
                             R"("y":{"dtype":"BF16","shape":[1,2],"data_offsets":[4,8]}})";
  const std::string bytes("\x00\x3E\x00\xC0\xC0\x3F\x00\xC0", 8);
  std::string tensors(8, '\0');
  tensors[0] = static_cast<char>(header.size());
  const Source source{DataKind::kSafetensors, file("t", tensors + header + bytes), {}};
  const auto [x, y] = gathered(load_source(source, LossKind::kMse, {2, 2}), {0}, 2);
  EXPECT_THAT(x, ElementsAre(1.5F, -2));
  EXPECT_THAT(y, ElementsAre(1.5F, -2));
}

TEST_F(DatasetFiles, OfLabelsMayHaveNoSign) {
  const Source source{DataKind::kNpy, file("x.npy", npy_bytes<float>("<f4", "2, 1", {1, 2})),
                      file("y.npy", npy_bytes<std::uint64_t>("<u8", "2,", {2, 0}))};
  const Dataset data = load_source(source, LossKind::kCrossEntropy, {1, 3});
  EXPECT_THAT(gathered<std::int32_t>(data, {0, 1}).y, ElementsAre(2, 0));
}

TEST_F(DatasetFiles, OfSeveralShardsFollowEachOtherByName) {
  file("x-0.npy", npy_bytes<float>("<f4", "1, 2", {1, 2}));
  file("x-1.npy", npy_bytes<float>("<f4", "0, 2", {}));
  file("x-2.npy", npy_bytes<float>("<f4", "2, 2", {3, 4, 5, 6}));
  // The labels are split into files differently.
  file("y-0.npy", npy_bytes<std::uint8_t>("|u1", "2,", {2, 0}));
  file("y-1.npy", npy_bytes<std::uint8_t>("|u1", "1,", {1}));
  const Source source{DataKind::kNpy, folder() / "x-*.npy", folder() / "y-*.npy"};
  const Dataset data = load_source(source, LossKind::kCrossEntropy, {2, 3});
  EXPECT_EQ(data.train_rows(), 3);
  const auto [x, y] = gathered<std::int32_t>(data, {2, 0, 1});
  EXPECT_THAT(x, ElementsAre(5, 6, 1, 2, 3, 4));
  EXPECT_THAT(y, ElementsAre(1, 2, 0));

  file("x-3.npy", npy_bytes<float>("<f4", "1, 3", {1, 2, 3}));
  expect_error(ExitCode::kBadData,
               "/x-3.npy': has 3 of f32 per sample, '" + (folder() / "x-0.npy").string() +
                   "' has 2 of f32; use files that belong together",
               [&] {
                 load_source(source, LossKind::kCrossEntropy, {2, 3});
               });
}

TEST_F(DatasetFiles, OfTensorsNameThemXAndY) {
  const auto path = folder() / "other.safetensors";
  const std::vector<float> numbers = {1, 2};
  save_safetensors(path,
                   std::vector<NamedTensor>{{"images", {1, 2}, numbers}, {"labels", {2}, numbers}});
  expect_error(ExitCode::kBadData,
               "/other.safetensors': has no tensor 'x', but images, labels; name the samples 'x' "
               "and their labels or targets 'y'",
               [&] {
                 load_source({DataKind::kSafetensors, path, {}}, LossKind::kMse, {2, 1});
               });
}

TEST_F(DatasetFiles, TakesSamplesOfOneNumber) {
  const Dataset data = load(idx_bytes<std::int8_t>(kI8, {2}, {-3, 4}),
                            idx_bytes<float>(kF32, {2}, {0.5F, 1}), {1, 1}, LossKind::kMse);
  const auto [x, y] = gathered(data, {0, 1});
  EXPECT_THAT(x, ElementsAre(-3, 4));
  EXPECT_THAT(y, ElementsAre(0.5F, 1));
}

TEST_F(DatasetFiles, HaveATestSetOfTheShareThatWasTyped) {
  const std::string ten = idx_bytes<float>(kF32, {10, 1}, std::vector<float>(10, 1));
  const std::string many = idx_bytes<float>(kF32, {100, 1}, std::vector<float>(100, 1));
  for (int percent = 0; percent <= 100; ++percent) {
    const double share = std::stod(fmt::format("{}.{:02}", percent / 100, percent % 100));
    const Dataset data = load(many, many, {1, 1}, LossKind::kMse, share);
    EXPECT_EQ(data.test_rows(), percent);
    EXPECT_EQ(data.train_rows(), 100 - percent);
    if (percent < 10) continue;
    EXPECT_EQ(load(ten, ten, {1, 1}, LossKind::kMse, share).test_rows(), percent / 10);
  }
  expect_error(ExitCode::kConfiguration,
               "--test-split '0.05': of 10 samples leaves 0 to test with; give a larger share, or "
               "leave it out",
               [&] {
                 load(ten, ten, {1, 1}, LossKind::kMse, 0.05);
               });
}

TEST_F(DatasetFiles, AreRefusedWhereTheyDoNotFit) {
  const std::string three_labels = idx_bytes<std::uint8_t>(kU8, {3}, {0, 1, 2});
  const std::string float_labels = idx_bytes<float>(kF32, {2}, {0, 1});
  constexpr LossKind kClasses = LossKind::kCrossEntropy;
  expect_refused("/x.idx': has 2 samples, '" + (folder() / "y.idx").string() + "' has 3; use files",
                 kTwoImages, three_labels, {3, 2}, kClasses);
  expect_refused("/x.idx': has no samples", idx_header(kU8, {0, 3}), idx_header(kU8, {0}), {3, 2},
                 kClasses);
  expect_refused(
      "/x.idx': data has 3 features, the model takes 4; make it take 3, by --layers, --dim or "
      "--length",
      kTwoImages, kTwoLabels, {4, 2}, kClasses);
  expect_refused(
      "/y.idx': labels are f32, cross-entropy needs integers; use integer labels or --loss mse",
      kTwoImages, float_labels, {3, 2}, kClasses);
  expect_refused("/y.idx': has 3 numbers per sample, cross-entropy needs 1", kTwoImages, kTwoImages,
                 {3, 2}, kClasses);
  expect_refused(
      "/y.idx': data has 1 target per sample, the model gives 5; make it give 1, by --layers, "
      "--dim or --length",
      kTwoImages, float_labels, {3, 5}, LossKind::kMse);
  expect_refused(
      "/y.idx': data has 1 target per sample, the model gives 5; make it give 1, by --layers, "
      "--dim or --length, or use --loss cross-entropy if they are labels",
      kTwoImages, kTwoLabels, {3, 5}, LossKind::kMse);
}

TEST_F(DatasetFiles, HoldZerosAndOnesForBinaryCrossEntropyAsIntegersOrFloats) {
  for (const std::string& bits :
       {idx_bytes<std::uint8_t>(kU8, {2}, {1, 0}), idx_bytes<float>(kF32, {2, 1}, {1, 0})}) {
    const Dataset data = load(kTwoImages, bits, {3, 1}, LossKind::kBce);
    EXPECT_THAT(gathered<std::int32_t>(data, {0, 1}).y, ElementsAre(1, 0));
  }
  expect_refused("/y.idx': row 1 is 0.5, bce needs 0 or 1; correct the labels or use --loss mse",
                 kTwoImages, idx_bytes<float>(kF32, {2}, {1, 0.5F}), {3, 1}, LossKind::kBce);
  expect_refused("/y.idx': has 3 numbers per sample, bce needs 1; use one label per sample",
                 kTwoImages, kTwoImages, {3, 1}, LossKind::kBce);
}

TEST_F(DatasetFiles, TellTheVarianceOfTheLastTargets) {
  const std::string x = idx_bytes<float>(kF32, {4, 1}, {0, 0, 0, 0});
  const std::string y = idx_bytes<float>(kF32, {4, 2}, {9, 9, 1, 10, 2, 10, 6, 13});
  const Dataset data = load(x, y, {1, 2}, LossKind::kMse);
  // The variance of 1, 2, 6 is 14 / 3, that of 10, 10, 13 is 2.
  EXPECT_THAT(data.target_variances(3), ElementsAre(testing::DoubleEq(14.0 / 3), 2));
  EXPECT_THAT(data.target_variances(1), ElementsAre(0, 0));
  EXPECT_THAT(load(kTwoImages, kTwoLabels, {3, 2}, LossKind::kCrossEntropy).target_variances(2),
              ElementsAre());
}

TEST_F(DatasetFiles, AreRefusedWithLabelsOutOfRange) {
  expect_refused(
      "/y.idx': row 0 has label 1, the last of --layers gives 1 class, numbered from 0; correct "
      "the labels or widen the last layer",
      kTwoImages, kTwoLabels, {3, 1}, LossKind::kCrossEntropy);
  expect_refused("row 1 has label -1,", kTwoImages, idx_bytes<std::int8_t>(kI8, {2}, {0, -1}),
                 {3, 2}, LossKind::kCrossEntropy);
  expect_refused("row 1 has label 2147483647,", kTwoImages,
                 idx_bytes<std::int32_t>(kI32, {2, 1}, {0, 2147483647}), {3, 2},
                 LossKind::kCrossEntropy);
  const DataConfig unsigned_labels{
      .kind = DataKind::kNpy,
      .x = file("x.npy", npy_bytes<float>("<f4", "1, 1", {0})),
      .y = file("y.npy", npy_bytes<std::uint64_t>("<u8", "1,", {UINT64_MAX}))};
  expect_error(ExitCode::kBadData, "row 0 has label 18446744073709551615,", [&] {
    load_dataset(unsigned_labels, std::vector<std::int64_t>{1, 2}, LossKind::kCrossEntropy);
  });
}

TEST_F(DatasetFiles, AreRefusedWithNumbersThatAreNotFinite) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::string good = idx_bytes<float>(kF32, {2, 2}, {1, 2, 3, 4});
  const std::string bad = idx_bytes<float>(kF32, {2, 2}, {1, 2, nan, -inf});
  expect_refused(
      "/x.idx': row 1, column 0 is not a finite 32-bit number, the first of 2; remove or replace "
      "such samples",
      bad, good, {2, 2}, LossKind::kMse);
  expect_refused("/y.idx': row 1, column 0 is not a finite 32-bit number, the first of 2", good,
                 bad, {2, 2}, LossKind::kMse);
  expect_refused("/x.idx': row 0, column 1 is not a finite 32-bit number, the first of 1",
                 idx_bytes<double>(kF64, {2, 2}, {1, 1e300, 3, 4}), good, {2, 2}, LossKind::kMse);
}

TEST_F(DatasetFiles, AreRefusedWhenMissing) {
  const DataConfig config{.kind = DataKind::kIdx, .x = folder() / "none", .y = folder() / "none"};
  const std::array<std::int64_t, 2> widths{1, 1};
  expect_error(ExitCode::kNoInput, "/none': No such file or directory",
               [&] { load_dataset(config, widths, LossKind::kMse); });
}

/// The bits come from NumPy: pixels.astype(float32) / float32(255).
TEST(DatasetOfMnist, HasPixelsAsNumPyDividesThem) {
  const std::filesystem::path folder = BARESTEP_TEST_DATA "/mnist";
  const DataConfig config{.kind = DataKind::kIdx,
                          .x = folder / "t10k-images-idx3-ubyte.gz",
                          .y = folder / "t10k-labels-idx1-ubyte.gz",
                          .test_split = 0.2};
  const std::array<std::int64_t, 3> widths{784, 512, 10};
  const Dataset data = load_dataset(config, widths, LossKind::kCrossEntropy);
  EXPECT_EQ(data.train_rows(), 8000);
  EXPECT_EQ(data.test_rows(), 2000);
  const auto [x, labels] = gathered<std::int32_t>(data, {0});
  EXPECT_THAT(labels, ElementsAre(7));
  std::array<std::uint32_t, 6> bits{};
  std::memcpy(bits.data(), &x[202], sizeof(bits));
  EXPECT_THAT(bits,
              ElementsAre(0x3ea8a8a9, 0x3f39b9ba, 0x3f1f9fa0, 0x3f179798, 0x3e70f0f1, 0x3e109091));
}

/// torch.randperm(10, generator=torch.Generator().manual_seed(seed + epoch)), PyTorch 1.13.1.
TEST(EpochOrder, IsTorchsPermutationOfSeedPlusEpoch) {
  const auto order = [](std::uint64_t seed, std::int64_t epoch) {
    std::array<std::int64_t, 10> rows{};
    epoch_order(seed, epoch, rows);
    return rows;
  };
  EXPECT_THAT(order(0, 0), ElementsAre(4, 1, 7, 5, 3, 9, 0, 8, 6, 2));
  EXPECT_THAT(order(0, 1), ElementsAre(5, 6, 1, 2, 0, 8, 9, 3, 7, 4));
  EXPECT_THAT(order(2, 3), ElementsAre(1, 4, 9, 6, 3, 5, 0, 2, 8, 7));
  EXPECT_EQ(order(~std::uint64_t{0}, 1), order(0, 0));
}

}  // namespace
}  // namespace barestep
