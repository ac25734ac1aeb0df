
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/host.h"
#include "core/index.h"
#include "core/output_file.h"
#include "core/plan.h"
#include "core/program.h"
#include "core/text_table.h"
#include "core/units.h"
#include "kernels/make_device.h"
#include "options/options.h"
#include "parallel/comm/gpu_places.h"
#include "parallel/comm/mesh_transport.h"
#include "parallel/comm/nccl_transport.h"
#include "parallel/comm/staged_transport.h"
#include "parallel/job/watchdog.h"
#include "parallel/schemes/ddp.h"
#include "parallel/schemes/scheme_of.h"
#include "profiler/communication_account.h"
#include "profiler/pipeline_account.h"
#include "session/outputs.h"
#include "session/place.h"
#include "session/rank_agreement.h"
#include "session/rank_job.h"
#include "train/evaluator.h"
#include "train/memory_check.h"

namespace barestep {
namespace {

/// This rank's part of the machine: a GPU chosen by the rank's number on its host, or a share of
/// the CPUs.
void take_share(DeviceConfig& device, const MpiRank& place, DeviceKind kind) {
  if (kind == DeviceKind::kCuda) {
    const bool any = device.device == "auto" || device.device == "cuda";
    const int count = cuda_device_count();
    // If there is none, opening it reports why.
    if (any && count > 0) device.device = fmt::format("cuda:{}", place.local_rank % count);
  } else if (!device.threads) {
    device.threads = place.cpus;
  }
}

/// The account of all ranks' collectives and, of a pipeline, that of the stages, as an observer.
class AccountOfRanks final : public Observer {
 public:
  AccountOfRanks(const StepPrograms& programs, std::int64_t steps)
      : spec_(programs.spec()), account_(programs, steps) {}

  void on_step(const StepFigures& step) override {
    account_.add(step.report);
    if (!step.report.warmup) steps_.add(step.account);
  }

  void gather(Group& ranks) override {
    text_ = account_.gather(ranks).text();
    if (spec_.mesh.pipeline == 1) return;
    const std::string stages = gather_stages(ranks, spec_, steps_);
    if (!stages.empty()) text_ += "\n" + stages;
  }

  [[nodiscard]] std::string text() const override { return text_; }

 private:
  const StepSpec& spec_;
  CommunicationAccount account_;
  MeanAccount steps_;
  std::string text_;
};

class DeviceOfRank final : public Place {
 public:
  /// Every rank calls it. Blocks.
  explicit DeviceOfRank(RankJob& job)
      : job_(job),
        ranks_(*job.ranks()),
        place_(job.place()),
        hosts_(gather_lists(ranks_, host_name())) {}
  ~DeviceOfRank() override { job_.watch(nullptr); }
  DeviceOfRank(const DeviceOfRank&) = delete;
  DeviceOfRank& operator=(const DeviceOfRank&) = delete;

  void resolve_config(TrainConfig& config) override {
    takes_any_ = config.device.device == "auto";
    kind_ = device_kind(config.device.device);
    requested_ = config.parallel.transport;
    traces_ = trace_files(config.output.trace, "rank", ranks_.size());
    if (!traces_.empty()) config.output.trace = at(traces_, ranks_.rank());
  }
  [[nodiscard]] DeviceKind kind() const override { return kind_; }
  [[nodiscard]] int ranks() const override { return ranks_.size(); }
  [[nodiscard]] bool takes_any_kind() const override { return takes_any_; }
  void require_outputs(const TrainConfig& config) const override {
    const auto& own_trace = config.output.trace;
    if (ranks_.rank() != 0) {
      if (!own_trace.empty()) require_writable(own_trace);
      return;  // there is no other output
    }
    std::vector<FileUse> of_others;
    if (const std::string flights = flight_file(config.output.metrics); !flights.empty()) {
      const std::set<std::string> hosts(hosts_.begin(), hosts_.end());
      for (const std::string& host : hosts) {
        const bool is_one = job_.is_on_one_host();
        of_others.push_back({"--metrics", is_one ? flights : flight_file_of_host(flights, host)});
        if (is_one) break;
      }
    }
    for (std::size_t rank = 1; rank < traces_.size(); ++rank) {
      of_others.push_back({"--trace", traces_[rank]});
    }
    barestep::require_outputs(config, trace_files(own_trace, "rank", 1), of_others);
  }

  [[nodiscard]] StepSpec spec_of(const TrainConfig& config, const Dataset* dataset) const override {
    return spec_of_rank(config, kind_, dataset, ranks_.rank(), ranks_.size());
  }

  [[nodiscard]] std::string check_together(const TrainConfig& config,
                                           const Dataset* dataset) const override {
    if (ranks_.size() == 1 || !job_.is_first()) return "";
    check_all_ranks(config, kind_, dataset, ranks_.size());
    return fmt::format(
        "The programs of all {} ranks, checked together: in every group they have the same "
        "collectives in the same order, and no rank can wait for itself through others.\n",
        ranks_.size());
  }

  [[nodiscard]] std::string memory_of_stages(const TrainConfig& config,
                                             const Dataset* dataset) const override {
    const Mesh mesh = mesh_of(config, ranks_.rank(), ranks_.size());
    if (mesh.pipeline == 1 || !job_.is_first()) return "";
    const bool evaluates = config.training.evaluate_only;
    const auto scheme = evaluates ? nullptr : new_scheme(config);
    std::vector<MemoryPlan> plans;
    for (int rank = 0; rank < mesh.ranks(); rank += mesh.ranks_of_stage()) {
      const StepSpec spec = spec_of_rank(config, kind_, dataset, rank, mesh.ranks());
      const StepPrograms programs(evaluates ? evaluation_spec_of(spec) : spec, scheme.get());
      plans.emplace_back(programs.buffers());
    }
    std::vector<std::string> titles = {""};
    for (int stage = 0; stage < mesh.pipeline; ++stage) {
      titles.push_back(fmt::format(">stage {}", stage));
    }
    TextTable table(std::move(titles));
    const auto add = [&](std::string_view name, auto&& cell_of) {
      std::vector<std::string> cells = {std::string(name)};
      std::ranges::transform(plans, std::back_inserter(cells), cell_of);
      table.add_row(std::move(cells));
    };
    for (const Category category : kValuesOf<Category>) {
      const auto bytes_of = [&](const MemoryPlan& plan) {
        return plan.category_bytes(0, category);
      };
      if (std::ranges::all_of(plans, [&](const auto& plan) { return bytes_of(plan) == 0; }))
        continue;
      add(name_of(category), [&](const MemoryPlan& plan) { return human_bytes(bytes_of(plan)); });
    }
    add("total", [](const MemoryPlan& plan) { return human_bytes(plan.device_bytes(0)); });
    return "\nWhat a rank of each stage needs\n" + table.text(2);
  }
  [[nodiscard]] int cpus() const override { return place_.cpus; }
  [[nodiscard]] std::vector<Placement> placements(const TrainConfig& config) const override {
    if (kind_ == DeviceKind::kCuda) {
      return {placement_of(config.device, 0, 0, 1,
                           device_ == nullptr ? "" : device_->info().pci_bus_id)};
    }
    return {placement_of(config.device, config.device.threads.value_or(cpus()), place_.sharer,
                         place_.sharers)};
  }

  void open(TrainConfig& config, const StepPrograms& programs) override {
    take_share(config.device, place_, kind_);
    // All ranks must compute the same bits for a row, and so must one rank for all rows.
    if (config.parallel.scheme == SchemeKind::kFactor) {
      config.device.rows_of_products = programs.spec().batch_size;
    }
    const std::vector<Placement> placed = placements(config);
    if (kind_ == DeviceKind::kCpu) bind_process(placed);
    device_ = make_device(config.device, 0, "cpu", placed.front().threads);
    if (kind_ == DeviceKind::kCuda) bind_process(placements(config));
    // Ranks that are CPU devices on one host share its memory.
    const int sharers = kind_ == DeviceKind::kCpu ? place_.local_size : 1;
    if (!config.output.memory) {
      require_memory(programs, device_->info().free_bytes, kind_, device_->name(), sharers);
    }
    if (kind_ == DeviceKind::kCuda) require_memory(programs, host_pool({0}, place_.local_size));
  }

  /// Compares libraries, options, seed, data and kind of device. The ranks also exchange which GPUs
  /// they have, which determines the transport. So this also throws if NCCL was requested and
  /// cannot connect them, or if NCCL's own memory does not fit next to the run's.
  void require_agreement(const TrainConfig& config, const StepPrograms& programs) override {
    gpus_ = gather_gpu_places(ranks_, device_ == nullptr ? "" : device_->info().pci_bus_id);
    RankSettings settings = settings_of(config);
    const bool shows = config.output.plan || config.output.explain;
    settings.emplace(settings.begin(), "task", shows ? "preview" : "training");
    if (device_ != nullptr) {
      settings.emplace_back("device", kind_ == DeviceKind::kCpu ? "cpu" : "cuda");
      settings.emplace_back("products", device_->info().product_library);
      // With products of libraries, ranks compute the same bits only if their devices are equal.
      if (config.parallel.scheme == SchemeKind::kFactor &&
          (kind_ == DeviceKind::kCuda || !computes_own_products(config.device))) {
        settings.emplace_back("device's model", device_->info().model);
      }
      settings.emplace_back("transport", transport_name());
      if (uses_nccl()) settings.emplace_back("NCCL", nccl_version());
    }
    barestep::require_agreement(ranks_, settings);
    if (device_ != nullptr && uses_nccl()) require_nccl(config, programs);
  }

  void join(const TrainConfig& config, const StepPrograms& programs) override {
    if (kind_ == DeviceKind::kCuda && uses_nccl()) {
      own_transport_ = join_nccl(ranks_, *device_, config.device.graph ? nullptr : &job_.record());
    } else if (kind_ == DeviceKind::kCuda) {
      own_transport_ = std::make_unique<StagedTransport>(*place_.transport, *device_);
    }
    transport_ = own_transport_ != nullptr ? own_transport_.get() : place_.transport.get();
    if (const Mesh& mesh = programs.spec().mesh; mesh.cuts_model()) {
      mesh_transport_ = join_mesh(*transport_, mesh);
      transport_ = mesh_transport_.get();
    }
    job_.watch(transport_);
  }

  [[nodiscard]] std::vector<Device*> devices() const override { return {device_.get()}; }
  [[nodiscard]] Transport* transport() const override { return transport_; }
  [[nodiscard]] ProfilingScope profiling_scope() const override {
    return {.program = "mlp_ddp", .devices = devices(), .backend = uses_nccl() ? "nccl" : "mpi"};
  }

  /// Each host and each GPU is sampled by one of its ranks.
  [[nodiscard]] MonitorScope monitor_scope() const override {
    MonitorScope scope{.devices = {}, .host = place_.local_rank == 0, .rank = ranks_.rank()};
    if (is_first_on_gpu(gpus_, ranks_.rank())) scope.devices.push_back(device_.get());
    return scope;
  }

  [[nodiscard]] std::string text(const TrainConfig& config,
                                 const StepPrograms& programs) const override {
    const int ranks = ranks_.size();
    std::string text = counted(ranks, "rank");
    if (ranks > place_.local_size) text += fmt::format(", {} on this host", place_.local_size);
    if (const Mesh& mesh = programs.spec().mesh; mesh.cuts_model()) {
      const std::string copies = mesh.data == 1 ? "one copy" : fmt::format("{} copies", mesh.data);
      std::string parts = mesh.pipeline > 1 ? fmt::format("{} stages", mesh.pipeline) : "";
      if (mesh.tensor > 1) {
        parts += fmt::format("{}{} tensor ranks", parts.empty() ? "" : " of ", mesh.tensor);
      }
      const bool has_several = mesh.data > 1 || (mesh.pipeline > 1 && mesh.tensor > 1);
      text += fmt::format(", {} of the model on {}{}", copies, parts, has_several ? " each" : "");
    }
    text += ", " + exchange_text(config, programs);
    const int cores = place_.local_cpus;
    const int own_threads = config.device.threads.value_or(0);
    const int threads = place_.local_size * own_threads;
    if (kind_ == DeviceKind::kCpu && threads > cores) {
      text += fmt::format("\nOversubscribed: {} of {} on {}", counted(place_.local_size, "rank"),
                          counted(own_threads, "thread"), counted(cores, "core"));
    }
    return text + "\n";
  }

  [[nodiscard]] std::unique_ptr<Observer> new_account(const StepPrograms& programs,
                                                      std::int64_t steps) const override {
    return std::make_unique<AccountOfRanks>(programs, steps);
  }

 private:
  /// Called when all ranks have the same options.
  void require_nccl(const TrainConfig& config, const StepPrograms& programs) const {
    require_nccl_joins(gpus_);
    if (config.output.memory) return;
    require_memory(programs, {.name = std::string(device_->name()),
                              .kind = kind_,
                              .available_bytes = device_->info().free_bytes,
                              .beside_bytes = nccl_bytes(programs),
                              .beside = "NCCL"});
  }
  [[nodiscard]] bool uses_nccl() const {
    return kind_ == DeviceKind::kCuda && joins_by_nccl(requested_, gpus_);
  }

  [[nodiscard]] std::string transport_name() const {
    if (kind_ == DeviceKind::kCpu) return "MPI";
    return uses_nccl() ? "NCCL" : "MPI through pinned memory";
  }

  /// What the ranks exchange in a step, and how.
  [[nodiscard]] std::string exchange_text(const TrainConfig& config,
                                          const StepPrograms& programs) const {
    const StepSpec& spec = programs.spec();
    std::string text = transport_name() + ": " + barestep::exchange_text(programs);
    if (config.parallel.scheme == SchemeKind::kDdp) return text;
    const Ddp ddp(ddp_settings_of(config));
    StepSpec with_gradients = spec;
    with_gradients.model.stores_gradients = true;
    with_gradients.update.tries_both = false;
    const StepPrograms with_ddp(with_gradients, &ddp);
    const auto sent = [&](const StepPrograms& each) {
      return human_bytes(bytes_sent(each.train().program, spec.mesh));
    };
    return text +
           fmt::format("; each sends {} a step, ddp would send {}", sent(programs), sent(with_ddp));
  }

  RankJob& job_;
  Group& ranks_;
  const MpiRank& place_;
  std::vector<std::string> hosts_;  // of all ranks
  DeviceKind kind_ = DeviceKind::kCpu;
  bool takes_any_ = false;
  TransportKind requested_ = TransportKind::kAuto;
  std::vector<std::filesystem::path> traces_;  // all ranks' paths
  std::unique_ptr<Device> device_;
  std::vector<RankGpu> gpus_;                  // all ranks' GPUs, once they agree
  std::unique_ptr<Transport> own_transport_;   // null if MPI itself is used
  std::unique_ptr<Transport> mesh_transport_;  // null if ranks only share the batch
  Transport* transport_ = nullptr;             // set by join()
};

}  // namespace

std::unique_ptr<Place> device_of_rank(RankJob& job) {
  return std::make_unique<DeviceOfRank>(job);
}

}  // namespace barestep
