// Streams and events of the CPU device.
//
// A stream is a FIFO with its own worker thread. So work on two streams really overlaps, and a
// missing wait is a real race, as on a GPU. Queueing stops allocating once the queue has grown to
// the longest backlog of the run.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <variant>
#include <vector>

#include "core/config.h"
#include "core/device.h"
#include "core/host.h"

namespace barestep {

class CpuGraph;

/// The state that the streams of a device share.
class CpuExecutor {
 public:
  explicit CpuExecutor(Denormals denormals = Denormals::kFlush) : denormals_(denormals) {}
  virtual ~CpuExecutor() = default;

  /// How the streams' threads compute, also in functions of the host that a stream calls, such as
  /// sums over ranks.
  [[nodiscard]] Denormals denormals() const { return denormals_; }

  /// Runs one op on the calling thread; a stream's worker calls it.
  virtual void execute(const DeviceOp& op, const Addresses& addresses, const Tag& tag) = 0;

  /// The graph that records work instead of queueing it; null while nothing is captured.
  CpuGraph* capture = nullptr;

 private:
  Denormals denormals_;
};

/// Counts recordings. Generations are compared by signed difference, so they may wrap.
struct CpuEventState {
  std::atomic<std::uint32_t> recorded{0};  // recordings queued
  std::atomic<std::uint32_t> reached{0};   // recordings done
  std::atomic<double> reached_at_s{0};     // steady clock; of the latest recording
};

class CpuEvent final : public Event {
 public:
  void record(Stream& stream) override;
  [[nodiscard]] bool reached() const override;
  void synchronize() const override;
  [[nodiscard]] double seconds_since(const Event& earlier) const override;
  [[nodiscard]] std::optional<double> reached_at_s() const override;

 private:
  friend class CpuStream;
  // Shared with queued commands, since an event may be destroyed while its recording is still
  // queued.
  std::shared_ptr<CpuEventState> state_ = std::make_shared<CpuEventState>();
};

class CpuStream final : public Stream {
 public:
  /// `executor` must outlive the stream, whose thread runs on `place`, if there is one. One that
  /// `is_brief` copies and sends, and interrupts those that compute (core/host.h).
  explicit CpuStream(CpuExecutor& executor, std::optional<CpuSet> place = {},
                     bool is_brief = false);
  /// Finishes all queued work.
  ~CpuStream() override;
  CpuStream(const CpuStream&) = delete;
  CpuStream& operator=(const CpuStream&) = delete;

  void wait(const Event& event) override;
  void call(void (*function)(void*), void* argument) override;
  void synchronize() override;
  void check() override;
  [[nodiscard]] void* native() const override { return nullptr; }

  void run(const DeviceOp& op, const Addresses& addresses, const Tag& tag);
  void copy(void* to, const void* from, std::int64_t bytes);

 private:
  friend class CpuEvent;
  friend class CpuGraph;

  struct RunOp {
    const DeviceOp* op;
    const Addresses* addresses;
    Tag tag;
  };
  struct CopyBytes {
    void* to;
    const void* from;
    std::int64_t bytes;
  };
  struct CallHost {
    void (*function)(void*);
    void* argument;
  };
  struct RecordEvent {
    std::shared_ptr<CpuEventState> state;
    std::uint32_t generation;
  };
  struct WaitForEvent {
    std::shared_ptr<CpuEventState> state;
    std::uint32_t generation;
  };
  struct Stop {};
  using Command = std::variant<Stop, RunOp, CopyBytes, CallHost, RecordEvent, WaitForEvent>;

  /// Adds the command to the capture if there is one, else queues it.
  void submit(Command command);
  void push(Command command);
  Command pop();
  void work(const std::optional<CpuSet>& place, bool is_brief);
  /// Runs one command; false when it is Stop.
  bool perform(Command& command);
  /// Runs the work unless the stream has failed.
  template <class F>
  void attempt(const F& work);

  CpuExecutor& executor_;
  CpuEvent drained_;

  std::mutex mutex_;  // guards the ring and the error
  std::vector<Command> ring_;
  std::size_t first_ = 0;
  std::size_t count_ = 0;
  std::exception_ptr error_;

  std::atomic<std::uint32_t> pushed_{0};
  std::thread worker_;  // last, so it starts after all others are ready
};

/// The commands of all streams in the order of submission. A launch queues them again; recordings
/// and waits then get new numbers.
class CpuGraph final : public Graph {
 public:
  void launch(std::int64_t step);

 private:
  friend class CpuStream;
  struct Submitted {
    CpuStream* stream;
    CpuStream::Command command;
  };
  std::vector<Submitted> commands_;
};

}  // namespace barestep
