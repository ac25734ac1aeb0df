#include "lab/predict/explorer.h"

#include <nlohmann/json.hpp>

#include <regex>

#include "core/error.h"
#include "lab/explored.h"
#include "lab/predict/asked_run.h"
#include "support/expect_error.h"
#include "support/pattern.h"
#include "support/sanitized.h"
#include "support/temp_dir.h"
#include "support/testing.h"

namespace barestep {
namespace {

using nlohmann::json;

json answer_to(const std::string& options, const std::string& others = "") {
  return json::parse(explore(question_with(options, others)));
}

/// "error: ..." for what is refused, by either.
template <class Run>
std::string result_of(Run run) {
  try {
    return fmt::format("{}", run());
  } catch (const Error& error) {
    return std::string("error: ") + error.what();
  }
}

TEST(Explorer, AnswersWhatPredictPredicts) {
  constexpr int kQuestions = 200 / kOneOf;
  int answered = 0;
  for (const Explored& each : drawn_questions(kQuestions)) {
    const std::string predicted = result_of([&] {
      const MachineCard card = load_card(each.card);
      require_prediction(each.asked, card, {each.ranks});
      return predicted_step(each.asked, card, each.ranks).step_s;
    });
    const std::string answer =
        result_of([&] { return json::parse(explore(each.question)).at("step_s").get<double>(); });
    EXPECT_EQ(answer, predicted) << each.question;
    answered += answer.starts_with("error") ? 0 : 1;
  }
  EXPECT_EQ(answered, kQuestions);
}

TEST(Explorer, PartsAddUpToTheStep) {
  const json answer = answer_to(R"("slow-rank": "2:20", "batch-size": "4096")");
  double sum_s = 0;
  for (const json& part : answer.at("account")) sum_s += part.at("seconds").get<double>();
  const double step_s = answer.at("step_s");
  EXPECT_NEAR(sum_s, step_s, 1e-12);
  EXPECT_GT(step_s, 0.020);
  EXPECT_THAT(answer.at("timeline_svg").get<std::string>(), HasSubstr("rank 2, compute"));
  EXPECT_THAT(answer.at("timeline_svg").get<std::string>(), HasSubstr("for other ranks"));
}

std::string headline_of(const std::string& options, const std::string& others = "") {
  return answer_to(options, others).at("headline");
}

TEST(Explorer, SaysHowItComparesWithOneRankAndWhy) {
  using ::testing::MatchesRegex;
  const std::string begin = "Simulated: a step takes [0-9.]+ ms";
  EXPECT_THAT(headline_of(R"("batch-size": "64")"),
              MatchesRegex(begin + "\\. 4 ranks are 0\\.[0-9]+x as fast as one: exposed "
                                   "communication takes [0-9]+ % of the step\\."));
  EXPECT_THAT(headline_of(R"("batch-size": "65536")"),
              MatchesRegex(begin + "\\. 4 ranks are [34]\\.[0-9]x as fast as one, about as fast as "
                                   "they can be\\."))
      << "turns round";
  EXPECT_THAT(headline_of(R"("scheme": "data-parallel")"), HasSubstr(". 4 devices are 0."));
  EXPECT_THAT(headline_of(R"("slow-rank": "2:20")"), HasSubstr("exposed communication takes 8"))
      << "which waits for the slow rank";
  EXPECT_THAT(headline_of(R"("delay-ms": "50")"), HasSubstr("the injected delay takes 8"));
  const std::string alone =
      explore(json::parse(question_with(""))
                  .patch(json::parse(R"([{"op": "replace", "path": "/ranks", "value": 1}])"))
                  .dump());
  EXPECT_THAT(json::parse(alone).at("headline").get<std::string>(),
              MatchesRegex(begin + "; the optimizer takes [0-9]+ % of the step\\."));
}

TEST(Explorer, BeginsWithWhatDoesNotFit) {
  EXPECT_THAT(headline_of("", R"(, "memory": "1GiB")"),
              MatchesRegex("Does not fit: each of 4 ranks needs [0-9.]+ GiB, and a device "
                           "has 1.00 GiB. With enough memory a step would take [0-9.]+ ms "
                           "\\(simulated\\)\\."));
  // Four ranks have shares that fit, one rank has not.
  EXPECT_THAT(headline_of(R"("scheme": "zero3")", R"(, "memory": "4GiB")"),
              HasSubstr(" on 4 ranks, and one has too little memory; "));
}

TEST(Explorer, FitsAmdahlsLawOnlyWhereMoreRanksAreFaster) {
  const json slower = answer_to(R"("batch-size": "64")");
  EXPECT_TRUE(slower.at("serial_share").is_null());
  EXPECT_EQ(slower.at("speed_up_svg").get<std::string>().find("Amdahl"), std::string::npos);
  const json faster = answer_to(R"("batch-size": "4096")");
  EXPECT_GT(faster.at("serial_share"), 0);
  EXPECT_THAT(faster.at("speed_up_svg").get<std::string>(), HasSubstr("serial share"));
  // Both axes are logarithmic, so the ideal is a straight line: equal steps for each doubling.
  const std::string svg = faster.at("speed_up_svg");
  const auto ideal = first_match(svg, "polyline points=\"([^\"]*)\" class=\"[^\"]*bs-dashed");
  ASSERT_FALSE(ideal.empty());
  std::vector<double> places;
  std::string text = ideal[1];
  std::ranges::replace(text, ',', ' ');
  std::istringstream numbers(text);
  for (double place = 0; numbers >> place;) places.push_back(place);
  ASSERT_EQ(places.size(), 8U) << "1, 2, 4 and 8 ranks";
  for (std::size_t i = 2; i < 6; ++i) {
    EXPECT_NEAR(places[i + 2] - places[i], places[i] - places[i - 2], 0.2);
  }
}

TEST(Explorer, ScoresAGuess) {
  const double step_ms = 1e3 * answer_to("").at("step_s").get<double>();
  const auto points = [&](double factor) {
    return answer_to("", fmt::format(R"(, "guess_ms": {})", factor * step_ms))
        .at("guess")
        .at("points")
        .get<int>();
  };
  EXPECT_EQ(points(1.09), 3);
  EXPECT_EQ(points(1 / 1.09), 3);
  EXPECT_EQ(points(1.4), 2);
  EXPECT_EQ(points(1 / 2.9), 1);
  EXPECT_EQ(points(3.1), 0);
  EXPECT_TRUE(answer_to("").at("guess").is_null());
}

TEST(Explorer, ComparesTwoQuestionsByPart) {
  const json before = json::parse(question_with(R"("batch-size": "64")"));
  const json now = answer_to(R"("batch-size": "4096", "scheme": "zero1")",
                             fmt::format(R"(, "pinned": {})", before.dump()));
  const json& comparison = now.at("comparison");
  std::map<std::string, json> rows;
  for (const json& row : comparison.at("rows")) rows[row.at("what")] = row;
  const json pinned = json::parse(explore(before.dump()));
  EXPECT_EQ(rows.at("samples/s").at("pinned"), pinned.at("speed_ups").at(2).at("rate"));
  EXPECT_EQ(rows.at("samples/s").at("now"), now.at("speed_ups").at(2).at("rate"));
  for (const json& part : pinned.at("account")) {
    EXPECT_EQ(rows.at(part.at("part")).at("pinned"), part.at("time"));
  }
  for (const json& part : now.at("account")) {
    EXPECT_EQ(rows.at(part.at("part")).at("now"), part.at("time"));
  }
  EXPECT_THAT(rows.at("memory of a device").at("change").get<std::string>(), HasSubstr("x"));
  const json same =
      answer_to(R"("batch-size": "64")", fmt::format(R"(, "pinned": {})", before.dump()));
  for (const json& row : same.at("comparison").at("rows")) {
    EXPECT_EQ(row.at("pinned"), row.at("now"));
    EXPECT_THAT(row.at("change").get<std::string>(), AnyOf("same", "1.0x"));
  }
  EXPECT_EQ(same.at("comparison").at("text"), "Now 1.0x as many samples/s as pinned.");
}

TEST(Explorer, NamesTheRunThatIsTheSame) {
  const json answer = answer_to(R"("dim": "64", "optimizer": "sgd", "bucket-mib": "1")");
  const std::string command = answer.at("command");
  EXPECT_THAT(command, HasSubstr("mpirun -np 4 mlp_ddp "));
  EXPECT_THAT(command, HasSubstr("--dim 64"));
  EXPECT_THAT(command, HasSubstr("--optimizer sgd"));
  EXPECT_THAT(command, HasSubstr("--bucket-mib 1"));
  EXPECT_THAT(answer.at("explain").get<std::string>(), HasSubstr("all_reduce"));
  EXPECT_EQ(
      answer.at("predict"),
      "mlp_lab predict --machine card.json --ranks 1,4 --bucket-mib 1 --dim 64 --optimizer sgd");
  EXPECT_THAT(answer.at("setting").get<std::string>(),
              StartsWith("ddp, 64 x 6, batch 64, --optimizer sgd --bucket-mib 1, on 4 ranks "
                         "of 8 x H200, NVLink: "));
}

TEST(Explorer, SaysWhatMemoryIsShort) {
  EXPECT_EQ(answer_to(R"("dim": "64")", R"(, "memory": "1GiB")").at("shortage"), "");
  EXPECT_THAT(answer_to("", R"(, "memory": "1GiB")").at("shortage").get<std::string>(),
              MatchesRegex("Does not fit: each of 4 ranks needs [0-9.]+ GiB, and a device has 1.00 "
                           "GiB\\."));
  EXPECT_THAT(answer_to(R"("dim": "65536")").at("shortage").get<std::string>(),
              HasSubstr("GiB, and a device has 140.40 GiB."))
      << "by its card";
}

TEST(Explorer, DrawsTheMemoryOfADeviceIfThatIsKnown) {
  EXPECT_THAT(answer_to("", R"(, "memory": "16GiB")").at("memory_svg").get<std::string>(),
              HasSubstr(">a device has 16.00 GiB<"));
  EXPECT_EQ(answer_to("").at("memory_svg").get<std::string>().find("a device has"),
            std::string::npos);
}

TEST(Explorer, NamesTheCauseOfAWait) {
  const auto timeline = [](const std::string& options) {
    return answer_to(options).at("timeline_svg").get<std::string>();
  };
  EXPECT_THAT(timeline(R"("batch-size": "64")"),
              HasSubstr(" for exposed communication: all_reduce"));
  EXPECT_THAT(timeline(R"("pipeline": "2", "batch-size": "4096")"),
              HasSubstr(" for the other stages: send_receive"));
}

/// A value that is not the default, from what --help says of values.
std::string sample_of(const Option& option) {
  static const std::map<std::string_view, std::string> kSamples = {
      {"", "true"},          {"N", "3"},          {"X", "0.5"},           {"P", "0.25"},
      {"FILE", "f.json"},    {"DIR", "d"},        {"ROWS", "8"},          {"SECONDS", "9"},
      {"SHARE", "0.5"},      {"TIME", "1h"},      {"SIZE", "1GiB"},       {"KEY", "count"},
      {"N|TIME", "3"},       {"S|auto", "2"},     {"A:B", "1:2"},         {"R:MS", "1:20"},
      {"B1,B2", "0.5,0.75"}, {"P,P,...", "loss"}, {"W0,W1,...", "64,32"}, {"D0,D1,...", "cpu,cpu"},
      {"on|off|FILE", "off"}};
  const std::string& argument = option.value.argument;
  if (const auto found = kSamples.find(argument); found != kSamples.end()) return found->second;
  if (option.name == "data") return "teacher";
  if (option.name == "loss-scale") return "128";
  if (option.name == "device") return "cpu";
  if (option.name == "flip") return "parameters:17:30:4@3";
  return argument.substr(argument.rfind('|') + 1);
}

TEST(Explorer, AnswersOrRefusesEveryOptionOfTheTrainersByName) {
  const std::string small = R"("dim": "64", "depth": "3", "batch-size": "32")";
  const std::string usual = explore(question_with(small));
  int answered = 0, refused = 0;
  for (const Option& option : options_to_predict()) {
    if (small.find(fmt::format(R"("{}")", option.name)) != std::string::npos) continue;
    const std::string one = fmt::format(R"(, "{}": "{}")", option.name, sample_of(option));
    SCOPED_TRACE(one);
    try {
      EXPECT_NE(explore(question_with(small + one)), usual) << "neither refused nor answered";
      ++answered;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kConfiguration) << error.what();
      EXPECT_THAT(error.what(), StartsWith(fmt::format("--{}", option.name)));
      ++refused;
    }
  }
  EXPECT_GT(answered, 35);
  EXPECT_GT(refused, 35);
}

TEST(Explorer, RefusesInTheWordsOfThePrograms) {
  const auto refused = [](ExitCode code, const std::string& options, const std::string& line) {
    expect_error(code, line, [&] { explore(question_with(options)); });
  };
  refused(ExitCode::kUsage, R"("dim": "x")",
          "--dim 'x': not a whole number; give a whole number from 1 to 16777216");
  refused(ExitCode::kConfiguration, R"("batch-size": "2")",
          "--global-batch-size '2': leaves some of 4 ranks without a sample; give at least 4, or "
          "start fewer ranks");
  refused(ExitCode::kConfiguration, R"("pipeline": "3")",
          "--pipeline '3': a copy of the model takes 3 ranks, which do not divide 4 ranks; start 3 "
          "ranks, or a multiple");
  refused(ExitCode::kUsage, R"("colour": "red")",
          "option '--colour': no trainer has it; see the trainers' --help");
  refused(ExitCode::kConfiguration, R"("depth": "2000")",
          "--depth '2000': with its micro-batches and devices, a step has more than 1024 layers; "
          "use smaller numbers here, or mlp_lab predict");
}

/// A control of the page and the values that it offers; none if it takes others.
struct PageControl {
  std::string name;
  std::vector<std::string> choices;
};

/// As the script lists them: `name: {label: "...", value: "...", choices: ["...", ...]}`.
std::vector<PageControl> controls_of_page() {
  const std::string script = read_file(BARESTEP_WEB "/explore.js");
  const std::size_t begin = script.find("const groups = {"), end = script.find("};", begin);
  std::string text = script.substr(begin, end - begin);
  std::erase_if(text, [](char c) { return c == '\n' || c == ' '; });
  std::vector<PageControl> controls;
  const std::regex control(R"re("?([A-Za-z_.-]+)"?:\{label:"[^"]*"([^}]*)\})re");
  const std::regex choices(R"re(choices:\[([^\]]*)\])re"), choice(R"re("([^"]+)")re");
  for (std::sregex_iterator each(text.begin(), text.end(), control), last; each != last; ++each) {
    controls.push_back({(*each)[1], {}});
    const std::string rest = (*each)[2];
    std::smatch list;
    if (!std::regex_search(rest, list, choices)) continue;
    const std::string names = list[1];
    for (std::sregex_iterator name(names.begin(), names.end(), choice); name != last; ++name) {
      controls.back().choices.push_back((*name)[1]);
    }
  }
  return controls;
}

using PageState = std::map<std::string, std::string>;

/// The question that the page asks.
json question_of(const PageState& state) {
  json question = json::parse(question_with(""));
  for (const auto& [name, value] : state) {
    const std::size_t dot = name.find('.');
    if (name == "ranks") {
      question["ranks"] = std::stoi(value);
    } else if (name == "memory") {
      question["memory"] = value;
    } else if (name == "card") {
      question["card"] = json::parse(read_file(card_file(value)));
    } else if (name == "links") {
      for (const char* const links : {"node", "network"}) {
        for (auto& [exchange, tables] : question["card"][links].items()) {
          const double faster = std::stod(value);
          const auto divide = [faster](json& table) {
            if (!table.is_object() || !table.contains("points")) return;
            for (json& point : table["points"]) point[1] = point[1].get<double>() / faster;
          };
          divide(tables);
          if (tables.is_array()) std::ranges::for_each(tables, divide);
        }
      }
    } else if (dot != std::string::npos) {
      question["card"][name.substr(0, dot)][name.substr(dot + 1)]["value"] = std::stod(value);
    } else {
      question["options"][name] = value;
    }
  }
  return question;
}

/// What the page shows, with or without the command; or the error.
std::string page_of(const PageState& state, bool with_command) {
  try {
    json answer = json::parse(explore(question_of(state).dump()));
    if (!with_command) answer.erase("command");
    return answer.dump();
  } catch (const Error& error) {
    return std::string("error: ") + error.what();
  }
}

/// Nobody may take what the page shows for the answer to a control that was not heard.
TEST(Explorer, HearsEveryControlOfThePage) {
  const PageState first = {{"card", "h100-infiniband"}, {"dim", "1024"}, {"depth", "8"},
                           {"batch-size", "64"},        {"ranks", "4"},  {"pipeline", "1"}};
  PageState staged = first;
  staged["pipeline"] = "2";
  const std::map<std::string, std::string> others = {{"dim", "512"},
                                                     {"depth", "3"},
                                                     {"layers", "64,32,16"},
                                                     {"heads", "4"},
                                                     {"length", "32"},
                                                     {"ffn", "128"},
                                                     {"causal", "true"},
                                                     {"batch-size", "128"},
                                                     {"batch-per-rank", "true"},
                                                     {"recompute", "2"},
                                                     {"accumulate", "2"},
                                                     {"ranks", "2"},
                                                     {"tensor", "2"},
                                                     {"pipeline", "2"},
                                                     {"micro-batches", "4"},
                                                     {"bucket-mib", "0.01"},
                                                     {"no-overlap", "true"},
                                                     {"delay-ms", "2"},
                                                     {"slow-rank", "1:2"},
                                                     {"memory", "1MiB"},
                                                     {"device.flops_per_s", "1e12"},
                                                     {"device.memory_bytes_per_s", "1e11"},
                                                     {"device.launch_s", "1e-4"},
                                                     {"device.host_s", "1e-3"},
                                                     {"node.latency_s", "1e-4"},
                                                     {"network.latency_s", "1e-3"},
                                                     {"links", "0.125"},
                                                     {"card", "t4"}};
  const std::vector<PageControl> controls = controls_of_page();
  EXPECT_GE(controls.size(), 30U);
  for (const PageControl& control : controls) {
    // What counts between nodes needs several.
    const bool is_far = control.name == "network.latency_s";
    // Some of these are the same work, but the command names them.
    const bool with_command = control.name == "optimizer" || control.name == "activation";
    std::vector<std::string> values = control.choices;
    if (values.empty()) {
      ASSERT_TRUE(others.contains(control.name)) << control.name;
      values = {others.at(control.name)};
    }
    for (const PageState& state : {first, staged}) {
      PageState before = state;
      if (is_far) before["ranks"] = "16";
      // One rank has nothing to share, but an update.
      if (control.name == "update" && state == first) before["ranks"] = "1";
      const std::string shown = page_of(before, with_command);
      EXPECT_FALSE(shown.starts_with("error")) << shown;
      std::map<std::string, std::string> answers;  // to each value
      for (const std::string& value : values) {
        PageState asked = before;
        asked[control.name] = value;
        if (value == "auto" || asked == before) continue;  // auto takes one of the others
        const std::string answer = page_of(asked, with_command);
        if (answer.starts_with("error")) {
          EXPECT_THAT(answer, HasSubstr("--")) << value;
        } else if (!answers.emplace(answer, value).second) {
          ADD_FAILURE() << control.name << " " << value << " is answered as " << answers.at(answer);
        }
      }
      if (control.choices.empty()) {
        EXPECT_FALSE(answers.contains(shown)) << control.name << " changes nothing";
      }
    }
  }
}

}  // namespace
}  // namespace barestep
