// GPU records from CUPTI.
//
// Work is assigned to a node by external correlation: a number is pushed before the node is queued,
// and CUPTI attaches it to every call of this thread until it is popped. A graph's work is
// identified by the graph node alone, which CUPTI reports while the program's node is captured; the
// step by its time. Correlations of graphs are wrong in versions before 13.1.1 if records were
// enabled before, so they are enabled only once.
//
// Times are CUPTI's own and are converted. A clock that the host registers makes versions from
// 12.6.2 to 13.0 lose times, and later ones too if it is registered twice.
#include <cupti.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <map>
#include <utility>

#include "core/clock.h"
#include "core/error.h"
#include "core/index.h"
#include "profiler/cupti_activity.h"
#include "profiler/cupti_library.h"
#include "profiler/gpu_records.h"
#include "train/step_marks.h"

namespace barestep {
namespace {

constexpr CUpti_ActivityKind kKinds[] = {
    // These come before the work itself, so that no work arrives without them. A correlation is
    // reported only with the record of a call: the runtime's for our kernels, the driver's for
    // libraries such as cuBLASLt, which launch through cuLaunchKernelEx.
    CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION,
    CUPTI_ACTIVITY_KIND_RUNTIME,
    CUPTI_ACTIVITY_KIND_DRIVER,
    CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
    CUPTI_ACTIVITY_KIND_MEMCPY,
    CUPTI_ACTIVITY_KIND_MEMCPY2,
    CUPTI_ACTIVITY_KIND_MEMSET,
    CUPTI_ACTIVITY_KIND_OVERHEAD,
};
constexpr CUpti_ExternalCorrelationKind kOurs = CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0;

/// The host's clock (core/clock.h).
std::uint64_t host_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

/// What to add to CUPTI's times at a time of the host, and how far off that may be.
struct CuptiClock {
  std::int64_t offset_ns = 0;
  std::uint64_t host_ns = 0;
  std::int64_t error_ns = 0;
};

/// A fixed number of buffers, allocated at once. CUPTI's threads take empty ones and return full
/// ones, in any order, without a lock. One other thread reads the full ones.
class CuptiBuffers {
 public:
  static constexpr std::size_t kBytes = std::size_t{2} << 20;

  CuptiBuffers()
      : memory_(std::make_unique<std::uint64_t[]>(kCuptiBuffers * kBytes / sizeof(std::uint64_t))) {
    auto* memory = reinterpret_cast<std::uint8_t*>(memory_.get());
    for (Buffer& buffer : buffers_) {
      buffer.memory = memory;
      memory += kBytes;
    }
  }

  /// Buffers that CUPTI still uses are not freed.
  ~CuptiBuffers() {
    const bool all_back = std::ranges::none_of(
        buffers_, [](const Buffer& buffer) { return buffer.state == State::kTaken; });
    if (!all_back) static_cast<void>(memory_.release());
  }

  CuptiBuffers(const CuptiBuffers&) = delete;
  CuptiBuffers& operator=(const CuptiBuffers&) = delete;

  /// Null if all are in use; CUPTI then drops records and counts them.
  [[nodiscard]] std::uint8_t* take() noexcept {
    for (Buffer& buffer : buffers_) {
      State expected = State::kEmpty;
      if (buffer.state.compare_exchange_strong(expected, State::kTaken)) return buffer.memory;
    }
    return nullptr;
  }

  void return_full(std::uint8_t* buffer, std::size_t valid_bytes) noexcept {
    for (Buffer& mine : buffers_) {
      if (mine.memory != buffer) continue;
      mine.valid_bytes = std::min(valid_bytes, kBytes);
      mine.state.store(State::kFull, std::memory_order_release);
    }
  }

  /// Calls read(buffer, bytes) for each returned buffer, and then marks it empty.
  template <class F>
  void read_all(const F& read) {
    for (Buffer& buffer : buffers_) {
      if (buffer.state.load(std::memory_order_acquire) != State::kFull) continue;
      read(buffer.memory, buffer.valid_bytes);
      buffer.state.store(State::kEmpty, std::memory_order_release);
    }
  }

 private:
  enum class State { kEmpty, kTaken, kFull };
  struct Buffer {
    std::uint8_t* memory = nullptr;
    std::size_t valid_bytes = 0;
    std::atomic<State> state{State::kEmpty};
  };

  std::unique_ptr<std::uint64_t[]> memory_;  // CUPTI requires 8-byte alignment
  std::array<Buffer, kCuptiBuffers> buffers_;
};

/// Only one per process, since CUPTI has only one subscriber.
class CuptiRecords final : public GpuRecords {
 public:
  CuptiRecords(std::unique_ptr<const CuptiLibrary> library, const std::vector<Device*>& devices,
               std::int64_t capacity)
      : library_(std::move(library)), reader_(*library_, capacity) {
    for (const Device* device : devices) ordinals_.push_back(device->info().ordinal);
    queued_.reserve(static_cast<std::size_t>(capacity));
  }

  ~CuptiRecords() override {
    // A failure here needs no handling.
    if (on_) disable_all();
    if (subscriber_ != nullptr) static_cast<void>(library_->unsubscribe.function(subscriber_));
    CuptiRecords* self = this;
    active.compare_exchange_strong(self, nullptr);
  }

  /// Returns why CUPTI cannot be used; empty if it can.
  std::string subscribe() {
    CuptiRecords* none = nullptr;
    if (!active.compare_exchange_strong(none, this))
      return "this process is already being profiled";
    std::string why;
    const auto done = [&](const auto& call, auto... arguments) {
      const CUptiResult status = call.function(arguments...);
      if (status != CUPTI_SUCCESS) why = library_->failure(call.name, status);
      return status == CUPTI_SUCCESS;
    };
    const auto watch = [&](CUpti_CallbackId id) {
      return done(library_->enable_callback, 1U, subscriber_, CUPTI_CB_DOMAIN_RESOURCE, id);
    };
    if (!done(library_->subscribe, &subscriber_, &CuptiRecords::on_resource, this)) {
      subscriber_ = nullptr;
      return why;
    }
    static_cast<void>(done(library_->register_buffers, &CuptiRecords::take_buffer,
                           &CuptiRecords::receive_full_buffer) &&
                      watch(CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED) &&
                      watch(CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED));
    return why;
  }

  [[nodiscard]] std::string source() const override {
    return fmt::format("CUPTI {}{}{}", library_->version(), trouble_.empty() ? "" : ", but ",
                       trouble_);
  }

  std::string turn(bool on, bool keeps) override {
    if (keeps != keeps_) {
      keeps_ = keeps;
      if (keeps) {
        reader_.keep_from(host_ns());
      } else {
        reader_.keep_until(host_ns());
      }
    }
    if (on == on_) return "";
    on_ = on;
    std::string why;
    if (on) {
      BARESTEP_REQUIRE(!was_on_, "records are enabled once");
      was_on_ = true;
      why = read_clock(clock_);
      reader_.set_clock_offset(clock_.offset_ns);
      if (why.empty()) why = enable_all();
      on_ = why.empty();
    }
    if (!on_) disable_all();
    return why;
  }

  void capture(bool on) override { capturing_ = on; }
  void begin(const Tag& tag, std::string_view label, int device) override {
    const Record queued{.tag = tag, .label = label, .device = device, .start_s = now_s()};
    if (capturing_) {
      capturing_node_ = queued;
      is_capturing_node_ = true;
    }
    if (capturing_ || !on_) return;
    std::uint64_t number = kNoCorrelatedNode;
    if (keeps_ && queued_.size() < queued_.capacity()) {
      queued_.push_back(queued);
      number = queued_.size();
    } else if (keeps_) {
      ++not_noted_;
    }
    if (call(library_->push, kOurs, number)) ++depth_;
  }

  void end() override {
    is_capturing_node_ = false;
    if (depth_ == 0) return;
    --depth_;
    std::uint64_t last = 0;
    if (!call(library_->pop, kOurs, &last)) return;
    if (last == kNoCorrelatedNode || last > queued_.size()) return;
    queued_[last - 1].end_s = now_s();
  }

  void collect() override {
    buffers_.read_all([&](std::uint8_t* buffer, std::size_t bytes) {
      if (const std::string why = reader_.read(buffer, bytes); !why.empty()) keep(why);
    });
  }

  void finish() override {
    if (finished_) return;
    finished_ = true;
    // First complete buffers, which makes room; then all.
    for (const std::uint32_t flags :
         {0U, static_cast<unsigned>(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED)}) {
      call(library_->flush, flags);
      collect();
    }
    reader_.finish();
    if (was_on_) correct_drift();
    resolve();
  }

  [[nodiscard]] std::span<const GpuActivity> activities() const override {
    return reader_.activities();
  }

  [[nodiscard]] std::span<const Record> queued() const override { return queued_; }
  [[nodiscard]] std::int64_t dropped() const override {
    return reader_.dropped() + dropped_by_cupti_ + not_noted_;
  }

 private:
  static void CUPTIAPI take_buffer(std::uint8_t** buffer, std::size_t* bytes,
                                   std::size_t* records) {
    CuptiRecords* const self = active;
    *buffer = self == nullptr ? nullptr : self->buffers_.take();
    *bytes = *buffer == nullptr ? 0 : CuptiBuffers::kBytes;
    *records = 0;  // as many as fit
  }

  static void CUPTIAPI receive_full_buffer(CUcontext context, std::uint32_t stream,
                                           std::uint8_t* buffer, std::size_t /*bytes*/,
                                           std::size_t valid_bytes) {
    CuptiRecords* const self = active;
    if (self == nullptr) return;
    std::size_t dropped = 0;
    if (self->library_->dropped_records.function(context, stream, &dropped) == CUPTI_SUCCESS) {
      self->dropped_by_cupti_ += static_cast<std::int64_t>(dropped);
    }
    if (buffer != nullptr) self->buffers_.return_full(buffer, valid_bytes);
  }

  static void CUPTIAPI on_resource(void* self, CUpti_CallbackDomain domain, CUpti_CallbackId id,
                                   const void* data) {
    if (domain != CUPTI_CB_DOMAIN_RESOURCE || data == nullptr) return;
    const void* const of = static_cast<const CUpti_ResourceData*>(data)->resourceDescriptor;
    if (of == nullptr) return;
    static_cast<CuptiRecords*>(self)->note_graph_node(id, *static_cast<const CUpti_GraphData*>(of));
  }

  void note_graph_node(CUpti_CallbackId id, const CUpti_GraphData& graph) {
    std::uint64_t node = 0;
    if (!call(library_->graph_node_id, graph.node, &node)) return;
    if (id == CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED) {
      if (is_capturing_node_) graph_nodes_[node] = capturing_node_;
    } else if (id == CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED) {
      std::uint64_t original = 0;
      if (!call(library_->graph_node_id, graph.originalNode, &original)) return;
      const auto at = graph_nodes_.find(original);
      if (at != graph_nodes_.end()) graph_nodes_[node] = at->second;
    }
  }

  /// Stores the first failure after subscribe(), which is reported with the source.
  void keep(const std::string& trouble) {
    if (trouble_.empty()) trouble_ = trouble;
  }

  /// Whether it succeeds.
  template <class Function, class... Arguments>
  bool call(const CuptiCall<Function>& of, Arguments... arguments) {
    const CUptiResult status = of.function(arguments...);
    if (status != CUPTI_SUCCESS) keep(library_->failure(of.name, status));
    return status == CUPTI_SUCCESS;
  }

  std::string enable_all() {
    for (const CUpti_ActivityKind kind : kKinds) {
      const CUptiResult status = library_->enable.function(kind);
      if (status != CUPTI_SUCCESS) return library_->failure(library_->enable.name, status);
    }
    return "";
  }

  void disable_all() {
    for (const CUpti_ActivityKind kind : kKinds)
      static_cast<void>(library_->disable.function(kind));
  }

  /// Compares the clocks. Returns why that failed.
  std::string read_clock(CuptiClock& clock) const {
    constexpr int kClockTries = 20;
    clock.error_ns = std::numeric_limits<std::int64_t>::max();
    for (int i = 0; i < kClockTries; ++i) {
      std::uint64_t theirs_ns = 0;
      const std::uint64_t before_ns = host_ns();
      const CUptiResult status = library_->timestamp.function(&theirs_ns);
      const std::uint64_t after_ns = host_ns();
      if (status != CUPTI_SUCCESS) return library_->failure(library_->timestamp.name, status);
      const auto error_ns = static_cast<std::int64_t>((after_ns - before_ns + 1) / 2);
      if (error_ns >= clock.error_ns) continue;
      const std::uint64_t ours_ns = before_ns + (after_ns - before_ns) / 2;
      clock = {static_cast<std::int64_t>(ours_ns - theirs_ns), ours_ns, error_ns};
    }
    return "";
  }

  /// Times were converted by the offset at the beginning; the clocks have drifted apart steadily
  /// since then.
  void correct_drift() {
    CuptiClock now;
    if (const std::string why = read_clock(now); !why.empty()) return keep(why);
    const std::int64_t drift_ns = now.offset_ns - clock_.offset_ns;
    if (std::abs(drift_ns) <= now.error_ns + clock_.error_ns) return;
    const double begin_s = static_cast<double>(clock_.host_ns) * 1e-9;
    const auto ours_ns = static_cast<double>(now.host_ns - clock_.host_ns);
    const double scale = ours_ns / (ours_ns - static_cast<double>(drift_ns));
    const auto corrected = [&](double time_s) { return begin_s + scale * (time_s - begin_s); };
    for (GpuActivity& activity : reader_.activities()) {
      activity.start_s = corrected(activity.start_s);
      activity.end_s = corrected(activity.end_s);
    }
  }

  void resolve() {
    const Launches launches = this->launches();
    for (GpuActivity& activity : reader_.activities()) {
      const Record* const queued = queued_of(activity);
      const bool is_work = activity.is_work();
      activity.device = is_work ? device_of(activity, queued == nullptr ? 0 : queued->device) : 0;
      if (is_work && activity.graph_node != 0) {
        resolve_graph_work(activity, launches);
      } else if (queued != nullptr) {
        activity.tag = queued->tag;
      }
    }
  }

  [[nodiscard]] const Record* queued_of(const GpuActivity& activity) const {
    const std::uint64_t number = reader_.tag_number(activity.correlation);
    if (number == kNoCorrelatedNode || number > queued_.size()) return nullptr;
    return &queued_[number - 1];
  }

  /// The launches of graphs, of input too, by their program and slot, in order.
  using Launches = std::map<std::pair<int, std::size_t>, std::vector<Record>>;
  [[nodiscard]] Launches launches() const {
    Launches all;
    for (const Record& queued : queued_) {
      if (!is_launch(queued.tag.node)) continue;
      all[{queued.tag.program, slot_of(queued.tag.step)}].push_back(queued);
    }
    return all;
  }

  /// Sets the tag of work in a graph, if it is of a node. The graphs of a slot, of input and of
  /// other work, are launched again only after the step of their last launch was done, so their
  /// work is of the last launch before.
  void resolve_graph_work(GpuActivity& activity, const Launches& launches) const {
    const auto node = graph_nodes_.find(static_cast<std::uint64_t>(activity.graph_node));
    if (node == graph_nodes_.end()) return;
    const Tag& captured = node->second.tag;
    const auto of_graph = launches.find({captured.program, slot_of(captured.step)});
    if (of_graph == launches.end()) return;
    const double middle_s = (activity.start_s + activity.end_s) / 2;
    const auto after = std::ranges::upper_bound(of_graph->second, middle_s, {}, &Record::start_s);
    if (after == of_graph->second.begin()) return;
    activity.tag = captured;
    activity.tag.step = std::prev(after)->tag.step;
  }

  [[nodiscard]] int device_of(const GpuActivity& activity, int queued_for) const {
    // Several devices of a program may be the same GPU.
    if (at(ordinals_, queued_for) == activity.device) return queued_for;
    const auto at = std::ranges::find(ordinals_, activity.device);
    return at == ordinals_.end() ? queued_for : static_cast<int>(at - ordinals_.begin());
  }

  static inline std::atomic<CuptiRecords*> active{
      nullptr};  // the one that provides CUPTI's buffers

  std::unique_ptr<const CuptiLibrary> library_;
  std::vector<int> ordinals_;  // the devices' ordinals
  CuptiBuffers buffers_;
  CuptiReader reader_;
  CUpti_SubscriberHandle subscriber_ = nullptr;
  std::vector<Record> queued_;  // by pushed number, minus one
  std::size_t depth_ = 0;       // of pushed numbers
  std::map<std::uint64_t, Record> graph_nodes_;
  Record capturing_node_{};
  bool is_capturing_node_ = false;
  CuptiClock clock_;  // when records were enabled
  bool on_ = false;
  bool was_on_ = false;
  bool keeps_ = false;
  bool capturing_ = false;
  bool finished_ = false;
  std::int64_t not_noted_ = 0;  // nodes for which no number was left
  std::atomic<std::int64_t> dropped_by_cupti_{0};
  std::string trouble_;
};

}  // namespace

std::vector<std::string> cupti_files() {
  if (const char* const file = std::getenv("BARESTEP_CUPTI")) return {file};
  return {"libcupti.so.13", "libcupti.so.12", "/usr/local/cuda/lib64/libcupti.so",
          "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so"};
}

std::string cupti_version(const std::vector<std::string>& files, std::string& why) {
  const auto library = CuptiLibrary::load(files, why);
  return library == nullptr ? "" : library->version();
}

std::unique_ptr<GpuRecords> open_cupti(const std::vector<Device*>& devices, std::int64_t capacity,
                                       const std::vector<std::string>& files, std::string& why) {
  auto library = CuptiLibrary::load(files, why);
  if (library == nullptr) return nullptr;
  auto records = std::make_unique<CuptiRecords>(std::move(library), devices, capacity);
  why = records->subscribe();
  if (!why.empty()) return nullptr;
  return records;
}

}  // namespace barestep
