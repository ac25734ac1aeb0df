// A communicator whose collectives are recorded: when each ran on each device, and when the host
// queued it.
#pragma once

#include <deque>

#include "core/forwarding_communicator.h"
#include "profiler/profiled_device.h"

namespace barestep {

/// Hands everything on to another communicator. One that sends no records of its own is measured in
/// the order of its streams: from `gpu` where there is one, else by calls of the host around a
/// collective.
class ProfiledCommunicator final : public ForwardingCommunicator {
 public:
  /// Off at first. `device` is the process's first. All must outlive it, and the work that was
  /// queued while it was on.
  ProfiledCommunicator(Communicator& inner, RecordCollector& collector,
                       const ProfiledDevice& device, GpuRecords* gpu = nullptr);

  /// Between two steps, by the thread that queues, while no collective is queued.
  void turn(bool on);

  void prepare(const Collective& collective) override;
  void run(const Collective& collective, const Addresses& addresses,
           std::span<Stream* const> streams, Tag tag) override;
  void set_record_sink(RecordSink* sink) override;

 private:
  /// Gives collectives of a graph, which know the step of their capture, that of the last launch.
  class Steps final : public RecordSink {
   public:
    Steps(RecordCollector& collector, const ProfiledDevice& device)
        : collector_(collector), device_(device) {}
    void on_record(const Record& record) override;

   private:
    RecordCollector& collector_;
    const ProfiledDevice& device_;
  };

  /// One part of a collective while its stream has not come to its end.
  struct Mark {
    RecordSink* sink;
    Record record;
  };
  static void begin_mark(void* argument);
  static void end_mark(void* argument);

  void begin(const Collective& collective, std::span<Stream* const> streams, const Tag& tag);
  void end(std::span<Stream* const> streams);

  RecordCollector& collector_;
  const ProfiledDevice& device_;
  GpuRecords* gpu_;
  Steps steps_;
  RecordFork fork_;
  bool on_ = false;
  std::deque<Mark> marks_;  // used in turn: enough for all that can be queued
  std::size_t next_ = 0;
};

}  // namespace barestep
