#include "rank_setup.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>
#include <utility>

#include "command_line.h"
#include "core/error.h"
#include "core/output_file.h"
#include "core/units.h"
#include "kernels/cuda_device.h"
#include "kernels/make_device.h"
#include "options/options.h"
#include "parallel/nccl_communicator.h"
#include "parallel/schemes.h"
#include "parallel/staged_communicator.h"
#include "parallel/traffic.h"
#include "parallel/watchdog.h"
#include "rank_agreement.h"
#include "run_program.h"
#include "setup.h"
#include "train/evaluator.h"
#include "train/memory_check.h"

namespace barestep {
namespace {

/// This rank's part of the machine: a GPU by its place on the host, or its share of the CPUs.
void take_share(DeviceConfig& device, const MpiRank& place, DeviceKind kind) {
  if (kind == DeviceKind::kCuda) {
    const bool any = device.device == "auto" || device.device == "cuda";
    const int count = cuda_device_count();
    // Where there is none, opening it says why.
    if (any && count > 0) device.device = fmt::format("cuda:{}", place.local_rank % count);
  } else if (!device.threads) {
    device.threads = place.cpus;
  }
}

}  // namespace

RankSetup::RankSetup(const char* program, const std::vector<std::string>& arguments,
                     const MpiRank& place)
    : ranks_(*place.communicator), place_(place) {
  CommandLine line = parse_command_line(TrainerKind::kDdp, arguments);
  config_ = std::move(line.config);
  answer_ = std::move(line.answer);
  if (!answer_.empty()) return;
  if (is_first() && !line.note.empty()) print_note(program, line.note);
  const auto traces = trace_files(config_.output.trace, "rank", ranks_.size());
  if (!traces.empty()) config_.output.trace = traces[static_cast<std::size_t>(ranks_.rank())];
  validate(config_, TrainerKind::kDdp);
  require_files(traces);
  kind_ = device_kind(config_.device.device);
  const bool takes_any = config_.device.device == "auto";
  build_programs();
  if (config_.output.plan || config_.output.explain) {
    answer_ = preview(config_, *programs_);
    return;
  }
  if (is_first() && !config_.output.load.empty()) {
    loaded_ = load_weights(config_.output.load, programs_->spec().model);
  }
  if (is_first() && takes_any) note_missing_gpu(program);
  open_device();
}

void RankSetup::require_files(const std::vector<std::filesystem::path>& traces) const {
  const auto& own_trace = config_.output.trace;
  if (!is_first()) {
    if (!own_trace.empty()) require_writable(own_trace);
    return;  // it writes nothing else
  }
  std::vector<FileUse> of_others;
  if (ranks_.size() > 1) of_others.push_back({"--metrics", flight_file(config_.output.metrics)});
  for (std::size_t rank = 1; rank < traces.size(); ++rank) {
    of_others.push_back({"--trace", traces[rank]});
  }
  require_outputs(config_, trace_files(own_trace, "rank", 1), of_others);
}

void RankSetup::build_programs() {
  dataset_ = open_data(config_, kind_);
  const StepSpec spec = spec_of_rank(config_, kind_, data(), ranks_.rank(), ranks_.size());
  if (config_.training.evaluate_only) {
    programs_ = std::make_unique<StepPrograms>(evaluation_spec_of(spec));
  } else {
    scheme_ = scheme_of(config_, TrainerKind::kDdp);
    programs_ = std::make_unique<StepPrograms>(spec, &*scheme_);
  }
  config_ = resolve(std::move(config_), kind_, spec);
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
  // All ranks are to make the same bits of a row, and so is one rank of all rows.
  if (config_.parallel.scheme == RankScheme::kFactor) {
    config_.device.rows_of_products = programs_->spec().batch_size;
  }
  device_ = make_device(config_.device);
  // Ranks that are CPU devices of one host take from the same memory.
  const int sharers = kind_ == DeviceKind::kCpu ? place_.local_size : 1;
  if (!config_.output.memory) {
    require_memory(*programs_, device_->info().free_bytes, kind_, device_->name(), sharers);
  }
}

void RankSetup::require_agreement() {
  gpus_ = gather_gpu_places(ranks_, device_ == nullptr ? "" : device_->info().pci_bus_id);
  RankSettings settings = build_settings();
  settings.emplace_back("MPI", place_.library);
  std::string task = "training";
  if (programs_ == nullptr) task = "help";
  if (config_.output.plan || config_.output.explain) task = "preview";
  settings.emplace_back("task", task);
  if (programs_ != nullptr) {
    const RankSettings steps = settings_of(config_);
    settings.insert(settings.end(), steps.begin(), steps.end());
  }
  if (device_ != nullptr) {
    settings.emplace_back("device", kind_ == DeviceKind::kCpu ? "cpu" : "cuda");
    settings.emplace_back("products", device_->info().product_library);
    // The ranks compute the same bits only on equal devices.
    if (config_.parallel.scheme == RankScheme::kFactor) {
      settings.emplace_back("device's model", device_->info().model);
    }
    settings.emplace_back("transport", transport_name());
    if (uses_nccl()) settings.emplace_back("NCCL", nccl_version());
  }
  barestep::require_agreement(ranks_, settings);
  if (device_ != nullptr && uses_nccl()) require_nccl();
}

/// From here on all ranks have the same options.
void RankSetup::require_nccl() const {
  if (const std::string why = why_nccl_cannot_join(gpus_); !why.empty()) {
    fail(ExitCode::kConfiguration, {.what = "--transport",
                                    .value = "nccl",
                                    .why = why,
                                    .remedy = "use mpi or auto, or start a rank for each GPU"});
  }
  if (config_.output.memory) return;
  require_memory(*programs_, {.name = device_->name(),
                              .kind = kind_,
                              .available_bytes = device_->info().free_bytes,
                              .beside_bytes = nccl_bytes(ranks_.size()),
                              .beside = "NCCL"});
}

bool RankSetup::uses_nccl() const {
  const Transport wanted = config_.parallel.transport;
  return kind_ == DeviceKind::kCuda &&
         (wanted == Transport::kNccl ||
          (wanted == Transport::kAuto && has_nccl() && why_nccl_cannot_join(gpus_).empty()));
}

std::string RankSetup::transport_name() const {
  if (kind_ == DeviceKind::kCpu) return "MPI";
  return uses_nccl() ? "NCCL" : "MPI through pinned memory";
}

void RankSetup::connect(FlightRecord& record) {
  if (kind_ == DeviceKind::kCuda && uses_nccl()) {
    own_transport_ = join_nccl(ranks_, *device_, config_.device.graph ? nullptr : &record);
  } else if (kind_ == DeviceKind::kCuda) {
    own_transport_ = std::make_unique<StagedCommunicator>(ranks_, *device_);
  }
  transport_ = own_transport_ != nullptr ? own_transport_.get() : &ranks_;
}

std::int64_t RankSetup::steps() const {
  const StepSpec& spec = programs_->spec();
  return steps_of(config_.training, spec.epoch_rows(), spec.step_rows());
}

ProfilingScope RankSetup::profiling_scope() const {
  return {.program = "mlp_ddp",
          .devices = {device_.get()},
          .communicator = transport_,
          .backend = uses_nccl() ? "nccl" : "mpi",
          .rank = ranks_.rank(),
          .ranks = ranks_.size()};
}

std::unique_ptr<Trainer> RankSetup::new_trainer(StepProfiler* profiler) {
  return std::make_unique<Trainer>(config_, *programs_, std::vector<Device*>{device_.get()},
                                   transport_, data(), std::move(loaded_), profiler);
}

FlatWeights RankSetup::weights_of_all() {
  FlatWeights weights = std::move(loaded_);
  const Tensor flat = programs_->spec().model.layout.flat(programs_->parameters());
  weights.resize(static_cast<std::size_t>(flat.size()));
  ranks_.broadcast(std::as_writable_bytes(std::span(weights)), 0);
  return weights;
}

MonitorScope RankSetup::monitor_scope() const {
  MonitorScope scope{.devices = {}, .host = place_.local_rank == 0, .rank = ranks_.rank()};
  if (is_first_on_gpu(gpus_, ranks_.rank())) scope.devices.push_back(device_.get());
  return scope;
}

std::string RankSetup::text_of_all(const std::string& mine) const {
  const std::vector<std::string> texts = gather_texts(ranks_, mine);
  if (!is_first()) return "";
  std::string all;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    if (texts[rank].empty()) continue;
    all += texts.size() == 1 ? "\n" : fmt::format("\nRank {}\n", rank);
    all += texts[rank];
  }
  return all;
}

/// What the ranks exchange in a step, and by what.
std::string RankSetup::exchange_text() const {
  const StepSpec& spec = programs_->spec();
  const Ddp ddp(ddp_settings_of(config_));
  if (config_.parallel.scheme == RankScheme::kDdp) {
    const bool bf16 = config_.parallel.bf16_gradients;
    std::vector<std::string> sizes;
    for (const Tensor& bucket : ddp.buckets(spec.model.layout, 0)) {
      sizes.push_back(human_bytes(bf16 ? bucket.bytes() / 2 : bucket.bytes()));
    }
    return fmt::format("gradients reduced{} by {} in {} ({}){}", bf16 ? " as bf16" : "",
                       transport_name(), counted(std::ssize(sizes), "bucket"),
                       fmt::join(sizes, ", "),
                       config_.parallel.overlap ? " while backward goes on" : " after backward");
  }
  const bool zero1 = config_.parallel.scheme == RankScheme::kZero1;
  StepSpec with_gradients = spec;
  with_gradients.model.stores_gradients = true;
  const StepPrograms with_ddp(with_gradients, &ddp);
  const auto sent = [&](const StepPrograms& programs) {
    return human_bytes(bytes_sent(programs.train().program, spec.ranks));
  };
  return fmt::format(
      "{} by {}: each sends {} a step, ddp would send {}",
      zero1 ? "gradients scattered and parameters gathered" : "factors of the gradients gathered",
      transport_name(), sent(*programs_), sent(with_ddp));
}

std::string RankSetup::text() const {
  const int ranks = ranks_.size();
  std::string text = counted(ranks, "rank");
  if (ranks > place_.local_size) text += fmt::format(", {} on this host", place_.local_size);
  text += ", " + exchange_text();
  const int cores = place_.local_cpus;
  const int own_threads = config_.device.threads.value_or(0);
  const int threads = place_.local_size * own_threads;
  if (kind_ == DeviceKind::kCpu && threads > cores) {
    text += fmt::format("\nOversubscribed: {} of {} on {}", counted(place_.local_size, "rank"),
                        counted(own_threads, "thread"), counted(cores, "core"));
  }
  return text + "\n";
}

}  // namespace barestep
