#include "train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/philox.h"
#include "core/price.h"
#include "core/units.h"

namespace barestep {
namespace {

/// Ranks whose gradients make up a step.
constexpr int kWorld = 1;

std::int64_t flops_of(const StepProgram* step) {
  return step == nullptr ? 0 : price_of(step->program).total.flops;
}

/// `loss` is no finite number. `which` is "loss" or "test loss", `when` tells where it was met.
[[noreturn]] void refuse_divergence(std::string_view which, double loss, const std::string& when,
                                    double lr) {
  // A NaN's sign means nothing.
  const double shown = std::isnan(loss) ? std::abs(loss) : loss;
  fail(ExitCode::kDiverged, {.what = "training diverged",
                             .value = "",
                             .why = fmt::format("the {} is {} {}", which, shown, when),
                             .remedy = fmt::format("use a smaller --lr (it is {})", lr)});
}

}  // namespace

/// Fills the pinned slots of a batch: its rows of the data set and the optimizer's numbers.
class Trainer::Input final : public StepInput {
 public:
  Input(const TrainConfig& config, const StepSpec& spec, const Dataset* dataset)
      : config_(config), dataset_(dataset) {
    if (dataset_ == nullptr) return;
    rows_.resize(static_cast<std::size_t>(spec.step_rows()));
    order_.resize(static_cast<std::size_t>(spec.train_rows));
  }

  /// The batch that runs as step `step` of the runner.
  void announce(std::int64_t step, const Batch& batch) {
    batches_[static_cast<std::size_t>(step % 2)] = batch;
  }

  void fill(std::int64_t step, const Program& /*program*/, const Addresses& addresses) override {
    const Batch& batch = batches_[static_cast<std::size_t>(step % 2)];
    const StepTensors& tensors = batch.program->tensors;
    if (const auto& scalars = tensors.scalars_host) {
      write_scalars(config_.training, batch.number + 1, kWorld,
                    {addresses.at(*scalars), static_cast<std::size_t>(scalars->size())});
    }
    if (dataset_ == nullptr) return;
    const auto rows = std::span(rows_).first(static_cast<std::size_t>(batch.program->rows));
    if (batch.evaluates) {
      for (std::size_t i = 0; i < rows.size(); ++i) {
        rows[i] = dataset_->train_rows() + batch.first + static_cast<std::int64_t>(i);
      }
    } else {
      if (batch.epoch != ordered_epoch_) {
        epoch_order(config_.training.seed, batch.epoch, order_);
        ordered_epoch_ = batch.epoch;
      }
      std::copy_n(order_.begin() + batch.first, rows.size(), rows.begin());
    }
    dataset_->gather(rows, addresses.at(*tensors.x_host), addresses.at<std::byte>(*tensors.y_host));
  }

 private:
  const TrainConfig& config_;
  const Dataset* dataset_;
  std::array<Batch, 2> batches_{};
  std::vector<std::int64_t> order_;
  std::int64_t ordered_epoch_ = -1;
  std::vector<std::int64_t> rows_;
};

StepSpec spec_of(const TrainConfig& config, std::int64_t default_dim, const Dataset* dataset) {
  const ModelConfig& model = config.model;
  return {.model = {.layout = ParameterLayout(widths_of(model, default_dim)),
                    .activation = model.activation,
                    .last_relu = model.last_relu,
                    .loss = model.loss,
                    .fusion = config.device.fusion},
          .data = config.data.kind,
          .batch_size = config.data.batch_size,
          .accumulate = config.training.accumulate,
          .train_rows = dataset == nullptr ? 0 : dataset->train_rows(),
          .test_rows = dataset == nullptr ? 0 : dataset->test_rows(),
          .optimizer = optimizer_of(config.training),
          .zero_grad = config.training.zero_grad,
          .io_delay_s = config.data.io_delay_ms / 1e3};
}

Trainer::Trainer(const TrainConfig& config, const StepPrograms& programs, Device& device,
                 const Dataset* dataset, FlatWeights loaded)
    : config_(config),
      programs_(programs),
      device_(device),
      plan_(programs.buffers()),
      runner_(std::array<Device*, 1>{&device}, nullptr, programs.buffers(), plan_,
              {.fetch = dataset == nullptr ? Fetch::kBeforeClock : Fetch::kAhead,
               .graph = config.device.graph}),
      schedule_(config.training, programs),
      input_(std::make_unique<Input>(config, programs.spec(), dataset)),
      flops_(flops_of(&programs.train())),
      last_batch_flops_(flops_of(programs.last_batch())) {
  for (const StepProgram* step :
       {&programs.train(), programs.last_batch(), programs.evaluate(), programs.last_evaluate()}) {
    if (step != nullptr) runner_.add(step->program);
  }
  initialise(std::move(loaded));
}

Trainer::~Trainer() = default;

void Trainer::initialise(FlatWeights loaded) {
  const ParameterLayout& layout = programs_.spec().model.layout;
  TorchGenerator generator(config_.training.seed);
  FlatWeights weights = initial_weights(layout, generator);
  if (!loaded.empty()) weights = std::move(loaded);
  upload(weights.data(), layout.flat(programs_.parameters()));

  // Padding included: the optimizer runs over it, and zeros stay zeros.
  fill_with_zeros(layout.flat(programs_.gradients()));
  for (const BufferId buffer : programs_.optimizer_state()) fill_with_zeros(layout.flat(buffer));
  const auto& state = programs_.train().tensors.generator;
  if (!state) return;
  if (programs_.spec().generator == Generator::kTorchCpu) {
    // The data continue the stream that the weights began, as in the practical's script.
    upload(&generator, *state);
  } else {
    // The weights are drawn on the CPU and copied; the GPU's stream is fresh.
    const PhiloxState fresh{.seed = config_.training.seed};
    upload(&fresh, *state);
  }
}

void Trainer::upload(const void* from, const Tensor& to) {
  Stream& stream = runner_.stream({0, Lane::kCompute});
  device_.copy(runner_.addresses(0).at<std::byte>(to), from, to.bytes(), stream);
  stream.synchronize();
}

void Trainer::fill_with_zeros(const Tensor& tensor) {
  const DeviceOp fill = Fill{.out = tensor};
  Stream& stream = runner_.stream({0, Lane::kCompute});
  device_.prepare(fill);
  device_.run(fill, runner_.addresses(0), stream, {});
  stream.synchronize();
}

FlatWeights Trainer::download(BufferId flat) {
  const Tensor from = programs_.spec().model.layout.flat(flat);
  FlatWeights host(static_cast<std::size_t>(from.size()));
  Stream& stream = runner_.stream({0, Lane::kCompute});
  device_.copy(host.data(), runner_.addresses(0).at<std::byte>(from), from.bytes(), stream);
  stream.synchronize();
  return host;
}

FlatWeights Trainer::weights() {
  return download(programs_.parameters());
}

void Trainer::run(TrainObserver& observer) {
  std::optional<Batch> batch = schedule_.next();
  while (batch) {
    const std::optional<Batch> next = schedule_.next();
    const StepTimes times = run_batch(*batch, next ? &*next : nullptr);
    if (batch->evaluates) {
      report_evaluation(*batch, times, observer);
    } else {
      report_step(*batch, times, observer);
    }
    batch = next;
  }
}

StepTimes Trainer::run_batch(const Batch& batch, const Batch* next) {
  const std::int64_t step = runner_.steps();
  input_->announce(step, batch);
  if (next != nullptr) input_->announce(step + 1, *next);
  return runner_.step(batch.program->program, next == nullptr ? nullptr : &next->program->program,
                      *input_);
}

void Trainer::report_step(const Batch& batch, const StepTimes& times, TrainObserver& observer) {
  const Addresses& addresses = runner_.addresses(runner_.steps() - 1);
  const float loss = *addresses.at(batch.program->tensors.loss_host);
  if (!std::isfinite(loss)) {
    const std::string before =
        batch.number == 0 ? ""
                          : fmt::format(", it was {} at step {}", last_loss_, batch.number - 1);
    refuse_divergence("loss", loss, fmt::format("at step {}{}", batch.number, before),
                      config_.training.lr);
  }
  last_loss_ = loss;
  observer.on_step({.step = batch.number,
                    .steps = schedule_.steps(),
                    .samples = batch.program->rows,
                    .flops = batch.program == programs_.last_batch() ? last_batch_flops_ : flops_,
                    .loss = loss,
                    .warmup = batch.number < warmup_of(config_.training, schedule_.steps()),
                    .times = times});
}

void Trainer::report_evaluation(const Batch& batch, const StepTimes& times,
                                TrainObserver& observer) {
  if (batch.number == 0) {
    evaluation_ = {.epoch = batch.epoch, .epochs = config_.training.epochs.value_or(0)};
    correct_ = 0;
  }
  const Addresses& addresses = runner_.addresses(runner_.steps() - 1);
  const StepTensors& tensors = batch.program->tensors;
  // Weighted by rows, so that a smaller last batch counts for what it is.
  evaluation_.loss += static_cast<double>(*addresses.at(tensors.loss_host)) *
                      static_cast<double>(batch.program->rows);
  evaluation_.samples += batch.program->rows;
  evaluation_.seconds += times.wall_s;
  if (tensors.correct_host) correct_ += *addresses.at<std::int32_t>(*tensors.correct_host);
  if (!batch.ends_evaluation) return;

  const auto samples = static_cast<double>(evaluation_.samples);
  evaluation_.loss /= samples;
  if (!std::isfinite(evaluation_.loss)) {
    refuse_divergence("test loss", evaluation_.loss, fmt::format("after epoch {}", batch.epoch + 1),
                      config_.training.lr);
  }
  if (tensors.correct_host) evaluation_.accuracy = static_cast<double>(correct_) / samples;
  observer.on_evaluation(evaluation_);
}

}  // namespace barestep
