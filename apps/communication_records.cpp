#include "communication_records.h"

#include "core/config.h"

namespace barestep {

CommunicationRecords::CommunicationRecords(const RankSetup& setup, Device& device,
                                           Communicator& transport, Communicator& ranks)
    : device_(device), transport_(transport), ranks_(ranks) {
  // What a gradient waits for is not behind a rank's computing, but amid it.
  if (setup.config().parallel.scheme == RankScheme::kFactor) return;
  const TrainingConfig& training = setup.config().training;
  account_.emplace(setup.programs(), training, warmup_of(training, setup.steps()));
  listens_ = device_.kind() == DeviceKind::kCpu && !setup.config().device.graph;
  if (listens_) return;
  events_.emplace(device_, transport_, setup.programs().train().program, account_->nodes(),
                  *account_);
}

void CommunicationRecords::listen(RecordSink* sink) {
  if (!listens_) return;
  device_.set_record_sink(sink);
  transport_.set_record_sink(sink);
}

void CommunicationRecords::begin() {
  if (account_) listen(&*account_);
}

void CommunicationRecords::end() {
  listen(nullptr);
}

void CommunicationRecords::take(std::int64_t step) {
  if (events_) events_->send(step);
}

std::string CommunicationRecords::text() const {
  if (!account_) return "";
  return account_->gather(ranks_, events_ ? events_->clock_error_s() : 0).text();
}

}  // namespace barestep
