#include "data/loader.h"

#include "profiler/account.h"
#include "support/busy_machine.h"
#include "support/expect_error.h"
#include "support/file_runs.h"
#include "support/testing.h"
#include "support/trainer_harness.h"

namespace barestep {
namespace {

class LoaderOfFiles : public TempDirTest {};

TrainConfig with_workers(TrainConfig config, int workers, int prefetch = 2) {
  config.data.workers = workers;
  config.data.prefetch = prefetch;
  return config;
}

/// Options of a loader for the programs, with memory for the batches ahead.
struct LoaderRoom {
  explicit LoaderRoom(const StepPrograms& programs)
      : bytes(programs.batches_ahead() ? static_cast<std::size_t>(programs.batches_ahead()->bytes())
                                       : 0),
        ahead(programs.spec().batches_ahead()) {}

  std::vector<std::byte> bytes;
  std::int64_t ahead;
};

/// The contents of every batch of a run, training and evaluation, one after the other.
std::vector<float> samples_of(const TrainConfig& config, int rank = 0, int ranks = 1) {
  TrainerHarness run(config);
  StepSpec spec = run.programs->spec();
  spec.mesh.rank = rank;
  spec.mesh.data = ranks;
  const StepPrograms programs(spec);
  Schedule schedule(config.training, programs);
  LoaderRoom room(programs);
  Loader loader(*run.dataset, batches_of(schedule),
                {.seed = config.training.seed,
                 .max_rows = programs.spec().max_own_rows(),
                 .workers = config.data.workers,
                 .ahead = room.ahead,
                 .room = room.bytes,
                 .delay_s = config.data.io_delay_ms / 1e3});
  std::vector<float> all;
  while (const std::optional<Batch> batch = schedule.next()) {
    const auto rows = static_cast<std::size_t>(batch->program->tensors.x.rows);
    std::vector<float> x(rows * 6);
    std::vector<float> y(rows * 4);
    loader.take(x.data(), y.data());
    all.insert(all.end(), x.begin(), x.end());
    all.insert(all.end(), y.begin(), y.end());
  }
  return all;
}

TEST_F(LoaderOfFiles, YieldsTheSameBatchesWhateverTheNumberOfWorkers) {
  const TrainConfig config = number_run(folder());
  for (const int rank : {0, 1}) {
    const std::vector<float> none = samples_of(with_workers(config, 0), rank, 2);
    EXPECT_EQ(samples_of(with_workers(config, 1, 1), rank, 2), none);
    EXPECT_EQ(samples_of(with_workers(config, 3, 2), rank, 2), none);
    EXPECT_EQ(samples_of(with_workers(config, 7, 5), rank, 2), none);
  }
  TrainConfig other = config;
  other.training.seed = 1;
  EXPECT_NE(samples_of(with_workers(other, 3)), samples_of(with_workers(config, 3)));
}

/// Behind its end, the order goes on at its start.
TEST_F(LoaderOfFiles, ShufflesByEpochOrKeepsTheOrderOfTheFiles) {
  const TrainConfig config = number_run(folder());
  const Dataset dataset = load_dataset(config.data, config.model.layers, config.model.loss);
  ASSERT_EQ(dataset.train_rows(), 30);
  for (const bool shuffle : {false, true}) {
    for (const int epoch : {2, 5}) {
      SCOPED_TRACE(testing::Message() << "epoch " << epoch << ", shuffle " << shuffle);
      std::vector<std::int64_t> order(30);
      std::iota(order.begin(), order.end(), 0);
      if (shuffle) epoch_order(7, epoch, order);
      std::vector<float> wanted_x(3 * 6), wanted_y(3 * 4), x(3 * 6), y(3 * 4);
      dataset.gather(std::array{order[26], order[29], order[2]}, wanted_x.data(), wanted_y.data());
      Loader loader(dataset,
                    [&] { return BatchRows{.epoch = epoch, .first = 26, .stride = 3, .count = 3}; },
                    {.seed = 7, .shuffle = shuffle, .max_rows = 3});
      loader.take(x.data(), y.data());
      EXPECT_EQ(x, wanted_x);
      EXPECT_EQ(y, wanted_y);
    }
  }
}

/// 30 samples of 6 features and 4 targets, in batches of 8.
TEST_F(LoaderOfFiles, KeepsAtMostAnEpochAheadInMemoryThatIsPlanned) {
  const TrainConfig config = number_run(folder());
  const std::int64_t batch_bytes = std::int64_t{8} * (6 + 4) * 4;
  const auto bytes_ahead = [&](int workers, int prefetch) {
    TrainerHarness run(with_workers(config, workers, prefetch));
    const auto& ahead = run.programs->batches_ahead();
    if (!ahead) return std::int64_t{0};
    EXPECT_TRUE(run.programs->buffers()[ahead->buffer].pinned);
    return ahead->bytes();
  };
  EXPECT_EQ(bytes_ahead(0, 2), 0);
  EXPECT_EQ(bytes_ahead(1, 1), batch_bytes);
  EXPECT_EQ(bytes_ahead(1, 2), 2 * batch_bytes);
  EXPECT_EQ(bytes_ahead(3, 2), 4 * batch_bytes);
  EXPECT_EQ(bytes_ahead(256, 1024), 4 * batch_bytes);
  TrainConfig large = config;
  large.data.batch_size = 1'000'000;
  TrainerHarness run(with_workers(large, 256, 1024));
  EXPECT_EQ(run.programs->batches_ahead()->bytes(), 30 * (6 + 4) * 4);
  EXPECT_EQ(samples_of(with_workers(config, 256, 1024)), samples_of(with_workers(config, 0)));
}

TEST_F(LoaderOfFiles, TrainsTheSameWhateverTheNumberOfWorkers) {
  for (const auto& write_files : {class_run, number_run}) {
    const TrainConfig config = write_files(folder());
    TrainerHarness none(with_workers(config, 0));
    none.run();
    for (const bool pin : {true, false}) {
      TrainConfig requested = with_workers(config, 3);
      requested.data.pin = pin;
      TrainerHarness three(requested);
      three.run();
      EXPECT_EQ(three.losses(), none.losses());
    }
  }
}

TEST_F(LoaderOfFiles, WorkersTakeTheDelayOutOfTheStep) {
  TrainConfig config = number_run(folder());
  config.training.epochs = 5;
  config.training.warmup = 0;
  config.data.io_delay_ms = 8;
  const auto seconds_of_a_step = [&](int workers, Part part) {
    TrainerHarness run(with_workers(config, workers));
    double sum_s = 0;
    run.after_step = [&](const StepReport& step) {
      sum_s += account_of(*step.timeline, kMainLane)[part];
    };
    run.run();
    return sum_s / static_cast<double>(run.steps.size());
  };
  EXPECT_GE(seconds_of_a_step(0, Part::kInjected), 0.008);
  EXPECT_EQ(seconds_of_a_step(1, Part::kInjected), 0);
  // The steps take almost no time, so they wait for a single worker, and less for several.
  repeat_while_busy([&] {
    const double one_s = seconds_of_a_step(1, Part::kDataWait);
    EXPECT_GT(one_s, 0.004);
    EXPECT_LT(seconds_of_a_step(4, Part::kDataWait), one_s);
  });
}

TEST_F(LoaderOfFiles, HandsOnWhatAWorkerMet) {
  TrainConfig config = number_run(folder());
  TrainerHarness run(config);
  const Dataset streamed = load_dataset(config.data, config.model.layers, config.model.loss, 0);
  std::filesystem::resize_file(config.data.x, 100);
  for (const int workers : {0, 2}) {
    Schedule schedule(config.training, *run.programs);
    LoaderRoom room(*run.programs);
    Loader loader(streamed, batches_of(schedule),
                  {.max_rows = run.programs->spec().max_own_rows(),
                   .workers = workers,
                   .ahead = room.ahead,
                   .room = room.bytes});
    std::vector<float> x(8 * 6);
    std::vector<float> y(8 * 4);
    expect_error(ExitCode::kInputOutput, "the file became shorter while it was read", [&] {
      while (schedule.next()) loader.take(x.data(), y.data());
    });
  }
}

TEST_F(LoaderOfFiles, DropsTheSmallerLastBatchWhereAsked) {
  TrainConfig config = number_run(folder());
  TrainerHarness all(config);
  EXPECT_EQ(all.trainer->steps(), 4 * 4);
  config.data.drop_last = true;
  TrainerHarness whole(config);
  EXPECT_EQ(whole.trainer->steps(), 4 * 3);
  whole.run();
  for (const StepReport& step : whole.steps) EXPECT_EQ(step.samples, 8);
  EXPECT_EQ(whole.evaluations.size(), 4U);
  config.data.batch_size = 31;
  expect_error(ExitCode::kConfiguration,
               "--drop-last: the training set has 30 samples, a step takes 31; use a smaller "
               "--batch-size",
               [&] { TrainerHarness none(config); });
}

}  // namespace
}  // namespace barestep
