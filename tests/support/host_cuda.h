// Runs CUDA kernels on the host, so that tests can check them without a GPU.
//
// The source of a kernel and of its launcher is compiled by g++ with tests/support/host_cuda/ first
// in the include path; its cuda_runtime.h maps CUDA's keywords and functions to those here. Every
// CUDA thread of a block is a fiber; barriers and shuffles switch fibers. Blocks run one after the
// other. Shared memory is full of NaN before each block. Threads run in opposite orders in
// neighboring blocks, which exposes results that depend on their order.
//
// Detected: barriers and shuffles that not all threads reach; reads of shared memory that lack a
// barrier or precede the end of the copy they need; bank conflicts; misaligned vectors; blocks
// counted as finished without any fence; and, under AddressSanitizer, accesses out
// of bounds. Not detected: effects of the hardware (caches, races between blocks, the bits of
// approximations, the number of registers).
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

/// The position of the running fiber: CUDA's threadIdx, blockIdx, blockDim and gridDim.
struct Place {
  Index thread, block, block_size, grid_size;
};
extern Place place;

/// Which thread of the first block runs first; with kLastThread, the last block also runs first.
enum class Order { kFirstThread, kLastThread };

/// Sets the order for all runs from now on.
void set_order(Order order);

/// The requirement on a kernel that runs: none; that all its threads call begin_kernel() exactly
/// once; or that they also use no memory before it, as a kernel launched ahead must.
enum class Begin { kAsItLikes, kByWaiting, kAhead };

/// Calls `kernel` once for every thread of the grid; blocks. Rethrows exceptions of threads. Throws
/// std::runtime_error on a deadlock between threads, naming what they wait at.
void run(Index grid, Index block, std::size_t shared_bytes, const std::function<void()>& kernel,
         Begin begin = Begin::kAsItLikes);

/// Called before each block of a kernel launched ahead with false, to take memory away, and with
/// true once all threads of the block wait in begin_kernel(). Null, the default, does nothing.
using Gate = void (*)(bool open);
void set_gate(Gate gate);
void begin_kernel();

/// Receives the work that a launcher queues on a stream and returns CUDA's code; null, the default,
/// runs it immediately. `ahead`: it may begin before the kernel before it has ended.
using Queue = int (*)(void* stream, std::function<void()> work, bool ahead);
void set_queue(Queue queue);
int queue(void* stream, std::function<void()> work, bool ahead = false);

/// What tests state about the machine, and what they ask about its use.
struct MachineOfKernels {
  int code_architecture = 90;        // what the kernels were compiled for
  int carveout = -1;                 // the share of shared memory that a kernel asked for last
  std::int64_t tensor_products = 0;  // instructions of tensor cores so far
  std::int64_t copies = 0;           // asynchronous ones so far
};
MachineOfKernels& machine();

/// Number of requested launches so far, including refused ones.
int launches();
void count_launch(std::uint64_t threads);
/// The threads of the last launch, over all blocks.
std::uint64_t launched_threads();

/// Memory shared by the threads of a block, of the size requested by its launch.
void* dynamic_shared();

/// The dynamic shared memory that a kernel may request beyond the default; 0 until it is allowed.
void allow_shared(const void* kernel, std::size_t bytes);
std::size_t allowed_shared(const void* kernel);

/// Throws std::runtime_error if `ok` is false, naming the thread.
void require(bool ok, const char* what);

/// Recorded accesses of warps to dynamic shared memory, the rounds that the banks took for them,
/// and the rounds they would take without conflicts.
struct SharedTraffic {
  std::uint64_t accesses = 0, rounds = 0, min_rounds = 0;
};
/// The traffic since the last call.
SharedTraffic take_shared_traffic();
/// Records that the running thread accesses 4, 8 or 16 bytes; all lanes of a warp must do so
/// equally often.
void note_shared_access(const void* address, unsigned bytes);

/// An asynchronous copy of at most 16 bytes to shared memory, or of zeros if `from` is null. It
/// reads now and writes when it is waited for; until then its destination is NaN. Throws if a
/// thread ends without waiting for its copies.
void begin_copy(void* to, const void* from, unsigned bytes);
void commit_copies();
void wait_for_copies();

/// One lane's input to an instruction of the whole warp, and where its result goes.
struct Lane {
  const void* in;
  void* out;
};
/// Waits for all lanes of the warp, then runs `act` once for all of them.
using WarpAct = void (*)(const Lane (&lanes)[32]);
void run_by_warp(Lane lane, WarpAct act);

void synchronize_threads();

/// CUDA's __threadfence() and atomicInc(). count_up() throws if the thread has not called fence()
/// since it last counted: what it wrote may not be visible to a block that sees the count. That the
/// fence comes after the writes is not checked.
void fence();
unsigned count_up(unsigned* number, unsigned max);

/// The value held by lane `source` of a warp, or by the partner `lane ^ mask`. Every thread named
/// in `lanes` must call it.
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
