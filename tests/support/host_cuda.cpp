#include "support/host_cuda.h"

#include <ucontext.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

// The linker's names for the section where the shim's cuda_runtime.h puts __shared__ variables.
// Weak, because a program may have none.
extern "C" {
[[gnu::weak]] extern char __start_host_cuda_shared[];
[[gnu::weak]] extern char __stop_host_cuda_shared[];
}

namespace host_cuda {
namespace {

constexpr unsigned kWarp = 32;
constexpr std::size_t kStackBytes = std::size_t{64} * 1024;
constexpr int kPoison = 0xFF;  // floats and doubles of such bytes are NaN

enum class State { kNew, kReady, kAtBarrier, kAtShuffle, kDone };

struct Fiber {
  ucontext_t context{};
  std::unique_ptr<char[]> stack = std::make_unique_for_overwrite<char[]>(kStackBytes);
  State state = State::kNew;
  Index thread;
  Shuffle kind = Shuffle::kXor;
  unsigned lanes = 0;
  int argument = 0;
  std::uint64_t value = 0;
};

/// The same ones for every launch, so that their stacks are made once.
std::span<Fiber> fibers_of(std::size_t threads) {
  static std::vector<Fiber> all;
  if (all.size() < threads) all = std::vector<Fiber>(threads);
  return std::span(all).first(threads);
}

/// One launch.
class Grid {
 public:
  Grid(Index grid, Index block, std::size_t shared_bytes, const std::function<void()>& kernel)
      : kernel_(kernel),
        fibers_(fibers_of(std::size_t{block.x} * block.y * block.z)),
        shared_(shared_bytes) {
    place = {.thread = {}, .block = {}, .block_size = block, .grid_size = grid};
  }

  void run_block(Index block, bool backward);

  // For the running fiber.
  void wait(State at);
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
  bool release_barrier();
  [[nodiscard]] std::size_t count(State state) const;
  [[noreturn]] void report_deadlock() const;

  const std::function<void()>& kernel_;
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

/// A thread that ends without waiting leaves its stack to the next one, which saves most switches.
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
  const std::size_t next = backward_ ? running_ - 1 : running_ + 1;  // none is before the first
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
  fiber.thread = {number % size.x, number / size.x % size.y, number / (size.x * size.y)};
}

/// On its own stack, on which no other thread of the block lies.
void Grid::make_context(Fiber& fiber) {
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = kStackBytes;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, &Grid::enter, 0);
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
  while (count(State::kDone) < fibers_.size()) {
    const bool ran = run_ready();
    const bool released = release_warps() || release_barrier();
    if (!ran && !released) report_deadlock();
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

/// Lets a warp go on whose lanes wait at the same shuffle, all that it names.
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

bool Grid::release_barrier() {
  if (count(State::kAtBarrier) < fibers_.size()) return false;
  for (Fiber& fiber : fibers_) fiber.state = State::kReady;
  return true;
}

std::size_t Grid::count(State state) const {
  return static_cast<std::size_t>(
      std::ranges::count(fibers_, state, [](const Fiber& fiber) { return fiber.state; }));
}

void Grid::report_deadlock() const {
  throw std::runtime_error("of " + std::to_string(fibers_.size()) + " threads " +
                           std::to_string(count(State::kAtBarrier)) + " wait at __syncthreads, " +
                           std::to_string(count(State::kAtShuffle)) + " at a shuffle, and " +
                           std::to_string(count(State::kDone)) + " are done");
}

}  // namespace

Place place;

void set_order(Order order) {
  first_order = order;
}

void run(Index grid, Index block, std::size_t shared_bytes, const std::function<void()>& kernel) {
  Grid launch(grid, block, shared_bytes, kernel);
  active = &launch;
  bool backward = first_order == Order::kLastThread;
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x, backward = !backward) {
        launch.run_block({x, y, z}, backward);
      }
    }
  }
}

void set_queue(Queue queue) {
  taker = queue;
}

int queue(void* stream, std::function<void()> work) {
  if (taker != nullptr) return taker(stream, std::move(work));
  work();
  return 0;
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
