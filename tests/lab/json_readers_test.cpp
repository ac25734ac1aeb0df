// Every reader of JSON that people may edit: a member that it does not know, one that is there
// twice and anything after the end are errors.
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/product_choices.h"
#include "data/sample_checkpoint.h"
#include "lab/explored.h"
#include "lab/predict/explorer.h"
#include "lab/predict/machine_card.h"
#include "lab/predict/schedule_check.h"
#include "lab/study/start.h"
#include "lab/study/study.h"
#include "session/checkpoints.h"
#include "support/temp_dir.h"
#include "support/testing.h"

namespace barestep {
namespace {

using nlohmann::json;

struct JsonReader {
  std::string valid{};
  std::function<void(const std::string& text)> read{};
  std::set<std::string> any{};  // pointers to what may have members of any name; "*": all of it
};

class JsonReaders : public TempDirTest {
 protected:
  /// What it says of the text; empty if it accepts it.
  static std::string error_of(const JsonReader& reader, const std::string& text) {
    try {
      reader.read(text);
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  }

  /// Of objects, each with the pointer to it; lists stand for their first two items.
  static void collect(const json& value, const std::string& pointer, const JsonReader& reader,
                      std::vector<std::string>& pointers) {
    if (!value.is_structured()) return;  // items() of a number is the number
    if (value.is_object()) pointers.push_back(pointer);
    std::size_t items = 0;
    for (const auto& [key, each] : value.items()) {
      if (value.is_array() && ++items > 2) break;
      if (!reader.any.contains(pointer)) collect(each, pointer + "/" + key, reader, pointers);
    }
  }

  static void expect_strict(const std::string& what, const JsonReader& reader) {
    SCOPED_TRACE(what);
    ASSERT_EQ(error_of(reader, reader.valid), "");
    for (const std::string& rest : {std::string("x"), std::string("{}"), std::string(1, '\0')}) {
      EXPECT_NE(error_of(reader, reader.valid + rest), "") << "after the end";
    }
    const json whole = json::parse(reader.valid);
    std::vector<std::string> pointers;
    collect(whole, "", reader, pointers);
    EXPECT_FALSE(pointers.empty());
    for (const std::string& pointer : pointers) {
      SCOPED_TRACE(pointer);
      const json::json_pointer place(pointer);
      ASSERT_FALSE(whole.at(place).empty());
      const std::string first = whole.at(place).begin().key();
      // A name that sorts first, so that it is not the only reason for what comes after it.
      json changed = whole;
      changed.at(place)["!" + first] = 0;
      const std::string text = changed.dump();
      const bool is_any = reader.any.contains(pointer) || reader.any.contains("*");
      if (!is_any) EXPECT_NE(error_of(reader, text), "") << "unknown";
      std::string twice = text;
      twice.erase(twice.find("\"!" + first) + 1, 1);
      EXPECT_NE(error_of(reader, twice).find(first + " is there twice"), std::string::npos)
          << error_of(reader, twice);
    }
  }

  /// Reads the text as a file.
  std::function<void(const std::string&)> as_file(
      const std::string& name, std::function<void(const std::filesystem::path&)> read) {
    return
        [this, name, read = std::move(read)](const std::string& text) { read(file(name, text)); };
  }
};

TEST_F(JsonReaders, AcceptNothingButWhatTheyKnow) {
  const auto read_card = as_file("card.json", [](const auto& path) { load_card(path.string()); });
  for (const std::string& name : card_names()) {
    expect_strict(name, {.valid = read_file(card_file(name)), .read = read_card});
  }
  expect_strict("question",
                {.valid = question_with(R"("dim": "64", "depth": "1")"), .read = explore});
  expect_strict("schedule",
                {.valid = R"({"micro_batches": 1, "stages": [["F0", "B0"]],
                              "times": {"forward": 1, "backward": 2, "weights": 1, "message": 0}})",
                 .read = as_file("schedule.json", [](const auto& path) { read_schedule(path); })});
}

TEST_F(JsonReaders, AcceptNothingButWhatProgramsWrote) {
  Study(folder() / "study", {.options = {{"dim", "8"}}, .machine = {.cores = 1}, .version = "1"},
        1);
  expect_strict("study", {.valid = read_file(folder() / "study" / "study.json"),
                          .read = [&](const std::string& text) {
                            write_file(folder() / "study" / "study.json", text);
                            Study::open(folder() / "study");
                          }});
  Start start{.command = "c", .attempts = 1, .configuration = R"({"dim": 1})"};
  start.ranks = {{.step_s = {1}, .loss = {1}, .queued_s = {1}, .phase_s = {{"forward", {1}}}}};
  start.ops = {{.name = "gemm", .phase = "forward", .block = "net.0", .seconds = 1}};
  start.watched = {{.source = "gpu", .gauges = {{"power", {1, 1, 1}}}}};
  expect_strict("records", {.valid = json_of(start),
                            .read = [](const std::string& text) { parse_start(text, "r"); },
                            .any = {"/configuration", "/ranks/0/phase_s", "/watched/0/gauges"}});
  const ProductPlace place{"GPU", "library 1", "fp32"};
  ProductChoices choices("", place, ProductChoices::Keeper::kCache);
  choices.add({.m = 1, .n = 2, .k = 3, .cached = true, .type = DType::kBF16}, {});
  expect_strict("product choices",
                {.valid = choices.text(), .read = as_file("choices", [&](const auto& path) {
                                            ProductChoices(path, place);
                                          })});
  const std::string state =
      R"({"program": "mlp_single", "version": "1", "steps": 1, "updates": 1, "evaluated": false,
          "epoch": 0, "batch_of_epoch": 1, "generator": "torch cpu", "best_test_loss": null,
          "evaluations_since_best": 0, "loss_scale": {"scale": 1.0, "good_steps": 0},
          "product_choices": "", "settings": {"--seed": "0"}, "rounding": {"--update": "fused"},
          "configuration": {"dim": 1}})";
  const auto resume = [&](const std::string& text) {
    CheckpointFolder checkpoints(folder() / "c", 1);
    CheckpointImage image = image_of(1);
    image.state = text;
    write_checkpoint(checkpoints, image);
    find_resume_point("test", {.resume_from = folder() / "c" / name_of_checkpoint(1)});
  };
  expect_strict(
      "checkpoint",
      {.valid = state, .read = resume, .any = {"/settings", "/rounding", "/configuration"}});
}

TEST_F(JsonReaders, NameTheMemberThatIsNearest) {
  json card = json::parse(read_file(card_file("h100-infiniband")));
  card["device"]["multiprocesors"] = std::exchange(card["device"]["multiprocessors"], {});
  card["device"].erase("multiprocessors");
  const JsonReader reader{
      .read = as_file("card.json", [](const auto& path) { load_card(path.string()); })};
  EXPECT_NE(error_of(reader, card.dump())
                .find("device.multiprocesors is not known; did you mean 'multiprocessors'?"),
            std::string::npos);
}

}  // namespace
}  // namespace barestep
