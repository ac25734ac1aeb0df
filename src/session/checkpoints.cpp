#include "session/checkpoints.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>
#include <vector>

#include "core/clock.h"
#include "core/host.h"
#include "core/json_document.h"
#include "core/output_file.h"
#include "core/units.h"
#include "options/options.h"
#include "session/run_program.h"
#include "session/shared_checkpoint.h"
#include "train/optimizer.h"

namespace barestep {
namespace {

namespace fs = std::filesystem;
using StateJson = nlohmann::ordered_json;

constexpr const char* kBest = "best";
constexpr const char* kProgram = "the program";
constexpr const char* kRanksSetting = "the number of ranks";
constexpr const char* kSchemeSetting = "--scheme";
constexpr const char* kAccumulateSetting = "--accumulate";
constexpr const char* kUpdateSetting = "--update";
/// How a run with --reproducible is spread, which changes no bit of it.
constexpr const char* kSpreadSettings[] = {kProgram, kRanksSetting, kSchemeSetting,
                                           kAccumulateSetting, kUpdateSetting};

const char* name_of_generator(Generator generator) {
  return generator == Generator::kTorchCpu ? "torch cpu" : "torch cuda";
}

StateJson json_of_settings(const RankSettings& settings) {
  StateJson json = StateJson::object();
  for (const auto& [name, value] : settings) json[name] = value;
  return json;
}

/// Each setting that differs: "--seed is 0 in the checkpoint and 1 here".
std::vector<std::string> setting_differences(const StateJson& stored, const RankSettings& now) {
  std::vector<std::string> found;
  for (const auto& [name, value] : now) {
    const auto before = stored.find(name);
    const std::string then = before == stored.end() ? "not there" : before->get<std::string>();
    if (then == value) continue;
    found.push_back(fmt::format("{} is {} in the checkpoint and {} here", name, then, value));
  }
  return found;
}

/// "10 samples", "10 samples padded to 12", "8 of 10 samples": which samples the steps of an epoch
/// take depends on its length.
std::string epoch_text(const StepSpec& spec) {
  const std::string samples = counted(spec.input.train_rows, "sample");
  const std::int64_t rows = spec.epoch_rows();
  if (rows > spec.input.train_rows) return fmt::format("{} padded to {}", samples, grouped(rows));
  return rows < spec.input.train_rows ? fmt::format("{} of {}", grouped(rows), samples) : samples;
}

/// The settings that determine the numbers of a run, except for their rounding.
RankSettings settings_of_numbers(const TrainConfig& config, const StepSpec& spec) {
  RankSettings settings = {
      {"--layers", text_of_numbers(spec.model.widths)},
      {"the batch of a step", counted(spec.step_rows(), "sample")},
      {"the learning rate", text_of_number(full_learning_rate(config.optimizer, spec.mesh.data))},
      {"--data", std::string(name_of(config.data.kind))}};
  for (auto& each : settings_of_data(config)) settings.push_back(std::move(each));
  // Ranks may pad an epoch to equal shares.
  if (spec.input.train_rows > 0) settings.emplace_back("an epoch", epoch_text(spec));
  // An option that is set to its default does not make a different run.
  TrainConfig with_all = config;
  with_all.optimizer = with_defaults(config.optimizer);
  for (auto& each : deciding_settings(with_all)) settings.push_back(std::move(each));
  // These two schedules end with the run, so the run must not get longer.
  if (const LrSchedule schedule = config.optimizer.lr_schedule;
      schedule == LrSchedule::kLinear || schedule == LrSchedule::kCosine) {
    settings.emplace_back("the number of steps of --lr-schedule",
                          std::to_string(steps_of(config.training, spec)));
  }
  // Streams of their own, or weights that train apart.
  if (spec.input.own_data || spec.update.sync_every > 1) {
    settings.emplace_back(kRanksSetting, std::to_string(spec.mesh.data));
  }
  return settings;
}

/// Parses the text that Checkpoints::state_text() wrote.
ResumePoint resume_point_of(const fs::path& file, std::string text) {
  ResumePoint point{.file = file, .text = std::move(text), .state = {}};
  const JsonDocument document(point.text,
                              {.what = "state of the checkpoint",
                               .name = file.string(),
                               .remedy = "resume from a checkpoint that barestep wrote"});
  const JsonValue json = document.root();
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  constexpr std::int64_t kMaxCount = std::numeric_limits<std::int32_t>::max();
  Position& position = point.state.position;
  position = {.steps = json.at("steps").whole(0, kMax),
              .evaluated = json.at("evaluated").boolean()};
  if (json.at("generator").text() == name_of_generator(Generator::kTorchCuda)) {
    point.generator = Generator::kTorchCuda;
  }
  if (const JsonValue best = json.at("best_test_loss"); best.is_number()) {
    constexpr double kMaxLoss = std::numeric_limits<double>::max();
    position.best_test_loss = best.number(-kMaxLoss, kMaxLoss);
  }
  if (json.has("evaluations_since_best")) {
    position.evaluations_since_best = json.at("evaluations_since_best").whole(0, kMax);
  }
  if (json.has("loss_scale")) {
    const JsonValue scaling = json.at("loss_scale");
    constexpr double kMaxScale = std::numeric_limits<float>::max();
    const auto count = [](const JsonValue& value) {
      return static_cast<std::int32_t>(value.whole(0, kMaxCount));
    };
    position.scaling = {.scale = static_cast<float>(scaling.at("scale").number(0, kMaxScale)),
                        .good_steps = count(scaling.at("good_steps")),
                        .updates = count(json.at("updates"))};
  }
  for (const char* const settings : {"settings", "rounding"}) {
    for (const auto& [name, value] : json.at(settings).members()) std::ignore = value.text();
  }
  json.ignore({"program", "version", "updates", "epoch", "batch_of_epoch", "product_choices",
               "configuration"});
  document.require_known();
  return point;
}

}  // namespace

std::optional<ResumePoint> find_resume_point(std::string_view program,
                                             const CheckpointConfig& config) {
  std::optional<FoundCheckpoint> found;
  if (config.resume) {
    found = newest_whole_checkpoint(config.folder,
                                    [&](const std::string& why) { print_note(program, why); });
  } else if (!config.resume_from.empty()) {
    found = FoundCheckpoint{config.resume_from, read_checkpoint(config.resume_from)};
  }
  if (!found) return std::nullopt;
  ResumePoint point = resume_point_of(found->file, std::move(found->image.state));
  point.state.tensors = std::move(found->image.tensors);
  return point;
}

void require_own_folder(const CheckpointConfig& config) {
  if (config.folder.empty() || config.resume) return;
  const std::vector<std::int64_t> steps = checkpoint_steps(config.folder);
  if (steps.empty()) return;
  const fs::path& from = config.resume_from;
  std::error_code ignored;
  const bool is_here =
      !from.empty() && fs::equivalent(fs::absolute(from).parent_path(), config.folder, ignored);
  if (is_here) return;
  fail(ExitCode::kConfiguration,
       {"--checkpoint", config.folder.string(),
        fmt::format("holds checkpoints of another run, the newest at step {}", steps.back()),
        "resume that run with --resume, or name another folder"});
}

void share_resume_point(Group& ranks, std::optional<ResumePoint>& point) {
  const std::string mine = point ? point->file.string() + '\0' + point->text : "";
  const std::string first = gather_lists(ranks, mine).front();
  if (ranks.rank() == 0 || first.empty()) return;
  const std::size_t end = first.find('\0');
  point = resume_point_of(first.substr(0, end), first.substr(end + 1));
}

namespace {

/// Whether a run of this configuration passes through the position of the checkpoint.
void require_position(const ResumePoint& point, const TrainConfig& config,
                      const StepPrograms& programs) {
  const Schedule schedule(config.training, programs);
  const std::int64_t done = point.state.position.steps;
  const auto refuse = [&](const std::string& why, const char* remedy) {
    fail(ExitCode::kConfiguration,
         {config.training.epochs ? "--epochs" : "--steps",
          std::to_string(config.training.epochs.value_or(schedule.steps())),
          fmt::format("the checkpoint '{}' is at step {}{}", point.file.string(), done, why),
          remedy});
  };
  if (schedule.steps() < done) refuse(" already", "give at least as many");
  if (done == 0 || programs.has_common_weights_after(schedule.place_of(done - 1))) return;
  refuse(fmt::format(", where a shorter run ended and ranks averaged their weights; this one does "
                     "so every {} steps",
                     programs.spec().update.sync_every),
         "give as many as before, or start a new run from its weights with --load");
}

}  // namespace

void require_same_run(const ResumePoint& point, const TrainConfig& config,
                      const StepPrograms& programs) {
  const StepSpec& spec = programs.spec();
  const auto stored = StateJson::parse(point.text).at("settings");
  const auto differences = setting_differences(stored, settings_of_numbers(config, spec));
  if (!differences.empty()) {
    fail(ExitCode::kConfiguration,
         {"checkpoint", point.file.string(),
          fmt::format("is of another run: {}", fmt::join(differences, ", ")),
          "give the options of that run, or start a new one from its weights with --load"});
  }
  require_position(point, config, programs);
  require_state(point.state, programs, point.file);
}

std::string rounding_differences(const ResumePoint& point, const TrainConfig& config,
                                 const RankSettings& now) {
  auto stored = StateJson::parse(point.text).at("rounding");
  RankSettings compared = now;
  // Another program is always another build.
  if (stored.value(kProgram, "") != compared.front().second) compared.pop_back();
  if (config.training.chunk_rows) {
    std::erase_if(compared, [](const auto& setting) {
      return std::ranges::find(kSpreadSettings, std::string_view(setting.first)) !=
             std::end(kSpreadSettings);
    });
  }
  return fmt::format("{}", fmt::join(setting_differences(stored, compared), ", "));
}

std::string update_before(const ResumePoint& point) {
  return StateJson::parse(point.text).at("rounding").value(kUpdateSetting, "");
}

RankSettings settings_of_rounding(const TrainConfig& config, const StepPrograms& programs,
                                  const Device& device) {
  const DeviceInfo info = device.info();
  const Mesh& mesh = programs.spec().mesh;
  const std::string hash = hash_of_program();
  return {
      {kProgram, std::string(program_name(config))},
      {kRanksSetting, mesh.tensor == 1 ? std::to_string(mesh.ranks())
                                       : fmt::format("{} in groups of {} for --tensor",
                                                     mesh.ranks(), mesh.tensor)},
      {"the number of devices", std::to_string(MemoryPlan(programs.buffers()).devices())},
      {kSchemeSetting, std::string(name_of(config.parallel.scheme))},
      // A pipeline has the bits of accumulation.
      {kAccumulateSetting,
       std::to_string(config.training.accumulate * micro_batches_of(config.parallel))},
      {kUpdateSetting,
       std::string(name_of(updates_agree(config, device.kind()) ? Update::kSeparate
                                                                : config.training.update))},
      {"--fusion", config.device.fusion ? "on" : "off"},
      {"--autotune", config.device.autotunes ? "on" : "off"},
      {"the device", info.model},
      {"--threads", std::to_string(info.threads)},
      {"the library of products", info.product_library},
      {"the build", fmt::format("{} {}", BARESTEP_VERSION, hash.substr(hash.rfind(' ') + 1, 12))}};
}

std::string product_choices_of(const ResumePoint& point) {
  const StateJson json = StateJson::parse(point.text);
  const auto choices = json.find("product_choices");
  if (choices == json.end() || !choices->is_string()) return "";
  return choices->get<std::string>();
}

void restore_product_choices(const ResumePoint& point, const DeviceConfig& device) {
  if (device.autotune.empty() || fs::exists(device.autotune)) return;
  const std::string text = product_choices_of(point);
  if (!text.empty()) replace_file(device.autotune, text);
}

void require_shared_folder(Job& job, const fs::path& folder) {
  Group* const ranks = job.ranks();
  if (ranks == nullptr || ranks->size() == 1) return;
  // The file exists only for a moment.
  const std::string own_name = fmt::format(".barestep-{}-{}", host_name(), ::getpid());
  const fs::path mark = folder / gather_lists(*ranks, own_name).front();
  job.together([&] {
    if (!job.is_first()) return;
    make_folder(folder);
    replace_file(mark, "");
  });
  bool is_seen = false;
  std::error_code ignored;
  is_seen = fs::exists(mark, ignored);
  ranks->barrier();
  if (job.is_first()) fs::remove(mark, ignored);
  job.together([&] {
    if (is_seen) return;
    fail(ExitCode::kConfiguration, {"--checkpoint", folder.string(),
                                    fmt::format("rank {} on {} does not see the folder of rank 0",
                                                ranks->rank(), host_name()),
                                    "name a folder that all hosts share"});
  });
}

Checkpoints::Checkpoints(const TrainConfig& config, const StepPrograms& programs,
                         const Place& place, Trainer& trainer, Job& job, RankSettings rounding,
                         const ResumePoint* start)
    : config_(config),
      programs_(programs),
      device_(*place.devices().front()),
      trainer_(trainer),
      ranks_(job.background_ranks()),
      is_first_(job.is_first()),
      rounding_(std::move(rounding)),
      last_s_(now_s()) {
  trainer.pause_when(config.checkpoint.every.steps, asks_);
  if (start != nullptr && config.checkpoint.resume) saved_ = start->state.position;
  if (!is_first_) return;
  deciding_ = settings_of_numbers(config, programs.spec());
  const fs::path& folder = config.checkpoint.folder;
  folder_.emplace(folder, static_cast<int>(config.checkpoint.keep));
  if (config.checkpoint.best) best_folder_.emplace(folder / kBest, 1);
}

void Checkpoints::on_batch() {
  const CheckpointEvery& every = config_.checkpoint.every;
  if (!is_first_ || every.steps > 0 || now_s() - last_s_ < every.seconds) return;
  const bool is_written =
      !writing_.valid() || writing_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  if (is_written) asks_ = true;
}

void Checkpoints::on_evaluation(const EvaluationReport& report) {
  if (report.is_best && config_.checkpoint.best) save_into(best_folder_);
}

void Checkpoints::on_pause() {
  asks_ = false;
  last_s_ = now_s();
  save_into(folder_);
  saved_ = trainer_.position();
}

void Checkpoints::save_end() {
  if (saved_ != trainer_.position()) on_pause();
  wait();
}

std::string Checkpoints::state_text() const {
  const Position position = trainer_.position();
  const StepSpec& spec = programs_.spec();
  const std::int64_t batches = spec.steps_of_epoch();
  StateJson json = {{"program", program_name(config_)},
                    {"version", BARESTEP_VERSION},
                    {"steps", position.steps},
                    {"updates", position.scaling ? position.scaling->updates : position.steps},
                    {"evaluated", position.evaluated},
                    {"epoch", batches == 0 ? 0 : position.steps / batches},
                    {"batch_of_epoch", batches == 0 ? position.steps : position.steps % batches},
                    {"generator", name_of_generator(spec.input.generator)},
                    {"best_test_loss", nullptr},
                    {"evaluations_since_best", position.evaluations_since_best}};
  if (position.best_test_loss) json["best_test_loss"] = *position.best_test_loss;
  if (const auto& scaling = position.scaling) {
    json["loss_scale"] = {{"scale", scaling->scale}, {"good_steps", scaling->good_steps}};
  }
  json["product_choices"] = device_.product_choices();
  json["settings"] = json_of_settings(deciding_);
  json["rounding"] = json_of_settings(rounding_);
  json["configuration"] = StateJson::parse(json_of(config_));
  return json.dump(-1, ' ', false, StateJson::error_handler_t::replace);
}

void Checkpoints::save_into(std::optional<CheckpointFolder>& folder) {
  const double begin_s = now_s();
  wait();
  trainer_.begin_copy();
  waited_s_ += now_s() - begin_s;
  CheckpointForm form{.step = trainer_.position().steps, .state = {}, .tensors = {}};
  if (is_first_) form.state = state_text();
  writing_ = std::async(std::launch::async,
                        [this, form = std::move(form), to = folder ? &*folder : nullptr]() mutable {
                          write(to, std::move(form));
                        });
}

void Checkpoints::write(CheckpointFolder* folder, CheckpointForm form) {
  const double begin_s = now_s();
  CheckpointShare share{.form = std::move(form), .pieces = {}};
  share.form.tensors = state_tensors(programs_);
  try {
    share.pieces = saved_pieces(programs_, trainer_.finish_copy());
    if (const std::string bad = bad_weight_in(share.form.tensors, share.pieces); !bad.empty()) {
      share.failure = {ExitCode::kDiverged, bad + ", so it is not written",
                       "training diverged in its last step: use a smaller --lr"};
    }
  } catch (const Error& error) {
    share.failure = {error.code(), error.what(), ""};
  }
  write_checkpoint(ranks_, folder, share);
  if (folder == nullptr) return;
  written_s_ += now_s() - begin_s;
  ++count_;
  newest_ = folder->path() / name_of_checkpoint(share.form.step);
}

void Checkpoints::wait() {
  if (!writing_.valid()) return;
  try {
    writing_.get();
  } catch (const Error& error) {
    if (!failure_) failure_ = error;
    // The next loss reports that training diverged.
    if (error.code() == ExitCode::kDiverged) return;
    print_note(program_name(config_), std::string(error.what()) + "; the run continues without it");
  }
}

void Checkpoints::close() {
  wait();
  if (failure_) throw Error(*failure_);
}

std::string Checkpoints::text() const {
  if (count_ == 0) return "";
  const auto count = static_cast<double>(count_);
  return fmt::format(
      "Wrote {} to '{}', the newest '{}': each paused the run for {} and took {} to write in the "
      "background\n",
      counted(count_, "checkpoint"), on_one_line(config_.checkpoint.folder.string()),
      newest_.filename().string(), time_text(waited_s_ / count), time_text(written_s_ / count));
}

}  // namespace barestep
