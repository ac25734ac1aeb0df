// Makes a rank of the real mlp_ddp fail at a chosen point. Loaded in front of MPI (LD_PRELOAD), it
// intercepts some of MPI's calls and forwards them by their PMPI names.
//
//   BARESTEP_FAULT=<rank>:<phase>:<fault>
//
// Phases: start (in MPI_Init_thread, after the real call), first (the first all-reduce), step (an
// all-reduce of a later step), exchange (a message to another stage), end (MPI_Finalize). Faults:
// exit0, exit1, kill9, segv, throw, hang, stop, size (the all-reduce or message is one number
// shorter than the other ranks expect).
#include <mpi.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace {

constexpr int kStepCall = 7;      // number of the all-reduce; each step has at least two
constexpr int kExchangeCall = 6;  // number of the message; each step has two micro-batches

struct Fault {
  std::string phase;
  std::string kind;

  static Fault of_this_rank() {
    const char* const text = std::getenv("BARESTEP_FAULT");
    const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
    if (rank == nullptr) rank = std::getenv("SLURM_PROCID");
    if (text == nullptr || rank == nullptr) return {};
    const std::string all = text;
    const std::size_t first = all.find(':');
    const std::size_t second = all.find(':', first + 1);
    if (all.substr(0, first) != rank) return {};
    return {all.substr(first + 1, second - first - 1), all.substr(second + 1)};
  }

  [[nodiscard]] bool is_at(const char* where) const { return phase == where; }

  void strike() const {
    // The start of the time measurement.
    const double now_s =
        std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    ::dprintf(STDERR_FILENO, "fault: struck at %.3f\n", now_s);
    if (kind == "exit0") std::exit(0);
    if (kind == "exit1") std::exit(1);
    if (kind == "kill9") ::kill(::getpid(), SIGKILL);
    if (kind == "segv") ::raise(SIGSEGV);
    if (kind == "throw") throw std::runtime_error("injected");
    if (kind == "stop") ::raise(SIGSTOP);
    while (kind == "hang") ::pause();
  }
};

const Fault& fault() {
  static const Fault mine = Fault::of_this_rank();
  return mine;
}

}  // namespace

extern "C" {

int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
  const int result = PMPI_Init_thread(argc, argv, required, provided);
  if (fault().is_at("start")) fault().strike();
  return result;
}

int MPI_Allreduce(const void* from, void* to, int count, MPI_Datatype type, MPI_Op op,
                  MPI_Comm comm) {
  static std::atomic<int> calls{0};
  const int call = ++calls;
  const bool strikes =
      (call == 1 && fault().is_at("first")) || (call == kStepCall && fault().is_at("step"));
  if (strikes) fault().strike();
  if (strikes && fault().kind == "size") --count;
  return PMPI_Allreduce(from, to, count, type, op, comm);
}

int MPI_Isend(const void* from, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request* request) {
  static std::atomic<int> calls{0};
  if (++calls == kExchangeCall && fault().is_at("exchange")) {
    fault().strike();
    if (fault().kind == "size") count -= sizeof(float);
  }
  return PMPI_Isend(from, count, type, to, tag, comm, request);
}

int MPI_Finalize() {
  if (fault().is_at("end")) fault().strike();
  return PMPI_Finalize();
}

}  // extern "C"
