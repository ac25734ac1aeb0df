#include "lab/machine_card.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include <algorithm>

#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace barestep {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

TEST(MachineCards, ReproduceTheTablesTheyAreMadeOf) {
  const MachineCard h200 = load_card("h200-nvlink");
  EXPECT_NEAR(all_reduce_s(h200, 32768, 8), 40.0e-6, 1e-9);
  EXPECT_NEAR(all_reduce_s(h200, 8 << 20, 8), 94.4e-6, 1e-9);
  EXPECT_NEAR(all_reduce_s(h200, 1 << 30, 8), 4053e-6, 1e-9);
  const MachineCard nodes = load_card("h100-infiniband");
  EXPECT_NEAR(all_reduce_s(nodes, 1 << 20, 16), 123.2e-6, 1e-9);
  EXPECT_EQ(all_reduce_s(h200, 1 << 20, 1), 0);
}

TEST(MachineCards, TakeLongerForMoreBytesAndMoreRanks) {
  for (const std::string& name : card_names()) {
    SCOPED_TRACE(name);
    const MachineCard card = load_card(name);
    for (int ranks = 2; ranks <= std::min(card.most_ranks(), 1024); ranks *= 2) {
      double before = 0;
      for (double bytes = 4; bytes < 1e10; bytes *= 3) {
        const double seconds = all_reduce_s(card, bytes, ranks);
        EXPECT_GT(seconds, before) << bytes << " bytes on " << ranks;
        EXPECT_GE(seconds, all_reduce_s(card, bytes, ranks / 2));
        before = seconds;
      }
    }
  }
}

TEST(MachineCards, NameTheSourceOfEveryFigure) {
  for (const std::string& name : card_names()) {
    const MachineCard card = load_card(name);
    const auto lines = std::ranges::count(card.sources, '\n');
    EXPECT_EQ(lines, card.has_network ? 10 : card.most_ranks() > 1 ? 7 : 6) << name;
    EXPECT_THAT(card.sources, testing::Not(HasSubstr(": \n")));
  }
}

class CardFiles : public TempDirTest {};

TEST_F(CardFiles, AreRefusedWhenTheyAreNoCards) {
  expect_error(ExitCode::kUsage,
               "--machine 'h200': there is no such card; did you mean 'h200-nvlink'? a file's name "
               "ends in .json",
               [] { load_card("h200"); });
  expect_error(ExitCode::kNoInput, "No such file or directory; check the path",
               [&] { load_card((folder() / "none.json").string()); });
  json card = json::parse(read_file(BARESTEP_CARDS "/v100-pcie.json"));
  const auto refused = [&](const std::string& why) {
    const auto path = file("card.json", card.dump());
    expect_error(ExitCode::kBadData, why, [&] { load_card(path.string()); });
  };
  const json good = card;
  const auto refused_with = [&](const char* pointer, const json& value, const std::string& why) {
    card = good;
    card[json::json_pointer(pointer)] = value;
    refused("card.json': " + why);
  };
  refused_with("/node/all_reduce/points", json::array(), "node.all_reduce.points is empty");
  refused_with("/node/all_reduce/points/1", {8, 1e-5},
               "node.all_reduce.points[1][0] is 8, and 1048576 stands before it; sizes ascend");
  refused_with("/node/all_reduce/points/0/1", 0,
               "node.all_reduce.points[0][1] is 0, not a number from 1e-09 to 1000");
  refused_with("/node/all_reduce/ranks", 1,
               "node.all_reduce.ranks is 1, not a whole number from 2 to 1048576");
  refused_with("/node/devices", 2.7, "node.devices is 2.7, not a whole number from 1 to 1048576");
  refused_with("/node/devices", std::int64_t{1} << 62,
               "node.devices is 4611686018427387904, not a whole number from 1 to 1048576");
  refused_with("/device/launch_s/value", -1,
               "device.launch_s.value is -1, not a number from 0 to 1000");
  refused_with("/device/flops_per_s/value", 1e-300,
               "device.flops_per_s.value is 1e-300, not a number from 1 to 1e+21");
  refused_with("/device/flops_per_s/value", nullptr,
               "device.flops_per_s.value is null, not a number");
  refused_with("/device", json::object(), "device.flops_per_s is missing");
  refused_with("/kind", "tpu", "kind is neither cuda nor cpu");
  refused_with("/name", {{"a", 1}}, "name is an object, not a string");
  card = 7;
  refused("see src/lab/cards");
}

TEST_F(CardFiles, AreReadOnlyWhereTheyAreRegularAndShallow) {
  const auto fifo = folder() / "fifo.json";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  expect_error(ExitCode::kNoInput, "fifo.json': is a FIFO, not a regular file; check the path",
               [&] { load_card(fifo.string()); });
  std::filesystem::create_symlink("/dev/zero", folder() / "zero.json");
  expect_error(ExitCode::kNoInput, "zero.json': is not a regular file",
               [&] { load_card((folder() / "zero.json").string()); });
  const auto deep = file("deep.json", std::string(100000, '['));
  expect_error(ExitCode::kBadData, "is nested deeper than 64 arrays and objects",
               [&] { load_card(deep.string()); });
}

TEST_F(CardFiles, SteerNoTerminal) {
  json card = json::parse(read_file(BARESTEP_CARDS "/v100-pcie.json"));
  card["name"] = "\x1b[2Jmine\n";
  card["device"]["host_s"]["source"] = "\x1b]0;mine\x07";
  const MachineCard read = load_card(file("card.json", card.dump()).string());
  EXPECT_EQ(read.name, "?[2Jmine ");
  EXPECT_THAT(read.sources, HasSubstr("device host_s: ?]0;mine?\n"));
}

TEST_F(CardFiles, KeepWhatWasMeasured) {
  MachineCard card{.name = "two cores", .on_gpu = false, .flops_per_s = 1e11};
  card.memory_bytes_per_s = 1e10;
  card.node_ranks = 2;
  card.loads = {
      {.ranks = 1, .threads = 2, .host_s = 1e-3, .rates = {{"copy", 1, 64, 1e9}}},
      {.ranks = 2, .rates = {{"copy", 1, 64, 1e9}}, .all_reduce = {{4, 1e-9}, {8, 1e-3}}}};
  card.node.table = {2, card.loads.back().all_reduce};
  const MachineCard read = load_card(file("card.json", json_of(card)).string());
  EXPECT_EQ(json_of(read), json_of(card));
  EXPECT_THAT(read.sources, HasSubstr("loads 2 x 1 threads: measured here"));
  json broken = json::parse(json_of(card));
  broken["loads"][0]["rates"][0][3] = 0;
  const auto path = file("card.json", broken.dump());
  expect_error(ExitCode::kBadData, "loads[0].rates[0][3] is 0, not a number from 1 to 1e+21",
               [&] { load_card(path.string()); });
}

}  // namespace
}  // namespace barestep
