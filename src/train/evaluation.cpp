#include "train/evaluation.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace barestep {
namespace {

/// Each with as many squared errors. Every rank calls it. Blocks.
EvaluationPart sum_of_ranks(Group& ranks, const EvaluationPart& mine) {
  // Counts are exact in double too.
  std::vector<double> numbers = mine.squared_errors;
  for (const double number : {mine.loss, mine.absolute_error, static_cast<double>(mine.samples),
                              static_cast<double>(mine.correct), mine.seconds}) {
    numbers.push_back(number);
  }
  std::vector<double> all(numbers.size() * static_cast<std::size_t>(ranks.size()));
  ranks.all_gather(std::as_bytes(std::span(numbers)), std::as_writable_bytes(std::span(all)));
  std::vector<double> sum(numbers.size());
  EvaluationPart part;
  for (std::size_t i = 0; i < all.size(); ++i) {
    sum[i % sum.size()] += all[i];
    if ((i + 1) % sum.size() == 0) part.seconds = std::max(part.seconds, all[i]);
  }
  const auto rest = sum.end() - 5;
  part.squared_errors.assign(sum.begin(), rest);
  part.loss = rest[0];
  part.absolute_error = rest[1];
  part.samples = static_cast<std::int64_t>(rest[2]);
  part.correct = static_cast<std::int64_t>(rest[3]);
  return part;
}

}  // namespace

void EvaluationPart::clear() {
  std::vector<double> room = std::move(squared_errors);
  room.clear();
  *this = {};
  squared_errors = std::move(room);
}

void EvaluationPart::add(const StepProgram& batch, const Addresses& addresses, double batch_s) {
  const StepTensors& tensors = batch.tensors;
  // Weighted by rows, because the last batch may be smaller.
  const auto sum_of = [&](const std::optional<Tensor>& mean) {
    return mean ? static_cast<double>(*addresses.at(*mean)) * static_cast<double>(batch.rows) : 0;
  };
  loss += sum_of(tensors.loss_host);
  absolute_error += sum_of(tensors.absolute_error_host);
  if (const auto& errors = tensors.squared_errors_host) {
    squared_errors.resize(static_cast<std::size_t>(errors->cols));
    const float* const added = addresses.at(*errors);
    for (std::size_t i = 0; i < squared_errors.size(); ++i) {
      squared_errors[i] += static_cast<double>(added[i]);
    }
  }
  if (tensors.correct_host) correct += *addresses.at<std::int32_t>(*tensors.correct_host);
  samples += batch.rows;
  seconds += batch_s;
}

EvaluationReport EvaluationPart::report(const StepProgram& batch,
                                        std::span<const double> target_variances) const {
  const auto count = static_cast<double>(samples);
  EvaluationReport report{.samples = samples, .loss = loss / count, .seconds = seconds};
  if (batch.tensors.correct_host) report.accuracy = static_cast<double>(correct) / count;
  if (!batch.tensors.absolute_error_host) return report;
  report.mean_absolute_error = absolute_error / count;
  if (samples < 2) return report;
  double sum = 0;
  for (std::size_t i = 0; i < squared_errors.size(); ++i) {
    const double error = squared_errors[i] / count;
    const double variance = target_variances[i];
    sum += variance > 0 ? 1 - error / variance : (error > 0 ? 0 : 1);
  }
  report.r2 = sum / static_cast<double>(squared_errors.size());
  return report;
}

EvaluationSum::EvaluationSum(const StepPrograms& programs, const Dataset* dataset, Group* ranks)
    : programs_(programs), ranks_(ranks) {
  if (dataset != nullptr)
    target_variances_ = dataset->target_variances(programs.spec().input.test_rows);
}

EvaluationReport EvaluationSum::finish() {
  const StepProgram& batch = *programs_.evaluate();
  if (ranks_ != nullptr && ranks_->size() > 1) {
    // The ranks of a copy of the model have the same results; one of them adds them.
    if (!programs_.spec().mesh.has_results()) part_ = {.seconds = part_.seconds};
    // A rank without samples has not added any errors.
    const auto& errors = batch.tensors.squared_errors_host;
    part_.squared_errors.resize(static_cast<std::size_t>(errors ? errors->cols : 0));
    part_ = sum_of_ranks(*ranks_, part_);
  }
  const EvaluationReport report = part_.report(batch, target_variances_);
  part_.clear();
  return report;
}

}  // namespace barestep
