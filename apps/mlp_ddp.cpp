// mlp_ddp: trains on many ranks, each a process with one device.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "console.h"
#include "core/error.h"
#include "monitoring.h"
#include "parallel/communication_account.h"
#include "parallel/mpi_communicator.h"
#include "rank_setup.h"
#include "run_program.h"
#include "train/trainer.h"

namespace barestep {
namespace {

constexpr const char* kName = "mlp_ddp";

Error unexpected(const std::exception& error) {
  return {ExitCode::kBug,
          {.what = "unexpected",
           .value = "",
           .why = error.what(),
           .remedy = "this is a bug, please report it"}};
}

/// Runs `work` on every rank. If it fails on any, it ends on all, and the first rank that failed
/// tells why: before any other ends, whereupon mpirun would kill it.
template <class F>
void together(Communicator& ranks, const F& work) {
  std::optional<Error> error;
  try {
    work();
  } catch (const Error& failed) {
    error = failed;
  } catch (const std::exception& failed) {
    error = unexpected(failed);
  }
  const int code = error ? static_cast<int>(error->code()) : 0;
  std::vector<int> codes(static_cast<std::size_t>(ranks.size()));
  ranks.all_gather(std::as_bytes(std::span(&code, 1)), std::as_writable_bytes(std::span(codes)));
  const auto failed = std::ranges::find_if(codes, [](int each) { return each != 0; });
  if (failed == codes.end()) return;
  if (failed - codes.begin() == ranks.rank()) print_error(kName, *error);
  ranks.barrier();
  throw QuietEnd{*failed};
}

/// Runs `work`, which may fail on this rank alone, while others wait for it in a collective: then
/// all end. A divergence is met by all ranks in the same step, and told by the first.
template <class F>
void or_end_all(Communicator& ranks, const F& work) {
  try {
    work();
  } catch (const Error& error) {
    if (ranks.size() == 1) throw;
    if (error.code() == ExitCode::kDiverged) together(ranks, [] { throw; });
    print_error(kName, error);
    ranks.abort(error.code());
  } catch (const std::exception& error) {
    if (ranks.size() == 1) throw;
    print_error(kName, unexpected(error));
    ranks.abort(ExitCode::kBug);
  }
}

/// Shows the run on rank 0; for the metrics the others tell it how each step was for them.
class RankObserver final : public TrainObserver {
 public:
  RankObserver(const RankSetup& setup, Communicator& ranks, std::int64_t steps)
      : ranks_(ranks), gathers_(!setup.config().output.metrics.empty()) {
    if (setup.is_first()) console_.emplace(setup.config(), steps);
    all_.resize(static_cast<std::size_t>(ranks.size()));
  }

  void on_step(const StepReport& report) override {
    static_assert(std::is_trivially_copyable_v<StepReport>);
    if (console_) console_->on_step(report);
    if (!gathers_) return;
    ranks_.all_gather(std::as_bytes(std::span(&report, 1)),
                      std::as_writable_bytes(std::span(all_)));
    if (!console_) return;
    for (std::size_t rank = 1; rank < all_.size(); ++rank) {
      console_->on_step_of(static_cast<int>(rank), all_[rank]);
    }
  }

  void on_evaluation(const EvaluationReport& report) override {
    if (console_) console_->on_evaluation(report);
  }

  void show_summary(const Trainer& trainer, const Device& device, const std::string& more) {
    if (console_) console_->show_summary(trainer, device, more);
  }
  void close() {
    if (console_) console_->close();
  }
  /// Null on all ranks but the first.
  [[nodiscard]] Console* console() { return console_ ? &*console_ : nullptr; }

 private:
  Communicator& ranks_;
  bool gathers_;
  std::optional<Console> console_;
  std::vector<StepReport> all_;
};

/// Listens to device and communicator, for the account of communication. A GPU sends no records,
/// and those of a graph do not tell which step they are of.
class CommunicationRecords {
 public:
  CommunicationRecords(const RankSetup& setup, const Trainer& trainer, Communicator& ranks)
      : device_(setup.device()), transport_(setup.transport()), ranks_(ranks) {
    if (device_.kind() != DeviceKind::kCpu || setup.config().device.graph) return;
    account_ = std::make_unique<CommunicationAccount>(
        setup.programs(), warmup_of(setup.config().training, trainer.steps()));
    listen(account_.get());
  }
  ~CommunicationRecords() {
    if (account_ != nullptr) listen(nullptr);
  }
  CommunicationRecords(const CommunicationRecords&) = delete;
  CommunicationRecords& operator=(const CommunicationRecords&) = delete;

  [[nodiscard]] std::string text() const {
    return account_ == nullptr ? "" : account_->gather(ranks_).text();
  }

 private:
  void listen(RecordSink* sink) {
    device_.set_record_sink(sink);
    transport_.set_record_sink(sink);
  }

  Device& device_;
  Communicator& transport_;
  Communicator& ranks_;
  std::unique_ptr<CommunicationAccount> account_;
};

void train(const std::vector<std::string>& arguments, const MpiRank& place) {
  Communicator& ranks = *place.communicator;
  std::optional<RankSetup> setup;
  together(ranks, [&] { setup.emplace(kName, arguments, place); });
  together(ranks, [&] { setup->require_what_rank_0_has(); });
  if (!setup->answer().empty()) {
    if (setup->is_first()) print_now(setup->answer());
    return;
  }
  // Outlives what ends all ranks: its streams may be inside a collective.
  std::unique_ptr<Trainer> trainer;
  or_end_all(ranks, [&] {
    setup->connect();
    trainer = setup->new_trainer();
    RankObserver observer(*setup, ranks, trainer->steps());
    if (setup->is_first()) {
      print_now(setup->text() + run_header(setup->programs(), setup->device()));
    }
    const CommunicationRecords records(*setup, *trainer, ranks);
    TrainObserver* told = &observer;
    std::optional<Monitoring> monitoring;
    if (setup->config().output.monitor) {
      monitoring.emplace(setup->monitor_scope(),
                         warmup_of(setup->config().training, trainer->steps()), observer.console(),
                         observer);
      told = &*monitoring;
    }
    trainer->run(*told);
    observer.show_summary(*trainer, setup->device(), records.text());
    if (monitoring) {
      const std::string text = text_of_ranks(ranks, monitoring->text());
      if (setup->is_first()) print_now(fmt::format("\n{}", text));
    }
    if (setup->is_first() && !setup->config().output.save.empty()) {
      FlatWeights weights = trainer->weights();
      save_weights(setup->config().output.save, setup->programs().spec().model, weights);
    }
    observer.close();
  });
}

void run(const std::vector<std::string>& arguments) {
  MpiRank place = join_mpi();
  try {
    train(arguments, place);
  } catch (...) {
    // All ranks come here or none, so they can take leave of each other.
    place.communicator.reset();
    throw;
  }
}

}  // namespace
}  // namespace barestep

int main(int argc, char** argv) {
  return barestep::run_program(barestep::kName, argc, argv, barestep::run);
}
