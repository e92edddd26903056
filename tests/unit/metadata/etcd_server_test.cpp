// SPDX-License-Identifier: Apache-2.0
// The etcd store against a real etcd: agents that die, an etcd that stops and starts again, and an etcd that
// loses its data.
#include "tests/support/etcd_server.hpp"
#include "metadata/etcd_store.hpp"
#include "metadata/open_store.hpp"
#include "tests/support/store_watcher.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/wait.h>

#include <atomic>
#include <csignal>
#include <thread>

namespace headrace::metadata {
namespace {

using ::headrace::test::EtcdServer;
using ::headrace::testing::StoreWatcher;
using ::testing::ElementsAre;
using namespace std::chrono_literals;

/// An HTTP client whose network the test can cut.
class CuttableHttpClient final : public HttpClient {
 public:
  explicit CuttableHttpClient(std::unique_ptr<HttpClient> inner) : inner_(std::move(inner)) {}
  void cut() { cut_ = true; }
  void mend() { cut_ = false; }

  Result<HttpResponse> post(const HttpRequest& request, Deadline deadline, std::stop_token stop) override {
    if (cut_) return Error{Code::peer_lost, "the network is cut"};
    return inner_->post(request, deadline, std::move(stop));
  }
  Result<void> stream(const HttpRequest& request, const std::function<void(std::string_view)>& on_bytes,
                      std::stop_token stop) override {
    if (cut_) return Error{Code::peer_lost, "the network is cut"};
    return inner_->stream(request, on_bytes, std::move(stop));
  }

 private:
  std::unique_ptr<HttpClient> inner_;
  std::atomic<bool> cut_ = false;
};

class EtcdServerTest : public ::testing::Test {
 protected:
  std::unique_ptr<Store> open(std::shared_ptr<HttpClient> http = nullptr, const std::string& url = {}) {
    StoreOptions options;
    options.http = std::move(http);
    auto store = open_store(url.empty() ? server_.store_url("test") : url, options, logger_);
    if (!store) throw std::runtime_error(store.error().message);
    return std::move(store).value();
  }
  std::shared_ptr<CuttableHttpClient> cuttable() {
    return std::make_shared<CuttableHttpClient>(std::move(open_http_client()).value());
  }
  static Deadline soon() { return Deadline::after(30s); }
  void publish(Store& store, std::string_view name, std::string_view bytes, std::chrono::seconds ttl = 10s) {
    const auto published = store.publish(name, "", bytes, ttl, soon());
    ASSERT_TRUE(published.ok()) << published.error().message;
  }

  EtcdServer server_;
  Logger logger_;
};

TEST_F(EtcdServerTest, AnAgentWithoutNetworkIsReportedAsLeftWithinItsTimeToLiveAndFiveSeconds) {
  const auto http = cuttable();
  const auto victim = open(http), other = open();
  StoreWatcher watcher(*other);
  publish(*victim, "victim", "bytes", 2s);
  publish(*other, "other", "bytes", 2s);
  EXPECT_TRUE(watcher.joined("victim"));
  http->cut();
  const auto cut = std::chrono::steady_clock::now();
  EXPECT_TRUE(watcher.left("victim"));
  EXPECT_LT(std::chrono::steady_clock::now() - cut, 2s + 5s);
  EXPECT_EQ(other->fetch("victim", "", soon()).code(), Code::not_found);
  // An agent with network stays for longer than its time to live.
  EXPECT_THAT(*other->list(soon()), ElementsAre("other"));

  // When the network is back, the agent publishes its entry again without a call.
  http->mend();
  EXPECT_TRUE(watcher.joined("victim"));
  EXPECT_EQ(*other->fetch("victim", "", soon()), "bytes");
}

TEST_F(EtcdServerTest, AnEntryWhoseStoreEndedWithoutNetworkGoesWhenTheNetworkIsBack) {
  const auto http = cuttable();
  const auto reader = open(), stays = open(http);
  auto ended = open(http);
  StoreWatcher watcher(*reader);
  publish(*stays, "stays", "bytes", 3s);
  publish(*ended, "ended", "bytes", 3s);
  EXPECT_TRUE(watcher.joined("ended"));
  http->cut();
  ended.reset();
  EXPECT_THAT(*reader->list(soon()), ElementsAre("ended", "stays"));
  http->mend();
  EXPECT_TRUE(watcher.left("ended"));
  EXPECT_THAT(*reader->list(soon()), ElementsAre("stays"));
}

TEST_F(EtcdServerTest, AKilledProcessIsReportedAsLeftWithinItsTimeToLiveAndFiveSeconds) {
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto store = open();
    (void)!::write(pipe[1], store->publish("victim", "", "bytes", 2s, soon()).ok() ? "y" : "n", 1);
    for (;;) ::pause();
  }
  char answer = 0;
  ASSERT_EQ(::read(pipe[0], &answer, 1), 1);
  ASSERT_EQ(answer, 'y');
  ::close(pipe[0]);
  ::close(pipe[1]);
  const auto store = open();
  StoreWatcher watcher(*store);
  EXPECT_TRUE(watcher.joined("victim"));
  ::kill(child, SIGKILL);
  const auto killed = std::chrono::steady_clock::now();
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(watcher.left("victim"));
  EXPECT_LT(std::chrono::steady_clock::now() - killed, 2s + 5s);
}

TEST_F(EtcdServerTest, AnAgentThatReconnectsLateDoesNotTakeTheNameFromItsSuccessor) {
  const auto http = cuttable();
  const auto late = open(http), successor = open(), reader = open();
  StoreWatcher watcher(*reader);
  publish(*late, "agent", "old", 1s);
  publish(*late, "alone", "old", 1s);
  EXPECT_TRUE(watcher.joined("alone"));
  http->cut();
  EXPECT_TRUE(watcher.left("agent"));
  publish(*successor, "agent", "new");
  EXPECT_TRUE(watcher.joined("agent"));
  http->mend();
  EXPECT_TRUE(watcher.joined("alone"));  // the late agent has reconnected
  EXPECT_EQ(*reader->fetch("agent", "", soon()), "new");
  EXPECT_EQ(late->remove("agent", "", soon()).code(), Code::not_found);
}

TEST_F(EtcdServerTest, AStoreWorksAfterARestartOfEtcd) {
  const auto a = open(), b = open();
  StoreWatcher watcher(*b);
  publish(*a, "agent", "before", 5s);
  EXPECT_TRUE(watcher.joined("agent"));
  server_.stop();
  const auto lost = a->publish("agent", "", "meanwhile", 5s, Deadline::after(2s));
  ASSERT_FALSE(lost.ok());
  EXPECT_EQ(lost.code(), Code::peer_lost) << lost.error().message;
  server_.start();
  EXPECT_EQ(*b->fetch("agent", "", soon()), "before");
  publish(*a, "agent", "after", 5s);
  EXPECT_TRUE(watcher.updated("agent"));
  EXPECT_EQ(*b->fetch("agent", "", soon()), "after");
  publish(*b, "second", "x");
  EXPECT_TRUE(watcher.joined("second"));
  ASSERT_TRUE(a->remove("agent", "", soon()).ok());
  EXPECT_TRUE(watcher.left("agent"));
}

TEST_F(EtcdServerTest, AgentsPublishAgainAfterEtcdHasLostItsData) {
  const auto a = open(), b = open();
  publish(*b, "warm-up", "x");
  ASSERT_TRUE(b->remove("warm-up", "", soon()).ok());
  publish(*a, "agent", "bytes", 2s);
  StoreWatcher watcher(*b);
  EXPECT_TRUE(watcher.joined("agent"));
  server_.stop();
  server_.forget_everything();
  server_.start();
  // The agent publishes again without a call. Whether the watch reports the gap depends on timing.
  const Deadline give_up = soon();
  while (!b->fetch("agent", "", soon()).ok() && !give_up.expired()) std::this_thread::sleep_for(20ms);
  EXPECT_EQ(*b->fetch("agent", "", soon()), "bytes");
  publish(*b, "later", "x");
  EXPECT_TRUE(watcher.joined("later"));
}

TEST_F(EtcdServerTest, ADeadEndpointIsSkipped) {
  const auto store = open(nullptr, "etcd://127.0.0.1:1," + server_.address() + "/test");
  StoreWatcher watcher(*store);
  publish(*store, "agent", "bytes");
  EXPECT_EQ(*store->fetch("agent", "", soon()), "bytes");
  EXPECT_TRUE(watcher.joined("agent"));
}

TEST_F(EtcdServerTest, NamespacesAreSeparateEvenIfOneIsAPrefixOfTheOther) {
  const auto prod = open(nullptr, server_.store_url("prod")),
             prod2 = open(nullptr, server_.store_url("prod2"));
  publish(*prod, "agent", "bytes");
  EXPECT_TRUE(prod2->list(soon())->empty());
  EXPECT_EQ(prod2->fetch("agent", "", soon()).code(), Code::not_found);
}

TEST_F(EtcdServerTest, AReplacedOrRemovedEntryLeavesNoChunks) {
  auto a = open();
  const auto http = std::shared_ptr<HttpClient>(std::move(open_http_client()).value());
  EtcdClient client(http, std::move(HttpEndpoints::make({server_.address()})).value());
  const auto keys = [&] { return client.range(EtcdRange::prefix("/test/"), true, soon())->pairs.size(); };
  const std::string blob(EtcdClient::most_value_bytes + 1, 'b');  // in two chunks
  publish(*a, "agent", blob);
  EXPECT_EQ(keys(), 1U + 2U);
  publish(*a, "agent", blob);
  EXPECT_EQ(keys(), 1U + 2U);
  publish(*a, "agent", std::string(EtcdClient::most_value_bytes, 'i'));
  EXPECT_EQ(keys(), 1U);
  publish(*a, "agent", blob);
  ASSERT_TRUE(a->remove("agent", "", soon()).ok());
  EXPECT_EQ(keys(), 0U);
  publish(*a, "agent", blob);
  a.reset();
  EXPECT_EQ(keys(), 0U);
}

TEST_F(EtcdServerTest, AnEtcdThatIsNotThereIsPeerLost) {
  const auto store = open(nullptr, "etcd://127.0.0.1:1/test");
  const auto names = store->list(soon());
  EXPECT_EQ(names.code(), Code::peer_lost);
  EXPECT_THAT(names.error().message, ::testing::HasSubstr("127.0.0.1:1"));
}

}  // namespace
}  // namespace headrace::metadata
