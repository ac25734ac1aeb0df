// The page that `mlp_lab explore` writes, in headless Chromium where that is installed.
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "core/error.h"
#include "lab/child.h"
#include "lab/explored.h"
#include "lab/predict/explorer.h"
#include "lab/study/run_workload.h"
#include "support/busy_machine.h"
#include "support/pattern.h"
#include "support/program_test.h"
#include "support/testing.h"

namespace barestep {
namespace {

using nlohmann::json;

class ExplorerPage : public ProgramTest {
 protected:
  ProcessResult write_page(std::vector<std::string> more = {}) {
    std::vector<std::string> command = {MLP_LAB, "explore"};
    command.insert(command.end(), more.begin(), more.end());
    return execute(command);
  }

  /// The page's elements after its scripts, which must write nothing to the console.
  std::string shown(const std::filesystem::path& page, const std::string& address = "",
                    const std::vector<std::string>& options = {}) {
    std::vector<std::string> command = {browser_,
                                        "--headless",
                                        "--disable-gpu",
                                        "--user-data-dir=" + (folder() / "browser").string(),
                                        "--virtual-time-budget=60000",
                                        "--enable-logging=stderr",
                                        "--dump-dom",
                                        "file://" + page.string() + address};
    command.insert(command.begin() + 1, options.begin(), options.end());
    // It refuses to sandbox itself for root; the page is ours.
    if (::geteuid() == 0) command.insert(command.begin() + 1, "--no-sandbox");
    // Its clock may run ahead of the module's compilation: then once more.
    ProcessResult result;
    for (int i = 0; i < 10 && result.out.find("data-shown") == std::string::npos; ++i) {
      result = succeeded(execute(command));
      EXPECT_THAT(result.err, Not(HasSubstr("CONSOLE")));
    }
    return result.out;
  }

  /// What a script within the page returns, after the page's own. Its text may have no & and <.
  json returned(const std::string& script, const std::string& address = "",
                const std::vector<std::string>& options = {}) {
    std::ofstream(folder() / "asked.html") << read_file(page())
                                           << fmt::format(R"(<pre id="returned"></pre><script>
load().then(async () => {{
  update();
  const result = await (async () => {{ {} }})();
  element("returned").textContent = JSON.stringify(result);
}});</script>)",
                                                          script);
    // The clock may run ahead of what the script waits for, too.
    for (int i = 0; i < 10; ++i) {
      const std::string text = shown(folder() / "asked.html", address, options);
      const auto found = first_match(text, "<pre id=\"returned\">([^<]+)</pre>");
      if (!found.empty()) return json::parse(found[1]);
    }
    throw std::runtime_error("the script returned nothing");
  }

  /// What the page logs up to a line with this pattern, in real time.
  std::string logged(const std::filesystem::path& page, const std::string& pattern) {
    const std::string sandbox = ::geteuid() == 0 ? "--no-sandbox" : "";
    const std::string script = fmt::format(
        R"('{0}' --headless --disable-gpu {1} --user-data-dir=browser --enable-logging=stderr 'file://{2}' 2>log &
        for i in $(seq 600); do if grep -q '{3}' log; then break; fi; sleep 0.1; done
        kill $!; wait $!; cat log)",
        browser_, sandbox, page.string(), pattern);
    return bash(script).out;
  }

  /// The same in real time, for files, whose reading a clock that runs ahead does not wait for.
  json returned_in_time(const std::string& script) {
    std::ofstream(folder() / "timed.html") << read_file(page())
                                           << fmt::format(R"(<script>
load().then(async () => {{
  const result = await (async () => {{ {} }})();
  console.log(`returned ${{JSON.stringify(result)}} end`);
}});</script>)",
                                                          script);
    const auto found = first_match(logged(folder() / "timed.html", "returned .* end"),
                                   "returned (.*) end\", source: ");
    if (found.empty()) throw std::runtime_error("the script returned nothing");
    return json::parse(found[1]);
  }

  /// Writes the page; skips the test where a browser is missing.
  void SetUp() override {
    browser_ = find_on_path("chromium");
    if (browser_.empty()) GTEST_SKIP() << "chromium is not installed";
    succeeded(write_page());
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

/// Questions of all kinds, and what the native code answers; as JSON within an element of HTML.
std::string drawn_cases() {
  json cases = json::array();
  const std::vector<Explored> questions = drawn_questions(200);
  for (std::size_t i = 0; i < questions.size(); ++i) {
    json question = json::parse(questions[i].question);
    if (i % 4 == 1) question["guess_ms"] = 0.5 * static_cast<double>(i);
    if (i % 4 == 2) question["machine"] = questions[i].card;
    if (i % 4 == 3) question["pinned"] = json::parse(questions[i - 1].question);
    cases.push_back({question, native_answer(question.dump())});
  }
  std::string text = cases.dump();
  std::ranges::replace(text, '<', '\1');
  return text;
}

const std::string kTraces = BARESTEP_TEST_TRACES;

/// The text of the account in the words of the program, whose report the page is.
const std::string kTraceText =
    R"js(element("trace-text").textContent.replaceAll("on this page", "in the report (--output DIR)"))js";

/// What `mlp_lab explain` says of files: its output, or its line of error.
std::string program_explains(const std::vector<std::string>& files, const std::string& folder) {
  std::vector<std::string> command = {MLP_LAB, "explain"};
  command.insert(command.end(), files.begin(), files.end());
  const ProcessResult result = run_process(command, {.working_directory = folder});
  return result.exit_code == 0 ? result.out : result.err;
}

/// Drops files of this folder onto the page, and waits until they are explained.
std::string dropping(const std::vector<std::string>& files, const std::string& folder) {
  std::string script = "const data = new DataTransfer();\n";
  for (const std::string& name : files) {
    const ProcessResult text = run_process({"/usr/bin/base64", "-w0", folder + "/" + name});
    script += fmt::format(
        R"(data.items.add(new File([Uint8Array.from(atob("{}"), (c) => c.charCodeAt(0))], "{}"));
)",
        text.out, name);
  }
  return script + R"(
document.dispatchEvent(new DragEvent("drop", {dataTransfer: data, cancelable: true}));
await explaining;
)";
}

const std::vector<std::string> kDdpTraces = {"pytorch_ddp.rank0.json.gz",
                                             "pytorch_ddp.rank1.json.gz"};

/// The page with a script that compares its answers with those, all texts and plots too, and so the
/// account of dropped traces, and says "N of M answers are equal".
std::string comparing(const std::string& page) {
  return page + fmt::format(
                    R"(<script type="application/json" id="cases">{}</script><script>
const sorted = (value) => value !== null && typeof value === "object" && !Array.isArray(value)
  ? Object.fromEntries(Object.keys(value).sort().map((key) => [key, sorted(value[key])]))
  : Array.isArray(value) ? value.map(sorted) : value;
load().then(async () => {{
  const cases = JSON.parse(element("cases").textContent.replaceAll("\u0001", "<"));
  const other = [];
  for (const [question, expected] of cases) {{
    const answer = JSON.stringify(sorted(ask(question)));
    if (answer !== JSON.stringify(sorted(expected))) other.push(question);
  }}
  {}
  cases.push("traces");
  if ({} !== {}) other.push("traces");
  console.log(`${{cases.length - other.length}} of ${{cases.length}} answers are equal; ` +
    JSON.stringify(other.slice(0, 2)));
}});</script>)",
                    drawn_cases(), dropping(kDdpTraces, kTraces), kTraceText,
                    json(program_explains(kDdpTraces, kTraces)).dump());
}

TEST_F(ExplorerPage, AnswersDrawnQuestionsAsTheNativeCodeDoesToTheDigit) {
  std::ofstream(folder() / "drawn.html") << comparing(read_file(page()));
  const std::string drawn = logged(folder() / "drawn.html", "answers are equal");
  const auto equal = first_match(drawn, "([0-9]+) of ([0-9]+) answers are equal; ");
  ASSERT_FALSE(equal.empty());
  EXPECT_GE(std::stoi(equal[2]), 200);
  EXPECT_EQ(equal[1], equal[2]) << drawn.substr(drawn.find("answers are equal; "), 2000);
}

/// It is what builds without a compiler for WebAssembly have.
TEST_F(ExplorerPage, KeptModuleAnswersAsThisBuildDoes) {
  std::string text = read_file(page());
  const std::string open = R"(id="module">)";
  const std::size_t begin = text.find(open) + open.size();
  const ProcessResult kept =
      run_process({"/usr/bin/base64", "-w0", BARESTEP_WEB "/engine.wasm.gz"});
  text.replace(begin, text.find('<', begin) - begin, kept.out);
  std::ofstream(folder() / "kept.html") << comparing(text);
  const auto equal = first_match(logged(folder() / "kept.html", "answers are equal"),
                                 "([0-9]+) of ([0-9]+) answers");
  ASSERT_FALSE(equal.empty());
  EXPECT_EQ(equal[1], equal[2])
      << "web/engine.wasm.gz is older than its sources: cmake --build BUILD --target keep_module "
         "renews it, then commit it";
}

/// Sentences, tables, picture and text, packed and plain, of one process and of ranks. The text has
/// the first three rows of the tables that it prints, and names the others as on the page.
TEST_F(ExplorerPage, ExplainsDroppedTracesAsTheProgramDoes) {
  succeeded(bash("gunzip -c '" + kTraces + "/pytorch_cpu.json.gz' > cpu.json"));
  for (const auto& [files, where] :
       {std::pair(kDdpTraces, kTraces),
        std::pair(std::vector<std::string>{"cpu.json"}, folder().string())}) {
    const json found = returned_in_time(dropping(files, where) + R"js(
  const text = element("trace-text").textContent;
  const captions = [...document.querySelectorAll("#trace-tables caption")];
  const printed = captions.filter((caption) => text.includes(`\n  ${caption.textContent}\n`));
  const shown = [...document.querySelectorAll("#trace-sentences li"), ...captions,
    ...printed.flatMap((caption) => [...caption.parentElement.querySelectorAll("tr:nth-child(-n+3) td")])];
  const others = captions.filter((caption) => !printed.includes(caption));
  return {text: )js" + kTraceText + R"js(, error: element("trace-error").textContent,
    missing: shown.map((shown) => shown.textContent).filter((words) => !text.includes(words)),
    shown: shown.length, printed: printed.length, named: text.split("\n  More on this page: ")[1],
    others: others.map((caption) => caption.textContent).join("; ") + "\n",
    report: !element("trace-report").hidden,
    bars: document.querySelectorAll("#trace-plot rect").length, status: element("trace-status").hidden};)js");
    EXPECT_EQ(found.at("text"), program_explains(files, where));
    EXPECT_EQ(found.at("error"), "");
    EXPECT_EQ(found.at("missing"), json::array());
    EXPECT_GT(found.at("shown"), 20);
    EXPECT_GE(found.at("printed"), 3);
    EXPECT_EQ(found.at("named"), found.at("others"));
    EXPECT_EQ(found.at("report"), true);
    EXPECT_GT(found.at("bars"), 10);
    EXPECT_EQ(found.at("status"), true);
  }
}

/// After each the page explains as before.
TEST_F(ExplorerPage, RefusesTracesInTheLineOfTheProgram) {
  const std::string event =
      R"({"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 1})";
  file("text.json", "a report");
  file("cut.json", R"({"traceEvents": [)" + event);
  file("number.json", R"({"traceEvents": [1e999, )" + event + "]}");
  file("deep.json", R"({"traceEvents": [)" + std::string(100, '['));
  file("empty.json", "");
  file("none.json", R"({"traceEvents": []})");
  file("calls.json", R"({"traceEvents": [{"ph": "X", "cat": "cuda_runtime", "ts": 1, "dur": 1}]})");
  file("corrupt.json.gz", std::string("\x1f\x8b\x08\0\0\0\0\0\0\x03\xff\xff\xff", 13));
  file("a.json", R"({"distributedInfo": {"rank": 3}, "traceEvents": [)" + event + "]}");
  file("b.json", R"({"distributedInfo": {"rank": 3}, "traceEvents": [)" + event + "]}");
  const std::vector<std::vector<std::string>> cases = {
      {"text.json"}, {"cut.json"},   {"number.json"},     {"deep.json"},       {"empty.json"},
      {"none.json"}, {"calls.json"}, {"corrupt.json.gz"}, {"a.json", "b.json"}};
  std::string script = "const lines = [];\n";
  std::vector<std::string> expected;
  for (const std::vector<std::string>& files : cases) {
    script += fmt::format("{{ {} }}\nlines.push(element(\"trace-error\").textContent);\n",
                          dropping(files, folder()));
    expected.push_back(program_explains(files, folder()));
  }
  script += fmt::format("{{ {} }}\nlines.push(element(\"trace-error\").textContent);\n",
                        dropping(kDdpTraces, kTraces));
  expected.emplace_back("mlp_lab: error: \n");
  const json lines = returned_in_time(script + "return lines;");
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(fmt::format("mlp_lab: error: {}\n", lines.at(i).get<std::string>()), expected[i]);
  }
}

TEST_F(ExplorerPage, ShowsTheStepTimeThatPredictPrints) {
  const ProcessResult predicted = execute({MLP_LAB, "predict", "--machine", "h100-infiniband",
                                           "--ranks", "16", "--batch-size", "4096"});
  const std::string page_text = shown(page(), "#card=h100-infiniband&ranks=16&batch-size=4096");
  const auto time = first_match(page_text, "Simulated: a step takes ([0-9.]+ ms)\\. 16 ranks are ");
  ASSERT_FALSE(time.empty());
  EXPECT_THAT(predicted.out, HasSubstr(" " + time[1] + " "));
  // The page says how to ask the same there.
  const auto command = first_match(page_text, "id=\"predict\"[^>]*>mlp_lab ([^<]*)<");
  ASSERT_FALSE(command.empty());
  const ProcessResult again = succeeded(bash(fmt::format("{} {}", MLP_LAB, command[1])));
  EXPECT_THAT(again.out, HasSubstr(" " + time[1] + " "));
}

TEST_F(ExplorerPage, AnswersEveryScene) {
  const std::size_t scenes = json::parse(read_file(BARESTEP_WEB "/scenes.json")).size();
  EXPECT_EQ(scenes, 6);
  for (std::size_t i = 0; i < scenes; ++i) {
    const std::string text = shown(page(), fmt::format("#scene={}", i));
    EXPECT_THAT(text, HasSubstr(R"(<p id="error" role="alert" hidden="">)")) << i;
    EXPECT_THAT(text, HasSubstr("Simulated: a step takes ")) << i;
    EXPECT_THAT(text, HasSubstr("<svg")) << i;
  }
}

TEST_F(ExplorerPage, TakesAnyAddress) {
  EXPECT_EQ(returned(R"(
  let seed = 54;
  const draw = (count) => (seed = (seed * 48271) % 2147483647) % count;
  const names = [...Object.keys(controls), "scene", "guess", "pin", "__proto__", "constructor"];
  const values = ["0", "-1", "1e9", "999999999", "", "x", "\x3cscript>", "\u0000", "1,", "__proto__",
                  "constructor", "true", "3", "1e-300", "2:20"];
  let shown = 0;
  for (let i = 0; 40 > i; ++i) {
    const parts = new URLSearchParams();
    for (let k = 0; i % 3 >= k; ++k) parts.set(names[draw(names.length)], values[draw(values.length)]);
    history.replaceState(null, "", i === 0 ? "#%ff%fe=%" : "#" + parts);
    readAddress();
    update();
    const says = [element("error"), element("answer"), element("guess")].filter((each) => !each.hidden);
    if (says.length === 1) shown += element("error").textContent.includes("unexpected") ? 0 : 1;
  }
  return shown;)"),
            40);
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
  const json found = returned(R"(
  Object.defineProperty(navigator, "clipboard", {value: undefined});
  await copyCommand();
  return `${element("copied").textContent}: ${getSelection()}`;)");
  EXPECT_THAT(found.get<std::string>(),
              ContainsRegex("^selected; press .* copy it: mpirun -np 4 "));
}

/// What WAI-ARIA asks of a page, as far as a script can tell.
TEST_F(ExplorerPage, NamesEverythingForScreenReaders) {
  EXPECT_EQ(returned(R"js(
  const all = (selector) => [...document.querySelectorAll(selector)];
  const name = (each) => each.getAttribute("aria-label") ?? [...each.labels ?? []].map((label) => label.textContent).join()
    + (each.matches("button, summary, option, a") ? each.textContent : "");
  const nameless = all("input, select, button, form#controls, section, svg, [tabindex], [role=group]")
    .filter((each) => name(each).trim() === "");
  const generic = all("[aria-label]:not([role], input, select, button, form, section, svg, nav, main)");
  const tables = all("table:not([hidden])").filter((each) => each.caption === null || each.querySelector("th:not([scope])"));
  const says = element("status").textContent === element("headline").textContent;
  return [nameless.length, generic.length, tables.length, says, element("verdict").getAttribute("aria-busy")];)js"),
            json({0, 0, 0, true, "false"}));
}

/// On a page as narrow as a phone, no select cuts off its longest choice, and only what scrolls is
/// wider than the page.
TEST_F(ExplorerPage, FitsANarrowPage) {
  EXPECT_EQ(returned(R"js(
  const found = [];
  document.querySelectorAll("details").forEach((each) => each.open = true);
  document.body.style.boxSizing = "border-box";
  for (const width of [320, 390, 600]) {
    document.body.style.width = `${width}px`;
    for (const each of document.querySelectorAll("select")) {
      const copy = each.cloneNode(true);
      copy.style.cssText = "width: max-content; max-width: none; position: absolute";
      each.after(copy);
      if (copy.offsetWidth > each.offsetWidth) found.push(`${width}: ${each.id} is cut`);
      copy.remove();
    }
    const wide = document.body.scrollWidth;
    if (wide > width) found.push(`${width}: the page is ${wide} wide`);
  }
  return found;)js"),
            json::array());
}

/// The page in a frame of this size: how much of the verdict is seen while each slider is moved.
std::string framed(const std::string& page, int width, int height) {
  std::string text = json(page).dump();
  for (std::size_t at = text.find("</"); at != std::string::npos; at = text.find("</", at)) {
    text.replace(at, 2, "<\\/");
  }
  return fmt::format(R"(<body><iframe style="border:0;width:{}px;height:{}px"></iframe>
<pre id="seen"></pre><script>
const frame = document.querySelector("iframe");
frame.srcdoc = )",
                     width, height) +
         text + R"(;
const wait = setInterval(() => {
  const page = frame.contentDocument;
  if (page?.body?.dataset.shown === undefined) return;
  clearInterval(wait);
  const wrong = [];
  const verdict = page.getElementById("verdict");
  page.querySelectorAll("details").forEach((each) => each.open = true);
  for (const slider of page.querySelectorAll("input[type=range]")) {
    slider.focus();
    const seen = verdict.getBoundingClientRect(), own = slider.getBoundingClientRect();
    if (!(seen.top >= 0 && seen.bottom > 20 && seen.bottom < 0.45 * frame.clientHeight)) {
      wrong.push(`${slider.id}: verdict from ${seen.top} to ${seen.bottom}`);
    }
    if (!(own.top >= seen.bottom && own.bottom <= frame.clientHeight + 1)) {
      wrong.push(`${slider.id} from ${own.top} to ${own.bottom}, verdict to ${seen.bottom}`);
    }
  }
  document.body.dataset.shown = "";
  document.getElementById("seen").textContent = JSON.stringify(wrong);
}, 20);
</script>)";
}

/// On a phone, and on a laptop of 1280 x 720 enlarged to 200 %.
TEST_F(ExplorerPage, KeepsTheVerdictInSightWhileControlsMove) {
  for (const auto& [width, height] : {std::pair(390, 844), std::pair(640, 360)}) {
    std::ofstream(folder() / "framed.html") << framed(read_file(page()), width, height);
    const std::string text = shown(folder() / "framed.html");
    EXPECT_THAT(text, HasSubstr(R"(<pre id="seen">[]</pre>)"))
        << text.substr(text.find("id=\"seen\""), 2000);
  }
}

/// Also tells screen readers the value, not the place of the thumb.
TEST_F(ExplorerPage, MovesEverySliderWithEveryPressOfAnArrowKey) {
  EXPECT_EQ(returned(R"(
  const stuck = [];
  for (const [name, control] of Object.entries(controls)) {
    if (control.min === undefined) continue;
    state = defaults();
    change(name, String(control.min));
    const slider = element(`${name} slider`);
    for (let last = ""; Number(slider.value) !== Number(slider.max);) {
      slider.stepUp();
      const place = slider.value;
      slider.dispatchEvent(new Event("input"));
      if (slider.value !== place || state[name] === last) { stuck.push(`${name} at ${last}`); break; }
      last = state[name];
      if (slider.getAttribute("aria-valuetext") !== last) stuck.push(`${name} is read as another value`);
    }
    if (!(Number(state[name]) / control.max > 0.8)) stuck.push(`${name} ends at ${state[name]}`);
  }
  return stuck;)"),
            json::array());
}

TEST_F(ExplorerPage, ShowsFourControlsAndFoldsTheOthers) {
  const json found = returned(R"(
  change("depth", "24");
  return {open: [...document.querySelectorAll("fieldset .field > label")].map((each) => each.textContent),
          folded: [...document.querySelectorAll("details.group")].map((each) => [each.open, each.firstChild.textContent])};)");
  EXPECT_EQ(found.at("open"), json({"width", "batch", "ranks or devices", "machine"}));
  EXPECT_EQ(found.at("folded").at(0), json({false, "More of the model: depth (layers) 24"}));
  EXPECT_EQ(found.at("folded").size(), 3);
}

TEST_F(ExplorerPage, AnswersEveryKnownModel) {
  const json found = returned(R"(
  const headlines = [];
  for (const name of Object.keys(knownModels)) {
    chooseModel(name);
    headlines.push([element("known-model").value === name, element("error").textContent,
                    element("headline").textContent]);
  }
  change("dim", "100");
  return {headlines, own: element("known-model").value};)");
  std::set<std::string> headlines;
  for (const json& each : found.at("headlines")) {
    EXPECT_EQ(each.at(0), true) << each;
    EXPECT_EQ(each.at(1), "");
    headlines.insert(each.at(2));
  }
  EXPECT_GE(headlines.size(), 6U);
  EXPECT_EQ(found.at("own"), "") << "one's own again";
}

TEST_F(ExplorerPage, ComparesWithAPinnedSettingAndGoesBack) {
  const json found = returned(R"(
  const back = () => new Promise((done) => {
    addEventListener("popstate", () => setTimeout(done, 0), {once: true});
    element("undo").click();
  });
  const none = element("comparison").hidden && element("undo").disabled;
  element("pin").click();
  const same = element("changes").textContent;
  change("batch-size", "4096");
  const rows = [...element("compared-parts").tBodies[0].rows].map((row) => [...row.cells].map((cell) => cell.textContent));
  const now = {rows, changes: element("changes").textContent, compared: element("compared").textContent,
    bars: element("comparison-plot").querySelectorAll("rect.bs-f2").length, address: location.hash};
  await back();
  const undone = state["batch-size"];
  await back();
  return {none, same, now, undone, pinned: pinned === undefined};)");
  EXPECT_EQ(found.at("none"), true);
  EXPECT_EQ(found.at("same"), "Nothing has changed since it was pinned.");
  EXPECT_EQ(found.at("now").at("changes"), "batch 64 \u2192 4096");
  EXPECT_THAT(found.at("now").at("compared").get<std::string>(),
              ContainsRegex("^Now [0-9.]+x as many samples/s as pinned; of a step, .* by .*ms"));
  EXPECT_THAT(found.at("now").at("address").get<std::string>(),
              ContainsRegex("batch-size=4096&amp;pin="));
  EXPECT_EQ(found.at("now").at("rows").at(0).at(0), "a step");
  EXPECT_GE(found.at("now").at("rows").size(), 7U);
  EXPECT_GE(found.at("now").at("bars"), 2) << "backward in both bars";
  EXPECT_EQ(found.at("undone"), "64");
  EXPECT_EQ(found.at("pinned"), true) << "undone too";
}

TEST_F(ExplorerPage, ScoresGuesses) {
  const json found = returned(R"(
  const step = 1000 * ask(questionOf(state)).step_s;
  const guess = (ms) => {
    update();
    element("guess-ms").value = String(ms);
    scoreGuess();
    return element("guessed").textContent;
  };
  return [guess(step), guess(2 * step), guess(step / 5), element("answer").hidden];)",
                              "#guess=1");
  EXPECT_THAT(found.at(0).get<std::string>(), HasSubstr(": within a tenth, 3 of 3 points. A step"));
  EXPECT_THAT(found.at(1).get<std::string>(), HasSubstr(": 2.0x too much, 1 of 3 points. "));
  EXPECT_THAT(found.at(1).get<std::string>(), HasSubstr(" So far 4 of 6 points."));
  EXPECT_THAT(found.at(2).get<std::string>(),
              ContainsRegex(": 5.0x too little, 0 of 3 points. .* takes [0-9.]+ % of the step"));
  EXPECT_EQ(found.at(3), false);
}

TEST_F(ExplorerPage, MarksTheControlOfAnError) {
  const json found = returned(R"(
  change("bucket-mib", "x");
  const wrong = [element("error").textContent, element("bucket-mib").getAttribute("aria-invalid"),
    element("bucket-mib").closest("details").open];
  change("bucket-mib", "");
  return [...wrong, element("bucket-mib").getAttribute("aria-invalid")];)");
  EXPECT_THAT(found.at(0).get<std::string>(), StartsWith("bucket, MiB: --bucket-mib 'x': "));
  EXPECT_EQ(found.at(1), "true");
  EXPECT_EQ(found.at(2), true) << "it is not folded";
  EXPECT_EQ(found.at(3), nullptr);
}

TEST_F(ExplorerPage, SavesPlotsAndTheCard) {
  const json found = returned(R"(
  change("links", "2");
  const plot = element("account-plot");
  const svg = new DOMParser().parseFromString(plotText(plot), "image/svg+xml").documentElement;
  const png = new Uint8Array(await (await plotImage(plot)).arrayBuffer());
  return {buttons: document.querySelectorAll(".save:not([hidden]) button").length, svg: svg.tagName,
    size: svg.getAttribute("width"), png: String.fromCharCode(...png.slice(1, 4)), bytes: png.length,
    card: cardOf(state).name, predict: element("predict").textContent};)");
  EXPECT_EQ(found.at("buttons"), 8) << "of four plots";
  EXPECT_EQ(found.at("svg"), "svg");
  EXPECT_EQ(found.at("size"), "720");
  EXPECT_EQ(found.at("png"), "PNG");
  EXPECT_GT(found.at("bytes"), 2000);
  EXPECT_EQ(found.at("card"), "8 x H200, NVLink (changed: links, times as fast 2)");
  EXPECT_EQ(found.at("predict"), "mlp_lab predict --machine card.json --ranks 1,4");
}

/// Letters by WCAG's 4.5, bars and lines by its 3.
TEST_F(ExplorerPage, DrawsReadablePlotsOnADarkPage) {
  const json found = returned(R"js(
  const light = (color) => {
    const [r, g, b] = color.match(/[0-9]+/g).slice(0, 3).map((each) => each / 255)
      .map((each) => each > 0.04045 ? ((each + 0.055) / 1.055) ** 2.4 : each / 12.92);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  const svg = document.querySelector("#account-plot svg");
  const card = light(getComputedStyle(svg.querySelector(".bs-card")).fill);
  const found = [];
  const examine = (name, kind, least) => {
    const each = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    each.setAttribute("class", name);
    svg.append(each);
    if (!(contrast(light(getComputedStyle(each)[kind]), card) >= least)) found.push(name);
  };
  for (const name of ["bs-text", "bs-small", "bs-title"]) examine(name, "fill", 4.5);
  for (let i = 0; i !== 13; ++i) {
    examine(`bs-f${i}`, "fill", 3);
    examine(`bs-c${i}`, "stroke", 3);
  }
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  return {dark, card: 0.05 > card, found};)js",
                              "", {"--blink-settings=preferredColorScheme=0"});
  EXPECT_EQ(found, json({{"dark", true}, {"card", true}, {"found", json::array()}}));
}

TEST_F(ExplorerPage, SaysThatItLoadsAndWhatItNeeds) {
  const std::string text = read_file(page());
  EXPECT_THAT(text, HasSubstr(R"(<p id="headline">Loading the simulator, a moment.</p>)"));
  EXPECT_THAT(text, ContainsRegex("<noscript><p>This page simulates in the browser"));
}

/// On paper there are no controls: the text names the machine and what is simulated.
TEST_F(ExplorerPage, NamesTheMachineOnPaper) {
  const json found = returned(R"(
  return [element("setting").textContent, element("machine").textContent];)",
                              "#card=t4&ranks=1&dim=512&memory=4GiB");
  EXPECT_THAT(found.at(0).get<std::string>(),
              StartsWith("ddp, 512 x 6, batch 64, on 1 rank of one T4 (changed: memory of "
                         "a device 4GiB): "));
  EXPECT_THAT(found.at(1).get<std::string>(), HasSubstr("save its card first, as card.json"));
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
  succeeded(execute(run));
  succeeded(write_page({"--study", "study"}));
  const std::string text = shown(page());
  EXPECT_THAT(text,
              HasSubstr("<caption>Measured by the study, and simulated for its machine</caption>"));
  EXPECT_THAT(text, HasSubstr(R"(<button type="button">warmup: from-start</button>)"));
  EXPECT_THAT(text,
              ContainsRegex("<p id=\"checklist\">Checklist: .*; \\[ \\] repeats: 1 start of "));
}

TEST_F(ExplorerPage, HidesTheAnswerUntilAGuess) {
  const std::string text = shown(page(), "#guess=1");
  EXPECT_THAT(text, HasSubstr(R"(<section id="answer" aria-label="The answer" hidden="">)"));
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
  const ProcessResult written = succeeded(write_page({"--machine", "t4"}));
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
  succeeded(given("\xEF\xBB\xBF" + card));
  EXPECT_THAT(read_file(page()), Not(HasSubstr("\xEF\xBB\xBF")));
  EXPECT_THAT(shown(page()), HasSubstr("Simulated: a step takes "));
  EXPECT_THAT(given(card + '\0').err, HasSubstr("card.json': is not JSON: byte "));
}

TEST(Explore, RefusesWhatItCannotWriteInOneLine) {
  const auto refused = [](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {MLP_LAB, "explore"});
    return run_process(arguments).err;
  };
  EXPECT_EQ(refused({"--machine", "t5"}),
            "mlp_lab: error: machine card 't5': no machine card has this name; did you mean 't4'? "
            "a file's "
            "name ends in .json\n");
  EXPECT_THAT(refused({"--study", "/nowhere"}), HasSubstr("mlp_lab: error: "));
  EXPECT_THAT(refused({"--output", "/nowhere/page.html"}),
              HasSubstr("mlp_lab: error: output file '/nowhere/page.html': cannot be created: "));
}

}  // namespace
}  // namespace barestep
