// The launcher's server by PMIx. The word is published data. PMIx's events, made for such news, are
// not to be had: behind the first one, mpirun of Open MPI 4.1 over PMIx 4.2 waits for ever for a
// lock that it holds itself.
#include <pmix.h>

#include <cstdlib>
#include <utility>

#include "parallel/launcher_server.h"

namespace barestep {
namespace {

constexpr const char* kKey = "barestep.word";

/// What waits for a callback of PMIx, which deletes it. One that is never called leaves it behind.
struct Question {
  pmix_rank_t asking = 0;
  std::promise<WordHolder> answer{};
};

void found(pmix_status_t status, pmix_pdata_t* data, std::size_t count, void* asked) {
  const std::unique_ptr<Question> question(static_cast<Question*>(asked));
  WordHolder holder = status == PMIX_ERR_NOT_FOUND ? WordHolder::kNobody : WordHolder::kUnknown;
  if (status == PMIX_SUCCESS && count > 0) {
    const bool mine = data[0].proc.rank == question->asking;
    holder = mine ? WordHolder::kThisRank : WordHolder::kAnotherRank;
  }
  question->answer.set_value(holder);
}

void published(pmix_status_t status, void* asked) {
  const std::unique_ptr<Question> question(static_cast<Question*>(asked));
  const bool done = status == PMIX_SUCCESS || status == PMIX_OPERATION_SUCCEEDED;
  question->answer.set_value(done ? WordHolder::kThisRank : WordHolder::kUnknown);
}

/// `call` hands its question to PMIx. One that PMIx does not take is answered at once.
template <class F>
std::future<WordHolder> ask(pmix_rank_t asking, const F& call) {
  auto question = std::make_unique<Question>(Question{.asking = asking});
  std::future<WordHolder> answer = question->answer.get_future();
  Question* const asked = question.release();
  const pmix_status_t status = call(asked);
  if (status != PMIX_SUCCESS) published(status, asked);
  return answer;
}

/// Numbers only, which lie in the attribute itself: nothing is to be freed.
template <class T>
pmix_info_t attribute(const char* key, T value, pmix_data_type_t type) {
  pmix_info_t info{};
  PMIX_INFO_LOAD(&info, key, &value, type);
  return info;
}

/// The name of a rank's host, as far as it was told at the start; or empty.
std::string host_of(pmix_proc_t rank) {
  const pmix_info_t here = attribute(PMIX_OPTIONAL, true, PMIX_BOOL);
  pmix_value_t* value = nullptr;
  if (PMIx_Get(&rank, PMIX_HOSTNAME, &here, 1, &value) != PMIX_SUCCESS) return "";
  std::string host = value->type == PMIX_STRING ? value->data.string : "";
  PMIX_VALUE_RELEASE(value);
  return host;
}

class PmixLauncherServer final : public LauncherServer {
 public:
  /// Behind PMIx_Init, which told `mine`.
  PmixLauncherServer(const pmix_proc_t& mine, int ranks) : mine_(mine) {
    for (int rank = 0; rank < ranks; ++rank) {
      pmix_proc_t other = mine;
      other.rank = static_cast<pmix_rank_t>(rank);
      hosts_.push_back(host_of(other));
      if (!hosts_.back().empty()) continue;
      hosts_.clear();
      break;
    }
  }
  ~PmixLauncherServer() override { PMIx_Finalize(nullptr, 0); }
  PmixLauncherServer(const PmixLauncherServer&) = delete;
  PmixLauncherServer& operator=(const PmixLauncherServer&) = delete;

  std::future<WordHolder> find_word() override {
    return ask(mine_.rank, [&](Question* question) {
      std::string key = kKey;
      char* keys[] = {key.data(), nullptr};
      return PMIx_Lookup_nb(keys, &range_, 1, &found, question);
    });
  }

  std::future<WordHolder> publish_word() override {
    return ask(mine_.rank, [&](Question* question) {
      const pmix_info_t data[] = {attribute(kKey, mine_.rank, PMIX_UINT32), range_};
      return PMIx_Publish_nb(data, 2, &published, question);
    });
  }

  [[nodiscard]] const std::vector<std::string>& hosts() const override { return hosts_; }

 private:
  pmix_proc_t mine_;
  pmix_info_t range_ =
      attribute(PMIX_RANGE, pmix_data_range_t{PMIX_RANGE_NAMESPACE}, PMIX_DATA_RANGE);
  std::vector<std::string> hosts_;
};

}  // namespace

std::unique_ptr<LauncherServer> connect_launcher(int ranks) {
  // Without a server PMIx starts all the same, as a job of one.
  pmix_proc_t mine{};
  if (std::getenv("PMIX_NAMESPACE") == nullptr) return nullptr;
  if (PMIx_Init(&mine, nullptr, 0) != PMIX_SUCCESS) return nullptr;
  return std::make_unique<PmixLauncherServer>(mine, ranks);
}

}  // namespace barestep
