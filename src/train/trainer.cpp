#include "train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string_view>
#include <utility>

#include "core/clock.h"
#include "core/error.h"
#include "core/index.h"
#include "core/input_file.h"
#include "core/philox.h"
#include "core/program.h"
#include "core/units.h"
#include "data/loader.h"

namespace barestep {
namespace {

/// Ranks with data of their own seed their streams as torch.manual_seed(seed + rank) does.
std::uint64_t data_seed(const TrainConfig& config, const StepSpec& spec) {
  return config.training.seed +
         static_cast<std::uint64_t>(spec.input.own_data ? spec.mesh.data_rank() : 0);
}

/// Whether the host waits for each step before it queues the next one. Profiles need such steps;
/// delayed gradients are reduced beside the next one.
bool is_one_by_one(const TrainConfig& config) {
  if (config.output.records()) return true;
  return config.training.log_every == 1 && config.training.staleness == 0;
}

/// Whether the phases of a step in graphs are measured, which takes an event on a GPU after each:
/// where an output shows them, where the account compares devices or ranks, and where it costs
/// nothing.
bool shows_phases(const TrainConfig& config, const StepPrograms& programs, DeviceKind kind) {
  return config.output.shows_phases() || programs.scheme() != nullptr || kind == DeviceKind::kCpu;
}

/// Random data made before the clock cannot overlap with the previous step. So a run in which the
/// host rarely waits makes them ahead.
Fetch fetch_of(const TrainConfig& config, const Dataset* dataset) {
  if (dataset == nullptr) return is_one_by_one(config) ? Fetch::kBeforeClock : Fetch::kAhead;
  return config.data.workers == 0 ? Fetch::kInStep : Fetch::kAhead;
}

/// Called with a `loss` that is not finite. `which` is "loss" or "test loss"; `when` says where it
/// occurred.
[[noreturn]] void refuse_divergence(std::string_view which, double loss, const std::string& when,
                                    std::string remedy) {
  fail(ExitCode::kDiverged,
       {"training diverged", "", fmt::format("the {} is {} {}", which, not_finite_text(loss), when),
        std::move(remedy)});
}

}  // namespace

/// Fills the pinned slots of a batch: its samples and the optimizer's numbers.
class Trainer::Input final : public StepInput {
 public:
  /// `room` is for the batches ahead.
  Input(const TrainConfig& config, const StepSpec& spec, const Dataset* dataset,
        const Schedule& schedule, StepProfiler* profiler, std::span<std::byte> room)
      : config_(config),
        spec_(spec),
        updates_(std::max<std::int64_t>(schedule.steps() - spec.update.staleness, 1)),
        profiler_(profiler) {
    if (dataset == nullptr) return;
    loader_.emplace(*dataset, batches_of(schedule),
                    LoaderOptions{.seed = config.training.seed,
                                  .shuffle = config.data.shuffle,
                                  .max_rows = spec.max_own_rows(),
                                  .workers = config.data.workers,
                                  .ahead = spec.batches_ahead(),
                                  .room = room,
                                  .delay_s = config.data.io_delay_ms / 1e3});
  }

  /// Sets the batch of the runner's step `step`.
  void announce(std::int64_t step, const Batch& batch) { at(batches_, step % 2) = batch; }

  /// The learning rate of an update, counted from 0.
  [[nodiscard]] double rate_of(std::int64_t update) const {
    return learning_rate(config_.optimizer, update + 1, spec_.mesh.data, updates_);
  }

  /// The update of a step, counted from 0, without loss scaling. Steps before the first update
  /// count as that one.
  [[nodiscard]] std::int64_t update_of(const Batch& batch) const {
    return std::max<std::int64_t>(batch.number - spec_.update.staleness, 0);
  }

  /// Sets the scaling after the newest finished step; the next steps' scalars start there.
  void set_scaling(const std::optional<ScalingPosition>& scaling) { scaling_ = scaling; }

  void set_request(StepRequest request, const std::atomic<bool>& requested) {
    requests_[static_cast<std::size_t>(request)] = &requested;
  }
  /// Samples that cannot be read request a stop, too.
  [[nodiscard]] bool is_requested(StepRequest request) const {
    if (request == StepRequest::kStop && failure_) return true;
    const std::atomic<bool>* const requested = requests_[static_cast<std::size_t>(request)];
    return requested != nullptr && *requested;
  }

  RunDetail detail_of(std::int64_t step) override {
    const Batch& batch = at(batches_, step % 2);
    const bool asks = profiler_ != nullptr && !batch.evaluates;
    return asks ? profiler_->detail_of(batch.number) : RunDetail::kRuns;
  }

  void fill(std::int64_t step, const Program& /*program*/, const Addresses& addresses) override {
    const Batch& batch = at(batches_, step % 2);
    const StepTensors& tensors = batch.program->tensors;
    if (const auto& scalars = tensors.scalars_host) {
      for (std::int64_t row = 0; row < scalars->rows; ++row) {
        const std::int64_t update = (scaling_ ? scaling_->updates : update_of(batch)) + row;
        write_scalars(
            step_of(config_.optimizer), update + 1, rate_of(update),
            {addresses.at(scalars->row_slice(row, 1)), static_cast<std::size_t>(scalars->cols)});
      }
    }
    if (const auto& first = tensors.first_update_host) {
      *addresses.at<std::int32_t>(*first) = scaling_->updates;
    }
    if (const auto& jitter = tensors.jitter_host) *addresses.at(*jitter) = jitter_.next_s();
    if (const auto& number = tensors.number_host) {
      *addresses.at<std::int32_t>(*number) = static_cast<std::int32_t>(batch.number + 1);
    }
    if (loader_) load(step, batch, addresses);
    if (const auto& requests = tensors.requests_host) {
      float* const flags = addresses.at(*requests);
      for (std::int64_t i = 0; i < requests->size(); ++i) {
        flags[i] = is_requested(static_cast<StepRequest>(i)) ? 1.0F : 0.0F;
      }
    }
  }

  void require(std::int64_t step) const override {
    if (missing_step_ && step >= *missing_step_) std::rethrow_exception(failure_);
  }

  /// Why samples cannot be read; null if they can.
  [[nodiscard]] const std::exception_ptr& failure() const { return failure_; }

 private:
  void load(std::int64_t step, const Batch& batch, const Addresses& addresses) {
    const StepTensors& tensors = batch.program->tensors;
    // Ranks that read this step's request have queued at most one step more, and end after it.
    constexpr std::int64_t kUntilRanksEnd = 2;
    const bool has_ranks = spec_.mesh.ranks() > 1;
    try {
      loader_->take(addresses.at(*tensors.x_host), addresses.at<std::byte>(*tensors.y_host));
      if (has_ranks && !failure_) failure_ = loader_->failure_ahead(kUntilRanksEnd);
    } catch (...) {
      failure_ = std::current_exception();
      if (has_ranks && batch.evaluates) {
        // This rank goes on, so that all end after the evaluation, which none of them reports.
        for (const Tensor& lost : {*tensors.x_host, *tensors.y_host}) {
          std::memset(addresses.at<std::byte>(lost), 0, static_cast<std::size_t>(lost.bytes()));
        }
      } else {
        missing_step_ = step;
      }
    }
  }

  const TrainConfig& config_;
  const StepSpec& spec_;
  std::int64_t updates_;  // of the whole run
  StepProfiler* profiler_;
  std::array<const std::atomic<bool>*, 2> requests_{};  // null: never requested
  std::array<Batch, 2> batches_{};
  std::optional<ScalingPosition> scaling_{};
  Jitter jitter_{spec_.jitter_s, spec_.mesh.rank};
  std::exception_ptr failure_;
  std::optional<std::int64_t> missing_step_;  // the first without its samples
  std::optional<Loader> loader_;
};

namespace {

std::span<std::byte> room_of(const std::optional<Tensor>& tensor, const Addresses& addresses) {
  if (!tensor) return {};
  return {addresses.at<std::byte>(*tensor), static_cast<std::size_t>(tensor->bytes())};
}

}  // namespace

Trainer::Trainer(const TrainConfig& config, const StepPrograms& programs,
                 std::vector<Device*> devices, const Connection& connection, const Dataset* dataset,
                 FlatWeights loaded, StepProfiler* profiler, const TrainingState* start)
    : config_(config),
      programs_(programs),
      devices_(std::move(devices)),
      ranks_(connection.ranks),
      dataset_(dataset),
      plan_(programs.buffers()),
      runner_(devices_, connection.transport, programs.buffers(), plan_,
              {.fetch = fetch_of(config, dataset),
               .graph = config.device.graph,
               .phases = shows_phases(config, programs, devices_[0]->kind()),
               .host_memory = config.data.pin ? MemoryKind::kPinned : MemoryKind::kPageable,
               .profiler = profiler}),
      position_(start == nullptr ? Position{} : start->position),
      schedule_(config.training, programs, position_),
      input_(std::make_unique<Input>(config, programs.spec(), dataset, schedule_, profiler,
                                     room_of(programs.batches_ahead(), runner_.addresses(0)))),
      evaluation_(programs, dataset, has_ranks() ? ranks_ : nullptr),
      first_measured_(first_measured_step(config.training, schedule_.steps(), position_.steps)),
      trial_end_(programs.tries_updates()
                     ? position_.steps +
                           steps_of_trial(config.training, programs.spec(), position_.steps)
                     : 0),
      paused_at_(position_.steps) {
  for (const StepProgram* step : programs.all()) {
    runner_.add(step->program);
    flops_[step] = price_of(step->program).total.flops;
  }
  if (const auto& host = programs.state_host()) {
    // Touches the pages now, so that the run's pause does not have to.
    std::memset(runner_.addresses(0).at<std::byte>(*host), 0,
                static_cast<std::size_t>(host->bytes()));
  }
  if (programs.state_snapshot()) {
    copies_ = devices_[0]->new_stream("checkpoint");
    copy_ends_ = devices_[0]->new_event(EventUse::kOrder);
  }
  if (config.output.verify_every || config.injected.flip) {
    verification_.emplace(config, programs, runner_, devices_, has_ranks() ? ranks_ : nullptr);
  }
  set_state(start, std::move(loaded));
  if (verification_) verification_->prepare();
}

Trainer::~Trainer() = default;

/// First zeros, then the weights, then what is made from them.
void Trainer::set_state(const TrainingState* start, FlatWeights loaded) {
  const Buffers& buffers = programs_.buffers();
  // Includes padding: the optimizer processes it, and zeros stay zeros. Other devices' gradients,
  // with padding, are added to device 0's.
  for (const HeldStage& stage : programs_.stages()) {
    fill_with_zeros(whole(stage.flat.parameters));
    for (const BufferId buffer : stage.optimizer_state) fill_with_zeros(whole(buffer));
  }
  for (const KeptBuffer& kept : programs_.kept()) fill_with_zeros(whole(kept.flat));
  for (BufferId id = 0; id < buffers.size(); ++id) {
    if (buffers[id].category == Category::kGradients) fill_with_zeros(whole(id));
  }
  if (programs_.spec().input.teacher_noise) initialize_teacher();
  if (start != nullptr) {
    restore(*start);
  } else {
    initialize(std::move(loaded));
  }
  for (const HeldStage& stage : programs_.stages()) {
    if (const auto rounding = rounding_of(programs_, stage)) run_now(*rounding, stage.device);
  }
  for (const KeptBuffer& kept : programs_.kept()) {
    if (start != nullptr || !kept.starts_as_parameters) continue;
    run_now(Copy{.to = whole(kept.flat), .from = whole(programs_.parameters())}, 0);
  }
  begin_scaling();
}

void require_equal_weights(Group& ranks, Mesh mesh, const FlatWeights& weights) {
  const std::vector<std::string> hashes =
      gather_lists(ranks, hash_of_bytes(std::as_bytes(std::span(weights))));
  for (int rank = 0; rank < ranks.size(); ++rank) {
    mesh.rank = rank;
    const int first = mesh.first_on(Axis::kData);
    if (at(hashes, rank) == at(hashes, first)) continue;
    fail(ExitCode::kConfiguration,
         {"ranks differ", "",
          fmt::format("the weights at the start are not the same on ranks {} and {}", first, rank),
          "give all ranks the same build and the same kind of machine"});
  }
}

std::vector<FlatRange> Trainer::held_of(const HeldStage& stage) const {
  const BufferId flat = stage.flat.parameters;
  return programs_.is_shared_out(flat) ? programs_.held(flat)
                                       : std::vector{FlatRange{0, stage.range.count}};
}

void Trainer::initialize(FlatWeights loaded) {
  const Parameters& whole = programs_.whole_list();
  bool is_loaded = !loaded.empty();
  if (has_ranks()) is_loaded = gather_values(*ranks_, is_loaded ? 1 : 0).front() == 1;
  // Also where every rank has a stream of data of its own, all have the first one's weights.
  TorchGenerator of_weights(config_.training.seed);
  FlatWeights weights = is_loaded ? part_of_loaded(std::move(loaded))
                                  : programs_.parameter_list().initial_values(of_weights, whole);
  if (has_ranks()) require_equal_weights(*ranks_, programs_.spec().mesh, weights);
  for (const HeldStage& stage : programs_.stages()) {
    std::int64_t place = 0;
    for (const FlatRange& held : held_of(stage)) {
      if (held.count == 0) continue;  // it may begin after the last number
      upload(&at(weights, stage.range.first + held.first),
             FlatRange{place, held.count}.of(stage.flat.parameters));
      place += held.count;
    }
  }
  // Data continue the stream after the weights, even if those were loaded.
  TorchGenerator of_data(data_seed(config_, programs_.spec()));
  whole.skip_initial_values(of_data);
  upload_generator(of_data);
}

void Trainer::initialize_teacher() {
  const Parameters parameters = parameters_of(teacher_of(programs_.spec().model));
  TorchGenerator generator(config_.training.seed + 1);
  const FlatWeights weights = parameters.initial_values(generator, parameters);
  upload(weights.data(), parameters.flat(programs_.buffers().find("teacher_parameters")));
}

FlatWeights Trainer::part_of_loaded(FlatWeights whole) {
  const Parameters& all = programs_.whole_list();
  const Parameters& parameters = programs_.parameter_list();
  FlatWeights own = parameters.zeros();
  std::vector<float> numbers;
  for (ParameterId id = 0; id < all.count(); ++id) {
    numbers.resize(static_cast<std::size_t>(all[id].size()));
    if (!whole.empty()) std::ranges::copy(all.in(whole, id), numbers.begin());
    if (has_ranks()) ranks_->broadcast(std::as_writable_bytes(std::span(numbers)), 0);
    const std::optional<ParameterId> found = parameters.find(all[id].name);
    if (found) copy_from_whole(parameters[*found].in_whole(), numbers, parameters.in(own, *found));
  }
  return own;
}

void Trainer::upload_generator(const TorchGenerator& behind_weights) {
  const auto& state = programs_.train().tensors.generator;
  if (!state) return;
  if (programs_.spec().input.generator == Generator::kTorchCpu) {
    // The data continue the random stream that started with the weights, as in a PyTorch script
    // with one seed.
    upload(&behind_weights, *state);
  } else {
    // The weights are drawn on the CPU and copied, so the GPU's stream starts fresh.
    const PhiloxState fresh{.seed = data_seed(config_, programs_.spec())};
    upload(&fresh, *state);
  }
}

void Trainer::upload_held(const StatePart& part, std::span<const float> whole) {
  if (!part.own) return;
  const Tensor& tensor = part.own->tensor;
  std::vector<float> own(static_cast<std::size_t>(tensor.size()));
  copy_from_whole(part.own->part, whole, own);
  const FlatRange wanted{tensor.offset_bytes / bytes_of(DType::kF32), tensor.size()};
  const std::vector<FlatRange> all_held = programs_.held(tensor.buffer);
  for (const FlatRange& held : all_held) {
    const FlatRange both = held.common(wanted);
    if (both.count == 0) continue;
    upload(&at(own, both.first - wanted.first),
           FlatRange{place_in(all_held, both.first), both.count}.of(tensor.buffer));
  }
}

void Trainer::restore(const TrainingState& start) {
  std::vector<float> numbers;
  for (const StatePart& part : state_parts(programs_)) {
    const StoredTensor* const stored = start.find(part.name);
    numbers.resize(static_cast<std::size_t>(part.bytes()) / sizeof(float));
    if (stored != nullptr) std::memcpy(numbers.data(), stored->bytes.data(), stored->bytes.size());
    if (has_ranks()) ranks_->broadcast(std::as_writable_bytes(std::span(numbers)), 0);
    upload_held(part, numbers);
  }
  restore_generator(start);
}

void Trainer::restore_generator(const TrainingState& start) {
  const auto& state = programs_.train().tensors.generator;
  const StepSpec& spec = programs_.spec();
  const std::vector<std::string> names = generator_names(spec);
  for (int stream = 0; stream < static_cast<int>(names.size()); ++stream) {
    const StoredTensor* const stored = start.find(at(names, stream));
    std::vector<std::byte> bytes(bytes_of_generator(spec.input.generator));
    if (stored != nullptr) bytes = stored->bytes;
    if (has_ranks()) ranks_->broadcast(bytes, 0);
    if (spec.input.own_data && stream != spec.mesh.data_rank()) continue;
    if (spec.input.generator == Generator::kTorchCpu) {
      const auto generator = TorchGenerator::from_state(bytes);
      BARESTEP_REQUIRE(generator.has_value(), "a state that require_state() has seen");
      upload(&*generator, *state);
    } else {
      upload(bytes.data(), *state);
    }
  }
}

/// Before the next draw, even if that draw's data have been fetched already.
std::vector<std::byte> Trainer::generator_state() {
  const StepTensors& tensors = programs_.train().tensors;
  if (!tensors.generator) return {};
  BARESTEP_REQUIRE(tensors.generator_host.has_value(), "the programs save their state");
  std::vector<std::byte> raw(static_cast<std::size_t>(tensors.generator->bytes()));
  runner_.stream({0, Lane::kCopy}).synchronize();
  if (runner_.has_fetched_next()) {
    const Addresses& addresses = runner_.addresses(runner_.steps());
    std::memcpy(raw.data(), addresses.at<std::byte>(*tensors.generator_host), raw.size());
  } else {
    download(raw.data(), *tensors.generator);
  }
  if (programs_.spec().input.generator != Generator::kTorchCpu) return raw;
  TorchGenerator generator(0);
  std::memcpy(&generator, raw.data(), raw.size());
  return generator.state();
}

void Trainer::begin_copy() {
  BARESTEP_REQUIRE(programs_.state_host().has_value(), "the programs save their state");
  const Addresses& addresses = runner_.addresses(0);
  const auto& snapshot = programs_.state_snapshot();
  std::byte* const host = addresses.at<std::byte>(*programs_.state_host());
  std::byte* const copy = snapshot ? addresses.at<std::byte>(*snapshot) : host;
  for (const SavedNumbers& saved : saved_numbers(programs_)) {
    const int device = device_with(saved.numbers);
    at(devices_, device)
        ->copy(copy + saved.offset, addresses.at<std::byte>(saved.numbers), saved.numbers.bytes(),
               runner_.stream({device, Lane::kCompute}));
  }
  const std::vector<std::byte> generator = generator_state();
  const std::int64_t numbers = generator_offset(programs_);
  if (numbers < bytes_saved(programs_)) std::ranges::copy(generator, host + numbers);
  for (const HeldStage& stage : programs_.stages()) {
    runner_.stream({stage.device, Lane::kCompute}).synchronize();
  }
  if (!snapshot) return;
  is_copied_ = false;
  devices_[0]->copy(host, copy, numbers, *copies_);
  // Skipped if the copy fails.
  copies_->call([](void* flag) { *static_cast<std::atomic<bool>*>(flag) = true; }, &is_copied_);
  copy_ends_->record(*copies_);
}

std::span<const std::byte> Trainer::finish_copy() {
  const Tensor& host = *programs_.state_host();
  if (copies_ != nullptr) {
    copy_ends_->synchronize();
    if (!is_copied_) {
      fail(ExitCode::kTryAgain,
           {"copy of the state", "", "the device failed", "see the errors of the device"});
    }
  }
  return {runner_.addresses(0).at<std::byte>(host), static_cast<std::size_t>(host.bytes())};
}

Tensor Trainer::whole(BufferId flat) const {
  const std::int64_t bytes = programs_.buffers()[flat].bytes;
  return {flat, 0, 1, bytes / bytes_of(DType::kF32)};
}

int Trainer::device_with(const Tensor& tensor) const {
  return programs_.buffers()[tensor.buffer].device;
}

void Trainer::upload(const void* from, const Tensor& to) {
  const int number = device_with(to);
  Stream& stream = runner_.stream({number, Lane::kCompute});
  at(devices_, number)->copy(runner_.addresses(0).at<std::byte>(to), from, to.bytes(), stream);
  stream.synchronize();
}

void Trainer::fill_with_zeros(const Tensor& tensor) {
  run_now(Fill{.out = tensor}, device_with(tensor));
}

void Trainer::run_now(const DeviceOp& op, int number) {
  Device& device = *at(devices_, number);
  Stream& stream = runner_.stream({number, Lane::kCompute});
  device.prepare(op);
  device.run(op, runner_.addresses(0), stream, {.node = kPartOfNode});
  stream.synchronize();
}

/// The state of loss scaling at the start of the run.
void Trainer::begin_scaling() {
  const auto& scaling = programs_.train().tensors.scaling;
  if (!scaling) return;
  if (!position_.scaling) {
    const auto initial = static_cast<float>(programs_.spec().update.loss_scale->initial);
    position_.scaling = ScalingPosition{.scale = initial};
  }
  const ScalingPosition& position = *position_.scaling;
  constexpr float kNone = 0;
  upload(&position.scale, scaling->numbers.scale);
  upload(&kNone, scaling->numbers.found_inf);
  upload(&position.good_steps, scaling->good_steps);
  upload(&position.updates, scaling->numbers.updates);
  input_->set_scaling(position_.scaling);
}

void Trainer::download(void* to, const Tensor& from) {
  const int number = device_with(from);
  Stream& stream = runner_.stream({number, Lane::kCompute});
  at(devices_, number)->copy(to, runner_.addresses(0).at<std::byte>(from), from.bytes(), stream);
  stream.synchronize();
}

FlatWeights Trainer::download(BufferId flat) {
  const Buffers& buffers = programs_.buffers();
  FlatWeights host = programs_.parameter_list().zeros();
  for (const HeldStage& stage : programs_.stages()) {
    const BufferId own = buffers.find(buffers[flat].name, stage.device);
    download(&at(host, stage.range.first), stage.parameters.flat(own));
  }
  return host;
}

FlatWeights Trainer::weights() {
  const Parameters& all = programs_.whole_list();
  FlatWeights whole = all.zeros();
  std::vector<ParameterId> order(static_cast<std::size_t>(all.count()));
  std::iota(order.begin(), order.end(), 0);
  visit_weights(order, [&](ParameterId id, std::span<const float> numbers) {
    std::ranges::copy(numbers, all.in(whole, id).begin());
  });
  return whole;
}

bool Trainer::has_all_weights() const {
  return !programs_.spec().mesh.cuts_model() && !programs_.is_shared_out(programs_.parameters());
}

void Trainer::visit_weights(std::span<const ParameterId> order, const UseOfWeights& use) {
  const Mesh& mesh = programs_.spec().mesh;
  // The ranks of the first copy of the model.
  std::vector<HolderOfWeights> holders;
  for (Mesh place = mesh.with_rank(0); place.rank < mesh.ranks(); ++place.rank) {
    if (place.data_rank() > 0) continue;
    holders.push_back({place, parameters_of(programs_.spec().model.of(place))});
  }
  std::vector<float> numbers, part;
  for (const ParameterId id : order) {
    const Parameter& parameter = programs_.whole_list()[id];
    numbers.resize(static_cast<std::size_t>(parameter.size()));
    for (const HolderOfWeights& holder : holders) {
      const auto held = holder.parameters.find(parameter.name);
      if (!held) continue;
      const Parameter& of_holder = holder.parameters[*held];
      if (of_holder.cut == Cut::kNone && holder.place.tensor_rank() > 0) continue;
      part.resize(static_cast<std::size_t>(of_holder.size()));
      collect_part(holder, *held, part);
      copy_to_whole(of_holder.in_whole(), part, numbers);
    }
    use(id, numbers);
  }
}

void Trainer::collect_part(const HolderOfWeights& holder, ParameterId id, std::span<float> part) {
  const Mesh& mesh = programs_.spec().mesh;
  const BufferId flat = programs_.parameters();
  const Tensor tensor = holder.parameters.in(flat, id);
  const FlatRange wanted{tensor.offset_bytes / bytes_of(DType::kF32), tensor.size()};
  if (has_all_weights()) return download_parameters(wanted.first, part);
  const bool is_shared_out = programs_.is_shared_out(flat);
  for (const int rank : holder.place.ranks_on(Axis::kData)) {
    const std::vector<FlatRange> all_held =
        is_shared_out ? programs_.scheme()->held(Category::kParameters, holder.parameters,
                                                 mesh.with_rank(rank).data_rank(), mesh.data)
                      : std::vector{FlatRange{0, wanted.first + wanted.count}};
    for (const FlatRange& held : all_held) {
      const FlatRange both = held.common(wanted);
      if (both.count == 0) continue;
      const auto numbers = part.subspan(static_cast<std::size_t>(both.first - wanted.first),
                                        static_cast<std::size_t>(both.count));
      if (rank == mesh.rank) download_parameters(place_in(all_held, both.first), numbers);
      ranks_->broadcast(std::as_writable_bytes(numbers), rank);
    }
    if (!is_shared_out) return;  // the others have the same
  }
}

void Trainer::download_parameters(std::int64_t first, std::span<float> numbers) {
  const auto& stages = programs_.stages();
  const auto stage = std::ranges::find_if(stages, [&](const HeldStage& each) {
    return first >= each.range.first && first < each.range.first + each.range.count;
  });
  BARESTEP_REQUIRE(stage != stages.end(), "a stage of this process holds the parameter");
  download(numbers.data(),
           FlatRange{first - stage->range.first, std::ssize(numbers)}.of(stage->flat.parameters));
}

void Trainer::run(TrainObserver& observer) {
  std::optional<Batch> unfinished;
  std::optional<Batch> batch = schedule_.next();
  // All ranks have read the request after the same step.
  const auto stops = [&] { return stop_is_requested_ && batch->may_end; };
  while (batch && !was_stopped_ && !ended_early()) {
    std::optional<Batch> next = schedule_.next();
    const bool is_trial = programs_.tries_updates();
    try {
      queue_batch(*batch, next ? &*next : nullptr);
    } catch (...) {
      // No rank may end alone.
      if (!input_->failure() || has_ranks() || runner_.steps() == 0) throw;
      if (unfinished) finish_batch(*unfinished, observer);
      was_stopped_ = true;
      return;
    }
    if (unfinished) finish_batch(*unfinished, observer);
    unfinished = batch;
    // Work of a training step on other lanes must not run into an evaluation.
    const bool is_last = !next || stops() || next->evaluates;
    // After an evaluation rather than before it, so that no run that resumes here repeats it.
    const auto pauses = [&] { return next && !next->evaluates && pauses_after(*batch); };
    if (is_last || is_awaited(*batch) || pauses() || (next && watches(*next))) {
      finish_batch(*batch, observer);
      unfinished.reset();
      // A run that is complete was not stopped.
      if (stops()) was_stopped_ = position_.steps < schedule_.steps();
      if (pauses()) pause(observer);
    }
    if (is_trial && next && !next->evaluates) schedule_.renew(*next);
    batch = next;
  }
}

const std::exception_ptr& Trainer::failure() const {
  return input_->failure();
}

void Trainer::stop_when(const std::atomic<bool>& requested) {
  input_->set_request(StepRequest::kStop, requested);
}

void Trainer::pause_when(std::int64_t every_steps, const std::atomic<bool>& requested) {
  pauses_every_ = every_steps;
  input_->set_request(StepRequest::kPause, requested);
}

bool Trainer::pauses_after(const Batch& batch) const {
  const std::int64_t done = batch.evaluates ? position_.steps : batch.number + 1;
  if (was_stopped_ || done == schedule_.steps() || !batch.may_end) return false;
  return pause_is_requested_ ||
         (pauses_every_ > 0 && done / pauses_every_ > paused_at_ / pauses_every_);
}

void Trainer::pause(TrainObserver& observer) {
  pause_is_requested_ = false;
  paused_at_ = position_.steps;
  const double begin_s = now_s();
  observer.on_pause();
  paused_s_ += now_s() - begin_s;
}

void Trainer::queue_batch(const Batch& batch, const Batch* next) {
  const std::int64_t step = runner_.steps();
  input_->announce(step, batch);
  if (next != nullptr) input_->announce(step + 1, *next);
  const bool fetches_next = next != nullptr && !watches(*next) && !watches(batch);
  StepWatch* watch = nullptr;
  if (watches(batch)) {
    verification_->set_step(batch,
                            programs_.has_common_weights_after(schedule_.place_of(batch.number)));
    watch = &*verification_;
  }
  runner_.queue_step(batch.program->program, fetches_next ? &next->program->program : nullptr,
                     *input_, watch);
}

bool Trainer::is_awaited(const Batch& batch) const {
  const bool overlaps = config_.training.staleness > 0;
  return batch.evaluates || watches(batch) || programs_.tries_updates() || is_one_by_one(config_) ||
         (!overlaps && batch.number % config_.training.log_every == 0);
}

void Trainer::finish_batch(const Batch& batch, TrainObserver& observer) {
  const Addresses& addresses = runner_.addresses(runner_.finished());
  runner_.finish_step();
  observer.on_batch();
  if (batch.evaluates) {
    report_evaluation(batch, addresses, observer);
  } else {
    report_step(batch, addresses, observer);
  }
}

/// Every rank reads the same sums, so either all stop or pause here, or none does.
bool Trainer::is_requested(StepRequest request, const Batch& batch,
                           const Addresses& addresses) const {
  const auto& requests = batch.program->tensors.requests_of_all_host;
  if (!requests) return input_->is_requested(request);
  const auto place = static_cast<std::int64_t>(request);
  return place < requests->size() && addresses.at(*requests)[place] > 0;
}

std::string Trainer::remedy(std::string other) const {
  return overflow_remedy(dataset_, programs_.spec().model.numbers, std::move(other));
}

/// Reads the state of loss scaling after a step.
std::optional<ScalingReport> Trainer::follow_scaling(const Batch& batch,
                                                     const Addresses& addresses) {
  const auto& host = batch.program->tensors.scaling_host;
  if (!host) return std::nullopt;
  const float used = position_.scaling->scale;
  position_.scaling =
      ScalingPosition{.scale = *addresses.at(host->numbers.scale),
                      .good_steps = *addresses.at<std::int32_t>(host->good_steps),
                      .updates = *addresses.at<std::int32_t>(host->numbers.updates)};
  input_->set_scaling(position_.scaling);
  const bool skipped = *addresses.at(host->numbers.found_inf) > 0;
  // Below this, even gradients of 65504 are zero in fp32's precision next to weights.
  constexpr float kDead = 0x1p-24F;
  if (position_.scaling->scale < kDead) {
    fail(ExitCode::kDiverged,
         {"training diverged", "",
          fmt::format("gradients overflow at any loss scale; it is {} after step {}",
                      position_.scaling->scale, batch.number),
          remedy(fmt::format("{}, or --precision bf16", divergence_remedy(config_.optimizer)))});
  }
  return ScalingReport{.used = used, .next = position_.scaling->scale, .skipped = skipped};
}

void Trainer::report_step(const Batch& batch, const Addresses& addresses, TrainObserver& observer) {
  const float loss = *addresses.at(batch.program->tensors.loss_host);
  const std::int64_t update =
      position_.scaling ? position_.scaling->updates : input_->update_of(batch);
  const std::optional<ScalingReport> scaling = follow_scaling(batch, addresses);
  // A step that overflows is skipped; then the scale or the batch changes.
  const bool may_recover =
      scaling && scaling->skipped && programs_.spec().update.loss_scale->dynamic;
  if (!std::isfinite(loss) && !may_recover) {
    const std::string before =
        last_loss_ ? fmt::format(", it was {} at step {}", *last_loss_, batch.number - 1) : "";
    // The first loss is that of weights that no step has changed yet.
    refuse_divergence("loss", loss, fmt::format("at step {}{}", batch.number, before),
                      remedy(batch.number == 0 ? "scale down the samples or the weights of --load"
                                               : divergence_remedy(config_.optimizer)));
  }
  last_loss_ = loss;
  position_.steps = batch.number + 1;
  position_.evaluated = false;
  if (is_requested(StepRequest::kStop, batch, addresses)) stop_is_requested_ = true;
  // The requests for the step after a pause may have been fetched before that pause.
  if (is_requested(StepRequest::kPause, batch, addresses) && batch.number > paused_at_) {
    pause_is_requested_ = true;
  }
  std::optional<float> own_loss;
  const StepTensors& tensors = batch.program->tensors;
  if (ranks_ != nullptr && tensors.own_loss_host) {
    own_loss = static_cast<float>(tensors.own_loss_scale * *addresses.at(*tensors.own_loss_host));
  }
  std::optional<Update> way;
  if (trial_end_ > 0) way = batch.program->is_fused ? Update::kFused : Update::kSeparate;
  observer.on_step({.step = batch.number,
                    .steps = schedule_.steps(),
                    .samples = batch.program->rows,
                    .flops = flops_.at(batch.program),
                    .loss = loss,
                    .own_loss = own_loss,
                    .lr = input_->rate_of(update),
                    .scaling = scaling,
                    .update = way,
                    .warmup = batch.number < first_measured_,
                    .wall_s = runner_.timeline().wall_of_newest(kMainLane).seconds(),
                    .checkpoint_s = std::exchange(paused_s_, 0),
                    .timeline = &runner_.timeline()});
  if (programs_.tries_updates()) time_update(batch, observer);
}

/// From the first work on the main lane, since input is not fetched ahead where programs change.
void Trainer::time_update(const Batch& batch, TrainObserver& observer) {
  const StepTimeline& step = *runner_.timeline().at(0);
  const Span& first = at(step.spans, step.plan->runs_on(kMainLane).front());
  std::vector<double>& times = batch.program->is_fused ? fused_s_ : separate_s_;
  if (batch.program->rows == programs_.train().rows) {
    times.push_back(step.host.end_s - first.begin_s);
    for (const WallTime& look : step.looks) {
      if (look.begin_s >= first.begin_s) times.back() -= look.seconds();
    }
  }
  if (batch.number + 1 < trial_end_) return;
  // The lower one of two in the middle, as the first step of each also warms up.
  const auto middle = [](std::vector<double>& of) {
    const auto place = of.begin() + (std::ssize(of) - 1) / 2;
    std::ranges::nth_element(of, place);
    return *place;
  };
  UpdateTimes slowest{.fused_s = middle(fused_s_), .separate_s = middle(separate_s_)};
  if (has_ranks()) {
    for (const UpdateTimes& times_of_rank : gather_values(*ranks_, slowest)) {
      slowest.fused_s = std::max(slowest.fused_s, times_of_rank.fused_s);
      slowest.separate_s = std::max(slowest.separate_s, times_of_rank.separate_s);
    }
  }
  observer.on_updates_tried(slowest);
  BARESTEP_REQUIRE(!programs_.tries_updates(), "the observer settles on one way to update");
}

void Trainer::report_evaluation(const Batch& batch, const Addresses& addresses,
                                TrainObserver& observer) {
  evaluation_.add(*batch.program, addresses,
                  runner_.timeline().wall_of_newest(kMainLane).seconds());
  if (!batch.ends_evaluation) return;
  EvaluationReport report = evaluation_.finish();
  if (has_ranks()) {
    const std::vector<char> failed = gather_values<char>(*ranks_, input_->failure() != nullptr);
    was_stopped_ = std::ranges::count(failed, 1) > 0;
    if (was_stopped_) return;  // a run that resumes here evaluates again
  }
  position_.evaluated = true;
  report.epoch = batch.epoch;
  report.epochs = config_.training.epochs.value_or(0);
  if (!std::isfinite(report.loss)) {
    refuse_divergence("test loss", report.loss, fmt::format("after epoch {}", batch.epoch + 1),
                      remedy(divergence_remedy(config_.optimizer)));
  }
  // A run that ends within an epoch may go on, and then this was no evaluation of it.
  if (batch.ends_epoch) {
    const std::optional<double>& best = position_.best_test_loss;
    report.is_best = !best || report.loss < *best;
    if (report.is_best) position_.best_test_loss = report.loss;
    position_.evaluations_since_best = report.is_best ? 0 : position_.evaluations_since_best + 1;
  }
  observer.on_evaluation(report);
}

// All ranks have the same losses, so either all end here or none does.
bool Trainer::ended_early() const {
  const std::optional<std::int64_t>& max = config_.training.early_stop;
  return max && position_.evaluations_since_best >= *max;
}

}  // namespace barestep
