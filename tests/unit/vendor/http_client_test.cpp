// SPDX-License-Identifier: Apache-2.0
#include "vendor/curl/http_client.hpp"

#include "support/temporary_folder.hpp"
#include "unit/vendor/http_server.hpp"
#include "unit/vendor/tls_server.hpp"
#include "vendor/curl/fake_http_client.hpp"
#include "vendor/curl/http_endpoints.hpp"

#include <gtest/gtest.h>

#include <atomic>

namespace headrace {
namespace {

using namespace std::chrono_literals;
using test::Connection;
using test::HttpServer;
using test::TlsIdentity;

Deadline patience() { return Deadline::after(20s); }

/// A client with a long connect timeout: no test here depends on a slow connection, and a machine under load
/// needs the time.
std::unique_ptr<HttpClient> client(HttpClientOptions options = {}) {
  options.connect_timeout = 20s;
  return open_http_client(std::move(options)).value();
}

bool echo(const HttpServer::Request& request, Connection& connection) {
  return connection.write(HttpServer::response(200, request.head + "\n\n" + request.body)) > 0;
}

/// A port without a listener: bound, so that no other process takes it, and never opened.
class DeadPort {
 public:
  DeadPort() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const auto address = TcpAddress{"127.0.0.1", 0}.resolve(TcpAddress::Use::listen).value().at(0);
    if (::bind(fd_.get(), address.get(), address.length) != 0) std::abort();
  }
  std::string url() const { return "http://" + SocketAddress::local_of(fd_.get())->text(); }

 private:
  UniqueFd fd_;
};

TEST(HttpClient, APostSendsJsonWithItsHeadersAndReturnsTheAnswer) {
  const HttpServer server(echo);
  const auto answer =
      client()->post({server.url("/v3/kv/put"), R"({"key":"a"})", {"Authorization: secret"}}, patience());
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_EQ(answer->status, 200);
  EXPECT_TRUE(answer->body.starts_with("POST /v3/kv/put HTTP/1.1\r\n")) << answer->body;
  EXPECT_NE(answer->body.find("Content-Type: application/json\r\n"), std::string::npos);
  EXPECT_NE(answer->body.find("Authorization: secret"), std::string::npos);
  EXPECT_TRUE(answer->body.ends_with("\n\n{\"key\":\"a\"}"));
}

TEST(HttpClient, AnyStatusIsAnAnswer) {
  const HttpServer server([](const auto&, Connection& connection) {
    return connection.write(HttpServer::response(404, "none")) > 0;
  });
  const auto answer = client()->post({server.url("/"), "", {}}, patience());
  EXPECT_EQ(answer->status, 404);
  EXPECT_EQ(answer->body, "none");
}

TEST(HttpClient, AConnectionIsReusedForTheNextCall) {
  const HttpServer server(echo);
  const auto one = client();
  for (int i = 0; i < 5; ++i)
    ASSERT_TRUE(one->post({server.url("/"), std::to_string(i), {}}, patience()).ok());
  EXPECT_EQ(server.connections(), 1U);
}

TEST(HttpClient, ABodyOfMegabytesIsSentAndReceived) {
  const HttpServer server(echo);
  const std::string body(3'000'000, 'x');
  EXPECT_TRUE(client()->post({server.url("/"), body, {}}, patience())->body.ends_with(body));
}

TEST(HttpClient, AnAnswerLongerThanAllowedIsExhausted) {
  const HttpServer server(echo);
  HttpClientOptions options;
  options.most_response_bytes = 1000;
  const auto answer = client(options)->post({server.url("/"), std::string(2000, 'x'), {}}, patience());
  EXPECT_EQ(answer.code(), Code::exhausted);
  EXPECT_NE(answer.error().message.find("longer than the 1000 bytes"), std::string::npos)
      << answer.error().message;
}

TEST(HttpClient, AMissingServerIsPeerLostAndTheUrlIsNamed) {
  const DeadPort dead;
  const auto answer = client()->post({dead.url() + "/v3", "", {}}, patience());
  EXPECT_EQ(answer.code(), Code::peer_lost);
  EXPECT_NE(answer.error().message.find(dead.url() + "/v3"), std::string::npos) << answer.error().message;
}

TEST(HttpClient, AServerThatDisconnectsAfterTheRequestIsBackendFailed) {
  const HttpServer server([](const auto&, Connection&) { return false; });
  EXPECT_EQ(client()->post({server.url("/"), "", {}}, patience()).code(), Code::backend_failed);
}

TEST(HttpClient, ASilentServerTimesOutAtTheDeadlineAndTheClientStaysUsable) {
  std::atomic<bool> silent = true;
  const HttpServer server([&](const auto& request, Connection& connection) {
    if (silent) {
      connection.wait_for_hang_up();
      return false;
    }
    return echo(request, connection);
  });
  const auto one = client();
  const Deadline deadline = Deadline::after(20ms);
  EXPECT_EQ(one->post({server.url("/"), "", {}}, deadline).code(), Code::timed_out);
  EXPECT_TRUE(deadline.expired());
  silent = false;
  EXPECT_TRUE(one->post({server.url("/"), "", {}}, patience()).ok());
}

TEST(HttpClient, AStopEndsACallAtOnce) {
  // GCC 12 with -Og takes a local source for uninitialised.
  const auto stop = std::make_unique<std::stop_source>();
  const HttpServer server([&](const auto&, Connection& connection) {
    stop->request_stop();  // the server has the request and the client waits
    connection.wait_for_hang_up();
    return false;
  });
  EXPECT_EQ(client()->post({server.url("/"), "", {}}, Deadline::never(), stop->get_token()).code(),
            Code::canceled);
}

TEST(HttpClient, AnInvalidUrlIsRefused) {
  EXPECT_EQ(client()->post({"http://[bad", "", {}}, patience()).code(), Code::invalid_argument);
  EXPECT_EQ(client()->post({"gopherish://127.0.0.1/", "", {}}, patience()).code(), Code::invalid_argument);
}

TEST(HttpClient, AStreamDeliversEachChunkWhenItArrives) {
  // The server sends the next chunk only after the client has received the one before.
  std::atomic<int> seen = 0;
  const Deadline limit = patience();
  const HttpServer server([&](const auto&, Connection& connection) {
    connection.write(HttpServer::chunked_head);
    for (int i = 0; i < 3; ++i) {
      connection.write(HttpServer::chunk(std::to_string(i)));
      while (seen <= i && !limit.expired()) std::this_thread::yield();
    }
    connection.write(HttpServer::chunk(""));
    return false;
  });
  std::string bytes;
  const auto ended = client()->stream({server.url("/v3/watch"), "{}", {}},
                                      [&](std::string_view piece) {
                                        bytes += piece;
                                        ++seen;
                                      },
                                      {});
  EXPECT_TRUE(ended.ok()) << ended.error().message;
  EXPECT_EQ(bytes, "012");
}

TEST(HttpClient, AStopEndsASilentStreamOfTheServer) {
  const HttpServer server([](const auto&, Connection& connection) {
    connection.write(HttpServer::chunked_head);
    connection.write(HttpServer::chunk("first"));
    connection.wait_for_hang_up();
    return false;
  });
  std::stop_source stop;
  std::thread stopper;
  const auto ended = client()->stream(
      {server.url("/"), "{}", {}},
      [&](std::string_view) { stopper = std::thread([&] { stop.request_stop(); }); }, stop.get_token());
  stopper.join();
  EXPECT_EQ(ended.code(), Code::canceled);
}

TEST(HttpClient, ABrokenStreamIsBackendFailed) {
  const HttpServer server([](const auto&, Connection& connection) {
    connection.write(HttpServer::chunked_head);
    connection.write(HttpServer::chunk("first"));
    return false;
  });
  EXPECT_EQ(client()->stream({server.url("/"), "{}", {}}, [](std::string_view) {}, {}).code(),
            Code::backend_failed);
}

TEST(HttpClient, ARefusedStreamReturnsTheStatusAndTheServersText) {
  const HttpServer server([](const auto&, Connection& connection) {
    return connection.write(HttpServer::response(401, "no token")) > 0;
  });
  std::string bytes;
  const auto refused =
      client()->stream({server.url("/"), "{}", {}}, [&](std::string_view piece) { bytes += piece; }, {});
  EXPECT_EQ(refused.error().message, "POST " + server.url("/") + ": status 401: no token");
  EXPECT_EQ(bytes, "");
}

TEST(HttpClient, CallsFromManyThreadsDoNotMix) {
  const HttpServer server(echo);
  const auto one = client();
  std::vector<std::thread> callers;
  for (int t = 0; t < 4; ++t) {
    callers.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) {
        const std::string body = fmt::format("<{}.{}>", t, i);
        const auto answer = one->post({server.url("/"), body, {}}, patience());
        ASSERT_TRUE(answer.ok()) << answer.error().message;
        EXPECT_TRUE(answer->body.ends_with(body));
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_LE(server.connections(), 4U);
}

TEST(HttpClient, TlsIsVerifiedAgainstTheGivenCa) {
  const test::TemporaryFolder folder;
  const TlsIdentity identity;
  const TlsIdentity stranger;
  HttpClientOptions trusting;
  trusting.ca_file = folder.path() + "/ca.pem";
  HttpClientOptions wary;
  wary.ca_file = folder.path() + "/other.pem";
  ASSERT_TRUE(identity.write_certificate(trusting.ca_file));
  ASSERT_TRUE(stranger.write_certificate(wary.ca_file));
  const HttpServer server(echo, [&](int fd) { return identity.accept(fd); });
  const HttpRequest request{server.url("/", "https"), "over TLS", {}};

  const auto answer = client(trusting)->post(request, patience());
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_TRUE(answer->body.ends_with("over TLS"));
  EXPECT_EQ(client(wary)->post(request, patience()).code(), Code::invalid_argument);
  EXPECT_EQ(client()->post(request, patience()).code(), Code::invalid_argument);
}

TEST(HttpEndpoints, TheEndpointThatAnswersIsTriedFirstTheNextTime) {
  const DeadPort dead;
  const HttpServer server(echo);
  HttpEndpoints endpoints = HttpEndpoints::make({dead.url(), server.url("/")}).value();
  const auto one = client();
  const auto answer = endpoints.post(*one, "/v3", {"", "x", {}}, patience());
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_TRUE(answer->body.starts_with("POST /v3 "));

  FakeHttpClient fake;
  std::vector<std::string> asked;
  fake.set_answer([&](const HttpRequest& request) -> Result<HttpResponse> {
    asked.push_back(request.url);
    return HttpResponse{200, ""};
  });
  ASSERT_TRUE(endpoints.post(fake, "/v3", {"", "x", {}}, patience()).ok());
  EXPECT_EQ(asked, std::vector<std::string>{server.url("/v3")});
}

TEST(HttpEndpoints, ARequestThatFailsAfterItWasSentIsNotRepeatedElsewhere) {
  FakeHttpClient fake;
  int asked = 0;
  fake.set_answer([&](const HttpRequest&) -> Result<HttpResponse> {
    ++asked;
    return make_error(Code::backend_failed, "broke");
  });
  HttpEndpoints endpoints = HttpEndpoints::make({"a:1", "b:2"}).value();
  EXPECT_EQ(endpoints.post(fake, "/", {"", "", {}}, patience()).code(), Code::backend_failed);
  EXPECT_EQ(asked, 1);
}

TEST(HttpEndpoints, IfNoEndpointCanBeReachedAllAreNamed) {
  FakeHttpClient fake;
  HttpEndpoints endpoints = HttpEndpoints::make({"a:1", "https://b:2/"}).value();
  const auto answer = endpoints.post(fake, "/x", {"", "", {}}, patience());
  EXPECT_EQ(answer.code(), Code::peer_lost);
  EXPECT_EQ(answer.error().message,
            "no endpoint can be reached: POST http://a:1/x: no server answers; POST https://b:2/x: no server "
            "answers");
  EXPECT_EQ(HttpEndpoints::make({}).code(), Code::invalid_argument);
  EXPECT_EQ(HttpEndpoints::make({"ftp://a"}).code(), Code::invalid_argument);
}

TEST(FakeHttpClient, TheFakePlaysAStreamFromItsScript) {
  FakeHttpClient fake;
  fake.push("one");
  fake.push("two");
  fake.end();
  std::string bytes;
  const auto take = [&](std::string_view piece) { bytes += piece; };
  EXPECT_TRUE(fake.stream({"http://a/watch", "", {}}, take, {}).ok());
  EXPECT_EQ(bytes, "onetwo");
  fake.fail(make_error(Code::backend_failed, "broke"));
  EXPECT_EQ(fake.stream({"http://a/watch", "", {}}, take, {}).error().message, "broke");
  EXPECT_EQ(fake.requests().size(), 2U);
}

TEST(FakeHttpClient, AStopEndsASilentStream) {
  FakeHttpClient fake;
  std::stop_source stop;
  std::thread stopper([&] { stop.request_stop(); });
  EXPECT_EQ(fake.stream(
                    {"http://a/watch", "", {}}, [](std::string_view) {}, stop.get_token())
                .code(),
            Code::canceled);
  stopper.join();
}

}  // namespace
}  // namespace headrace
