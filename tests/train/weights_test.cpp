#include "train/weights.h"

#include "data/safetensors.h"
#include "support/expect_error.h"
#include "support/layers.h"
#include "support/saved_weights.h"
#include "support/temp_dir.h"
#include "support/testing.h"

namespace barestep {
namespace {

ModelSpec small_model(Activation activation = Activation::kRelu) {
  return {.widths = {3, 2, 4}, .activation = activation};
}

Parameters small_parameters() {
  return parameters_of(small_model());
}

class WeightFiles : public TempDirTest {
 protected:
  [[nodiscard]] std::filesystem::path path() const { return folder() / "weights.safetensors"; }
};

TEST_F(WeightFiles, ComeBackAsTheyWereSaved) {
  const ModelSpec spec = small_model();
  TorchGenerator generator(1);
  FlatWeights weights = initial_weights(spec, generator);
  save_flat_weights(path(), parameters_of(spec), weights);
  EXPECT_EQ(load_weights(path(), parameters_of(spec)).numbers, weights);
  const SafetensorsFile file(path());
  const SafetensorsEntry* weight = file.find("net.2.weight");
  ASSERT_NE(weight, nullptr);
  EXPECT_THAT(weight->shape, ElementsAre(4, 2)) << "outputs x inputs";
  EXPECT_TRUE(std::ranges::equal(file.f32("net.0.bias"), bias_in(weights, spec, 0)));
  EXPECT_THAT(names(), ElementsAre("weights.safetensors"));
}

/// Other ranks send their parts in each visit, so they would wait for one that left it out.
TEST_F(WeightFiles, ThatCannotBeWrittenVisitEveryParameterTwiceAllTheSame) {
  const ModelSpec spec = small_model();
  TorchGenerator generator(1);
  FlatWeights weights = initial_weights(spec, generator);
  const Parameters parameters = parameters_of(spec);
  std::vector<ParameterId> visited;
  const auto save = [&](const std::filesystem::path& to, bool writes) {
    visited.clear();
    const auto visit = [&](std::span<const ParameterId> order, const UseOfWeights& use) {
      for (const ParameterId id : order) {
        visited.push_back(id);
        use(id, parameters.in(weights, id));
      }
    };
    save_weights(to, parameters, visit, writes);
  };
  save(path(), false);
  EXPECT_FALSE(std::filesystem::exists(path())) << "this rank does not write";
  const std::vector<ParameterId> of_others = visited;
  EXPECT_EQ(std::ssize(of_others), 2 * parameters.count());
  save(path(), true);
  EXPECT_EQ(visited, of_others);
  expect_error(ExitCode::kInputOutput, "writing failed: No space left on device",
               [&] { save("/dev/full", true); });
  EXPECT_EQ(visited, of_others);
  expect_error(ExitCode::kCannotCreate, "none", [&] { save(folder() / "none" / "file", true); });
  EXPECT_EQ(visited, of_others);
  weight_in(weights, spec, 0)[0] = std::numeric_limits<float>::infinity();
  expect_error(ExitCode::kDiverged, "net.0.weight holds inf, so they are not saved",
               [&] { save(folder() / "diverged", true); });
  EXPECT_EQ(visited, of_others);
  EXPECT_THAT(names(), ElementsAre("weights.safetensors"));
}

TEST_F(WeightFiles, MayHaveThePrefixesOfOtherModules) {
  const std::vector<float> weight = {1, 2, 3, 4, 5, 6};
  const std::vector<float> bias = {7, 8};
  // Of wrappers, of a bare nn.Sequential, of one that is wrapped or has another name.
  for (const auto& [prefix, own] :
       {std::pair("", ""), std::pair("module.", ""), std::pair("_orig_mod.", ""),
        std::pair("module._orig_mod.", ""), std::pair("model.", ""), std::pair("", "net."),
        std::pair("module.", "net."), std::pair("model.layers.", "net.")}) {
    const std::string in_file = prefix + std::string(*own == 0 ? "net." : "");
    SCOPED_TRACE(in_file);
    save_safetensors(path(), std::vector<NamedTensor>{{in_file + "0.weight", {2, 3}, weight},
                                                      {in_file + "0.bias", {2}, bias}});
    LoadedWeights loaded = load_weights(path(), parameters_of({.widths = {3, 2}}));
    EXPECT_EQ(loaded.prefix, prefix);
    EXPECT_EQ(loaded.own_prefix, own);
    EXPECT_TRUE(
        std::ranges::equal(weight_in(loaded.numbers, ModelSpec{.widths = {3, 2}}, 0), weight));
  }
  save_safetensors(path(), std::vector<NamedTensor>{{"module.net.0.weight", {2, 3}, weight},
                                                    {"net.0.bias", {2}, bias}});
  expect_error(ExitCode::kBadData,
               "the weights are not this model's: module.net.0.bias is missing, net.0.bias is not "
               "in the model",
               [&] {
                 load_weights(path(), parameters_of({.widths = {3, 2}}));
               });
}

TEST_F(WeightFiles, NameLayersAsASequentialWithOrWithoutActivationsDoes) {
  for (const auto& [activation, second] :
       {std::pair(Activation::kRelu, "net.2."), {Activation::kNone, "net.1."}}) {
    save_flat_weights(path(), parameters_of(small_model(activation)), small_parameters().zeros());
    std::vector<std::string> saved;
    const SafetensorsFile file(path());
    for (const SafetensorsEntry& entry : file.tensors()) saved.push_back(entry.name);
    EXPECT_THAT(saved,
                UnorderedElementsAre("net.0.weight", "net.0.bias", std::string(second) + "weight",
                                     std::string(second) + "bias"));
  }
}

TEST_F(WeightFiles, AreRefusedWithTheFirstThreeDifferences) {
  const float values[12] = {};
  const auto all = std::span<const float>(values);
  const std::vector<NamedTensor> tensors = {
      {"net.0.weight", {3, 2}, all.first(6)}, {"net.0.bias", {2}, all.first(2)},
      {"net.2.bias", {4, 1}, all.first(4)},   {"net.4.weight", {1}, all.first(1)},
      {"net.4.bias", {1}, all.first(1)},
  };
  save_safetensors(path(), tensors);
  expect_error(
      ExitCode::kBadData,
      fmt::format("weights '{}': the weights are not this model's: net.0.weight is [3, 2], "
                  "not [2, 3], net.2.weight is missing, net.2.bias is [4, 1], not [4], and 2 more; "
                  "give the options the file was saved with",
                  path().string()),
      [&] { load_weights(path(), small_parameters()); });
}

TEST_F(WeightFiles, AreRefusedWhenTheyAreOfAnotherType) {
  const std::string header =
      R"({"net.0.weight":{"dtype":"F16","shape":[2,3],"data_offsets":[0,12]},)"
      R"("net.0.bias":{"dtype":"F32","shape":[2],"data_offsets":[12,20]}})";
  std::string bytes(8, '\0');
  bytes[0] = static_cast<char>(header.size());
  file("weights.safetensors", bytes + header + std::string(20, '\0'));
  expect_error(ExitCode::kBadData,
               "the weights are not this model's: net.0.weight is F16, not F32; give", [&] {
                 load_weights(path(), parameters_of({.widths = {3, 2}}));
               });
}
}  // namespace
}  // namespace barestep
