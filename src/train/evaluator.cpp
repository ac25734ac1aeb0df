#include "train/evaluator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/error.h"
#include "core/units.h"

namespace barestep {

StepSpec evaluation_spec_of(const TrainConfig& config, DeviceKind kind, const Dataset& dataset) {
  StepSpec spec = spec_of(config, kind, &dataset);
  spec.model.trains = false;
  if (spec.test_rows == 0) spec.test_rows = spec.train_rows;
  spec.train_rows = 0;
  return spec;
}

/// Fills the pinned slots with the samples from `first` on.
class Evaluator::Input final : public StepInput {
 public:
  Input(const Dataset& dataset, const StepSpec& spec)
      : dataset_(dataset),
        begin_(dataset.train_rows() + dataset.test_rows() - spec.test_rows),
        rows_(static_cast<std::size_t>(spec.batch_size)) {}

  void announce(const StepProgram& program, std::int64_t first) {
    program_ = &program;
    first_ = first;
  }

  void fill(std::int64_t /*step*/, const Program& /*program*/,
            const Addresses& addresses) override {
    const auto rows = std::span(rows_).first(static_cast<std::size_t>(program_->rows));
    std::iota(rows.begin(), rows.end(), begin_ + first_);
    const StepTensors& tensors = program_->tensors;
    dataset_.gather(rows, addresses.at(*tensors.x_host), addresses.at<std::byte>(*tensors.y_host));
  }

 private:
  const Dataset& dataset_;
  std::int64_t begin_;  // of the test set
  std::vector<std::int64_t> rows_;
  const StepProgram* program_ = nullptr;
  std::int64_t first_ = 0;
};

Evaluator::Evaluator(const StepPrograms& programs, Device& device, const Dataset& dataset,
                     const FlatWeights& weights)
    : programs_(programs),
      plan_(programs.buffers()),
      device_(&device),
      runner_({&device_, 1}, nullptr, programs.buffers(), plan_, {.fetch = Fetch::kInStep}),
      input_(std::make_unique<Input>(dataset, programs.spec())) {
  for (const StepProgram* step : programs.all()) runner_.add(step->program);
  const Tensor parameters = programs.spec().model.layout.flat(programs.parameters());
  Stream& stream = runner_.stream({0, Lane::kCompute});
  device.copy(runner_.addresses(0).at<std::byte>(parameters), weights.data(), parameters.bytes(),
              stream);
  stream.synchronize();
}

Evaluator::~Evaluator() = default;

Evaluation Evaluator::run(std::int64_t warmup,
                          const std::function<void(const EvaluatedBatch&)>& on_batch) {
  const std::int64_t samples = programs_.spec().test_rows;
  const auto step = [&](std::int64_t first) -> const StepProgram& {
    const bool whole = first + programs_.evaluate()->rows <= samples;
    const StepProgram& program = whole ? *programs_.evaluate() : *programs_.last_evaluate();
    input_->announce(program, first);
    return program;
  };
  for (std::int64_t i = 0; i < warmup; ++i) runner_.step(step(0).program, nullptr, *input_);

  Evaluation evaluation{.batch_size = programs_.spec().batch_size};
  EvaluationReport& total = evaluation.total;
  std::vector<double> latencies_s;
  std::int64_t correct = 0;
  while (total.samples < samples) {
    const StepProgram& program = step(total.samples);
    const Addresses& addresses = runner_.addresses(runner_.steps());
    runner_.step(program.program, nullptr, *input_);
    const double latency_s = runner_.timeline().wall_of_newest(kMainLane).seconds();
    total.loss += static_cast<double>(*addresses.at(program.tensors.loss_host)) *
                  static_cast<double>(program.rows) / static_cast<double>(samples);
    if (const auto& count = program.tensors.correct_host) {
      correct += *addresses.at<std::int32_t>(*count);
      total.accuracy = static_cast<double>(correct) / static_cast<double>(samples);
    }
    total.samples += program.rows;
    total.seconds += latency_s;
    on_batch({static_cast<std::int64_t>(latencies_s.size()), program.rows, latency_s});
    latencies_s.push_back(latency_s);
  }
  if (!std::isfinite(total.loss)) {
    fail(ExitCode::kDiverged,
         {.what = "evaluation",
          .why = fmt::format("the loss over {} samples is {}", grouped(samples),
                             std::isnan(total.loss) ? std::abs(total.loss) : total.loss),
          .remedy = "load weights of a training run that did not diverge"});
  }
  evaluation.latency_s = statistics_of(latencies_s);
  evaluation.samples_per_s = static_cast<double>(samples) / total.seconds;
  return evaluation;
}

}  // namespace barestep
