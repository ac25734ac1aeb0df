#include "core/product_choices.h"

#include "support/expect_error.h"
#include "support/temp_dir.h"
#include "support/testing.h"

namespace barestep {
namespace {

const ProductPlace kHere{.device = "GPU", .library = "library 1", .precision = "fp32"};

AlgorithmBytes bytes_from(int first) {
  AlgorithmBytes bytes{};
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(first += 7);
  return bytes;
}

TEST(ProductShape, OfOtherRowsIsTheSameForAllOfThem) {
  const ProductShape forward{
      .m = 22, .n = 6, .k = 3, .transpose_b = true, .alignment_a = 64, .alignment_c = 256};
  ProductShape of_rows = shape_for_rows(forward, 64);
  EXPECT_EQ(of_rows.m, 64);
  EXPECT_EQ(of_rows.alignment_a, 4) << "rows of 12 bytes";
  EXPECT_EQ(of_rows.alignment_c, 8) << "rows of 24 bytes";
  ProductShape fewer = forward;
  fewer.m = 20;
  fewer.alignment_a = 16;
  EXPECT_EQ(shape_for_rows(fewer, 64), of_rows);
  const ProductShape gradient{.m = 6, .n = 3, .k = 64, .transpose_a = true};
  EXPECT_EQ(shape_for_rows(gradient, 64), gradient) << "it sums rows up";
}

TEST(ProductShape, SaysAllThatMattersButAddresses) {
  const Tensor a{.buffer = 0, .offset_bytes = 0, .rows = 8, .cols = 4};
  const Tensor b{.buffer = 1, .offset_bytes = 64, .rows = 8, .cols = 6};
  const Tensor c{.buffer = 2, .offset_bytes = 24, .rows = 4, .cols = 6};
  const ProductShape shape = shape_of(
      {.c = c, .a = a, .b = b, .transpose_a = true, .beta = 1, .activation = Activation::kRelu});
  EXPECT_EQ(text_of(shape), "4x6x8 TN relu");
  EXPECT_EQ(shape.alignment_a, 256);
  EXPECT_EQ(shape.alignment_b, 64);
  EXPECT_EQ(shape.alignment_c, 8);
  Tensor elsewhere = a;
  elsewhere.buffer = 5;
  EXPECT_EQ(
      shape_of(
          {.c = c, .a = elsewhere, .b = b, .transpose_a = true, .activation = Activation::kRelu}),
      shape);
}

class ProductChoicesFile : public TempDirTest {
 protected:
  [[nodiscard]] std::filesystem::path path() const { return folder() / "choices.json"; }
  void expect_refused(const std::string& content, const std::string& why) {
    file("choices.json", content);
    expect_error(ExitCode::kBadData, "--autotune '" + path().string() + "': " + why,
                 [&] { ProductChoices(path(), kHere); });
    EXPECT_EQ(read_file(path()), content) << "a file that is refused stays as it is";
  }
};

TEST_F(ProductChoicesFile, HasTheTimesOfBothKindsOfKernelsOfWhichTheFasterIsChosen) {
  ProductChoices choices(path(), kHere);
  choices.add_kernels("attention", {.usual_us = 3.5, .other_us = 3});
  choices.add_kernels("update", {.usual_us = 5});
  ProductChoices read(path(), kHere);
  EXPECT_EQ(read.text(), choices.text());
  ASSERT_TRUE(read.find_kernels("attention") && read.find_kernels("update"));
  EXPECT_EQ(read.find_kernels("attention")->usual_us, 3.5);
  EXPECT_TRUE(read.find_kernels("attention")->prefers_other());
  EXPECT_FALSE(read.find_kernels("update")->prefers_other()) << "they did not run";
  EXPECT_FALSE(read.find_kernels("product"));
  read.add_kernels("attention", {.usual_us = 3, .other_us = 3});
  EXPECT_FALSE(read.find_kernels("attention")->prefers_other());
  EXPECT_TRUE(read.take(choices.text()));
  EXPECT_TRUE(read.find_kernels("attention")->prefers_other());
}

TEST_F(ProductChoicesFile, OfACacheMayBeLostDamagedOrOutOfReach) {
  using enum ProductChoices::Keeper;
  const ProductShape shape{.m = 4, .n = 5, .k = 6};
  const std::filesystem::path deep = folder() / "not" / "yet" / "there.json";
  ProductChoices(deep, kHere, kCache).add(shape, bytes_from(1));
  EXPECT_EQ(ProductChoices(deep, kHere, kCache).find(shape), bytes_from(1));
  ProductPlace elsewhere = kHere;
  elsewhere.device = "another";
  EXPECT_FALSE(ProductChoices(deep, elsewhere, kCache).find(shape));
  file("choices.json", "{");
  ProductChoices damaged(path(), kHere, kCache);
  EXPECT_FALSE(damaged.find(shape));
  damaged.add(shape, bytes_from(2));
  EXPECT_EQ(ProductChoices(path(), kHere, kCache).find(shape), bytes_from(2));
  for (const std::filesystem::path& nowhere :
       {std::filesystem::path("/proc/none/choices.json"), std::filesystem::path()}) {
    ProductChoices lost(nowhere, kHere, kCache);
    lost.add(shape, bytes_from(3));
    EXPECT_EQ(lost.find(shape), bytes_from(3));
  }
}

TEST_F(ProductChoicesFile, HandsItsTextToAnEqualPlaceAlone) {
  const ProductShape shape{.m = 4, .n = 5, .k = 6};
  ProductChoices first(path(), kHere);
  EXPECT_EQ(first.text(), "");
  first.add(shape, bytes_from(1));
  EXPECT_EQ(first.text(), read_file(path()));
  ProductChoices other("", kHere, ProductChoices::Keeper::kCache);
  EXPECT_TRUE(other.take(first.text()));
  EXPECT_EQ(other.find(shape), bytes_from(1));
  ProductPlace elsewhere = kHere;
  elsewhere.library = "library 2";
  ProductChoices foreign("", elsewhere, ProductChoices::Keeper::kCache);
  EXPECT_FALSE(foreign.take(first.text()));
  EXPECT_FALSE(foreign.take("[]"));
  EXPECT_FALSE(foreign.find(shape));
}

TEST_F(ProductChoicesFile, KeepsChoicesFromRunToRun) {
  const ProductShape plain{.m = 4, .n = 5, .k = 6, .transpose_b = true, .alignment_a = 64};
  ProductShape fused = plain;
  fused.bias = fused.relu = true;
  ProductChoices first(path(), kHere);
  EXPECT_FALSE(first.find(plain));
  first.add(plain, bytes_from(1));
  first.add(fused, bytes_from(2));
  first.add(plain, bytes_from(3), {.library_us = 12.5, .own_us = 7});

  const ProductChoices second(path(), kHere);
  EXPECT_EQ(second.text(), first.text()) << "with the times";
  EXPECT_NE(first.text().find("\"own_us\": 7.0"), std::string::npos);
  EXPECT_EQ(second.find(plain), bytes_from(3));
  EXPECT_EQ(second.find(fused), bytes_from(2));
  ProductShape other = plain;
  other.alignment_c = 4;
  EXPECT_FALSE(second.find(other));
}

TEST_F(ProductChoicesFile, MakesNoFileBeforeThereIsAChoice) {
  const ProductChoices choices(path(), kHere);
  EXPECT_TRUE(names().empty());
}

TEST_F(ProductChoicesFile, RefusesAnotherPlace) {
  ProductChoices(path(), kHere).add({.m = 1, .n = 1, .k = 1}, bytes_from(1));
  const std::string before = read_file(path());
  for (const ProductPlace& there :
       {ProductPlace{"other", "library 1", "fp32"}, ProductPlace{"GPU", "library 2", "fp32"},
        ProductPlace{"GPU", "library 1", "tf32"}}) {
    expect_error(ExitCode::kConfiguration, "was made on GPU with library 1 in fp32, this is ",
                 [&] { ProductChoices(path(), there); });
  }
  EXPECT_EQ(read_file(path()), before);
}

TEST_F(ProductChoicesFile, RefusesDamageOfEveryKind) {
  ProductChoices(path(), kHere).add({.m = 1, .n = 1, .k = 1}, bytes_from(1));
  const std::string good = read_file(path());
  expect_refused("", "is not JSON: ");
  expect_refused("weights", "is not JSON: ");
  expect_refused("[1, 2]", "the whole of it is an array, not an object; remove the file, or name");
  expect_refused(std::string(100'000, '['), "is nested deeper than 64 arrays and objects");
  // Every truncation except that of the last line break.
  for (std::size_t size = 0; size + 2 < good.size(); size += 7) {
    expect_refused(good.substr(0, size), "is not JSON: ");
  }
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string content = good;
    const auto at = content.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return content.replace(at, from.size(), to);
  };
  expect_refused(changed("choices 1", "choices 2"), "format is not 'barestep product choices 1'");
  expect_refused(changed("\"NN\"", "\"\""), "choices[0].transpose is not NN, NT, TN or TT");
  expect_refused(changed("\"m\": 1", "\"m\": \"1\""), "choices[0].m is \"1\", not a whole number");
  expect_refused(changed("\"m\": 1", "\"own_us\": -1, \"m\": 1"), "choices[0].own_us is ");
  expect_refused(changed("\"algorithm\": \"", "\"algorithm\": \"0"),
                 "choices[0].algorithm is not 128 hexadecimal digits");
  expect_refused(changed("\"algorithm\": \"08", "\"algorithm\": \"0g"),
                 "choices[0].algorithm is not 128 hexadecimal digits");
}

TEST_F(ProductChoicesFile, LargerThanAnyIsNotRead) {
  file("choices.json", std::string((1 << 20) + 1, ' '));
  expect_error(ExitCode::kConfiguration, "is larger than 1 MiB; remove the file, or name another",
               [&] { ProductChoices(path(), kHere); });
}

TEST_F(ProductChoicesFile, RefusesAPlaceItCouldNotWriteTo) {
  expect_error(ExitCode::kCannotCreate, "",
               [&] { ProductChoices(folder() / "missing" / "choices.json", kHere); });
}

}  // namespace
}  // namespace barestep
