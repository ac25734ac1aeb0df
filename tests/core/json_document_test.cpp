#include "core/json_document.h"

#include <sys/stat.h>

#include "support/expect_error.h"
#include "support/temp_dir.h"
#include "support/testing.h"

namespace barestep {
namespace {

std::string nested(int depth) {
  return std::string(static_cast<std::size_t>(depth), '[') +
         std::string(static_cast<std::size_t>(depth), ']');
}

TEST(ShallowJson, CountsArraysAndObjectsOutsideStrings) {
  EXPECT_TRUE(is_shallow_json(nested(kMaxJsonDepth)));
  EXPECT_FALSE(is_shallow_json(nested(kMaxJsonDepth + 1)));
  EXPECT_FALSE(is_shallow_json(nested(100000)));
  EXPECT_TRUE(is_shallow_json("\"" + nested(100) + "\\\"" + nested(100) + "\\\\\""));
  EXPECT_FALSE(is_shallow_json("\"\\\\\"" + nested(100)));
  std::string flat = "[";
  for (int i = 0; i < 1000; ++i) flat += "[],{},";
  EXPECT_TRUE(is_shallow_json(flat + "1]"));
}

TEST(JsonDocuments, AreTakenApart) {
  const JsonDocument document(
      R"({"a": {"b": [1, 2.5]}, "s": "x\u001b[2Jy", "t": ["u"], "yes": true, "big": 4611686018427387904})",
      {.what = "card", .name = "f", .remedy = "look"});
  const JsonValue root = document.root();
  EXPECT_THAT(root.at("a").at("b").numbers(0, 3), ElementsAre(1, 2.5));
  EXPECT_EQ(root.at("a").at("b").items(2)[0].whole(1, 1), 1);
  EXPECT_EQ(root.at("a").members()[0].first, "b");
  EXPECT_EQ(root.at("s").text(), "x?[2Jy");
  EXPECT_THAT(root.at("t").texts(), ElementsAre("u"));
  EXPECT_TRUE(root.at("yes").boolean());
  EXPECT_FALSE(root.has("no"));
  EXPECT_EQ(root.at("big").whole(0, std::int64_t{1} << 62), std::int64_t{1} << 62);
}

TEST(JsonDocuments, NameTheValueThatDoesNotFitAndWhatWould) {
  const JsonDocument document(
      R"({"a": {"b": [1, 2.7, "\u001b[2J", 1e-300, -1, 18446744073709551615]}, "s": "x", "n": null})",
      {.what = "card", .name = "f", .remedy = "look"});
  const JsonValue root = document.root();
  const JsonValue list = root.at("a").at("b");
  const auto refused = [](const std::string& why, const auto& action) {
    expect_error(ExitCode::kBadData, "card 'f': " + why + "; look", action);
  };
  refused("a.c is missing", [&] { std::ignore = root.at("a").at("c"); });
  refused("c is missing", [&] { std::ignore = root.at("c"); });
  refused("s is \"x\", not an object", [&] { std::ignore = root.at("s").at("c"); });
  refused("s is \"x\", not an array", [&] { std::ignore = root.at("s").items(); });
  refused("s is \"x\", not true or false", [&] { std::ignore = root.at("s").boolean(); });
  refused("n is null, not a string", [&] { std::ignore = root.at("n").text(); });
  refused("a.b has 6 items, not 2", [&] { std::ignore = list.items(2); });
  refused("a.b is an array, not a number from 0 to 1", [&] { std::ignore = list.number(0, 1); });
  refused("a.b[1] is 2.7, not a whole number from 0 to 9",
          [&] { std::ignore = list.items()[1].whole(0, 9); });
  refused("a.b[2] is \"\\u001b[2J\", not a number from 0 to 9",
          [&] { std::ignore = list.numbers(0, 9); });
  refused("a.b[3] is 1e-300, not a number from 1 to 1e+21",
          [&] { std::ignore = list.items()[3].number(1, 1e21); });
  refused("a.b[4] is -1, not a number from 0 to 9",
          [&] { std::ignore = list.items()[4].number(0, 9); });
  refused("a.b[5] is 18446744073709551615, not a whole number from 0 to 9",
          [&] { std::ignore = list.items()[5].whole(0, 9); });
  refused("the whole of it is an object, not an array", [&] { std::ignore = root.items(); });
}

TEST(JsonDocuments, AreRefusedWhereTheyAreNoneOrTooDeep) {
  const JsonSource source{.what = "card", .name = "f", .remedy = "look"};
  expect_error(ExitCode::kBadData,
               "card 'f': is not JSON: parse error at line 1, column 2: syntax error",
               [&] { const JsonDocument document("{", source); });
  expect_error(ExitCode::kBadData, "card 'f': is nested deeper than 64 arrays and objects; look",
               [&] { const JsonDocument document(nested(100000), source); });
}

TEST(JsonDocuments, HaveEachMemberOnceAndNothingBehindTheirEnd) {
  const JsonSource source{.what = "card", .name = "f", .remedy = "look"};
  const auto refused = [&](std::string_view text, const std::string& why) {
    expect_error(ExitCode::kBadData, "card 'f': " + why,
                 [&] { const JsonDocument document(text, source); });
  };
  refused(R"({"a": 1, "b": 2, "a": 1})", "a is there twice; look");
  refused(R"({"a": {"b": 1}, "c": [1, {"b": {"d": 1, "\u0064": 2}}]})",
          "c.b.d is there twice; look");
  refused(R"({"a": 1} {})", "is not JSON: parse error");
  refused(std::string_view("{}\n\0", 4), "is not JSON: byte 3 is NUL; look");
  refused(std::string_view("{}\0rest", 7), "is not JSON: byte 2 is NUL; look");
  std::ignore = JsonDocument(R"([{"a": {"a": 1}}, {"a": 1}])", source);
}

TEST(JsonDocuments, RefuseMembersThatNobodyAskedForWithTheNearestThatSomebodyDid) {
  const auto read = [](const std::string& text, const auto& reader) {
    const JsonDocument document(text, {.what = "card", .name = "f", .remedy = "look"});
    reader(document.root());
    document.require_known();
  };
  const auto reader = [](const JsonValue& root) {
    if (root.has("name")) std::ignore = root.at("name").text();
    for (const JsonValue& each : root.at("links").items()) std::ignore = each.at("bytes");
    if (root.has("any")) std::ignore = root.at("any").members();
    if (root.has("copied")) std::ignore = root.at("copied").json();
    root.ignore({"comment"});
  };
  const auto refused = [&](const std::string& text, const std::string& why) {
    expect_error(ExitCode::kBadData, "card 'f': " + why, [&] { read(text, reader); });
  };
  read(R"({"links": [{"bytes": 1}], "any": {"x": 1, "y": [2]}, "copied": {"z": {"z": 1}},
           "comment": {"z": [{"z": 1}]}})",
       reader);
  refused(R"({"links": [], "nmae": "x"})", "nmae is not known; did you mean 'name'?");
  refused(R"({"links": [], "other": "x"})", "other is not known; look");
  refused(R"({"links": [{"bytes": 1}, {"bytes": 1, "byte": 2}]})",
          "links[1].byte is not known; did you mean 'bytes'?");
  refused(R"({"links": [], "any": {"x": {"y": 1}}})", "any.x.y is not known; look");
}

class JsonFiles : public TempDirTest {};

TEST_F(JsonFiles, AreRegularAndNoLargerThanAsked) {
  const auto read = [](const std::filesystem::path& path) {
    const JsonDocument document(path, 1 << 20, "card", "look");
    EXPECT_EQ(document.root().at("a").whole(0, 9), 1);
  };
  read(file("good", R"({"a": 1})"));
  expect_error(ExitCode::kBadData, "bad': a is 2.7, not",
               [&] { read(file("bad", R"({"a": 2.7})")); });
  const auto fifo = folder() / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  expect_error(ExitCode::kNoInput, "fifo': is a FIFO, not a regular file; check the path",
               [&] { read(fifo); });
  expect_error(ExitCode::kNoInput, "card '/dev/zero': is not a regular file; check the path",
               [&] { read("/dev/zero"); });
  expect_error(ExitCode::kNoInput, "large': is larger than 1 MiB; check the path",
               [&] { read(file("large", std::string((1 << 20) + 1, ' '))); });
  expect_error(ExitCode::kNoInput, "No such file or directory; check the path",
               [&] { read(folder() / "missing"); });
}

}  // namespace
}  // namespace barestep
