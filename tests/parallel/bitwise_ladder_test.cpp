// Which schemes end with one rank's bits: the table in docs/same-bits.md. To regenerate it, run
// BARESTEP_WRITE_DOCS=1 build/tests/parallel_test --gtest_filter='BitwiseLadder.*'

#include "parallel/schemes/scheme_of.h"
#include "support/file_runs.h"
#include "support/rank_run.h"
#include "support/temp_dir.h"
#include "support/testing.h"

namespace barestep {
namespace {

constexpr const char* kHeading =
    "| scheme | random data | from files | as `ddp` on as many ranks | why |\n"
    "|---|---|---|---|---|\n";

struct Rung {
  std::string name;
  void (*choose)(TrainConfig& config);
  std::string why;
};

std::vector<Rung> rungs() {
  const std::string sums = "each rank adds up its own rows, then the sums of all ranks are added";
  const std::string tree = "gradients of chunks are added up in the order of one tree";
  return {
      {"`factor`", [](TrainConfig& c) { c.parallel.scheme = SchemeKind::kFactor; },
       "every rank multiplies the gathered rows of all, in one rank's order"},
      {"`ddp --reproducible`", [](TrainConfig& c) { c.training.chunk_rows = 2; }, tree},
      {"`zero1 --reproducible`",
       [](TrainConfig& c) {
         c.training.chunk_rows = 2;
         c.parallel.scheme = SchemeKind::kZero1;
       },
       tree},
      {"`zero2 --reproducible`",
       [](TrainConfig& c) {
         c.training.chunk_rows = 2;
         c.parallel.scheme = SchemeKind::kZero2;
       },
       tree},
      {"`zero3 --reproducible`",
       [](TrainConfig& c) {
         c.training.chunk_rows = 2;
         c.parallel.scheme = SchemeKind::kZero3;
       },
       tree},
      {"`ddp`", [](TrainConfig&) {}, sums},
      {"`ddp --no-overlap`", [](TrainConfig& c) { c.parallel.overlap = false; }, sums},
      {"`zero1`", [](TrainConfig& c) { c.parallel.scheme = SchemeKind::kZero1; }, sums},
      {"`zero2`", [](TrainConfig& c) { c.parallel.scheme = SchemeKind::kZero2; }, sums},
      {"`zero3`", [](TrainConfig& c) { c.parallel.scheme = SchemeKind::kZero3; }, sums},
      {"`server`", [](TrainConfig& c) { c.parallel.scheme = SchemeKind::kServer; },
       sums + ", beginning with the server's own"},
      {"`server --server-reduce tree`",
       [](TrainConfig& c) {
         c.parallel.scheme = SchemeKind::kServer;
         c.parallel.server_reduce = ServerReduce::kTree;
       },
       sums + " by the transport's reduce"},
      {"`ddp --sync-every 2`", [](TrainConfig& c) { c.parallel.sync_every = 2; },
       "another method: weights are averaged, not gradients"},
  };
}

/// Runs of random data, or of files if `folder` is given.
TrainConfig config_of(const std::optional<std::filesystem::path>& folder) {
  if (folder) return number_run(*folder);
  TrainConfig config = rank_config();
  config.model.layers = {128, 96, 128, 64};
  config.data.batch_size = 64;
  return config;
}

FlatWeights weights_of(const TrainConfig& config, int ranks) {
  return train_threads_by(*scheme_of(config), ranks, config)[0].parameters;
}

/// Whether 2, 3 and 4 ranks end with the weights that `other` gives for as many.
template <class Other>
std::string answer(const TrainConfig& config, const Other& other) {
  for (const int ranks : {2, 3, 4}) {
    if (weights_of(config, ranks) != other(ranks)) return "no";
  }
  return "yes";
}

class BitwiseLadder : public TempDirTest {
 protected:
  /// In the order of the table's columns.
  std::vector<std::string> answers_of(const Rung& rung) {
    std::vector<std::string> answers;
    for (const bool from_files : {false, true}) {
      answers.push_back(
          as_one_rank(rung, config_of(from_files ? std::optional(folder()) : std::nullopt)));
    }
    TrainConfig chosen = rank_config();
    rung.choose(chosen);
    answers.push_back(answer(
        chosen, [](int ranks) { return train_threads(ranks, rank_config())[0].parameters; }));
    return answers;
  }

 private:
  static std::string as_one_rank(const Rung& rung, TrainConfig config) {
    TrainConfig chosen = config;
    rung.choose(chosen);
    config.training.chunk_rows = chosen.training.chunk_rows;  // one rank has it, too
    const FlatWeights one = train_single(config).parameters;
    return answer(chosen, [&](int) -> const FlatWeights& { return one; });
  }
};

TEST_F(BitwiseLadder, IsTheTableInTheDocumentation) {
  const std::filesystem::path path = std::filesystem::path(BARESTEP_DOCS) / "same-bits.md";
  std::string page = read_file(path);
  const std::size_t table = page.find(kHeading);
  ASSERT_NE(table, std::string::npos);
  std::string rows = kHeading;
  for (const Rung& rung : rungs()) {
    rows +=
        fmt::format("| {} | {} | {} |\n", rung.name, fmt::join(answers_of(rung), " | "), rung.why);
  }
  if (std::getenv("BARESTEP_WRITE_DOCS") != nullptr) {
    page.replace(table, page.find("\n\n", table) + 1 - table, rows);
    std::ofstream(path) << page;
  }
  EXPECT_EQ(page.substr(table, page.find("\n\n", table) + 1 - table), rows)
      << "run BARESTEP_WRITE_DOCS=1 build/tests/parallel_test --gtest_filter='BitwiseLadder.*'";
}

}  // namespace
}  // namespace barestep
