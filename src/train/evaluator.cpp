#include "train/evaluator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>

#include "core/error.h"
#include "core/index.h"
#include "core/units.h"

namespace barestep {

namespace {

/// Elementwise. A rank without samples passes an empty vector. Every rank calls it.
std::vector<std::int64_t> sum_of_all_ranks(Group& ranks, std::vector<std::int64_t> mine) {
  std::vector<std::int64_t> sum;
  for (const std::vector<std::int64_t>& each : gather_lists(ranks, std::move(mine))) {
    sum.resize(std::max(sum.size(), each.size()));
    std::ranges::transform(each, sum, sum.begin(), std::plus());
  }
  return sum;
}

}  // namespace

std::int64_t sum_over_ranks(Group* ranks, std::int64_t mine) {
  return ranks == nullptr ? mine : sum_of_all_ranks(*ranks, {mine}).front();
}

/// Fills the pinned slots with the samples from `first` on.
class Evaluator::Input final : public StepInput {
 public:
  Input(const Dataset& dataset, const StepSpec& spec)
      : dataset_(dataset),
        begin_(dataset.train_rows() + dataset.test_rows() - spec.input.test_rows +
               spec.own_test_rows().first),
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
  std::int64_t begin_;  // start of this rank's part of the test set
  std::vector<std::int64_t> rows_;
  const StepProgram* program_ = nullptr;
  std::int64_t first_ = 0;
};

Evaluator::Evaluator(const StepPrograms& programs, Device& device, const Dataset& dataset,
                     const FlatWeights& weights, Group* ranks)
    : programs_(programs),
      dataset_(dataset),
      ranks_(ranks),
      plan_(programs.buffers()),
      device_(&device),
      runner_({&device_, 1}, nullptr, programs.buffers(), plan_, {.fetch = Fetch::kInStep}),
      input_(std::make_unique<Input>(dataset, programs.spec())),
      sum_(programs, &dataset, ranks) {
  for (const StepProgram* step : programs.all()) runner_.add(step->program);
  const Tensor parameters = programs.parameter_list().flat(programs.parameters());
  Stream& stream = runner_.stream({0, Lane::kCompute});
  device.copy(runner_.addresses(0).at<std::byte>(parameters), weights.data(), parameters.bytes(),
              stream);
  if (const auto rounding = rounding_of(programs, programs.stages()[0])) {
    device.prepare(*rounding);
    device.run(*rounding, runner_.addresses(0), stream, {.node = kPartOfNode});
  }
  stream.synchronize();
  if (programs.quantize() != nullptr) {
    StepInput none;
    runner_.step(programs.quantize()->program, nullptr, none);
  }
}

Evaluator::~Evaluator() = default;

Evaluation Evaluator::run(std::int64_t warmup,
                          const std::function<void(const EvaluatedBatch&)>& on_batch) {
  const std::int64_t samples = programs_.spec().own_test_rows().count;
  const auto step = [&](std::int64_t first) -> const StepProgram& {
    const bool whole = first + programs_.evaluate()->rows <= samples;
    const StepProgram& program = whole ? *programs_.evaluate() : *programs_.last_evaluate();
    input_->announce(program, first);
    return program;
  };
  for (std::int64_t i = 0; i < warmup && samples > 0; ++i)
    runner_.step(step(0).program, nullptr, *input_);

  Evaluation evaluation{.batch_size = programs_.spec().batch_size,
                        .weight_bytes = state_bytes_of(programs_.evaluate()->program)};
  while (sum_.samples() < samples) {
    const StepProgram& program = step(sum_.samples());
    const Addresses& addresses = runner_.addresses(runner_.steps());
    runner_.step(program.program, nullptr, *input_);
    const double latency_s = runner_.timeline().wall_of_newest(kMainLane).seconds();
    sum_.add(program, addresses, latency_s);
    count_classes(program, addresses, evaluation);
    evaluation.batches.push_back({.rank = programs_.spec().mesh.rank,
                                  .number = std::ssize(evaluation.batches),
                                  .samples = program.rows,
                                  .latency_s = latency_s});
    on_batch(evaluation.batches.back());
  }
  evaluation.total = sum_.finish();
  if (ranks_ != nullptr && ranks_->size() > 1) {
    const auto batches = gather_lists(*ranks_, std::exchange(evaluation.batches, {}));
    for (const std::vector<EvaluatedBatch>& each : batches) {
      evaluation.batches.insert(evaluation.batches.end(), each.begin(), each.end());
    }
    evaluation.confusion = sum_of_all_ranks(*ranks_, evaluation.confusion);
  }
  const EvaluationReport& total = evaluation.total;
  if (!std::isfinite(total.loss)) {
    fail(ExitCode::kDiverged,
         {"evaluation", "",
          fmt::format("the loss over {} {} is {}", grouped(total.samples),
                      noun_for(total.samples, "sample"), not_finite_text(total.loss)),
          overflow_remedy(&dataset_, programs_.spec().model.numbers,
                          "load weights of a training run that did not diverge")});
  }
  std::vector<double> latencies_s;
  for (const EvaluatedBatch& batch : evaluation.batches) latencies_s.push_back(batch.latency_s);
  evaluation.latency_s = statistics_of(latencies_s);
  evaluation.samples_per_s = static_cast<double>(total.samples) / total.seconds;
  return evaluation;
}

/// Adds to a table whose rows are labels and whose columns are predicted classes.
void Evaluator::count_classes(const StepProgram& batch, const Addresses& addresses,
                              Evaluation& evaluation) const {
  const ModelSpec& model = programs_.spec().model;
  if (!takes_labels(model.loss)) return;
  const std::int64_t outputs = model.outputs();
  evaluation.classes = model.loss == LossKind::kBce ? 2 : outputs;
  const auto* const found = addresses.at<std::int32_t>(*batch.tensors.classes_host);
  evaluation.found.insert(evaluation.found.end(), found, found + batch.rows);
  if (evaluation.classes > kMaxClassesInTable) return;
  evaluation.confusion.resize(static_cast<std::size_t>(evaluation.classes * evaluation.classes));
  const auto* const labels = addresses.at<std::int32_t>(*batch.tensors.y_host);
  for (std::int64_t row = 0; row < batch.rows; ++row) {
    ++at(evaluation.confusion, evaluation.classes * labels[row] + found[row]);
  }
}

}  // namespace barestep
