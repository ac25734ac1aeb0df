// What a launcher's server is asked through PMIx, and what becomes of its answers. PMIx's functions
// are fakes: those of this file stand in front of the library's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pmix.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "parallel/launcher_server.h"

namespace barestep {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// What the fakes answer, and what they were asked.
struct FakePmix {
  pmix_status_t init = PMIX_SUCCESS;
  pmix_status_t taken = PMIX_SUCCESS;  // whether a question is taken; then it is answered with
  pmix_status_t answer = PMIX_SUCCESS;
  bool deaf = false;
  pmix_rank_t owner = 0;
  std::vector<std::string> hosts;
  int connections = 0;
  std::vector<std::string> asked;
  std::vector<std::function<void()>> unanswered;
};
FakePmix fake;

pmix_status_t question(const std::string& asked, const std::function<void()>& answer) {
  fake.asked.push_back(asked);
  if (fake.taken != PMIX_SUCCESS) return fake.taken;
  if (fake.deaf) {
    fake.unanswered.push_back(answer);
  } else {
    answer();
  }
  return PMIX_SUCCESS;
}

/// "range 3": of numbers of the types that are expected.
std::string text_of(const pmix_info_t& info) {
  const std::string key = info.key;
  const pmix_value_t& value = info.value;
  if (value.type == PMIX_UINT32) return key + " uint32 " + std::to_string(value.data.uint32);
  if (value.type == PMIX_DATA_RANGE) return key + " range " + std::to_string(value.data.range);
  return key + " of another type";
}

class PmixLauncherServerTest : public ::testing::Test {
 protected:
  PmixLauncherServerTest() {
    fake = {};
    fake.hosts = {"a", "a", "b"};
    ::setenv("PMIX_NAMESPACE", "job", 1);
  }
  ~PmixLauncherServerTest() override {
    // Questions are deleted by their answers.
    for (const auto& answer : fake.unanswered) answer();
    ::unsetenv("PMIX_NAMESPACE");
  }
};

TEST_F(PmixLauncherServerTest, ConnectsWhereALauncherHasAServer) {
  ::unsetenv("PMIX_NAMESPACE");
  EXPECT_EQ(connect_launcher(3), nullptr);
  EXPECT_EQ(fake.connections, 0);
  ::setenv("PMIX_NAMESPACE", "job", 1);
  fake.init = PMIX_ERR_UNREACH;
  EXPECT_EQ(connect_launcher(3), nullptr);
  fake.init = PMIX_SUCCESS;
  {
    const auto server = connect_launcher(3);
    ASSERT_NE(server, nullptr);
    EXPECT_EQ(fake.connections, 1);
  }
  EXPECT_EQ(fake.connections, 0);
}

TEST_F(PmixLauncherServerTest, TellsTheHostsOfAllRanksOrOfNone) {
  EXPECT_THAT(connect_launcher(3)->hosts(), ElementsAre("a", "a", "b"));
  EXPECT_THAT(connect_launcher(4)->hosts(), IsEmpty());
}

TEST_F(PmixLauncherServerTest, TellsWhoHasTheWord) {
  const auto server = connect_launcher(3);
  fake.owner = 1;  // as this rank
  EXPECT_EQ(server->find_word().get(), WordHolder::kThisRank);
  fake.owner = 2;
  EXPECT_EQ(server->find_word().get(), WordHolder::kAnotherRank);
  fake.answer = PMIX_ERR_NOT_FOUND;
  EXPECT_EQ(server->find_word().get(), WordHolder::kNobody);
  fake.answer = PMIX_ERR_NOT_SUPPORTED;
  EXPECT_EQ(server->find_word().get(), WordHolder::kUnknown);
  fake.taken = PMIX_ERR_UNREACH;
  EXPECT_EQ(server->find_word().get(), WordHolder::kUnknown);
  EXPECT_THAT(fake.asked[0], "barestep.word, pmix.range range 3");
}

TEST_F(PmixLauncherServerTest, PublishesThisRankToItsJobInATypeThatOpenMpiKnows) {
  const auto server = connect_launcher(3);
  EXPECT_EQ(server->publish_word().get(), WordHolder::kThisRank);
  EXPECT_THAT(fake.asked, ElementsAre("barestep.word uint32 1, pmix.range range 3"));
  fake.taken = PMIX_OPERATION_SUCCEEDED;
  EXPECT_EQ(server->publish_word().get(), WordHolder::kThisRank);
  fake.taken = PMIX_ERR_NOT_SUPPORTED;
  EXPECT_EQ(server->publish_word().get(), WordHolder::kUnknown);
  fake.taken = PMIX_SUCCESS;
  fake.answer = PMIX_ERR_NOT_SUPPORTED;
  EXPECT_EQ(server->publish_word().get(), WordHolder::kUnknown);
}

TEST_F(PmixLauncherServerTest, DoesNotWaitForADeafServer) {
  const auto server = connect_launcher(3);
  fake.deaf = true;
  const std::future<WordHolder> found = server->find_word();
  const std::future<WordHolder> published = server->publish_word();
  EXPECT_EQ(found.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  EXPECT_EQ(published.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
}

}  // namespace
}  // namespace barestep

using barestep::fake;

extern "C" {

pmix_status_t PMIx_Init(pmix_proc_t* mine, pmix_info_t* /*info*/, size_t /*count*/) {
  if (fake.init != PMIX_SUCCESS) return fake.init;
  ++fake.connections;
  mine->rank = 1;
  return PMIX_SUCCESS;
}

pmix_status_t PMIx_Finalize(const pmix_info_t* /*info*/, size_t /*count*/) {
  --fake.connections;
  return PMIX_SUCCESS;
}

pmix_status_t PMIx_Get(const pmix_proc_t* rank, const char* key, const pmix_info_t* /*info*/,
                       size_t /*count*/, pmix_value_t** value) {
  if (std::string(key) != PMIX_HOSTNAME || rank->rank >= fake.hosts.size()) {
    return PMIX_ERR_NOT_FOUND;
  }
  *value = static_cast<pmix_value_t*>(std::calloc(1, sizeof(pmix_value_t)));
  (*value)->type = PMIX_STRING;
  (*value)->data.string = ::strdup(fake.hosts[rank->rank].c_str());
  return PMIX_SUCCESS;
}

pmix_status_t PMIx_Lookup_nb(char** keys, const pmix_info_t* info, size_t /*count*/,
                             pmix_lookup_cbfunc_t callback, void* data) {
  return barestep::question(std::string(keys[0]) + ", " + barestep::text_of(info[0]), [=] {
    pmix_pdata_t found{};
    found.proc.rank = fake.owner;
    const bool is_there = fake.answer == PMIX_SUCCESS;
    callback(fake.answer, is_there ? &found : nullptr, is_there ? 1 : 0, data);
  });
}

pmix_status_t PMIx_Publish_nb(const pmix_info_t* info, size_t /*count*/, pmix_op_cbfunc_t callback,
                              void* data) {
  return barestep::question(barestep::text_of(info[0]) + ", " + barestep::text_of(info[1]),
                            [=] { callback(fake.answer, data); });
}

}  // extern "C"
