// SPDX-License-Identifier: Apache-2.0
// The etcd client and store against scripted answers: those that a real server gives only in a failure.
#include "metadata/etcd_client.hpp"

#include "metadata/base64.hpp"
#include "metadata/etcd_store.hpp"
#include "metadata/open_store.hpp"
#include "tests/support/store_watcher.hpp"
#include "vendor/curl/fake_http_client.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <atomic>
#include <map>

namespace headrace::metadata {
namespace {

using ::headrace::testing::StoreWatcher;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;
using Json = nlohmann::json;
using namespace std::chrono_literals;

EtcdClient client_of(std::shared_ptr<HttpClient> http, const std::vector<std::string>& urls = {"a:1"}) {
  return EtcdClient(std::move(http), std::move(HttpEndpoints::make(urls)).value());
}

std::shared_ptr<EtcdSession> session_of(const std::shared_ptr<HttpClient>& http, Logger& logger) {
  return std::move(EtcdSession::open(std::make_shared<EtcdClient>(client_of(http)), "/ns", logger)).value();
}

std::unique_ptr<Store> store_of(std::shared_ptr<EtcdSession> session) {
  return std::make_unique<EtcdStore>(std::move(session));
}

HttpResponse ok(const Json& body) { return {200, body.dump()}; }

std::vector<std::string> urls_of(const FakeHttpClient& http) {
  std::vector<std::string> urls;
  for (const HttpRequest& request : http.requests()) urls.push_back(request.url);
  return urls;
}

// --- the client

TEST(EtcdClient, TheClientTriesTheNextEndpointAfterAFailureAndKeepsTheOneThatWorks) {
  const auto http = std::make_shared<FakeHttpClient>();
  http->set_answer([](const HttpRequest& request) -> Result<HttpResponse> {
    if (request.url.starts_with("http://a"))
      return HttpResponse{503, R"({"error":"no leader","message":"no leader","code":14})"};
    if (request.url.starts_with("http://b")) return Error{Code::timed_out, "no answer"};
    return ok({{"header", {{"revision", "7"}}}});
  });
  EtcdClient client = client_of(http, {"a:1", "b:1", "c:1"});
  const auto answer = client.range({"key", {}}, false, Deadline::after(10s));
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_EQ(answer->revision, 7);
  EXPECT_TRUE(client.range({"key", {}}, false, Deadline::after(10s)).ok());
  EXPECT_THAT(urls_of(*http), ElementsAre("http://a:1/v3/kv/range", "http://b:1/v3/kv/range",
                                          "http://c:1/v3/kv/range", "http://c:1/v3/kv/range"));
}

TEST(EtcdClient, TheClientFailsAfterTwoRoundsAndNamesTheEndpoints) {
  const auto http = std::make_shared<FakeHttpClient>();
  EtcdClient client = client_of(http, {"a:1", "b:1"});
  const auto answer = client.range({"key", {}}, false, Deadline::after(10s));
  ASSERT_FALSE(answer.ok());
  EXPECT_EQ(answer.code(), Code::peer_lost);
  EXPECT_THAT(answer.error().message, ::testing::AllOf(HasSubstr("http://a:1"), HasSubstr("http://b:1"),
                                                       HasSubstr("no server answers")));
}

TEST(EtcdClient, ARequestThatEtcdRefusedIsNotRepeated) {
  const auto http = std::make_shared<FakeHttpClient>();
  http->set_answer([](const HttpRequest&) {
    return HttpResponse{400, R"({"message":"etcdserver: request is too large","code":3})"};
  });
  EtcdClient client = client_of(http, {"a:1", "b:1"});
  const auto answer = client.transact({}, {}, Deadline::after(10s));
  EXPECT_EQ(answer.code(), Code::invalid_argument);
  EXPECT_THAT(answer.error().message, HasSubstr("request is too large"));
  EXPECT_EQ(http->requests().size(), 1U);
}

TEST(EtcdClient, EachGrpcCodeBecomesItsOwnCode) {
  const auto http = std::make_shared<FakeHttpClient>();
  EtcdClient client = client_of(http);
  for (const auto& [grpc, code] : {std::pair(5, Code::not_found), std::pair(8, Code::exhausted),
                                   std::pair(16, Code::invalid_argument)}) {
    http->set_answer([grpc = grpc](const HttpRequest&) {
      return HttpResponse{404, Json{{"code", grpc}, {"message", "m"}}.dump()};
    });
    EXPECT_EQ(client.revoke(1, Deadline::after(10s)).code(), code);
  }
}

TEST(EtcdClient, AnAnswerThatTheGatewayDoesNotDocumentIsCorrupt) {
  const auto http = std::make_shared<FakeHttpClient>();
  EtcdClient client = client_of(http);
  for (const char* body : {"", "not json", "[]", R"({"kvs":5})", R"({"kvs":[5]})", R"({"kvs":[{"key":"?"}]})",
                           R"({"kvs":[{"key":5}]})"}) {
    http->set_answer([body](const HttpRequest&) { return HttpResponse{200, body}; });
    EXPECT_EQ(client.range({"k", {}}, false, Deadline::after(10s)).code(), Code::corrupt) << body;
  }
  http->set_answer([](const HttpRequest&) { return HttpResponse{200, "{}"}; });
  EXPECT_EQ(client.grant(10s, Deadline::after(10s)).code(), Code::corrupt);
  EXPECT_EQ(client.keep_alive(1, Deadline::after(10s)).code(), Code::corrupt);
}

TEST(EtcdClient, AKeepAliveGivesTheTimeToLive) {
  const auto http = std::make_shared<FakeHttpClient>();
  EtcdClient client = client_of(http);
  http->set_answer([](const HttpRequest&) { return ok({{"result", {{"ID", "5"}, {"TTL", "9"}}}}); });
  EXPECT_EQ(*client.keep_alive(5, Deadline::after(10s)), 9s);
  http->set_answer([](const HttpRequest&) { return ok({{"result", {{"ID", "5"}}}}); });
  EXPECT_EQ(*client.keep_alive(5, Deadline::after(10s)), 0s);
}

TEST(EtcdWatchLine, EventsAreReadAndOtherLinesAreRefused) {
  const auto answer = parse_watch_line(
      R"({"result":{"header":{"revision":"9"},"events":[{"kv":{"key":"YQ==","mod_revision":"8"}},{"type":"DELETE","kv":{"key":"Yg==","mod_revision":"9"}}]}})");
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  ASSERT_EQ(answer->events.size(), 2U);
  EXPECT_FALSE(answer->events[0].deleted);
  EXPECT_EQ(answer->events[0].key, "a");
  EXPECT_TRUE(answer->events[1].deleted);
  EXPECT_EQ(answer->events[1].mod_revision, 9);
  EXPECT_TRUE(parse_watch_line(R"({"result":{"created":true}})")->created);
  EXPECT_TRUE(parse_watch_line(R"({"result":{"canceled":true,"compact_revision":"3"}})")->canceled);
  EXPECT_EQ(parse_watch_line(R"({"error":{"grpc_code":14,"message":"no leader"}})").code(), Code::peer_lost);
  for (const char* line :
       {"", "{}", "5", R"({"result":5})", R"({"result":{"events":5}})", R"({"result":{"events":[5]}})",
        R"({"result":{"events":[{}]}})", R"({"result":{"events":[{"kv":{"key":"?"}}]}})"}) {
    EXPECT_EQ(parse_watch_line(line).code(), Code::corrupt) << line;
  }
}

// --- the watch

std::string head(const std::string& name) { return encode_base64("/ns/agents/" + name + "/"); }

Json event(const std::string& name, int revision, bool deleted = false) {
  Json json = {{"kv", {{"key", head(name)}, {"mod_revision", std::to_string(revision)}}}};
  if (deleted) json["type"] = "DELETE";
  return json;
}
std::string created(int revision) {
  return Json{{"result", {{"header", {{"revision", std::to_string(revision)}}}, {"created", true}}}}.dump() +
         "\n";
}
std::string events(const std::vector<Json>& list) {
  return Json{{"result", {{"events", list}}}}.dump() + "\n";
}

/// A store on a fake HTTP client. A listing of the store returns what the test set.
class EtcdWatch : public ::testing::Test {
 protected:
  EtcdWatch() {
    http_->set_answer([this](const HttpRequest& request) -> Result<HttpResponse> {
      if (!request.url.ends_with("/v3/kv/range")) return Error{Code::peer_lost, "only looks are answered"};
      const std::scoped_lock lock(mutex_);
      ++looks_;
      return ok(look_);
    });
    store_ = store_of(session_of(http_, logger_));
  }
  void set_look(int revision, const std::vector<std::pair<std::string, int>>& names) {
    const std::scoped_lock lock(mutex_);
    look_ = {{"header", {{"revision", std::to_string(revision)}}}, {"kvs", Json::array()}};
    for (const auto& [name, mod] : names)
      look_["kvs"].push_back({{"key", head(name)}, {"mod_revision", std::to_string(mod)}});
  }
  int looks() {
    const std::scoped_lock lock(mutex_);
    return looks_;
  }
  /// The start revisions of all watch requests.
  std::vector<std::string> starts() const {
    std::vector<std::string> list;
    for (const HttpRequest& request : http_->requests()) {
      if (request.url.ends_with("/v3/watch"))
        list.push_back(Json::parse(request.body)["create_request"]["start_revision"]);
    }
    return list;
  }

  std::shared_ptr<FakeHttpClient> http_ = std::make_shared<FakeHttpClient>();
  std::mutex mutex_;
  Json look_;
  int looks_ = 0;
  Logger logger_;
  std::unique_ptr<Store> store_;
};

TEST_F(EtcdWatch, AWatchContinuesAtTheRevisionWhereTheStreamBroke) {
  set_look(10, {{"a", 3}});
  StoreWatcher watcher(*store_);
  EXPECT_TRUE(watcher.joined("a"));
  const std::string first = created(10) + events({event("b", 11)});
  for (const char byte : first) http_->push(std::string(1, byte));  // the line arrives byte by byte
  EXPECT_TRUE(watcher.joined("b"));
  http_->push(events({event("c", 12), event("c", 12, true)}) + events({event("a", 14)}));
  EXPECT_TRUE(watcher.joined("c"));
  EXPECT_TRUE(watcher.left("c"));
  EXPECT_TRUE(watcher.updated("a"));
  http_->push(R"({"result":{"ev)");
  http_->fail(Error{Code::backend_failed, "reset"});
  http_->push(created(20) + events({event("a", 16, true)}));
  EXPECT_TRUE(watcher.left("a"));
  EXPECT_THAT(starts(), ElementsAre("11", "15"));
  EXPECT_EQ(looks(), 1);
  EXPECT_THAT(watcher.rest(), ElementsAre());
  // This header makes a member that has lost its cluster answer with an error.
  for (const HttpRequest& request : http_->requests()) {
    if (!request.url.ends_with("/v3/watch")) continue;
    EXPECT_THAT(request.headers, ElementsAre("Grpc-Metadata-hasleader: true"));
  }
}

TEST_F(EtcdWatch, AWatchListsAgainWhenTheMissedRevisionsAreCompacted) {
  set_look(10, {{"a", 3}, {"b", 4}, {"c", 5}});
  StoreWatcher watcher(*store_);
  EXPECT_TRUE(watcher.joined("c"));
  set_look(90, {{"a", 3}, {"b", 80}, {"d", 90}});
  http_->push(created(90) + R"({"result":{"canceled":true,"compact_revision":"50"}})" + "\n");
  EXPECT_TRUE(watcher.left("c"));
  EXPECT_TRUE(watcher.updated("b"));
  EXPECT_TRUE(watcher.joined("d"));
  http_->push(created(90) + events({event("e", 91)}));
  EXPECT_TRUE(watcher.joined("e"));
  EXPECT_THAT(starts(), ElementsAre("11", "91"));
}

TEST_F(EtcdWatch, AWatchListsAgainWhenTheRevisionOfTheStoreIsLowerThanBefore) {
  set_look(10, {{"a", 3}});
  StoreWatcher watcher(*store_);
  EXPECT_TRUE(watcher.joined("a"));
  set_look(2, {{"b", 2}});
  http_->push(created(2));
  EXPECT_TRUE(watcher.left("a"));
  EXPECT_TRUE(watcher.joined("b"));
  http_->push(created(2) + events({event("c", 3)}));
  EXPECT_TRUE(watcher.joined("c"));
  EXPECT_THAT(starts(), ElementsAre("11", "3"));
}

TEST_F(EtcdWatch, AWatchIgnoresForeignKeys) {
  set_look(10, {{"a", 3}});
  StoreWatcher watcher(*store_);
  EXPECT_TRUE(watcher.joined("a"));
  Json foreign = event("x", 11);
  foreign["kv"]["key"] = encode_base64("/ns/agents/no-label");
  Json unescaped = event("x", 11);
  unescaped["kv"]["key"] = encode_base64("/ns/agents/%zz/");
  http_->push(created(10) + events({foreign, unescaped, event("b", 12)}));
  EXPECT_TRUE(watcher.joined("b"));
  EXPECT_THAT(watcher.rest(), ElementsAre());
}

// --- what the stores of a process share

/// An etcd that grants everything and counts what it is asked for.
class CountingEtcd {
 public:
  CountingEtcd() {
    http->set_answer([this](const HttpRequest& request) -> Result<HttpResponse> {
      if (cuts_off && request.url.ends_with("/kv/txn")) return *cuts_off;
      if (request.url.ends_with("/kv/range")) return ok({{"header", {{"revision", "7"}}}});
      if (request.url.ends_with("/lease/grant")) return ok({{"ID", "101"}, {"TTL", "600"}});
      return ok({{"succeeded", true}});
    });
  }
  [[nodiscard]] std::map<std::string, int> counts() const {
    std::map<std::string, int> counts;
    for (const std::string& url : urls_of(*http)) ++counts[url.substr(url.find("/v3/"))];
    return counts;
  }
  /// Opens a store as an agent does.
  std::unique_ptr<Store> open(const std::string& url = "etcd://a:1/ns") {
    StoreOptions options;
    options.http = http;
    return std::move(open_store(url, options, logger)).value();
  }

  /// The key that the last request removes; empty if it removes none.
  [[nodiscard]] std::string removed() const {
    const Json request = Json::parse(http->requests().back().body);
    const Json::json_pointer key("/success/0/request_delete_range/key");
    return decode_base64(request.value(key, std::string())).value();
  }

  Logger logger;
  std::shared_ptr<FakeHttpClient> http = std::make_shared<FakeHttpClient>();
  std::optional<Error> cuts_off = {};  // the end of each transaction, whose answer does not come
};

TEST(EtcdSharing, TheStoresOfANamespaceHaveOneWatchAndOneLease) {
  CountingEtcd etcd;
  std::vector<std::unique_ptr<Store>> stores;
  std::vector<std::unique_ptr<StoreWatcher>> watchers;
  for (int i = 0; i < 20; ++i) {
    stores.push_back(etcd.open());
    watchers.push_back(std::make_unique<StoreWatcher>(*stores.back()));
    ASSERT_TRUE(stores.back()->publish(std::to_string(i), "", "x", 600s, Deadline::after(10s)).ok());
  }
  etcd.http->push(created(7) + events({event("b", 8)}));
  for (const auto& watcher : watchers) EXPECT_TRUE(watcher->joined("b"));
  EXPECT_THAT(etcd.counts(), UnorderedElementsAre(Pair("/v3/kv/range", 1), Pair("/v3/watch", 1),
                                                  Pair("/v3/lease/grant", 1), Pair("/v3/kv/txn", 20)));
  const auto other = etcd.open("etcd://a:1/other");
  const StoreWatcher watcher(*other);
  ASSERT_TRUE(other->publish("x", "", "x", 600s, Deadline::after(10s)).ok());
  EXPECT_EQ(etcd.counts()["/v3/lease/grant"], 2) << "another namespace is another session";
}

TEST(EtcdSharing, AStoreThatEndsAloneRemovesItsEntriesAndTheLastOneEndsTheLease) {
  CountingEtcd etcd;
  auto one = etcd.open(), other = etcd.open();
  for (const auto& [store, name] : {std::pair(one.get(), "one"), std::pair(other.get(), "other")})
    ASSERT_TRUE(store->publish(name, "", "x", 600s, Deadline::after(10s)).ok());
  EXPECT_EQ(one->remove("other", "", Deadline::after(10s)).code(), Code::not_found);
  one.reset();
  EXPECT_EQ(etcd.counts()["/v3/lease/revoke"], 0);
  EXPECT_EQ(etcd.removed(), "/ns/agents/one/");
  other.reset();
  EXPECT_EQ(etcd.counts()["/v3/lease/revoke"], 1);
}

TEST(EtcdSharing, AnEntryWhosePublishWasCutOffIsRemovedWithItsStore) {
  CountingEtcd etcd;
  const auto other = etcd.open();
  ASSERT_TRUE(other->publish("other", "", "x", 600s, Deadline::after(10s)).ok());
  for (const Code code : {Code::canceled, Code::timed_out}) {
    auto one = etcd.open();
    etcd.cuts_off = Error{code, "no answer"};
    EXPECT_EQ(one->publish("one", "", "x", 600s, Deadline::after(0s)).code(), code);
    etcd.cuts_off.reset();
    one.reset();
    EXPECT_EQ(etcd.removed(), "/ns/agents/one/") << code_name(code);
  }
}

// --- leases

TEST(EtcdLeases, EntriesOfALostLeaseArePublishedAgainUnlessAnotherAgentOwnsTheName) {
  struct State {
    std::mutex mutex;
    int granted = 0;
    bool first_lost = false;
    std::vector<Json> writes;  // writes under a later lease
  } state;
  const auto http = std::make_shared<FakeHttpClient>();
  http->set_answer([&](const HttpRequest& request) -> Result<HttpResponse> {
    const std::scoped_lock lock(state.mutex);
    const Json body = Json::parse(request.body);
    if (request.url.ends_with("/lease/grant"))
      return ok({{"ID", std::to_string(100 + ++state.granted)}, {"TTL", "1"}});
    if (request.url.ends_with("/lease/keepalive")) {
      const bool lost = body["ID"] == "101" && state.first_lost;
      return ok({{"result", lost ? Json{{"ID", body["ID"]}} : Json{{"ID", body["ID"]}, {"TTL", "1"}}}});
    }
    if (request.url.ends_with("/kv/txn")) {
      if (state.granted < 2) return ok({{"succeeded", true}});
      state.writes.push_back(body);
      // "taken" has a new owner: neither condition holds for it.
      const bool taken = decode_base64(body["compare"][0]["key"].get<std::string>()) == "/ns/agents/taken/";
      return ok(taken ? Json::object() : Json{{"succeeded", true}});
    }
    return ok(Json::object());
  });
  const auto written = [&](const std::string& name) {
    const std::scoped_lock lock(state.mutex);
    return std::ranges::count_if(state.writes, [&](const Json& write) {
      return decode_base64(write["success"][0]["request_put"]["key"].get<std::string>()) ==
             "/ns/agents/" + name + "/";
    });
  };

  Logger logger;
  std::vector<std::string> warnings;
  std::mutex warnings_mutex;
  logger.set_sink([&](LogLevel level, std::string_view, std::string_view text) {
    const std::scoped_lock lock(warnings_mutex);
    if (level == LogLevel::warn) warnings.emplace_back(text);
  });
  auto store = store_of(session_of(http, logger));
  ASSERT_TRUE(store->publish("taken", "", "x", 1s, Deadline::after(10s)).ok());
  ASSERT_TRUE(store->publish("ours", "", "y", 1s, Deadline::after(10s)).ok());
  {
    const std::scoped_lock lock(state.mutex);
    EXPECT_EQ(state.granted, 1);
    state.first_lost = true;
  }
  const Deadline give_up = Deadline::after(30s);
  while ((written("ours") < 1 || written("taken") < 2) && !give_up.expired())
    std::this_thread::sleep_for(5ms);
  EXPECT_EQ(written("ours"), 1);  // one write, on the condition that the key does not exist
  EXPECT_EQ(written("taken"),
            2);  // two writes, on the conditions that the key does not exist and that it is ours; both fail
  {
    const std::scoped_lock lock(state.mutex);
    EXPECT_EQ(state.granted, 2);
    for (const Json& write : state.writes) EXPECT_EQ(write["success"][0]["request_put"]["lease"], "102");
  }
  EXPECT_EQ(store->remove("taken", "", Deadline::after(10s)).code(), Code::not_found);
  EXPECT_TRUE(store->remove("ours", "", Deadline::after(10s)).ok());
  store.reset();
  EXPECT_THAT(urls_of(*http).back(), HasSubstr("/v3/lease/revoke"));
  const std::scoped_lock lock(warnings_mutex);
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("\"taken\" was published by another agent")));
}

TEST(EtcdLeases, APublishWithAnExpiredLeaseGetsANewLease) {
  std::atomic<int> granted = 0;
  const auto http = std::make_shared<FakeHttpClient>();
  http->set_answer([&](const HttpRequest& request) -> Result<HttpResponse> {
    if (request.url.ends_with("/lease/grant"))
      return ok({{"ID", std::to_string(100 + ++granted)}, {"TTL", "600"}});
    if (request.url.ends_with("/kv/txn") && granted == 1) {
      return HttpResponse{404, R"({"message":"etcdserver: requested lease not found","code":5})"};
    }
    return ok({{"succeeded", true}});
  });
  Logger logger;
  auto store = store_of(session_of(http, logger));
  const auto published = store->publish("agent", "", "x", 600s, Deadline::after(10s));
  EXPECT_TRUE(published.ok()) << published.error().message;
  EXPECT_EQ(granted, 2);
}

TEST(EtcdStoreOpen, ANamespaceWithoutASlashIsRefused) {
  Logger logger;
  const auto session = EtcdSession::open(
      std::make_shared<EtcdClient>(client_of(std::make_shared<FakeHttpClient>())), "prod", logger);
  EXPECT_EQ(session.code(), Code::invalid_argument);
}

}  // namespace
}  // namespace headrace::metadata
