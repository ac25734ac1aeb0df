// A CUDA runtime and a cuBLASLt without a GPU, linked in place of the real ones: the functions that
// src/kernels/cuda/*.cpp call. Everything in the CUDA device except the hardware runs on the host.
//
// Streams do their work immediately; a capture records it. The host can access device memory only
// while device work runs; new device memory is full of NaN. Products read their matrices through
// the given layouts. What CUDA forbids is refused with CUDA's codes: waiting or allocating in a
// capture, captures that are not joined, timing with events made for ordering, algorithms on
// operands with less alignment than promised.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace fake_cuda {

struct Machine {
  int devices = 1;
  int driver_version = 13000;
  int capability = 9;          // the major number
  int code_architecture = 90;  // what our kernels were compiled for
  int multiprocessors = 8;
  int threads_per_multiprocessor = 2048;
  std::int64_t memory_bytes = std::int64_t{1} << 30;
  int cache_bytes = 1 << 16;
  bool fused_products = true;  // kernels with bias inside exist
  std::size_t lt_version = 130100;
  int fastest_algorithm = 0;     // index among those that cuBLASLt offers
  bool chooses_by_rows = false;  // for each number of rows, cuBLASLt offers another one first
  bool peers = true;             // GPUs can access each other's memory
  // The GPU whose kernels of ours are fast on tensor cores alone; on others they are slow there.
  // Without one, they take the time of the host.
  std::optional<int> fast_tensor_cores{};
};

/// Resets the machine: nothing is scripted, and all counts are 0. Nothing may be allocated.
void reset(const Machine& machine = {});

/// Makes the `nth` call of a function from now on (1 is the next) return `status` and do nothing;
/// "kernel" stands for the launches of our kernels.
void fail(std::string_view function, int nth, int status);

/// Makes every call of every function return `status` from now on, as after a lost device.
void fail_all(int status);

/// Calls of a function so far, and of all functions whose calls can be made to fail; of launches of
/// kernels too.
int calls(std::string_view function);
int calls();

/// Currently allocated device memory, and objects (streams, events, graphs, descriptors) created
/// but not yet destroyed.
std::int64_t allocated_bytes();
int objects();

/// Number of nodes that graph launches have run so far: work that ran because it was captured.
int replayed();

/// Nodes of graphs captured so far that record an event.
int event_nodes();

/// The priorities that the nodes of graph launches have run with.
std::vector<int> priorities_replayed();

/// Instructions of tensor cores that our kernels have run.
std::int64_t tensor_products();

/// Launches of our kernels that may begin before the kernel before them has ended. Until such a
/// kernel waits for that end, it cannot access device memory. The launch is refused unless it
/// follows one of our kernels.
int launched_ahead();

/// The algorithm of the last product.
int last_algorithm();

}  // namespace fake_cuda
