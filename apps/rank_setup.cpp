#include "rank_setup.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <span>
#include <sstream>
#include <thread>
#include <utility>

#include "command_line.h"
#include "core/error.h"
#include "core/units.h"
#include "kernels/cuda_device.h"
#include "kernels/make_device.h"
#include "parallel/nccl_communicator.h"
#include "parallel/staged_communicator.h"
#include "setup.h"
#include "train/memory_check.h"

namespace barestep {
namespace {

/// This rank's part of the machine: a GPU by its place on the host, or its share of the cores.
void take_share(DeviceConfig& device, const MpiRank& place, DeviceKind kind) {
  if (kind == DeviceKind::kCuda) {
    const bool any = device.device == "auto" || device.device == "cuda";
    if (any) device.device = fmt::format("cuda:{}", place.local_rank % cuda_device_count());
  } else if (device.threads == 0) {
    const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
    device.threads = std::max(1, cores / place.local_size);
  }
}

/// What steps depend on, and what ranks therefore must agree about: lines of a name and a value.
std::string shared_settings(const TrainConfig& config, const StepPrograms* programs) {
  if (programs == nullptr) return "task help";
  const StepSpec& spec = programs->spec();
  const TrainingConfig& training = config.training;
  const ParallelConfig& parallel = config.parallel;
  std::string text = config.output.plan || config.output.explain ? "task preview" : "task training";
  const auto add = [&](const char* name, const auto& value) {
    text += fmt::format("\n{} {}", name, value);
  };
  add("--layers", fmt::format("{}", fmt::join(spec.model.layout.widths(), ",")));
  add("--activation", static_cast<int>(spec.model.activation));
  add("--no-last-relu", !spec.model.last_relu);
  add("--loss", static_cast<int>(spec.model.loss));
  add("--data", static_cast<int>(spec.data));
  add("samples", fmt::format("{}+{}", spec.train_rows, spec.test_rows));
  add("--global-batch-size", spec.batch_size);
  add("--data-seeding", spec.own_data);
  add("--accumulate", spec.accumulate);
  add("--no-zero-grad", !spec.zero_grad);
  add("--steps", steps_of(training, spec.epoch_rows(), spec.step_rows()));
  add("--seed", training.seed);
  add("--optimizer", static_cast<int>(training.optimizer));
  add("--lr", training.lr);
  add("--lr-warmup", training.lr_warmup);
  add("--weight-decay", spec.optimizer.weight_decay);
  add("--bucket-mib", parallel.bucket_mib);
  add("--first-bucket", parallel.whole_first_bucket);
  add("--no-overlap", !parallel.overlap);
  add("--update", fmt::format("{} {}", training.fused_update, parallel.update_per_bucket));
  add("--clip-norm", training.clip_norm.value_or(0));
  add("--metrics", !config.output.metrics.empty());
  return text;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::string broadcast_text(Communicator& ranks, std::string text) {
  std::size_t size = text.size();
  ranks.broadcast(std::as_writable_bytes(std::span(&size, 1)), 0);
  text.resize(size);
  ranks.broadcast(std::as_writable_bytes(std::span(text)), 0);
  return text;
}

}  // namespace

RankSetup::RankSetup(const char* program, const std::vector<std::string>& arguments,
                     const MpiRank& place)
    : ranks_(*place.communicator), place_(place) {
  CommandLine line = parse_command_line(program, arguments);
  config_ = std::move(line.config);
  answer_ = std::move(line.answer);
  if (!answer_.empty()) return;
  if (is_first() && !line.note.empty()) fmt::print(stderr, "{}: note: {}\n", program, line.note);
  validate(config_);
  if (is_first()) require_outputs(config_);
  kind_ = device_kind(config_.device.device);
  build_programs();
  if (config_.output.plan || config_.output.explain) {
    answer_ = preview(config_, *programs_);
    return;
  }
  if (is_first() && !config_.output.load.empty()) {
    loaded_ = load_weights(config_.output.load, programs_->spec().model);
  }
  if (is_first() && config_.device.device == "auto") note_missing_gpu(program);
  open_device();
}

void RankSetup::build_programs() {
  dataset_ = open_data(config_, kind_);
  scheme_.emplace(ddp_settings_of(config_.parallel));
  programs_ = std::make_unique<StepPrograms>(
      spec_of_rank(config_, kind_, data(), ranks_.rank(), ranks_.size()), &*scheme_);
  const StepSpec& spec = programs_->spec();
  warmup_of(config_.training, steps_of(config_.training, spec.epoch_rows(), spec.step_rows()));
  if (config_.output.memory) {
    require_memory(*programs_, *config_.output.memory, kind_, "the device that --memory states");
  }
}

void RankSetup::open_device() {
  if (kind_ == DeviceKind::kCpu && config_.parallel.transport == Transport::kNccl) {
    fail(ExitCode::kConfiguration, {.what = "--transport",
                                    .value = "nccl",
                                    .why = "joins GPUs, and this rank trains on the CPU",
                                    .remedy = "use mpi or auto"});
  }
  take_share(config_.device, place_, kind_);
  device_ = make_device(config_.device);
  // Ranks that are CPU devices of one host take from the same memory.
  const int sharers = kind_ == DeviceKind::kCpu ? place_.local_size : 1;
  if (!config_.output.memory) {
    require_memory(*programs_, device_->info().free_bytes, kind_, device_->name(), sharers);
  }
}

void RankSetup::require_what_rank_0_has() const {
  const std::string text = shared_settings(config_, programs_.get());
  const std::vector<std::string> mine = lines_of(text);
  const std::vector<std::string> first = lines_of(broadcast_text(ranks_, text));
  std::vector<std::string> differences;
  for (std::size_t i = 0; i < std::min(mine.size(), first.size()); ++i) {
    if (mine[i] == first[i]) continue;
    differences.push_back(fmt::format("{}, where rank 0 has {}", mine[i], first[i]));
  }
  if (differences.empty()) return;
  fail(ExitCode::kConfiguration,
       {.what = "ranks",
        .why = fmt::format("rank {} has {}", ranks_.rank(), fmt::join(differences, "; ")),
        .remedy = "give all ranks the same options and files"});
}

void RankSetup::connect() {
  const Transport wanted = config_.parallel.transport;
  const bool own_gpu = place_.local_size <= cuda_device_count();
  if (kind_ == DeviceKind::kCpu) {
    transport_ = &ranks_;
    transport_name_ = "MPI";
  } else if (wanted == Transport::kNccl || (wanted == Transport::kAuto && has_nccl() && own_gpu)) {
    own_transport_ = join_nccl(ranks_);
    transport_name_ = "NCCL";
  } else {
    own_transport_ = std::make_unique<StagedCommunicator>(ranks_, *device_);
    transport_name_ = "MPI through pinned memory";
  }
  if (own_transport_ != nullptr) transport_ = own_transport_.get();
}

std::unique_ptr<Trainer> RankSetup::new_trainer() {
  return std::make_unique<Trainer>(config_, *programs_, std::vector{device_.get()}, transport_,
                                   data(), std::move(loaded_));
}

std::string RankSetup::text() const {
  std::vector<std::string> sizes;
  for (const Tensor& bucket : scheme_->buckets(programs_->spec().model.layout, 0)) {
    sizes.push_back(human_bytes(bucket.bytes()));
  }
  const int ranks = ranks_.size();
  std::string text = fmt::format("{} rank{}", ranks, ranks == 1 ? "" : "s");
  if (ranks > place_.local_size) text += fmt::format(", {} on this host", place_.local_size);
  text += fmt::format(", gradients reduced by {} in {} bucket{} ({}){}", transport_name_,
                      sizes.size(), sizes.size() == 1 ? "" : "s", fmt::join(sizes, ", "),
                      config_.parallel.overlap ? " while backward goes on" : " behind backward");
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  const int threads = place_.local_size * config_.device.threads;
  if (kind_ == DeviceKind::kCpu && threads > cores) {
    text += fmt::format("\nOversubscribed: {} ranks of {} thread{} on {} cores", place_.local_size,
                        config_.device.threads, config_.device.threads == 1 ? "" : "s", cores);
  }
  return text + "\n";
}

}  // namespace barestep
