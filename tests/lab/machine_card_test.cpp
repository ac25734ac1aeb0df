#include "lab/predict/machine_card.h"

#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include "lab/study/rank_bench.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"
#include "support/testing.h"

namespace barestep {
namespace {

using nlohmann::json;

/// The others only learn that a rank has failed.
TEST(MeasureOnRanks, ReportsTheErrorOfTheRankThatFailed) {
  expect_error(ExitCode::kMemory, "memory: there is none", [] {
    measure_on_ranks({.device = "cpu", .threads = 1, .in_process = 3},
                     [](const MeasuringRank& rank) {
                       if (rank.ranks.rank() == 2) {
                         fail(ExitCode::kMemory, {.what = "memory", .why = "there is none"});
                       }
                       rank.ranks.barrier();
                     });
  });
}

TEST(MachineCards, ReproduceTheTablesTheyAreMadeOf) {
  const MachineCard h200 = load_card("h200-nvlink");
  EXPECT_NEAR(all_reduce_s(h200, 32768, 8), 39.8e-6, 1e-7);
  EXPECT_NEAR(all_reduce_s(h200, 8 << 20, 8), 94.4e-6, 1e-7);
  EXPECT_NEAR(all_reduce_s(h200, 1 << 30, 8), 4053e-6, 1e-6);
  const MachineCard nodes = load_card("h100-infiniband");
  EXPECT_NEAR(all_reduce_s(nodes, 1 << 20, 16), 123.2e-6, 1e-9);
  EXPECT_EQ(all_reduce_s(h200, 1 << 20, 1), 0);
}

// The published table: 8 x H200, 8 GiB, nccl-tests, by number of GPUs.
TEST(MachineCards, HaveABusBandwidthForEachRankCount) {
  const MachineCard h200 = load_card("h200-nvlink");
  constexpr double kGib = 1 << 30;
  const auto gb_per_s = [&](double bytes, int ranks) {
    return bus_bandwidth(h200, ExchangeKind::kAllReduce, bytes, ranks) / 1e9;
  };
  for (const auto& [ranks, published] :
       {std::pair{4, 363.3}, {5, 414.2}, {6, 435.6}, {7, 460.0}, {8, 473.1}}) {
    EXPECT_NEAR(gb_per_s(8 * kGib, ranks), published, 0.1);
  }
  EXPECT_NEAR(gb_per_s(8 * kGib, 2), 363.3, 0.2) << "as the fewest that were measured";
  EXPECT_NEAR(gb_per_s(128 << 20, 8), 401.9, 0.1);
  // At sizes that were not measured for few ranks, their table follows that of eight.
  EXPECT_NEAR(gb_per_s(128 << 20, 4) / gb_per_s(128 << 20, 8), 363.3 / 473.1, 0.05);
  EXPECT_EQ(gb_per_s(128 << 20, 1), 0);
}

TEST(MachineCards, InterpolateBetweenRankCounts) {
  MachineCard card{.name = "made up", .node_ranks = 8};
  card.node.tables[ExchangeKind::kAllReduce] = {{2, {{1e9, 1e9 / 100e9}}},
                                                {8, {{1e6, 1.75e6 / 50e9}, {1e9, 1.75e9 / 400e9}}}};
  const auto bandwidth = [&](double bytes, int ranks) {
    return bus_bandwidth(card, ExchangeKind::kAllReduce, bytes, ranks);
  };
  EXPECT_NEAR(bandwidth(1e9, 2), 100e9, 1);
  EXPECT_NEAR(bandwidth(1e9, 4), 200e9, 1e3) << "half-way, in logarithms";
  EXPECT_NEAR(bandwidth(1e9, 8), 400e9, 1);
  EXPECT_NEAR(bandwidth(1e6, 2), 100e9 / 8, 1e3) << "in proportion to the longer table";
}

// The published table: 8 x H200, 16 GiB, nccl-tests. NVLS sums in the switches, so it is for
// all-reduces; the others run as rings, whose rate is that of all-reduces without NVLS.
TEST(MachineCards, HaveARateForEachKindOfExchange) {
  const MachineCard h200 = load_card("h200-nvlink");
  constexpr double kGib = 1 << 30;
  const auto gb_per_s = [&](ExchangeKind exchange, double bytes, int ranks) {
    return bus_bandwidth(h200, exchange, bytes, ranks) / 1e9;
  };
  EXPECT_NEAR(gb_per_s(ExchangeKind::kAllGather, 16 * kGib, 8), 361.4, 0.1);
  EXPECT_NEAR(gb_per_s(ExchangeKind::kReduceScatter, 16 * kGib, 8), 362.9, 0.1);
  for (const ExchangeKind exchange : {ExchangeKind::kBroadcast, ExchangeKind::kReduce}) {
    EXPECT_NEAR(gb_per_s(exchange, 8 * kGib, 8), 365.6, 0.2);
    EXPECT_NEAR(gb_per_s(exchange, 8 * kGib, 2), 363.3, 0.2);
    // Every byte crosses the link to a second GPU, so it takes as long as the sum of two.
    EXPECT_NEAR(exchange_s(h200, exchange, kGib, 2), all_reduce_s(h200, kGib, 2), 5e-6);
  }
  EXPECT_NEAR(copy_s(h200, 376e9), 1, 1e-5);
  EXPECT_EQ(exchange_s(h200, ExchangeKind::kReduce, kGib, 1), 0);
}

/// A kind that was not measured takes the share of an all-reduce that its bytes are.
TEST(MachineCards, DeriveOtherKindsFromMeasuredAllReduces) {
  MachineCard card{.name = "four cores", .on_gpu = false};
  card.loads = {{.ranks = 4}};
  EnumArray<ExchangeKind, SecondsByBytes>& measured = card.loads.front().exchanges;
  measured[ExchangeKind::kAllReduce] = {{8, 1e-3}, {16, 3e-3}};
  EXPECT_DOUBLE_EQ(exchange_s(card, ExchangeKind::kAllReduce, 12, 4), 2e-3);
  EXPECT_DOUBLE_EQ(exchange_s(card, ExchangeKind::kReduceScatter, 12, 4), 1e-3);
  EXPECT_DOUBLE_EQ(exchange_s(card, ExchangeKind::kAllGather, 12, 4), 1e-3);
  EXPECT_DOUBLE_EQ(exchange_s(card, ExchangeKind::kBroadcast, 12, 4), 2e-3 / 1.5);
  measured[ExchangeKind::kAllGather] = {{8, 5e-3}, {16, 7e-3}};
  EXPECT_DOUBLE_EQ(exchange_s(card, ExchangeKind::kAllGather, 12, 4), 6e-3);
}

TEST(MachineCards, TakeLongerForMoreBytes) {
  for (const std::string& name : card_names()) {
    SCOPED_TRACE(name);
    const MachineCard card = load_card(name);
    for (int ranks = 2; ranks <= std::min(card.max_ranks(), 1024); ranks *= 2) {
      double before = 0;
      for (double bytes = 4; bytes < 1e10; bytes *= 3) {
        const double seconds = all_reduce_s(card, bytes, ranks);
        EXPECT_GT(seconds, before) << bytes << " bytes on " << ranks;
        before = seconds;
      }
    }
  }
}

// With more ranks a bus may reach more, as NVLink's does from five GPUs on; between nodes it does
// not.
TEST(MachineCards, TakeLongerForMoreRanksWhereTheBusIsTheSame) {
  const MachineCard nodes = load_card("h100-infiniband");
  for (int ranks = 32; ranks <= 1024; ranks *= 2) {
    EXPECT_GT(all_reduce_s(nodes, 1e8, ranks), all_reduce_s(nodes, 1e8, ranks / 2));
  }
}

TEST(MachineCards, NameTheValueAndTheSourceOfEveryFigure) {
  const std::map<std::string, std::size_t> figures = {{"a100-nvlink", 15}, {"h100-infiniband", 33},
                                                      {"h100-nvlink", 26}, {"h200-nvlink", 26},
                                                      {"t4", 10},          {"v100-pcie", 13}};
  for (const std::string& name : card_names()) {
    const MachineCard card = load_card(name);
    EXPECT_EQ(card.stated.size(), figures.at(name)) << name;
    EXPECT_GE(card.device_bytes, std::int64_t{16} << 30) << name;
    for (const StatedRate& each : card.stated) {
      EXPECT_THAT(each.name, ContainsRegex("^(device|node|network)\\.[a-z0-9_]+")) << name;
      EXPECT_THAT(each.value, ContainsRegex("^[0-9]")) << each.name;
      EXPECT_FALSE(each.source.empty()) << each.name;
      // A page may change, but a commit's contents are fixed.
      EXPECT_THAT(each.source,
                  AnyOf(Not(HasSubstr("github.com")), ContainsRegex("/blob/[0-9a-f]{8}/")))
          << each.name;
    }
  }
  const MachineCard h200 = load_card("h200-nvlink");
  const auto value_of = [&](const std::string& name) {
    return std::ranges::find(h200.stated, name, &StatedRate::name)->value;
  };
  EXPECT_EQ(value_of("device.flops_per_s"), "52.0 TFLOP/s");
  EXPECT_EQ(value_of("device.memory_bytes_per_s"), "4.30 TB/s");
  EXPECT_EQ(value_of("device.multiprocessors"), "132");
  EXPECT_EQ(value_of("device.load_macs"), "16.0");
  EXPECT_EQ(value_of("node.latency_s"), "8.40 us");
  EXPECT_EQ(value_of("node.kernel_slowdown"), "1.22x");
  EXPECT_EQ(value_of("node.all_reduce of 4 ranks"), "363 GB/s on the bus with 8.00 GiB");
  EXPECT_EQ(value_of("node.all_gather of 8 ranks"), "361 GB/s on the bus with 16.00 GiB");
  EXPECT_EQ(value_of("node.ring of 8 ranks"), "366 GB/s on the bus with 8.00 GiB");
  EXPECT_EQ(value_of("node.link_bytes_per_s"), "450 GB/s");
}

class CardFiles : public TempDirTest {};

TEST_F(CardFiles, AreRefusedWhenTheyAreNoCards) {
  expect_error(ExitCode::kUsage,
               "machine card 'h200': no machine card has this name; did you mean 'h200-nvlink'? a "
               "file's name ends in .json",
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
               "node.all_reduce.points[1][0] is 8 after 1048576; sizes must ascend");
  refused_with("/node/all_reduce/points/0/1", 0,
               "node.all_reduce.points[0][1] is 0, not a number from 1e-09 to 1000");
  const json table = good["node"]["all_reduce"];
  refused_with("/node/all_reduce", json::array({table, table}),
               "node.all_reduce[1].ranks is 2 after 2; rank counts must ascend");
  refused_with("/node/all_reduce/algorithm", "Tree",
               "node.all_reduce.algorithm is neither Ring nor NVLS");
  refused_with("/node/kernel_slowdown/value", 0.5,
               "node.kernel_slowdown.value is 0.5, not a number from 1 to 1000000");
  refused_with("/device/multiprocessors/value", 0,
               "device.multiprocessors.value is 0, not a whole number from 1 to 1048576");
  refused_with("/device/load_macs/value", -1,
               "device.load_macs.value is -1, not a number from 0 to 1000000");
  refused_with("/device/tf32_flops_per_s", {{"value", 0}, {"source", "here"}},
               "device.tf32_flops_per_s.value is 0, not a number from 1 to 1e+21");
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
  // Exchanges would be free.
  const json links = {{"latency_s", good["node"]["latency_s"]}, {"hop_s", good["node"]["hop_s"]}};
  refused_with("/network", links, "network.all_reduce is missing");
  card["network"] = good["node"];
  card["node"].erase("all_reduce");
  refused("node.all_reduce is missing");
  refused_with("/kind", "tpu", "kind is neither cuda nor cpu");
  refused_with("/name", {{"a", 1}}, "name is an object, not a string");
  card = 7;
  refused("see src/lab/cards");
}

// As cards were before they had rates of links, copies and other exchanges than all-reduces.
TEST_F(CardFiles, NeedNoRatesButThoseOfAllReduces) {
  json old = json::parse(read_file(BARESTEP_CARDS "/h200-nvlink.json"));
  for (const char* each :
       {"link_bytes_per_s", "copy_bytes_per_s", "ring", "reduce_scatter", "all_gather"}) {
    ASSERT_EQ(old["node"].erase(each), 1U) << each;
  }
  for (json& table : old["node"]["all_reduce"]) table.erase("algorithm");
  const MachineCard card = load_card(file("card.json", old.dump()).string());
  const MachineCard whole = load_card("h200-nvlink");
  EXPECT_EQ(all_reduce_s(card, 1e9, 8), all_reduce_s(whole, 1e9, 8));
  EXPECT_NEAR(exchange_s(card, ExchangeKind::kReduce, 8.0 * (1 << 30), 4),
              8.0 * (1 << 30) / 363.3e9, 1e-4);
  EXPECT_NEAR(copy_s(card, 1 << 30), exchange_s(whole, ExchangeKind::kBroadcast, 1 << 30, 2), 1e-5);
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
  const auto host = std::ranges::find(read.stated, "device.host_s", &StatedRate::name);
  EXPECT_EQ(host->source, "?]0;mine?");
}

TEST_F(CardFiles, KeepWhatWasMeasured) {
  MachineCard card{.name = "two cores", .on_gpu = false, .flops_per_s = 1e11};
  card.memory_bytes_per_s = 1e10;
  card.node_ranks = 2;
  card.loads = {
      {.ranks = 1, .threads = 2, .host_s = 1e-3, .rates = {{"copy", 1, 64, 1e9}}},
      {.ranks = 2,
       .rates = {
           {"copy", 1, 64, 1e9}, {"attention flash", 128, 64, 1e9}, {"gemm nt", 1, 64, 1e9, 1e4}}}};
  card.loads.front().core_distance_s = 185e-9;
  card.loads.front().wake_s = 20e-6;
  card.loads.front().wakes = {{1e-4, 10e-6}, {1e-2, 30e-6}};
  EnumArray<ExchangeKind, SecondsByBytes>& measured = card.loads.back().exchanges;
  measured[ExchangeKind::kAllReduce] = {{4, 1e-9}, {8, 1e-3}};
  measured[ExchangeKind::kBroadcast] = {{4, 1e-9}, {8, 2e-3}};
  card.node.tables[ExchangeKind::kAllReduce] = {{2, measured[ExchangeKind::kAllReduce]},
                                                {4, {{8, 1e-3}}}};
  const MachineCard read = load_card(file("card.json", json_of(card)).string());
  EXPECT_EQ(json_of(read), json_of(card));
  const auto stated = [&](const std::string& name) {
    const auto found = std::ranges::find(read.stated, name, &StatedRate::name);
    return found == read.stated.end() ? "nothing" : found->value + " | " + found->source;
  };
  EXPECT_EQ(stated("1 rank x 2 threads: host_s"), "1.00 ms | measured here");
  EXPECT_EQ(stated("1 rank x 2 threads: from core to core"), "0.185 us | measured here");
  EXPECT_EQ(stated("1 rank x 2 threads: wake_s"), "20.0 us | measured here");
  EXPECT_EQ(stated("1 rank x 2 threads: wake after 100 us"), "10.0 us | measured here");
  EXPECT_NEAR(wake_s(read.loads.front().wakes, 1e-3), 20e-6, 1e-12);
  EXPECT_NEAR(wake_s(read.loads.front().wakes, 1), 30e-6, 1e-12) << "the nearest, beyond";
  EXPECT_EQ(wake_s({}, 1), 0);
  EXPECT_EQ(stated("2 ranks x 1 thread: copy"), "1.00 GB/s to 1.00 GB/s, by size | measured here");
  EXPECT_EQ(stated("2 ranks x 1 thread: attention flash"),
            "1.00 GFLOP/s to 1.00 GFLOP/s, by size | measured here");
  EXPECT_EQ(stated("2 ranks x 1 thread: broadcast"),
            "4.00 GB/s on the bus with 4 B, 4.00 kB/s on the bus with 8 B | measured here");
  EXPECT_EQ(stated("2 ranks x 1 thread: contention"), "1.00x | measured here");
  json broken = json::parse(json_of(card));
  broken["loads"][0]["rates"][0][3] = 0;
  const auto path = file("card.json", broken.dump());
  expect_error(ExitCode::kBadData, "loads[0].rates[0][3] is 0, not a number from 1 to 1e+21",
               [&] { load_card(path.string()); });
}

}  // namespace
}  // namespace barestep
