#include "support/host_cuda.h"

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <exception>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

// The linker's names for the section where the shim's cuda_runtime.h puts __shared__ variables.
// Weak, because some programs have none.
extern "C" {
[[gnu::weak]] extern char __start_host_cuda_shared[];
[[gnu::weak]] extern char __stop_host_cuda_shared[];
}

namespace host_cuda {
namespace {

constexpr unsigned kWarp = 32;
constexpr std::size_t kStackBytes = std::size_t{64} * 1024;
constexpr int kPoison = 0xFF;  // floats and doubles of these bytes are NaN

enum class State { kNew, kReady, kAtBegin, kAtBarrier, kAtShuffle, kAtWarpAct, kDone };

struct PendingCopy {
  void* to;
  std::array<std::byte, 16> bytes;
  unsigned size;
};

struct SharedAccess {
  std::uintptr_t address;
  unsigned bytes;
};

struct Fiber {
  ucontext_t context{};
  std::unique_ptr<char[]> stack = std::make_unique_for_overwrite<char[]>(kStackBytes);
  State state = State::kNew;
  bool has_begun = false;
  bool has_fenced = false;
  Index thread;
  Shuffle kind = Shuffle::kXor;
  unsigned lanes = 0;
  int argument = 0;
  std::uint64_t value = 0;
  Lane lane{};
  WarpAct act = nullptr;
  std::vector<PendingCopy> copies;
  std::size_t committed = 0;  // copies committed, from the first on
  std::vector<SharedAccess> accesses;
};

/// Reused for every launch, so their stacks are created only once.
std::span<Fiber> fibers_of(std::size_t threads) {
  static std::vector<Fiber> all;
  if (all.size() < threads) all = std::vector<Fiber>(threads);
  return std::span(all).first(threads);
}

/// Runs one launch.
class Grid {
 public:
  Grid(Index grid, Index block, std::size_t shared_bytes, const std::function<void()>& kernel,
       Begin begin)
      : kernel_(kernel),
        begin_(begin),
        fibers_(fibers_of(std::size_t{block.x} * block.y * block.z)),
        shared_(shared_bytes) {
    place = {.thread = {}, .block = {}, .block_size = block, .grid_size = grid};
  }

  void run_block(Index block, bool backward);

  // Functions for the running fiber.
  void wait(State at);
  void begin_fiber();
  [[nodiscard]] Fiber& fiber() { return fibers_[running_]; }
  [[nodiscard]] void* shared() { return shared_.data(); }

 private:
  static void enter();
  void begin(std::size_t i);
  bool begin_next();
  void prepare(std::size_t i);
  static void make_context(Fiber& fiber);
  bool run_ready();
  bool release_warps();
  bool release_warp_acts();
  void count_accesses();
  bool release_begin();
  bool release_barrier();
  [[nodiscard]] std::size_t count(State state) const;
  [[noreturn]] void report_deadlock() const;

  const std::function<void()>& kernel_;
  const Begin begin_;
  const std::span<Fiber> fibers_;
  std::vector<char> shared_;
  ucontext_t scheduler_{};
  std::size_t running_ = 0;
  bool backward_ = false;
  std::exception_ptr error_;
};

Grid* active = nullptr;  // tests run kernels on one thread
Order first_order = Order::kFirstThread;
int launch_count = 0;
std::uint64_t last_threads = 0;
Queue taker = nullptr;
Gate gate = nullptr;
SharedTraffic shared_traffic;
std::map<const void*, std::size_t> shared_limits;

/// A thread that ends without waiting leaves its stack to the next one, which avoids most switches.
void Grid::enter() {
  try {
    do {
      active->kernel_();
      active->fiber().state = State::kDone;
    } while (active->begin_next());
  } catch (...) {
    active->error_ = std::current_exception();
  }
  active->wait(State::kDone);
}

void Grid::begin(std::size_t i) {
  running_ = i;
  fibers_[i].state = State::kReady;
  place.thread = fibers_[i].thread;
}

bool Grid::begin_next() {
  const std::size_t next = backward_ ? running_ - 1 : running_ + 1;  // wraps around before first
  if (next >= fibers_.size() || fibers_[next].state != State::kNew) return false;
  begin(next);
  return true;
}

void Grid::wait(State at) {
  Fiber& self = fiber();
  self.state = at;
  swapcontext(&self.context, &scheduler_);
}

void Grid::prepare(std::size_t i) {
  Fiber& fiber = fibers_[i];
  const auto number = static_cast<unsigned>(i);
  const Index size = place.block_size;
  fiber.state = State::kNew;
  fiber.has_begun = false;
  fiber.has_fenced = false;
  fiber.copies.clear();
  fiber.committed = 0;
  fiber.accesses.clear();
  fiber.thread = {number % size.x, number / size.x % size.y, number / (size.x * size.y)};
}

/// On the fiber's own stack, which no other thread of the block uses.
void Grid::make_context(Fiber& fiber) {
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = kStackBytes;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, &Grid::enter, 0);
}

void Grid::begin_fiber() {
  Fiber& self = fiber();
  require(!self.has_begun, "a kernel begins twice");
  self.has_begun = true;
  if (begin_ == Begin::kAhead) wait(State::kAtBegin);
}

bool Grid::release_begin() {
  if (count(State::kAtBegin) < fibers_.size()) return false;
  if (gate != nullptr) gate(true);
  for (Fiber& fiber : fibers_) fiber.state = State::kReady;
  return true;
}

void Grid::run_block(Index block, bool backward) {
  place.block = block;
  backward_ = backward;
  std::fill(shared_.begin(), shared_.end(), static_cast<char>(kPoison));
  if (__start_host_cuda_shared != nullptr) {
    std::memset(__start_host_cuda_shared, kPoison,
                static_cast<std::size_t>(__stop_host_cuda_shared - __start_host_cuda_shared));
  }
  for (std::size_t i = 0; i < fibers_.size(); ++i) prepare(i);
  if (begin_ == Begin::kAhead && gate != nullptr) gate(false);
  while (count(State::kDone) < fibers_.size()) {
    const bool ran = run_ready();
    const bool released =
        release_begin() || release_warps() || release_warp_acts() || release_barrier();
    if (!ran && !released) report_deadlock();
  }
  count_accesses();
  for (const Fiber& fiber : fibers_) {
    if (begin_ != Begin::kAsItLikes && !fiber.has_begun)
      throw std::runtime_error("a thread does not wait for the kernels before its own");
    if (!fiber.copies.empty()) throw std::runtime_error("a thread ends before its copies");
  }
}

bool Grid::run_ready() {
  bool ran = false;
  for (std::size_t k = 0; k < fibers_.size(); ++k) {
    const std::size_t i = backward_ ? fibers_.size() - 1 - k : k;
    if (fibers_[i].state == State::kNew)
      make_context(fibers_[i]);
    else if (fibers_[i].state != State::kReady)
      continue;
    begin(i);
    swapcontext(&scheduler_, &fibers_[i].context);
    if (error_) std::rethrow_exception(error_);
    ran = true;
  }
  return ran;
}

/// Releases the warps in which all lanes named by a shuffle wait at it.
bool Grid::release_warps() {
  bool released = false;
  for (std::size_t first = 0; first < fibers_.size(); first += kWarp) {
    const std::size_t size = std::min<std::size_t>(kWarp, fibers_.size() - first);
    Fiber* const warp = &fibers_[first];
    unsigned waiting = 0;
    for (std::size_t lane = 0; lane < size; ++lane) {
      if (warp[lane].state == State::kAtShuffle) waiting |= 1U << lane;
    }
    if (waiting == 0) continue;
    const auto agree = [&](const Fiber& fiber) {
      return fiber.state != State::kAtShuffle ||
             (fiber.lanes == waiting && fiber.kind == warp[__builtin_ctz(waiting)].kind);
    };
    if (!std::all_of(warp, warp + size, agree)) continue;
    std::uint64_t values[kWarp] = {};
    for (std::size_t lane = 0; lane < size; ++lane) values[lane] = warp[lane].value;
    for (unsigned lane = 0; lane < size; ++lane) {
      Fiber& fiber = warp[lane];
      if (fiber.state != State::kAtShuffle) continue;
      const auto argument = static_cast<unsigned>(fiber.argument);
      unsigned source = argument;
      if (fiber.kind == Shuffle::kXor) source = lane ^ argument;
      if (fiber.kind == Shuffle::kDown) source = lane + argument;
      if (source >= kWarp) source = lane;
      if ((waiting >> source & 1U) == 0) throw std::runtime_error("a shuffle reads an absent lane");
      fiber.value = values[source];
      fiber.state = State::kReady;
    }
    released = true;
  }
  return released;
}

bool Grid::release_warp_acts() {
  bool released = false;
  for (std::size_t first = 0; first + kWarp <= fibers_.size(); first += kWarp) {
    const auto warp = fibers_.subspan(first, kWarp);
    const WarpAct act = warp.front().act;
    if (!std::ranges::all_of(warp, [&](const Fiber& fiber) {
          return fiber.state == State::kAtWarpAct && fiber.act == act;
        })) {
      continue;
    }
    Lane lanes[kWarp];
    std::ranges::transform(warp, lanes, &Fiber::lane);
    act(lanes);
    for (Fiber& fiber : warp) fiber.state = State::kReady;
    released = true;
  }
  return released;
}

/// Accesses of 8 or 16 bytes per lane are split into halves or quarters of the warp. Different
/// words of one of the 32 banks are accessed one after the other.
std::uint64_t rounds_of(std::span<const SharedAccess> lanes) {
  std::array<std::vector<std::uintptr_t>, kWarp> banks;
  for (const SharedAccess& lane : lanes) {
    for (std::uintptr_t word = lane.address / 4; word < (lane.address + lane.bytes) / 4; ++word) {
      auto& bank = banks[word % kWarp];
      if (std::ranges::find(bank, word) == bank.end()) bank.push_back(word);
    }
  }
  return std::ranges::max(banks, {}, &std::vector<std::uintptr_t>::size).size();
}

/// Counts the accesses of all threads since the last barrier.
void Grid::count_accesses() {
  for (std::size_t first = 0; first < fibers_.size(); first += kWarp) {
    const auto warp = fibers_.subspan(first, std::min<std::size_t>(kWarp, fibers_.size() - first));
    const std::size_t times = warp.front().accesses.size();
    for (const Fiber& fiber : warp) {
      if (fiber.accesses.size() != times)
        throw std::runtime_error("lanes of a warp access shared memory unequally often");
    }
    for (std::size_t i = 0; i < times; ++i) {
      std::vector<SharedAccess> lanes;
      for (const Fiber& fiber : warp) lanes.push_back(fiber.accesses[i]);
      ++shared_traffic.accesses;
      const std::size_t together = kWarp * 4 / lanes.front().bytes;
      for (std::size_t lane = 0; lane < lanes.size(); lane += together) {
        const std::size_t size = std::min(together, lanes.size() - lane);
        shared_traffic.rounds += rounds_of(std::span(lanes).subspan(lane, size));
        ++shared_traffic.min_rounds;
      }
    }
    for (Fiber& fiber : warp) fiber.accesses.clear();
  }
}

bool Grid::release_barrier() {
  if (count(State::kAtBarrier) < fibers_.size()) return false;
  count_accesses();
  for (Fiber& fiber : fibers_) fiber.state = State::kReady;
  return true;
}

std::size_t Grid::count(State state) const {
  return static_cast<std::size_t>(
      std::ranges::count(fibers_, state, [](const Fiber& fiber) { return fiber.state; }));
}

void Grid::report_deadlock() const {
  throw std::runtime_error("of " + std::to_string(fibers_.size()) + " threads " +
                           std::to_string(count(State::kAtBegin)) + " wait at begin_kernel, " +
                           std::to_string(count(State::kAtBarrier)) + " at __syncthreads, " +
                           std::to_string(count(State::kAtShuffle)) + " at a shuffle, " +
                           std::to_string(count(State::kAtWarpAct)) + " at an mma, and " +
                           std::to_string(count(State::kDone)) + " are done");
}

}  // namespace

Place place;

void set_order(Order order) {
  first_order = order;
}

void run(Index grid, Index block, std::size_t shared_bytes, const std::function<void()>& kernel,
         Begin begin) {
  Grid launch(grid, block, shared_bytes, kernel, begin);
  active = &launch;
  const bool reversed = first_order == Order::kLastThread;
  const std::uint64_t blocks = std::uint64_t{grid.x} * grid.y * grid.z;
  for (std::uint64_t i = 0; i < blocks; ++i) {
    const std::uint64_t number = reversed ? blocks - 1 - i : i;
    const Index index{static_cast<unsigned>(number % grid.x),
                      static_cast<unsigned>(number / grid.x % grid.y),
                      static_cast<unsigned>(number / grid.x / grid.y)};
    launch.run_block(index, (number % 2 == 1) != reversed);
  }
}

void fence() {
  active->fiber().has_fenced = true;
}

unsigned count_up(unsigned* number, unsigned max) {
  bool& has_fenced = active->fiber().has_fenced;
  require(has_fenced, "a thread counts without a fence");
  has_fenced = false;
  const unsigned old = *number;
  *number = old >= max ? 0 : old + 1;
  return old;
}

void set_queue(Queue queue) {
  taker = queue;
}

void set_gate(Gate new_gate) {
  gate = new_gate;
}

void begin_kernel() {
  active->begin_fiber();
}

int queue(void* stream, std::function<void()> work, bool ahead) {
  if (taker != nullptr) return taker(stream, std::move(work), ahead);
  work();
  return 0;
}

MachineOfKernels& machine() {
  static MachineOfKernels the;
  return the;
}

int launches() {
  return launch_count;
}

void count_launch(std::uint64_t threads) {
  ++launch_count;
  last_threads = threads;
}

std::uint64_t launched_threads() {
  return last_threads;
}

void* dynamic_shared() {
  return active->shared();
}

void allow_shared(const void* kernel, std::size_t bytes) {
  shared_limits[kernel] = bytes;
}

std::size_t allowed_shared(const void* kernel) {
  const auto found = shared_limits.find(kernel);
  return found == shared_limits.end() ? 0 : found->second;
}

void require(bool ok, const char* what) {
  if (!ok) {
    throw std::runtime_error(std::string(what) + ", thread " + std::to_string(place.thread.x) +
                             " of block " + std::to_string(place.block.x));
  }
}

SharedTraffic take_shared_traffic() {
  return std::exchange(shared_traffic, {});
}

void note_shared_access(const void* address, unsigned bytes) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  require(at % bytes == 0, "a misaligned access to shared memory");
  active->fiber().accesses.push_back({at, bytes});
}

void begin_copy(void* to, const void* from, unsigned bytes) {
  ++machine().copies;
  PendingCopy copy{to, {}, bytes};
  if (from != nullptr) std::memcpy(copy.bytes.data(), from, bytes);
  std::memset(to, kPoison, bytes);
  active->fiber().copies.push_back(copy);
}

void commit_copies() {
  Fiber& self = active->fiber();
  self.committed = self.copies.size();
}

void wait_for_copies() {
  Fiber& self = active->fiber();
  const auto end = self.copies.begin() + static_cast<std::ptrdiff_t>(self.committed);
  for (auto copy = self.copies.begin(); copy != end; ++copy) {
    std::memcpy(copy->to, copy->bytes.data(), copy->size);
  }
  self.copies.erase(self.copies.begin(), end);
  self.committed = 0;
}

void run_by_warp(Lane lane, WarpAct act) {
  Fiber& self = active->fiber();
  self.lane = lane;
  self.act = act;
  active->wait(State::kAtWarpAct);
}

void synchronize_threads() {
  active->wait(State::kAtBarrier);
}

std::uint64_t shuffle(Shuffle kind, unsigned lanes, std::uint64_t value, int argument) {
  Fiber& self = active->fiber();
  self.kind = kind;
  self.lanes = lanes;
  self.argument = argument;
  self.value = value;
  active->wait(State::kAtShuffle);
  return active->fiber().value;
}

}  // namespace host_cuda
