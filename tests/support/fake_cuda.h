// A CUDA runtime and a cuBLASLt without a GPU, linked in their place: the functions that
// src/kernels/cuda/*.cpp call, so that all of the CUDA device but the hardware runs on the host.
//
// Streams do their work at once, a capture notes it. Device memory is out of the host's reach
// except while device work runs, and full of NaN when it is new. Products read their matrices
// through the layouts they are given. What CUDA forbids is refused with CUDA's codes: waiting or
// allocating in a capture, captures that are not joined, timing events made for order, algorithms
// on operands less aligned than was promised.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fake_cuda {

struct Machine {
  int devices = 1;
  int driver_version = 13000;
  int capability = 9;  // its first number
  int multiprocessors = 8;
  int threads_per_multiprocessor = 2048;
  std::int64_t memory_bytes = std::int64_t{1} << 30;
  bool fused_products = true;  // there are kernels with bias inside
  std::size_t lt_version = 130100;
  int fastest_algorithm = 0;     // of those that cuBLASLt offers, in its order
  bool chooses_by_rows = false;  // cuBLASLt offers another algorithm first for each number of rows
  bool peers = true;             // GPUs reach each other's memory
};

/// A machine as new, with nothing scripted and all counts 0. Nothing may be allocated.
void reset(const Machine& machine = {});

/// The `nth` call of a function from now on, 1 being the next, returns `status` and does nothing;
/// "kernel" stands for the launches of our kernels.
void fail(std::string_view function, int nth, int status);

/// From now on every call of every function returns `status`, as after a lost device.
void fail_all(int status);

/// Calls of a function so far.
int calls(std::string_view function);

/// Device memory that is allocated now, and objects (streams, events, graphs, descriptors) that
/// were made and not destroyed.
std::int64_t allocated_bytes();
int objects();

/// Graph launches' nodes so far: work that ran because it was captured.
int replayed();

/// Launches of our kernels that may begin before the kernel ahead of them has ended. While one has
/// not waited for that, device memory is out of its reach; after anything but a kernel of ours
/// such a launch is refused.
int launched_ahead();

/// Which algorithm the last product ran with.
int last_algorithm();

}  // namespace fake_cuda
