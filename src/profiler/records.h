// Records of a run, kept in memory that is taken before it.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "core/record.h"
#include "core/step_range.h"

namespace barestep {

/// What the host queues in one piece carries this instead of a node: the launch of a graph.
constexpr NodeId kGraphLaunch = -1;

/// A bounded list that any number of threads add to. What does not fit is counted and dropped.
class RecordBuffer {
 public:
  /// Allocates all there will ever be.
  explicit RecordBuffer(std::int64_t capacity) : records_(static_cast<std::size_t>(capacity)) {}

  /// Neither blocks nor allocates.
  void add(const Record& record) noexcept;
  /// As add(), but what was kept longest makes room.
  void add_over_oldest(const Record& record) noexcept;

  /// In the order in which they came. Call while nobody adds.
  [[nodiscard]] std::span<const Record> kept() const;
  [[nodiscard]] std::int64_t dropped() const;

 private:
  std::vector<Record> records_;
  std::atomic<std::size_t> added_{0};
};

/// Keeps the records of some steps of a runner: what devices did, and when the host queued it.
/// Records of other steps cost the same and are forgotten.
class RecordCollector final : public RecordSink {
 public:
  /// `capacity` is the most records that are kept of each kind.
  RecordCollector(StepRange steps, std::int64_t capacity);

  /// Pieces of other nodes' work are left out.
  void on_record(const Record& record) override;

  /// The stretch in which the host queued the work of a node, or launched a graph.
  void on_queued(const Record& record);

  [[nodiscard]] StepRange steps() const { return steps_; }
  [[nodiscard]] std::span<const Record> records() const { return done_.kept(); }
  [[nodiscard]] std::span<const Record> queued() const { return queued_.kept(); }
  /// Of both kinds together.
  [[nodiscard]] std::int64_t dropped() const { return done_.dropped() + queued_.dropped(); }

 private:
  StepRange steps_;
  RecordBuffer done_, queued_, forgotten_;
};

}  // namespace barestep
