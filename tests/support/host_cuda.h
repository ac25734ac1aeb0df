// Runs CUDA kernels on the host, so that tests see them without a GPU.
//
// The text of a kernel and of its launcher is compiled by g++ with tests/support/host_cuda/ first
// in the include path, whose cuda_runtime.h maps CUDA's words to what stands here. Every CUDA
// thread of a block is a fiber; barriers and shuffles switch fibers. Blocks run one after the
// other. Shared memory is full of NaN before each block. Threads run in opposite orders in
// neighbouring blocks, so that what depends on their order shows.
//
// Found: barriers and shuffles that not all threads reach, reads of shared memory that lack a
// barrier or come before the copy they need is complete, bank conflicts, misaligned vectors, and,
// under AddressSanitizer, accesses out of bounds. Not found: what only the hardware does (caches,
// races between blocks, the bits of approximations, how many registers there are).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>

namespace host_cuda {

struct Index {
  unsigned x = 1, y = 1, z = 1;
};

/// Where the running fiber stands: what CUDA calls threadIdx, blockIdx, blockDim and gridDim.
struct Place {
  Index thread, block, block_size, grid_size;
};
extern Place place;

/// Which thread of the first block runs first.
enum class Order { kFirstThread, kLastThread };

/// The order of all runs from now on.
void set_order(Order order);

/// What is asked of a kernel that runs: nothing; that all its threads call begin_kernel(), once; or
/// that they also do without memory until then, as a kernel must that is launched ahead.
enum class Begin { kAsItLikes, kByWaiting, kAhead };

/// Calls `kernel` once for every thread of the grid; blocks. Rethrows what a thread throws. Throws
/// std::runtime_error where threads wait for each other for ever, naming what they wait at.
void run(Index grid, Index block, std::size_t shared_bytes, const std::function<void()>& kernel,
         Begin begin = Begin::kAsItLikes);

/// Before each block of a kernel that is launched ahead it is called with false, and takes memory
/// away; once all threads of the block wait in begin_kernel() it is called with true. Null, the
/// default, does nothing.
using Gate = void (*)(bool open);
void set_gate(Gate gate);
void begin_kernel();

/// Takes what a launcher queues on a stream and returns CUDA's code; null, the default, runs it at
/// once. `ahead`: of the end of the kernel before it.
using Queue = int (*)(void* stream, std::function<void()> work, bool ahead);
void set_queue(Queue queue);
int queue(void* stream, std::function<void()> work, bool ahead = false);

/// Launches that were asked for so far, those that were refused included.
int launches();
void count_launch(std::uint64_t threads);
/// The threads of the last one, all blocks together.
std::uint64_t launched_threads();

/// Memory that the threads of a block share, of the size that its launch asked for.
void* dynamic_shared();

/// The dynamic shared memory that a kernel may ask for beyond the usual; 0 until it is allowed.
void allow_shared(const void* kernel, std::size_t bytes);
std::size_t allowed_shared(const void* kernel);

/// Throws std::runtime_error where `ok` is false, naming the thread.
void require(bool ok, const char* what);

/// Warps' accesses to dynamic shared memory that were noted, how many rounds their banks took for
/// them, and how many they would take without conflicts.
struct SharedTraffic {
  std::uint64_t accesses = 0, rounds = 0, least_rounds = 0;
};
/// Since the last call.
SharedTraffic take_shared_traffic();
/// Notes that the running thread accesses 4, 8 or 16 bytes; the lanes of a warp do it as often as
/// each other.
void note_shared_access(const void* address, unsigned bytes);

/// An asynchronous copy of at most 16 bytes to shared memory, of zeros where `from` is null: it
/// reads now and writes when it is waited for; until then its destination is NaN. A thread that
/// ends with copies that were not waited for throws.
void begin_copy(void* to, const void* from, unsigned bytes);
void commit_copies();
void wait_for_copies();

/// What a lane brings to an instruction of a whole warp, and where it takes the result.
struct Lane {
  const void* in;
  void* out;
};
/// Waits for all lanes of the warp; then `act` runs once for all of them.
using WarpAct = void (*)(const Lane (&lanes)[32]);
void run_by_warp(Lane lane, WarpAct act);

void synchronize_threads();

/// What lane `source` of a warp, or the partner by `lane ^ mask`, holds. Every thread that `lanes`
/// names must call it.
enum class Shuffle { kXor, kDown, kLane };
std::uint64_t shuffle(Shuffle kind, unsigned lanes, std::uint64_t value, int argument);

template <class T>
T shuffle(Shuffle kind, unsigned lanes, T value, int argument) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(std::uint64_t));
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = shuffle(kind, lanes, bits, argument);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

}  // namespace host_cuda
