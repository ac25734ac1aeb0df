#include "parallel/job/flight_record.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/clock.h"
#include "core/units.h"

namespace barestep {
namespace {

constexpr std::string_view kActivities[] = {
    "start of MPI",
    "set-up",
    "step",
    "end of the run",
    "end of MPI",
    "broadcast of host bytes",
    "all_gather of host bytes",
    "barrier",
    "all_reduce",
    "broadcast",
    "reduce",
    "reduce_scatter",
    "all_gather",
    "send_receive",
};

std::size_t place_of(std::int64_t number) {
  return static_cast<std::size_t>(number % FlightRecord::kKept);
}

/// Identifies the container: processes of different containers may have the same id.
std::int64_t own_id_space() {
  struct stat info {};
  return ::stat("/proc/self/ns/pid", &info) == 0 ? static_cast<std::int64_t>(info.st_ino) : 0;
}

}  // namespace

Activity activity_of(const Collective& collective) {
  return static_cast<Activity>(static_cast<std::size_t>(Activity::kAllReduce) + collective.index());
}

std::string FlightEntry::text() const {
  std::string text(kActivities[static_cast<std::size_t>(activity)]);
  if (bytes >= 0) text += fmt::format(" ({})", human_bytes(bytes));
  if (activity == Activity::kStep) return fmt::format("{} {}", text, step);
  if (step >= 0) text += fmt::format(" in step {}", step);
  return text;
}

void FlightRecord::begin(Track track, Activity activity, std::int64_t step, std::int64_t bytes) {
  end(track);
  const std::int64_t number = entries_.fetch_add(1) + 1;
  Kept& kept = kept_[place_of(number)];
  kept.activity = static_cast<std::int64_t>(activity);
  kept.step = step;
  kept.bytes = bytes;
  kept.begin_s = now_s();
  kept.end_s = 0;
  kept.number = number;
  open_[static_cast<std::size_t>(track)] = number;
}

void FlightRecord::end(Track track) {
  const std::int64_t number = open_[static_cast<std::size_t>(track)].exchange(0);
  if (number == 0) return;
  Kept& kept = kept_[place_of(number)];
  if (kept.number == number) kept.end_s = now_s();
}

std::optional<FlightEntry> FlightRecord::entry(std::int64_t number) const {
  const Kept& kept = kept_[place_of(number)];
  const FlightEntry entry{.number = number,
                          .activity = static_cast<Activity>(kept.activity.load()),
                          .step = kept.step,
                          .bytes = kept.bytes,
                          .begin_s = kept.begin_s,
                          .end_s = kept.end_s};
  // A later entry may have replaced it meanwhile.
  if (number == 0 || kept.number != number) return std::nullopt;
  return entry;
}

std::optional<FlightEntry> FlightRecord::open(Track track) const {
  return entry(open_[static_cast<std::size_t>(track)]);
}

double FlightRecord::longest_wait_s() const {
  double longest_s = 0;
  const std::int64_t last = entries_;
  for (std::int64_t number = std::max<std::int64_t>(1, last - kKept + 1); number <= last;
       ++number) {
    const auto found = entry(number);
    if (!found || found->end_s == 0 || found->activity < Activity::kHostBroadcast) continue;
    longest_s = std::max(longest_s, found->end_s - found->begin_s);
  }
  return longest_s;
}

std::string FlightRecord::state() const {
  for (const Track track : {Track::kCollective, Track::kHostCall, Track::kPhase}) {
    if (const auto now = open(track)) return now->text();
  }
  return "an unknown state";
}

std::string FlightRecord::text() const {
  std::string text;
  const std::int64_t last = entries_;
  for (std::int64_t number = std::max<std::int64_t>(1, last - kKept + 1); number <= last;
       ++number) {
    const auto found = entry(number);
    if (!found) continue;
    text += fmt::format("  {:>8} {}: {}\n", number, found->text(),
                        found->end_s == 0
                            ? "not ended"
                            : fmt::format("{:.3f} ms", 1e3 * (found->end_s - found->begin_s)));
  }
  return text;
}

struct FlightBoard::Shared {
  std::atomic<std::int64_t> reporter{0};  // rank + 1; 0: none
  FlightRecord records[kPlaces];
};

FlightBoard::FlightBoard(std::string file, int local_rank, int rank) : file_(std::move(file)) {
  static_assert(std::atomic<std::int64_t>::is_always_lock_free);
  static_assert(std::atomic<double>::is_always_lock_free);
  const int opened = file_.empty() || local_rank >= kPlaces ? -1 : open_file();
  is_shared_ = opened >= 0;
  const int flags = opened >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
  void* const memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, flags, opened, 0);
  if (opened >= 0) ::close(opened);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  shared_ = static_cast<Shared*>(memory);
  mine_ = &shared_->records[opened >= 0 ? local_rank : 0];
  mine_->rank = rank;
  mine_->id_space = own_id_space();
  mine_->beat_s = now_s();
  mine_->process = ::getpid();
}

/// Opens the file and reserves space for the board; -1 on failure. Without the reservation, a write
/// to memory that the disk has no room for would end the process.
int FlightBoard::open_file() {
  const int opened = ::open(file_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, S_IRUSR | S_IWUSR);
  int error = opened >= 0 ? 0 : errno;
  if (opened >= 0) {
    // New space is all zeros, which is an empty board. Space that exists already may hold records:
    // on file systems that cannot reserve, the C library writes zeros.
    struct stat info {};
    const bool is_ready =
        ::fstat(opened, &info) == 0 && info.st_size >= static_cast<off_t>(sizeof(Shared));
    if (!is_ready) error = ::posix_fallocate(opened, 0, sizeof(Shared));
  }
  if (error == 0) return opened;
  why_alone_ = std::generic_category().message(error);
  if (opened >= 0) ::close(opened);
  return -1;
}

FlightBoard::~FlightBoard() {
  ::munmap(shared_, sizeof(Shared));
}

FlightRecord* FlightBoard::records() const {
  return shared_->records;
}

bool FlightBoard::claim_report() {
  std::int64_t reporter = 0;
  const std::int64_t me = mine_->rank + 1;
  if (shared_->reporter.compare_exchange_strong(reporter, me)) holder_ = std::this_thread::get_id();
  return holder_.load() == std::this_thread::get_id();
}

bool FlightBoard::is_report_claimed() const {
  const std::int64_t reporter = shared_->reporter;
  return reporter != 0 && reporter != mine_->rank + 1;
}

void FlightBoard::close() noexcept {
  if (!file_.empty()) ::unlink(file_.c_str());
}

}  // namespace barestep
