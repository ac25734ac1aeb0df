#include "profiler/records.h"

#include <algorithm>

namespace barestep {
namespace {

/// Many steps' worth, so that no two threads ever write the same one at the same time.
constexpr std::int64_t kForgotten = 1 << 14;

}  // namespace

void RecordBuffer::add(const Record& record) noexcept {
  const std::size_t at = added_.fetch_add(1, std::memory_order_relaxed);
  if (at < records_.size()) records_[at] = record;
}

void RecordBuffer::add_over_oldest(const Record& record) noexcept {
  records_[added_.fetch_add(1, std::memory_order_relaxed) % records_.size()] = record;
}

std::span<const Record> RecordBuffer::kept() const {
  return std::span(records_).first(std::min(added_.load(), records_.size()));
}

std::int64_t RecordBuffer::dropped() const {
  return static_cast<std::int64_t>(added_.load() - kept().size());
}

RecordCollector::RecordCollector(StepRange steps, std::int64_t capacity)
    : steps_(steps), done_(capacity), queued_(capacity), forgotten_(kForgotten) {}

void RecordCollector::on_record(const Record& record) {
  if (record.tag.node == kPartOfNode) return;
  if (steps_.contains(record.tag.step)) {
    done_.add(record);
  } else {
    forgotten_.add_over_oldest(record);
  }
}

void RecordCollector::on_queued(const Record& record) {
  if (steps_.contains(record.tag.step)) {
    queued_.add(record);
  } else {
    forgotten_.add_over_oldest(record);
  }
}

}  // namespace barestep
