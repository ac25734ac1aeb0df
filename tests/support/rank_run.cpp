#include "support/rank_run.h"

#include "kernels/make_device.h"
#include "parallel/comm/mesh_transport.h"
#include "parallel/schemes/scheme_of.h"
#include "support/trainer_harness.h"
#include "train/weights.h"

namespace barestep {

TrainConfig rank_config() {
  TrainConfig config;
  config.model.layers = {5, 7, 6, 3};
  config.model.last_relu = false;
  config.data.batch_size = 10;
  config.training.steps = 8;
  config.optimizer.lr = 1e-2;
  config.device.threads = 1;
  return config;
}

DdpSettings small_buckets() {
  return {.first_bucket_bytes = 50, .bucket_bytes = 100};
}

StepPrograms programs_by(const Scheme& scheme, const TrainConfig& config, int rank, int ranks) {
  return StepPrograms(spec_of_rank(config, DeviceKind::kCpu, nullptr, rank, ranks), &scheme);
}

namespace {

class Losses final : public TrainObserver {
 public:
  Losses(Trained& trained, Trainer& trainer, const Interruption& interruption, bool asks)
      : trained_(trained), trainer_(trainer), interruption_(interruption), asks_(asks) {}

  void on_step(const StepReport& report) override {
    trained_.losses.push_back(report.loss);
    if (report.own_loss) trained_.own_losses.push_back(*report.own_loss);
    if (asks_ && report.step == interruption_.asks_after_step) asked_ = true;
  }
  void on_evaluation(const EvaluationReport& report) override {
    trained_.losses.push_back(static_cast<float>(report.loss));
    trained_.evaluations.push_back({report.samples, report.loss, report.accuracy});
  }
  void on_pause() override {
    asked_ = false;
    if (interruption_.kept == nullptr || is_kept_) return;
    keep();
  }

  void run() {
    if (interruption_.asks_for == StepRequest::kStop) {
      trainer_.stop_when(asked_);
    } else {
      trainer_.pause_when(interruption_.pause_every, asked_);
    }
    trainer_.run(*this);
    if (interruption_.kept != nullptr && !is_kept_) keep();
    trained_.parameters = trainer_.weights();
  }

 private:
  void keep() {
    trainer_.begin_copy();
    const std::span<const std::byte> saved = trainer_.finish_copy();
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    interruption_.kept->position = trainer_.position();
    add_saved(*interruption_.kept, trainer_.programs(), saved);
    is_kept_ = true;
  }

  Trained& trained_;
  Trainer& trainer_;
  const Interruption& interruption_;
  bool asks_;
  bool is_kept_ = false;
  std::atomic<bool> asked_{false};
};

/// The start state of a rank: only rank 0 has the state's tensors.
std::optional<TrainingState> start_of(const Interruption& interruption, int rank) {
  if (interruption.start == nullptr) return std::nullopt;
  if (rank == 0) return *interruption.start;
  return TrainingState{.position = interruption.start->position, .tensors = {}};
}

std::unique_ptr<Device> cpu_device_of(const DeviceConfig& config) {
  return make_cpu_device({.threads = config.threads.value_or(0),
                          .denormals = config.denormals,
                          .gemm = config.gemm,
                          .instructions = config.instructions});
}

}  // namespace

Trained train_rank_by(const Scheme& scheme, const RankOfTest& rank, const TrainConfig& config,
                      const std::atomic<bool>* stop, const Interruption& interruption) {
  const std::optional<Dataset> dataset = dataset_of(config);
  const Dataset* const data = dataset ? &*dataset : nullptr;
  const StepPrograms programs(
      spec_of_rank(config, DeviceKind::kCpu, data, rank.group.rank(), rank.group.size()), &scheme);
  for (const StepProgram* step : programs.all()) expect_ordered(step->program);
  const auto device = cpu_device_of(config.device);
  const auto start = start_of(interruption, rank.group.rank());
  std::unique_ptr<Transport> groups;
  const Mesh& mesh = programs.spec().mesh;
  if (mesh.cuts_model()) groups = join_mesh(rank.transport, mesh);
  Transport* const transport = groups == nullptr ? &rank.transport : groups.get();
  FlatWeights loaded;
  if (!config.output.load.empty() && rank.group.rank() == 0) {
    loaded = load_weights(config.output.load, programs.whole_list()).numbers;
  }
  Trained trained;
  Trainer trainer(config, programs, {device.get()}, {&rank.group, transport}, data,
                  std::move(loaded), nullptr, start ? &*start : nullptr);
  Losses losses(trained, trainer, interruption, rank.group.rank() == 0);
  if (stop != nullptr) trainer.stop_when(*stop);
  losses.run();
  return trained;
}

Trained train_single(const TrainConfig& config, const Interruption& interruption) {
  TrainerHarness run(config, {}, cpu_device_of(config.device), interruption.start);
  Trained trained;
  Losses losses(trained, *run.trainer, interruption, true);
  losses.run();
  return trained;
}

Trained train_rank(const RankOfTest& rank, const TrainConfig& config, const DdpSettings& settings) {
  return train_rank_by(Ddp(settings), rank, config);
}

void expect_as_one_rank(const TrainConfig& config, int ranks, const Scheme& scheme,
                        double tolerance) {
  TrainConfig alone = config;
  alone.parallel = {};
  if (alone.training.update != Update::kFused) alone.training.update = Update::kSeparate;
  const Trained one = train_single(alone);
  const std::vector<Trained> all = train_threads_by(scheme, ranks, config);
  for (const Trained& rank : all) {
    expect_within(rank.losses, one.losses, tolerance);
    EXPECT_EQ(rank.losses, all.front().losses) << "all ranks have the same losses";
    ASSERT_EQ(rank.evaluations.size(), one.evaluations.size());
    for (std::size_t i = 0; i < one.evaluations.size(); ++i) {
      EXPECT_EQ(rank.evaluations[i].samples, one.evaluations[i].samples);
      EXPECT_EQ(rank.evaluations[i].accuracy, one.evaluations[i].accuracy);
    }
  }
  const ModelSpec model = spec_of(alone, DeviceKind::kCpu, nullptr).model;
  EXPECT_LE(largest_distance(model, all.front().parameters, one.parameters), 10 * tolerance);
}

RankNumbers::RankNumbers(std::vector<float> numbers)
    : values(std::move(numbers)),
      addresses({reinterpret_cast<std::byte*>(values.data())}),
      device(make_cpu_device({.threads = 1})),
      stream(device->new_stream("comm")) {}

void RankNumbers::queue(Transport& transport, const Collective& collective, Tag tag) {
  transport.prepare(collective);
  Stream* const streams[] = {stream.get()};
  transport.run(collective, addresses, streams, tag);
}

void RankNumbers::run(Transport& transport, const Collective& collective, Tag tag) {
  queue(transport, collective, tag);
  stream->synchronize();
}

void on_threads(int ranks, const std::function<void(ThreadRank&)>& body) {
  ThreadGroup group(ranks);
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::exception_ptr failed;  // the exception that ended the other ranks
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto self = group.join(rank);
      try {
        body(*self);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failed) failed = std::current_exception();
        self->abort(ExitCode::kBug);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (failed) std::rethrow_exception(failed);
}

std::vector<Trained> train_threads_by(const Scheme& scheme, int ranks, const TrainConfig& config,
                                      const Interruption& interruption) {
  std::vector<Trained> results(static_cast<std::size_t>(ranks));
  on_threads(ranks, [&](ThreadRank& rank) {
    results[static_cast<std::size_t>(rank.rank())] =
        train_rank_by(scheme, rank, config, nullptr, interruption);
  });
  return results;
}

std::vector<Trained> train_threads(int ranks, const TrainConfig& config,
                                   const DdpSettings& settings) {
  return train_threads_by(Ddp(settings), ranks, config);
}

double largest_distance(const ModelSpec& model, FlatWeights a, FlatWeights b) {
  const Parameters parameters = parameters_of(model);
  double largest = 0;
  for (ParameterId id = 0; id < parameters.count(); ++id) {
    const std::span<float> in_a = parameters.in(a, id);
    const std::span<float> in_b = parameters.in(b, id);
    std::vector<float> x(in_a.begin(), in_a.end()), y(in_b.begin(), in_b.end());
    if (parameters[id].name.ends_with("in_proj_bias")) {
      for (auto* const each : {&x, &y}) {
        const auto third = std::ssize(*each) / 3;
        each->erase(each->begin() + third, each->begin() + 2 * third);
      }
    }
    largest = std::max(largest, relative_distance(x, y));
  }
  return largest;
}

}  // namespace barestep
