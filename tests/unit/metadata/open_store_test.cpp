// SPDX-License-Identifier: Apache-2.0
#include "metadata/open_store.hpp"

#include "vendor/curl/fake_http_client.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace headrace::metadata {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

TEST(StoreUrl, TheThreeKindsOfAddressesAreRead) {
  const auto etcd = StoreUrl::parse("etcd://a:1,[::1]:2/prod/x");
  ASSERT_TRUE(etcd.ok());
  EXPECT_EQ(etcd->kind, StoreUrl::Kind::etcd);
  EXPECT_THAT(etcd->endpoints, ElementsAre("a:1", "[::1]:2"));
  EXPECT_EQ(etcd->path, "/prod/x");
  EXPECT_EQ(StoreUrl::parse("etcd://a:1")->path, "");
  EXPECT_EQ(StoreUrl::parse("etcd://a:1/")->path, "");
  EXPECT_EQ(StoreUrl::parse("file:///var/agents")->path, "/var/agents");
  EXPECT_EQ(StoreUrl::parse("memory:x")->path, "x");
}

TEST(StoreUrl, AWrongAddressIsRefusedWithTheValidForms) {
  for (const char* url : {"", "redis://x", "etcd:/x", "file://relative", "memory:", "/var/agents"}) {
    const auto parsed = StoreUrl::parse(url);
    ASSERT_FALSE(parsed.ok()) << url;
    EXPECT_EQ(parsed.code(), Code::invalid_argument);
    EXPECT_THAT(parsed.error().message, HasSubstr("etcd://host:port"));
  }
}

TEST(StoreOptions, StoreOptionsComeFromTheEnvironment) {
  OptionSources sources;
  sources.environment = [](const std::string& name) -> std::optional<std::string> {
    if (name == "HEADRACE_ETCD_ENDPOINTS") return "h1:2379, https://h2:2379";
    if (name == "HEADRACE_ETCD_NAMESPACE") return "/prod";
    if (name == "HEADRACE_STORE_POLL") return "1s";
    return std::nullopt;
  };
  const auto options = Options::resolve(option_rows, sources);
  ASSERT_TRUE(options.ok()) << options.error().message;
  const auto store = StoreOptions::read(*options);
  ASSERT_TRUE(store.ok()) << store.error().message;
  EXPECT_THAT(store->etcd_endpoints, ElementsAre("h1:2379", "https://h2:2379"));
  EXPECT_EQ(store->etcd_namespace, "/prod");
  EXPECT_EQ(store->poll, 1s);
}

TEST(OpenStore, EndpointsAndNamespaceOfTheAddressOverrideTheOptions) {
  const auto asked = [](const char* url, StoreOptions options) {
    auto http = std::make_shared<FakeHttpClient>();
    options.http = http;
    Logger logger;
    const auto store = open_store(url, options, logger);
    EXPECT_TRUE(store.ok()) << store.error().message;
    (void)(*store)->list(Deadline::after(1s));
    return http->requests().front();
  };
  StoreOptions options;
  options.etcd_endpoints = {"https://from-options:1"};
  options.etcd_namespace = "/from-options";
  EXPECT_EQ(asked("etcd://address:2/ns", options).url, "http://address:2/v3/kv/range");
  EXPECT_THAT(asked("etcd://address:2/ns", options).body, HasSubstr("L25zL2FnZW50cy8="));  // /ns/agents/
  EXPECT_EQ(asked("etcd://", options).url, "https://from-options:1/v3/kv/range");
  EXPECT_THAT(asked("etcd://", options).body,
              HasSubstr("L2Zyb20tb3B0aW9ucy9hZ2VudHMv"));  // /from-options/agents/
  Logger logger;
  EXPECT_EQ(open_store("etcd://", StoreOptions{}, logger).code(), Code::invalid_argument);
}

TEST(OpenStore, MemoryStoresOfOneNameShareTheirEntriesAndOthersDoNot) {
  Logger logger;
  const auto a = *open_store("memory:one", {}, logger), b = *open_store("memory:one", {}, logger);
  const auto other = *open_store("memory:two", {}, logger);
  ASSERT_TRUE(a->publish("agent", "", "x", 10s, Deadline::never()).ok());
  EXPECT_EQ(*b->fetch("agent", "", Deadline::never()), "x");
  EXPECT_EQ(other->fetch("agent", "", Deadline::never()).code(), Code::not_found);
}

TEST(StoreNames, EscapedNamesAreSafeInPathsAndAreUnescapedExactly) {
  std::string all;
  for (int c = 0; c < 256; ++c) all += static_cast<char>(c);
  const std::string escaped = escape_name(all);
  EXPECT_EQ(escaped.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.%"),
            std::string::npos);
  EXPECT_EQ(*unescape_name(escaped), all);
  EXPECT_EQ(escape_name("prefill-0.a_b"), "prefill-0.a_b");
  EXPECT_EQ(escape_name(".."), "%2E.");
  for (const char* wrong : {"%", "%4", "%zz", "%41", "a/b", "%2f", "."})
    EXPECT_FALSE(unescape_name(wrong).ok()) << wrong;
}

}  // namespace
}  // namespace headrace::metadata
