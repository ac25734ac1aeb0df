// The page that `mlp_lab explore` writes, in headless Chromium where that is installed.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "core/error.h"
#include "lab/child.h"
#include "lab/explored.h"
#include "lab/predict/explorer.h"
#include "lab/study/run_workload.h"
#include "support/busy_machine.h"
#include "support/pattern.h"
#include "support/process.h"
#include "support/temp_dir.h"

namespace barestep {
namespace {

using nlohmann::json;
using ::testing::ContainsRegex;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

class ExplorerPage : public TempDirTest {
 protected:
  ProcessResult write_page(std::vector<std::string> more = {}) {
    std::vector<std::string> command = {MLP_LAB, "explore"};
    command.insert(command.end(), more.begin(), more.end());
    return run_process(command, {.working_directory = folder()});
  }

  /// The page's elements after its scripts, which must write nothing to the console.
  std::string shown(const std::filesystem::path& page, const std::string& address = "") {
    std::vector<std::string> command = {browser_,
                                        "--headless",
                                        "--disable-gpu",
                                        "--user-data-dir=" + (folder() / "browser").string(),
                                        "--virtual-time-budget=60000",
                                        "--enable-logging=stderr",
                                        "--dump-dom",
                                        "file://" + page.string() + address};
    // It refuses to sandbox itself for root; the page is ours.
    if (::geteuid() == 0) command.insert(command.begin() + 1, "--no-sandbox");
    // Its clock may run ahead of the module's compilation: then once more.
    ProcessResult result;
    for (int i = 0; i < 10 && result.out.find("data-shown") == std::string::npos; ++i) {
      result = run_process(command, {.working_directory = folder()});
      EXPECT_EQ(result.exit_code, 0) << result.err;
      EXPECT_THAT(result.err, Not(HasSubstr("CONSOLE")));
    }
    return result.out;
  }

  /// What the page logs up to a line with this pattern, in real time.
  std::string logged(const std::filesystem::path& page, const std::string& pattern) {
    const std::string sandbox = ::geteuid() == 0 ? "--no-sandbox" : "";
    const std::string script = fmt::format(
        R"('{0}' --headless --disable-gpu {1} --user-data-dir=browser --enable-logging=stderr 'file://{2}' 2>log &
        for i in $(seq 600); do if grep -q '{3}' log; then break; fi; sleep 0.1; done
        kill $!; wait $!; cat log)",
        browser_, sandbox, page.string(), pattern);
    return run_process({"/bin/bash", "-c", script}, {.working_directory = folder()}).out;
  }

  /// Writes the page; skips the test where that or a browser is missing.
  void SetUp() override {
    TempDirTest::SetUp();
    if (HAS_WASM == 0) GTEST_SKIP() << "this build has no module for the browser";
    browser_ = find_on_path("chromium");
    if (browser_.empty()) GTEST_SKIP() << "chromium is not installed";
    const ProcessResult written = write_page();
    ASSERT_EQ(written.exit_code, 0) << written.err;
  }

  [[nodiscard]] std::filesystem::path page() const { return folder() / "explore.html"; }

 private:
  std::string browser_;
};

class ExplorerPageTime : public ExplorerPage {};

/// What the native code answers, or the line of its refusal.
json native_answer(const std::string& question) {
  try {
    return json::parse(explore(question));
  } catch (const Error& error) {
    return {{"error", error.what()}};
  }
}

/// All texts and plots too, not only the numbers.
TEST_F(ExplorerPage, AnswersDrawnQuestionsAsTheNativeCodeDoesToTheDigit) {
  json cases = json::array();
  const std::vector<Explored> questions = drawn_questions(200);
  for (const Explored& each : questions) {
    cases.push_back({json::parse(each.question), native_answer(each.question)});
  }
  std::ofstream(folder() / "drawn.html")
      << read_file(page())
      << fmt::format(
             R"(<pre id="drawn"></pre><script type="application/json" id="cases">{}</script><script>
const sorted = (value) => value !== null && typeof value === "object" && !Array.isArray(value)
  ? Object.fromEntries(Object.keys(value).sort().map((key) => [key, sorted(value[key])]))
  : Array.isArray(value) ? value.map(sorted) : value;
load().then(() => {{
  let equal = 0;
  const other = [];
  for (const [question, expected] of JSON.parse(element("cases").textContent.replaceAll("\u0001", "<"))) {{
    const answer = JSON.stringify(sorted(ask(question)));
    if (answer === JSON.stringify(sorted(expected))) ++equal; else other.push(question);
  }}
  document.body.dataset.shown = "";
  element("drawn").textContent = equal + " answers are equal; " + JSON.stringify(other.slice(0, 2));
}});</script>)",
             [&] {
               std::string text = cases.dump();
               std::ranges::replace(text, '<', '\1');
               return text;
             }());
  const std::string drawn = shown(folder() / "drawn.html");
  const std::size_t at = drawn.find("answers are equal; ");
  ASSERT_NE(at, std::string::npos);
  const std::string all = fmt::format("{} answers are equal; []<", questions.size());
  EXPECT_THAT(drawn, HasSubstr(all)) << drawn.substr(at, 2000);
}

TEST_F(ExplorerPage, ShowsTheStepTimeThatPredictPrints) {
  const ProcessResult predicted = run_process(
      {MLP_LAB, "predict", "--machine", "h100-infiniband", "--ranks", "16", "--batch-size", "4096"},
      {.working_directory = folder()});
  const std::string page_text = shown(page(), "#card=h100-infiniband&ranks=16&batch-size=4096");
  const std::size_t at = page_text.find("Simulated: a step takes ") + 24;
  const std::string time = page_text.substr(at, page_text.find(',', at) - at);
  EXPECT_THAT(time, EndsWith("ms"));
  EXPECT_THAT(predicted.out, HasSubstr(" " + time + " "));
}

TEST_F(ExplorerPage, AnswersEveryScene) {
  const std::size_t scenes = json::parse(read_file(BARESTEP_SCENES)).size();
  EXPECT_EQ(scenes, 6);
  for (std::size_t i = 0; i < scenes; ++i) {
    const std::string text = shown(page(), fmt::format("#scene={}", i));
    EXPECT_THAT(text, HasSubstr(R"(<p id="error" role="alert" hidden="">)")) << i;
    EXPECT_THAT(text, HasSubstr("Simulated: a step takes ")) << i;
    EXPECT_THAT(text, HasSubstr("<svg")) << i;
  }
}

TEST_F(ExplorerPage, TakesAnyAddress) {
  std::ofstream(folder() / "fuzzed.html") << read_file(page()) << R"(<pre id="fuzzed"></pre><script>
load().then(() => {
  let seed = 54;
  const draw = (count) => (seed = (seed * 48271) % 2147483647) % count;
  const names = [...Object.keys(controls), "scene", "guess", "__proto__", "constructor"];
  const values = ["0", "-1", "1e9", "999999999", "", "x", "<script>", "\u0000", "1,", "__proto__",
                  "constructor", "true", "3", "1e-300", "2:20"];
  let shown = 0;
  for (let i = 0; i < 40; ++i) {
    const parts = new URLSearchParams();
    for (let k = 0; k <= i % 3; ++k) parts.set(names[draw(names.length)], values[draw(values.length)]);
    history.replaceState(null, "", i === 0 ? "#%ff%fe=%" : "#" + parts);
    readAddress();
    update();
    const says = [element("error"), element("answer"), element("guess")].filter((each) => !each.hidden);
    if (says.length === 1 && !element("error").textContent.includes("unexpected")) ++shown;
  }
  element("fuzzed").textContent = shown + " addresses were shown";
});</script>)";
  EXPECT_THAT(shown(folder() / "fuzzed.html"), HasSubstr("40 addresses were shown"));
}

TEST_F(ExplorerPage, RefusesInTheWordsOfItsControls) {
  for (const auto& [address, line] :
       {std::pair("#links=0", "links, times as fast '0': not a number from 0.001 to 1000"),
        std::pair("#ranks=1e9", "ranks or devices '1e9': not a whole number from 1 to 1024"),
        std::pair("#card=x", "machine 'x': this page has no such card; choose one of a100-"),
        std::pair("#device.flops_per_s=x", "flop/s 'x': not a number from 1 to 1e+21"),
        std::pair("#network.latency_s=-1",
                  "latency of the network, s '-1': not a number from 0 to 1000")}) {
    EXPECT_THAT(shown(page(), address),
                HasSubstr(fmt::format(R"(<p id="error" role="alert">{})", line)));
  }
}

/// Pages that came by plain http have no clipboard.
TEST_F(ExplorerPage, SelectsTheCommandWhereThereIsNoClipboard) {
  std::ofstream(folder() / "copied.html")
      << read_file(page()) << R"(<pre id="selection"></pre><script>
Object.defineProperty(navigator, "clipboard", {value: undefined});
load().then(async () => {
  update();
  await copyCommand();
  element("selection").textContent = `${element("copied").textContent}: ${getSelection()}`;
});</script>)";
  EXPECT_THAT(shown(folder() / "copied.html"),
              ContainsRegex("<pre id=\"selection\">selected; press .* copy it: mpirun -np 4 "));
}

/// What WAI-ARIA asks of a page, as far as a script can tell.
TEST_F(ExplorerPage, NamesEverythingForScreenReaders) {
  std::ofstream(folder() / "names.html") << read_file(page()) << R"js(<pre id="names"></pre><script>
load().then(() => {
  const all = (selector) => [...document.querySelectorAll(selector)];
  const name = (each) => each.getAttribute("aria-label") ?? [...each.labels ?? []].map((label) => label.textContent).join()
    + (each.matches("button, summary, option, a") ? each.textContent : "");
  const nameless = all("input, select, button, form#controls, section, svg, [tabindex], [role=group]")
    .filter((each) => name(each).trim() === "");
  const generic = all("[aria-label]:not([role], input, select, button, form, section, svg, nav, main)");
  const tables = all("table:not([hidden])").filter((each) => each.caption === null || each.querySelector("th:not([scope])"));
  const says = element("status").textContent === element("headline").textContent;
  element("names").textContent = JSON.stringify([
    nameless.length, generic.length, tables.length, says,
    element("answers").getAttribute("aria-busy")
  ]);
});</script>)js";
  EXPECT_THAT(shown(folder() / "names.html"),
              HasSubstr(R"(<pre id="names">[0,0,0,true,"false"]</pre>)"));
}

/// On a page as narrow as a phone, no select cuts off its longest choice, and only what scrolls is
/// wider than the page.
TEST_F(ExplorerPage, FitsANarrowPage) {
  std::ofstream(folder() / "narrow.html") << read_file(page()) << R"js(
<pre id="narrow"></pre><script>
load().then(() => {
  update();
  const found = [];
  document.body.style.boxSizing = "border-box";
  for (const width of [320, 390, 600]) {
    document.body.style.width = `${width}px`;
    for (const each of document.querySelectorAll("select")) {
      const copy = each.cloneNode(true);
      copy.style.cssText = "width: max-content; max-width: none; position: absolute";
      each.after(copy);
      if (each.offsetWidth < copy.offsetWidth) found.push(`${width}: ${each.id} is cut`);
      copy.remove();
    }
    const wide = document.body.scrollWidth;
    if (wide > width) found.push(`${width}: the page is ${wide} wide`);
  }
  element("narrow").textContent = JSON.stringify(found);
});</script>)js";
  const std::string text = shown(folder() / "narrow.html");
  EXPECT_THAT(text, HasSubstr(R"(<pre id="narrow">[]</pre>)"))
      << text.substr(text.find("id=\"narrow\""), 2000);
}

/// In real time, which --dump-dom does not wait for: the page logs what it measures.
TEST_F(ExplorerPageTime, IsASecondForTheFirstAnswerAndFiftyMillisecondsForEachNext) {
  std::ofstream(folder() / "timed.html") << read_file(page()) << R"(<script>
const wait = setInterval(() => {
  if (document.body.dataset.shown === undefined) return;
  clearInterval(wait);
  const first = performance.now();
  const times = [];
  for (let batch = 1024; batch < 1034; ++batch) {
    const begin = performance.now();
    state = {...defaults(), ranks: "8", "batch-size": String(batch)};
    update();
    times.push(performance.now() - begin);
  }
  times.sort((a, b) => a - b);
  console.log(`measured ${first} ms and ${times[5]} ms end`);
}, 5);
</script>)";
  repeat_while_busy([&] {
    const auto found = first_match(logged(folder() / "timed.html", "measured .* end"),
                                   "measured ([0-9.]+) ms and ([0-9.]+) ms end");
    ASSERT_FALSE(found.empty());
    RecordProperty("first_ms", found[1]);
    RecordProperty("next_ms", found[2]);
    EXPECT_LT(std::stod(found[1]), 1000);
    EXPECT_LT(std::stod(found[2]), 50);
  });
}

TEST_F(ExplorerPage, ShowsWhatAStudyMeasuredBesideWhatIsSimulated) {
  const std::vector<std::string> run = {MLP_LAB,    "run", "warmup",   "--quick", "--starts", "1",
                                        "--device", "cpu", "--output", "study",   "--dim",    "64"};
  const ProcessResult study = run_process(run, {.working_directory = folder()});
  ASSERT_EQ(study.exit_code, 0) << study.err;
  ASSERT_EQ(write_page({"--study", "study"}).exit_code, 0);
  const std::string text = shown(page());
  EXPECT_THAT(text,
              HasSubstr("<caption>Measured by the study, and simulated for its machine</caption>"));
  EXPECT_THAT(text, HasSubstr(R"(<button type="button">warmup: from-start</button>)"));
  EXPECT_THAT(text,
              ContainsRegex("<p id=\"checklist\">Checklist: .*; \\[ \\] repeats: 1 start of "));
}

TEST_F(ExplorerPage, HidesTheAnswerUntilAGuess) {
  const std::string text = shown(page(), "#guess=1");
  EXPECT_THAT(text, HasSubstr(R"(<div id="answer" hidden="">)"));
  EXPECT_THAT(text, HasSubstr(R"(<form id="guess">)"));
}

TEST_F(ExplorerPage, OffersWhatTrainersAndPredictOffer) {
  const std::string text = read_file(page());
  const auto expect_offered = [&](std::span<const std::string_view> names) {
    for (const std::string_view name : names) {
      // A choice, or a control of its own.
      EXPECT_THAT(text, ContainsRegex(fmt::format("\"{0}\"|\n    {0}: \\{{label", name)));
    }
  };
  expect_offered(scheme_names());
  expect_offered(kNamesOf<PipelineSchedule>);
  expect_offered(kNamesOf<Activation>);
  expect_offered(kNamesOf<OptimizerKind>);
}

TEST_F(ExplorerPage, StartsFromAGivenMachine) {
  const ProcessResult written = write_page({"--machine", "t4"});
  ASSERT_EQ(written.exit_code, 0);
  EXPECT_EQ(written.out, "Page: explore.html\n");
  EXPECT_THAT(read_file(page()), HasSubstr(R"(id="first-card">t4<)"));
  EXPECT_THAT(shown(page()), HasSubstr("Simulated: a step takes ")) << "on its one device";
}

/// The browser's parser takes no byte order mark.
TEST_F(ExplorerPage, TakesACardWithAByteOrderMarkAndNoneWithANul) {
  const std::string card = read_file(card_file("t4"));
  const auto given = [&](const std::string& text) {
    return write_page({"--machine", file("card.json", text).string()});
  };
  EXPECT_EQ(given("\xEF\xBB\xBF" + card).exit_code, 0);
  EXPECT_THAT(read_file(page()), Not(HasSubstr("\xEF\xBB\xBF")));
  EXPECT_THAT(shown(page()), HasSubstr("Simulated: a step takes "));
  EXPECT_THAT(given(card + '\0').err, HasSubstr("card.json': is not JSON: byte "));
}

TEST(Explore, RefusesWhatItCannotWriteInOneLine) {
  const auto refused = [](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {MLP_LAB, "explore"});
    return run_process(arguments).err;
  };
  if (HAS_WASM == 0) {
    EXPECT_THAT(refused({}),
                HasSubstr("mlp_lab: error: explore: this build has no module for the browser; "
                          "install clang-19, lld-19, "));
    return;
  }
  EXPECT_EQ(refused({"--machine", "t5"}),
            "mlp_lab: error: machine card 't5': there is no such card; did you mean 't4'? a file's "
            "name ends in .json\n");
  EXPECT_THAT(refused({"--study", "/nowhere"}), HasSubstr("mlp_lab: error: "));
  EXPECT_THAT(refused({"--output", "/nowhere/page.html"}),
              HasSubstr("mlp_lab: error: output file '/nowhere/page.html': cannot be created: "));
}

}  // namespace
}  // namespace barestep
