#include "session/session.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <utility>

#include "core/clock.h"
#include "core/error.h"
#include "core/host.h"
#include "core/input_file.h"
#include "core/plan.h"
#include "core/printer.h"
#include "core/stop_request.h"
#include "core/units.h"
#include "kernels/make_device.h"
#include "options/options.h"
#include "parallel/schemes/run.h"
#include "profiler/peaks.h"
#include "session/outputs.h"
#include "session/rank_agreement.h"
#include "session/run_program.h"
#include "train/recomputation.h"
#include "train/verification.h"
#include "train/weights.h"

namespace barestep {
namespace {

/// The memory that each process of a run may fill with samples. Every rank calls it, before any of
/// them loads some.
std::int64_t memory_for_samples(Job& job) {
  // The other half of the memory is for the run itself.
  const std::int64_t mine = host_memory().free_bytes / 2 / job.processes_of_host();
  Group* const ranks = job.ranks();
  if (ranks == nullptr) return mine;
  return std::ranges::min(gather_values(*ranks, mine));
}

/// The files of --data, if there are any. `spec` is for programs of this process without data.
/// Throws what load_dataset() throws.
std::shared_ptr<const Dataset> open_data(const TrainConfig& config, StepSpec spec,
                                         std::int64_t memory_bytes) {
  const int own_rank = spec.mesh.rank;
  const auto rows_of_rank = [&](int rank) {
    spec.mesh.rank = rank;
    if (!config.training.evaluate_only) return needed_rows(spec, config.data.shuffle);
    std::vector<bool> of_all(
        static_cast<std::size_t>(spec.input.test_rows > 0 ? spec.input.train_rows : 0));
    const std::vector<bool> of_test = needed_rows(evaluation_spec_of(spec), false);
    of_all.insert(of_all.end(), of_test.begin(), of_test.end());
    return of_all;
  };
  const auto needed = [&](std::int64_t train_rows, std::int64_t test_rows) {
    spec.input.train_rows = train_rows;
    spec.input.test_rows = test_rows;
    std::vector<bool> own = rows_of_rank(own_rank);
    // No rank has more rows than the first. Shares differ by a row, and all ranks must decide
    // alike.
    const std::int64_t max_count = std::ranges::count(rows_of_rank(0), true);
    return NeededRows{std::move(own), max_count};
  };
  const std::array of_sample{spec.model.inputs(), spec.model.outputs()};
  return std::make_shared<const Dataset>(
      load_dataset(config.data, of_sample, config.model.loss, memory_bytes, needed));
}

/// Asks the run to end when its time is up.
class TimeLimit final : public Observer {
 public:
  TimeLimit(double end_s, bool& is_reached) : end_s_(end_s), is_reached_(is_reached) {}
  void on_batch() override {
    if (is_reached_ || now_s() < end_s_) return;
    is_reached_ = true;
    request_stop();
  }

 private:
  double end_s_;
  bool& is_reached_;
};

/// Informs the watchdog of the run's current step.
class StepsForWatchdog final : public Observer {
 public:
  explicit StepsForWatchdog(Job& job) : job_(job) {}
  void on_batch() override { job_.enter(Activity::kStep, ++batches_); }

 private:
  Job& job_;
  std::int64_t batches_ = 0;
};

/// Goes on with the faster update of those that the first steps tried.
class UpdatesTried final : public Observer {
 public:
  /// `console` may be null.
  UpdatesTried(StepPrograms& programs, TrainConfig& config, Console* console)
      : programs_(programs), config_(config), console_(console) {}

  void on_updates_tried(const UpdateTimes& times) override {
    config_.training.update = times.choice();
    programs_.settle_update(times.choice() == Update::kSeparate);
    if (console_ == nullptr) return;
    console_->print(fmt::format("--update auto measured fused {} ms, separate {} ms: takes {}\n",
                                milliseconds(times.fused_s), milliseconds(times.separate_s),
                                name_of(times.choice())));
  }

 private:
  StepPrograms& programs_;
  TrainConfig& config_;
  Console* console_;
};

}  // namespace

std::vector<std::int64_t> batch_sizes_of(const TrainConfig& config) {
  if (!config.data.sweep.empty()) return config.data.sweep;
  return {config.data.batch_size};
}

Session::Session(Place& place, const TrainConfig& config, Job& job,
                 std::shared_ptr<const Dataset> data)
    : place_(place),
      job_(job),
      config_(config),
      is_first_(data == nullptr),
      data_(std::move(data)),
      begin_s_(now_s()) {
  const std::int64_t memory_bytes = memory_for_samples(job_);
  job_.together([&] { resolve_config(memory_bytes); });
  find_start();
  job_.together([&] { prepare(); });
  job_.together([&] { place_.require_agreement(config_, *programs_); });
  if (answer_.empty() && !config_.checkpoint.folder.empty()) {
    require_shared_folder(job_, config_.checkpoint.folder);
  }
}

Session::~Session() {
  if (checkpoints_ != nullptr) checkpoints_->finish();
}

void Session::resolve_config(std::int64_t memory_bytes) {
  validate(config_);
  place_.resolve_config(config_);
  require(
      {.ranks = place_.ranks(), .on_gpu = place_.kind() == DeviceKind::kCuda, .config = config_});
  resolve_threads();
  // Placed by hand, a run may use all CPUs that it was given.
  if (config_.device.affinity != Affinity::kNone) bind_this_thread(cpus_at_start());
  if (data_ != nullptr) return;
  place_.require_outputs(config_);
  if (config_.data.kind == DataKind::kRandn) return;
  data_ = open_data(config_, place_.spec_of(config_, nullptr), memory_bytes);
  if (job_.is_first() && !config_.training.evaluate_only) note_untrained_classes();
}

void Session::note_untrained_classes() const {
  constexpr std::size_t kMaxShown = 10;
  std::vector<std::int32_t> classes = data_->untrained_classes();
  if (classes.empty()) return;
  const std::int64_t count = std::ssize(classes);
  classes.resize(std::min(classes.size(), kMaxShown));
  print_note(program_name(config_),
             fmt::format("{} of the test set {} not occur in the training set: {}{}; the test set "
                         "is the end of the files, so shuffle these",
                         counted(count, "class"), count == 1 ? "does" : "do",
                         fmt::join(classes, ", "), count > std::ssize(classes) ? ", ..." : ""));
}

void Session::resolve_threads() {
  std::optional<int>& threads = config_.device.threads;
  if (threads || place_.kind() != DeviceKind::kCpu) return;
  const std::optional<EnvironmentThreads> asked = threads_of_environment(place_.cpus());
  if (!asked) return;
  threads = asked->threads;
  threads_line_ = fmt::format("{} sets --threads {}\n", asked->variable, *threads);
}

/// Rank 0 finds the start and shares it with all.
void Session::find_start() {
  job_.together([&] {
    const bool trains = !config_.output.plan && !config_.output.explain;
    if (!job_.is_first() || !trains) return;
    require_own_folder(config_.checkpoint);
    start_ = find_resume_point(program_name(config_), config_.checkpoint);
  });
  if (job_.ranks() != nullptr) share_resume_point(*job_.ranks(), start_);
}

bool Session::resolve_update() {
  if (config_.training.update != Update::kAuto || config_.training.evaluate_only) return false;
  TrainConfig requested = config_;
  const std::string before = start_ ? update_before(*start_) : "";
  // A resumed run keeps its bits, so it is profiled without changing its update.
  if (!before.empty()) requested.output.profile = false;
  UpdateChoice choice = choose_update(requested, place_.kind());
  if (before == name_of(Update::kSeparate) && choice.update == Update::kFused &&
      !updates_agree(config_, place_.kind())) {
    choice = {Update::kSeparate, "as before the checkpoint"};
  }
  config_.training.update = choice.update;
  update_line_ = fmt::format("--update auto takes {}: {}\n", name_of(choice.update), choice.why);
  return choice.is_to_be_measured;
}

void Session::try_updates(StepSpec& spec) {
  const std::int64_t done = start_ ? start_->state.position.steps : 0;
  const std::int64_t steps = steps_of_trial(config_.training, spec, done);
  spec.update.tries_both = steps > 0;
  if (spec.update.tries_both) {
    update_line_ =
        fmt::format("--update auto tries fused and separate in the first {} steps\n", steps);
  } else {
    update_line_.insert(update_line_.size() - 1,
                        "; not measured, as the warm-up has fewer than 5 equal steps");
  }
}

void Session::prepare() {
  const bool may_try_updates = resolve_update();
  StepSpec spec = place_.spec_of(config_, data_.get());
  if (start_) spec.input.generator = start_->generator;
  if (config_.training.evaluate_only) {
    spec = evaluation_spec_of(spec);
  } else {
    scheme_ = place_.new_scheme(config_);
  }
  if (may_try_updates) try_updates(spec);
  const std::vector<MemoryPool> stated = config_.output.memory
                                             ? place_.stated_memory(*config_.output.memory)
                                             : std::vector<MemoryPool>{};
  if (config_.training.recompute == kAutoRecompute) answer_ = choose_segments(spec, stated);
  programs_ = std::make_unique<StepPrograms>(spec, scheme_.get());
  // Known only now, because the length of an epoch may depend on the files.
  const std::int64_t done = start_ ? start_->state.position.steps : 0;
  config_ = resolve(std::move(config_), place_.kind(), spec, done);
  if (config_.injected.flip && !config_.training.evaluate_only) {
    require_flip(*config_.injected.flip, *programs_, steps_of(config_.training, spec));
  }
  if (start_ && job_.is_first()) require_same_run(*start_, config_, *programs_);
  for (const MemoryPool& pool : stated) require_memory(*programs_, pool);
  if (config_.output.plan || config_.output.explain) {
    answer_ += preview();
    return;
  }
  if (job_.is_first()) {
    if (start_) {
      restore_product_choices(*start_, config_.device);
    } else if (!config_.output.load.empty()) {
      load(spec.model);
    }
    if (is_first_ && config_.device.affinity == Affinity::kNone) {
      print_note(program_name(config_), narrowed_text());
    }
    const std::string why = place_.takes_any_kind() ? why_no_cuda_device() : "";
    if (!why.empty()) print_note(program_name(config_), "training on the CPU: " + why);
    note_lost_gradients(spec);
    note_last_activation();
  }
  place_.open(config_, *programs_);
}

void Session::load(const ModelSpec& model) {
  LoadedWeights loaded = load_weights(config_.output.load, whole_parameters_of(model));
  loaded_ = std::move(loaded.numbers);
  if (loaded.prefix == loaded.own_prefix || !is_first_) return;
  const std::string how =
      loaded.own_prefix.empty() ? fmt::format("begin with '{}', which is left out", loaded.prefix)
      : loaded.prefix.empty()
          ? fmt::format("lack '{}'", loaded.own_prefix)
          : fmt::format("begin with '{}', which stands for '{}'", loaded.prefix, loaded.own_prefix);
  print_note(program_name(config_),
             fmt::format("the names of the weights in '{}' {}", config_.output.load.string(), how));
}

void Session::note_last_activation() const {
  const ModelConfig& model = config_.model;
  const bool is_module = model.activation != Activation::kNone;
  if (!is_first_ || !takes_labels(model.loss) || !model.last_relu || !is_module) return;
  print_note(program_name(config_),
             fmt::format("--loss {} takes the outputs of the last layer as scores, and here {} "
                         "follows that layer; --no-last-relu leaves it out",
                         name_of(model.loss), name_of(model.activation)));
}

void Session::note_lost_gradients(const StepSpec& spec) const {
  // Errors of up to 1, halved or not and divided by this number, are below fp16's normal numbers.
  constexpr double kMaxNumbers = 32768;
  if (!spec.update.loss_scale || spec.update.loss_scale->dynamic) return;
  const std::int64_t rows =
      spec.chunk_rows > 0 ? spec.step_rows() : spec.micro_rows() * spec.accumulate;
  const std::int64_t numbers = rows * spec.model.outputs();
  if (static_cast<double>(numbers) <= kMaxNumbers * spec.update.loss_scale->initial) return;
  print_note(program_name(config_),
             fmt::format("--loss-scale {}: the loss is a mean of {} numbers, whose gradients lose "
                         "bits in fp16; give --loss-scale dynamic",
                         spec.update.loss_scale->initial, grouped(numbers)));
}

std::string Session::choose_segments(StepSpec& spec, std::span<const MemoryPool> stated) {
  const int segments = cheapest_segments(spec, scheme_.get(), [&](const StepPrograms& programs) {
    return std::ranges::all_of(stated,
                               [&](const MemoryPool& pool) { return fits(programs, pool); });
  });
  spec.model.segments = segments;
  config_.training.recompute = segments;
  const std::string memory = human_bytes(*config_.output.memory);
  if (segments == 1) {
    return fmt::format("--recompute 1 fits {}: nothing need be recomputed\n\n", memory);
  }
  return fmt::format("--recompute {} is the cheapest that fits {}\n\n", segments, memory);
}

std::string Session::preview() const {
  std::string text;
  const Mesh& mesh = programs_->spec().mesh;
  if (mesh.cuts_model()) text += fmt::format("Of {}\n\n", mesh.text());
  if (config_.output.plan) {
    text += fmt::format("{} parameters\n{}\n", grouped(programs_->whole_list().size()),
                        config_.output.explain ? "" : update_line_);
    const Buffers& buffers = programs_->buffers();
    text += plan_table(MemoryPlan(buffers), buffers, place_.names());
    text += place_.memory_of_stages(config_, data_.get());
    text += affinity_line(config_, place_);
    if (config_.training.recompute > 1) {
      text += "\n" + recomputation_text(recomputation_of(*programs_));
    }
  }
  if (config_.output.explain) {
    if (config_.output.plan) text += "\n";
    text += explain(programs_->all().front()->program);
    if (programs_->quantize() != nullptr) {
      text += "\n" + explain(programs_->quantize()->program) + "It is run once, at the start.\n";
    }
    const std::string notes = place_.check_together(config_, data_.get()) + update_line_;
    if (!notes.empty()) text += "\n" + notes;
  }
  return text;
}

void Session::run() {
  job_.end_all_on_error([&] {
    place_.join(config_, *programs_);
    choose_products();
    set_up();
    train();
    job_.enter(Activity::kEnd);
    end();
  });
}

void Session::choose_products() {
  if (place_.kind() != DeviceKind::kCuda || !config_.device.autotunes) return;
  const std::vector<Device*> devices = place_.devices();
  std::string choices;
  if (start_ && config_.device.autotune.empty()) choices = product_choices_of(*start_);
  Group* const ranks = job_.ranks();
  const bool alone = devices.size() == 1 && (ranks == nullptr || ranks->size() == 1);
  if (choices.empty()) {
    if (alone) return;  // the device times during prepare()
    if (job_.is_first()) {
      for (const StepProgram* step : programs_->all()) {
        for (const Node& node : step->program.nodes()) {
          const auto* const op = std::get_if<DeviceOp>(&node.op);
          if (op != nullptr && node.device == 0) devices.front()->prepare(*op);
        }
      }
      choices = devices.front()->product_choices();
    }
    if (ranks != nullptr) choices = gather_lists(*ranks, choices).front();
  }
  for (Device* const device : devices) device->set_product_choices(choices);
}

/// Observers are notified of each step in this order, and print in it at the end.
void Session::set_up() {
  const OutputConfig& output = config_.output;
  const std::int64_t done = start_ ? start_->state.position.steps : 0;
  std::unique_ptr<Profiling> profiling;
  if (output.records()) {
    profiling = new_profiling(config_, *programs_, place_.profiling_scope(), done);
  }
  trainer_ = std::make_unique<Trainer>(
      config_, *programs_, place_.devices(), Connection{job_.ranks(), place_.transport()},
      data_.get(), std::move(loaded_), profiling.get(), start_ ? &start_->state : nullptr);
  const RankSettings rounding = settings_of_rounding(config_, *programs_, *place_.devices()[0]);
  if (start_ && job_.is_first()) note_start(rounding);
  if (start_) start_->state.tensors = {};
  const std::int64_t steps = trainer_->steps();
  observers_.make<StepsForWatchdog>(job_);
  if (job_.is_first() && config_.checkpoint.time_limit_s) {
    observers_.make<TimeLimit>(begin_s_ + *config_.checkpoint.time_limit_s, limit_is_reached_);
  }
  if (job_.is_first() && !output.tensorboard.empty()) {
    // A run that is killed before its first checkpoint begins anew.
    const bool goes_on = start_ || config_.checkpoint.resume;
    observers_.make<TensorBoardLog>(program_name(config_), output.tensorboard,
                                    goes_on ? std::optional(done) : std::nullopt);
  }
  MetricsLog* const metrics = new_metrics(done);
  const std::int64_t first_measured = first_measured_step(config_.training, steps, done);
  const auto& others = observers_.make<OtherPrograms>(first_measured);
  if (job_.is_first()) {
    console_ = &observers_.make<Console>(config_, *programs_, place_, others, steps);
  }
  if (programs_->tries_updates()) {
    observers_.make<UpdatesTried>(*programs_, config_, console_);
  }
  observers_.add(place_.new_account(*programs_, steps));
  if (job_.is_first()) observers_.make<Outcome>(*programs_, place_.names());
  if (output.verbose) observers_.make<RunChecklist>(config_, others);
  if (console_ != nullptr) {
    console_->print(place_.text(config_, *programs_) +
                    run_header(*programs_, *place_.devices()[0],
                               data_ == nullptr ? "" : data_->division(),
                               threads_line_ + affinity_line(config_, place_) + update_line_) +
                    (output.quiet ? "" : "\n"));
  }
  if (output.monitor) {
    const Monitoring& monitoring =
        observers_.make<Monitoring>(place_.monitor_scope(), first_measured, console_, metrics);
    if (profiling != nullptr) profiling->show(monitoring.monitor());
  }
  if (profiling != nullptr) {
    profiling->consider(others);
    profiling->begin();
  }
  observers_.add(std::move(profiling));
  if (!config_.checkpoint.folder.empty()) {
    checkpoints_ = &observers_.make<Checkpoints>(config_, *programs_, place_, *trainer_, job_,
                                                 rounding, start_ ? &*start_ : nullptr);
  }
}

MetricsLog* Session::new_metrics(std::int64_t done) {
  if (config_.output.metrics.empty()) return nullptr;
  TrainConfig of_run = config_;
  if (programs_->tries_updates()) of_run.training.update = Update::kAuto;
  return &observers_.make<MetricsLog>(of_run, job_.ranks(), programs_->spec().mesh, done);
}

void Session::note_start(const RankSettings& rounding) const {
  const std::string differences = rounding_differences(*start_, config_, rounding);
  print_note(program_name(config_),
             fmt::format("resumes from '{}' at step {}{}", start_->file.string(),
                         start_->state.position.steps,
                         differences.empty() ? "" : "; rounding may differ: " + differences));
}

void Session::train() {
  job_.enter(Activity::kStep, 0);
  job_.take_signals();
  trainer_->stop_when(stop_requested());
  try {
    trainer_->run(observers_);
    note_early_end();
  } catch (const Error& error) {
    // All ranks detect a divergence in the same step; any other error may occur on this rank only.
    const bool is_alone = job_.ranks() == nullptr || job_.ranks()->size() == 1;
    if (!is_alone && !is_of_all_ranks(error.code())) throw;
    if (checkpoints_ != nullptr) checkpoints_->finish();
    const std::string remedy =
        error.code() == ExitCode::kCorrupted ? remedy_for_corruption() : std::string();
    trainer_.reset();  // waits for queued work, so recording ends
    std::vector<std::function<void()>> tasks = observers_.closing();
    for (const auto& each : observers_.all()) {
      tasks.emplace_back([&] {
        if (job_.ranks() != nullptr) each->gather(*job_.ranks());
      });
      tasks.emplace_back([&] { each->save(true); });
    }
    if (const auto lost = first_failure(program_name(config_), tasks)) {
      print_note(program_name(config_), lost->what());
    }
    if (remedy.empty()) throw;
    throw Error(error.code(), {.what = error.what(), .remedy = remedy});
  }
}

/// What was wrong in the state when it was saved stays wrong, so a later verification vouches for
/// it.
std::string Session::remedy_for_corruption() const {
  const std::filesystem::path& folder = config_.checkpoint.folder;
  if (folder.empty()) return "test this machine's memory and processors, and run again";
  std::vector<std::int64_t> steps = checkpoint_steps(folder);
  std::erase_if(steps, [&](std::int64_t each) { return each > trainer_->verified_steps(); });
  if (steps.empty()) return fmt::format("no checkpoint in '{}' was verified", folder.string());
  return fmt::format("the last verified checkpoint is '{}', for --resume-from",
                     (folder / name_of_checkpoint(steps.back())).string());
}

void Session::note_early_end() {
  if (!trainer_->ended_early() || console_ == nullptr) return;
  const Position& position = trainer_->position();
  console_->print(fmt::format(
      "Ended early after step {}: {} without a smaller test loss than {:.6f}\n", position.steps - 1,
      counted(position.evaluations_since_best, "evaluation"), position.best_test_loss.value_or(0)));
}

void Session::end() {
  std::vector<std::function<void()>> tasks = {[&] { save_weights(); },
                                              [&] {
                                                if (checkpoints_ != nullptr) save_checkpoint();
                                              },
                                              [&] { hash_weights(); }};
  for (auto& close : observers_.closing()) tasks.push_back(std::move(close));
  tasks.emplace_back([&] { report(); });
  for (const auto& each : observers_.all()) tasks.emplace_back([&] { each->save(false); });
  const auto failure = first_failure(program_name(config_), tasks);
  job_.together([&] {
    if (failure) throw Error(*failure);
  });
  end_if_stopped();
}

/// First the other observers write their records of all steps before the checkpoint.
void Session::save_checkpoint() {
  for (const auto& each : observers_.all()) {
    if (each.get() != checkpoints_) each->on_pause();
  }
  checkpoints_->save_end();
}

/// Of the numbers of all parameters, in the order of PyTorch's state_dict().
void Session::hash_weights() {
  if (config_.training.evaluate_only || (trainer_->has_all_weights() && !job_.is_first())) return;
  std::vector<ParameterId> order(static_cast<std::size_t>(programs_->whole_list().count()));
  std::iota(order.begin(), order.end(), 0);
  ByteHash hash;
  trainer_->visit_weights(order, [&](ParameterId, std::span<const float> numbers) {
    if (job_.is_first()) hash.add(std::as_bytes(numbers));
  });
  weights_hash_ = hash.text();
}

void Session::save_weights() {
  // Ranks that have only part of the parameters send theirs.
  if (config_.output.save.empty() || (trainer_->has_all_weights() && !job_.is_first())) return;
  const auto visit = [&](std::span<const ParameterId> order, const UseOfWeights& use) {
    trainer_->visit_weights(order, use);
  };
  barestep::save_weights(config_.output.save, programs_->whole_list(), visit, job_.is_first());
}

void Session::report() {
  if (job_.ranks() != nullptr) {
    for (const auto& each : observers_.all()) each->gather(*job_.ranks());
  }
  if (console_ == nullptr) return;
  for (const auto& each : observers_.all()) {
    const std::string text = each->text();
    if (!text.empty()) console_->print("\n" + text);
  }
  if (!weights_hash_.empty()) {
    console_->print(fmt::format("\n{}{}\n", kWeightsLine, weights_hash_));
  }
}

void Session::end_if_stopped() {
  if (!trainer_->was_stopped()) return;
  const std::exception_ptr& failure = trainer_->failure();
  std::vector<char> failed = {failure != nullptr};
  if (job_.ranks() != nullptr) failed = gather_values(*job_.ranks(), failed.front());
  if (job_.is_first() && show("")) {
    std::vector<std::filesystem::path> written;
    if (!config_.output.save.empty()) written.push_back(config_.output.save);
    if (checkpoints_ != nullptr) written.push_back(checkpoints_->newest());
    std::string wrote;
    for (const auto& file : written) {
      wrote += fmt::format(" and {}'{}'", wrote.empty() ? "wrote " : "", file.string());
    }
    const char* const why = std::ranges::count(failed, 1) > 0 ? "samples cannot be read"
                            : limit_is_reached_               ? "the time limit is reached"
                                                              : "asked to stop";
    print_note(program_name(config_),
               fmt::format("{}, {}ended after step {}{}", why,
                           programs_->spec().mesh.ranks() > 1 ? "all ranks " : "",
                           trainer_->steps_done() - 1, wrote));
  }
  job_.together([&] {
    if (failure) std::rethrow_exception(failure);
  });
  if (!show("")) throw SilentExit{};  // stdout is lost; run_program() reports that
  throw SilentExit{static_cast<int>(ExitCode::kTryAgain)};
}

SweepRow Session::row() const {
  return {config_.data.batch_size, console_->summary().step_time_s(),
          console_->summary().samples_per_s()};
}

/// The weights of --load, read by rank 0.
FlatWeights Session::weights_of_all() {
  FlatWeights weights = std::move(loaded_);
  if (Group* const ranks = job_.ranks()) {
    weights.resize(
        static_cast<std::size_t>(programs_->parameter_list().flat(programs_->parameters()).size()));
    ranks->broadcast(std::as_writable_bytes(std::span(weights)), 0);
  }
  return weights;
}

namespace {

/// For a classifier: the number of samples, over all ranks, whose class differs from that in
/// `first`.
std::optional<std::int64_t> classes_changed(const Evaluation& first, const Evaluation& other,
                                            Group* ranks) {
  if (!first.total.accuracy) return std::nullopt;
  std::int64_t mine = 0;
  for (std::size_t i = 0; i < first.found.size(); ++i) mine += first.found[i] != other.found[i];
  return sum_over_ranks(ranks, mine);
}

}  // namespace

Evaluation Session::evaluate(MetricsLog* metrics, const Evaluation* first) {
  Evaluation evaluation;
  const Precision precision = config_.device.precision;
  const auto write = [&](const EvaluatedBatch& batch) {
    if (metrics == nullptr) return;
    metrics->write(evaluation_record(config_.data.batch_size, batch, precision));
  };
  job_.end_all_on_error([&] {
    const FlatWeights weights = weights_of_all();
    Evaluator evaluator(*programs_, *place_.devices()[0], *data_, weights, job_.ranks());
    job_.enter(Activity::kStep, 0);
    const auto on_batch = [&](const EvaluatedBatch& batch) {
      job_.enter(Activity::kStep, batch.number + 1);
      if (job_.ranks() == nullptr) write(batch);
    };
    evaluation = evaluator.run(*config_.training.warmup, on_batch);
    evaluation.precision = precision;
    if (first != nullptr) evaluation.changed = classes_changed(*first, evaluation, job_.ranks());
    job_.enter(Activity::kEnd);
    if (job_.ranks() != nullptr) {
      for (const EvaluatedBatch& batch : evaluation.batches) write(batch);
    }
    if (metrics != nullptr) metrics->write(evaluation_summary_record(evaluation));
  });
  return evaluation;
}

namespace {

/// fp32 and the precision compared with it, or only the requested one.
std::vector<Precision> precisions_of(const TrainConfig& config) {
  const bool only_shows = config.output.plan || config.output.explain;
  const Precision requested = config.device.precision;
  const bool is_narrow = quantizes(requested) || type_of(requested) != DType::kF32;
  if (!is_narrow || only_shows) return {requested};
  return {Precision::kFp32, requested};
}

/// Empty if nothing is quantized.
std::string quantization_text(const TrainConfig& config, const StepSpec& spec) {
  const auto& quantized = spec.model.quantized;
  if (!quantized) return "";
  const char* const why = quantized->scheme != Quantization::kRow ? ", as PyTorch's"
                          : quantized->bits == 7
                              ? ", since this CPU has no instructions that add 8 exactly (VNNI)"
                              : "";
  return fmt::format("{}: quantization {}, activations of {} bits{}; accumulated in int32\n",
                     name_of(config.device.precision), name_of(quantized->scheme), quantized->bits,
                     why);
}

}  // namespace

void evaluate(Place& place, TrainConfig config, Job& job) {
  // Validates the options as given; each session below has only one precision.
  job.together([&] { validate(config); });
  std::shared_ptr<const Dataset> data;
  std::optional<MetricsLog> metrics;
  std::vector<Evaluation> rows;
  std::string quantized;
  LostTimeWatch watch;
  const std::vector<Precision> precisions = precisions_of(config);
  const std::optional<Quantization> quantization = config.device.quantization;
  for (const std::int64_t size : batch_sizes_of(config)) {
    const std::size_t first = rows.size();
    for (const Precision precision : precisions) {
      config.data.batch_size = size;
      config.device.precision = precision;
      config.device.quantization = quantizes(precision) ? quantization : std::nullopt;
      Session session(place, config, job, data);
      data = session.data();
      if (!session.answer().empty()) {
        if (job.is_first()) print_now(session.answer());
        continue;
      }
      if (!metrics && !config.output.metrics.empty()) {
        TrainConfig requested = session.config();
        requested.device.precision = precisions.back();
        requested.device.quantization = quantization;
        job.together([&] { metrics.emplace(requested, job.ranks()); });
      }
      if (metrics) metrics->watch();
      MetricsLog* const records = metrics && job.is_first() ? &*metrics : nullptr;
      rows.push_back(session.evaluate(records, rows.size() > first ? &rows[first] : nullptr));
      quantized = quantization_text(config, session.spec());
    }
  }
  if (rows.empty()) return;
  const JobProcess own = process_of_job(watch.lost());
  const std::vector<double> lost =
      lost_shares(job.ranks() == nullptr ? std::vector{own} : gather_values(*job.ranks(), own));
  if (!job.is_first()) {
    if (metrics) metrics->close();
    return;
  }
  const std::int64_t samples = rows.front().total.samples;
  const std::string ranks =
      job.ranks() == nullptr ? "" : " on " + counted(job.ranks()->size(), "rank");
  const std::string division = data->division();
  show(lost_note(lost) + fmt::format("{} of {} {}{}{}{}\n{}{}{}",
                                     on_one_line(config.output.load.string()), grouped(samples),
                                     noun_for(samples, "sample"), ranks,
                                     division.empty() ? "" : ", ", division, evaluation_table(rows),
                                     quantized, confusion_table(rows[precisions.size() - 1])));
  if (config.output.verbose) {
    const std::int64_t warmup = config.training.warmup.value_or(0);
    show("\n" + run_checklist(config, warmup, std::ssize(rows.front().batches) - warmup, lost));
  }
  if (metrics) metrics->close();
}

}  // namespace barestep
