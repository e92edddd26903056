// SPDX-License-Identifier: Apache-2.0
// The server against clients that write raw bytes: correct clients, slow clients, and clients that
// disconnect.
#include "cli/demo/http_server.hpp"
#include "cli/common/file_descriptor.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <atomic>
#include <future>
#include <stdexcept>
#include <thread>

namespace headrace::cli::demo {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr int patience_ms = 30'000;

class Client {
 public:
  explicit Client(const std::string& address) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(socket_.get(), reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
  }

  void say(std::string_view text) {
    EXPECT_EQ(::send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }
  void leave() { socket_.reset(); }
  void say_no_more() { EXPECT_EQ(::shutdown(socket_.get(), SHUT_WR), 0); }

  /// All bytes received until `ending` has arrived.
  std::string hear_until(std::string_view ending) {
    while (heard_.find(ending) == std::string::npos)
      if (!hear_more()) break;
    EXPECT_THAT(heard_, HasSubstr(std::string(ending)));
    return std::exchange(heard_, {});
  }
  /// All bytes until the server closes the connection.
  std::string hear_all() {
    while (hear_more()) {
    }
    return std::exchange(heard_, {});
  }

 private:
  bool hear_more() {
    pollfd look{socket_.get(), POLLIN, 0};
    char bytes[4096];
    if (::poll(&look, 1, patience_ms) <= 0)
      return ADD_FAILURE() << "the server sent no more; received so far: " << heard_, false;
    const ssize_t got = ::recv(socket_.get(), bytes, sizeof bytes, 0);
    if (got > 0) heard_.append(bytes, static_cast<std::size_t>(got));
    return got > 0;
  }

  FileDescriptor socket_;
  std::string heard_;
};

class HttpServerTest : public testing::Test {
 protected:
  void start(HttpHandler handler, const HttpLimits& limits = {}) {
    auto opened = HttpServer::open("127.0.0.1", 0, limits);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    server_.emplace(std::move(*opened));
    ASSERT_TRUE(server_->listen().ok());
    thread_ = std::thread(
        [this, handler = std::move(handler)] { EXPECT_TRUE(server_->run(handler, stop_.get()).ok()); });
  }
  void stop() {
    const std::uint64_t one = 1;
    ASSERT_EQ(::write(stop_.get(), &one, sizeof one), static_cast<ssize_t>(sizeof one));
    thread_.join();
  }
  void TearDown() override {
    if (thread_.joinable()) stop();
  }
  [[nodiscard]] Client client() const { return Client(server_->address()); }

  static void echo(const HttpRequest& request, HttpReply& reply) {
    reply.send(200, request.method + " " + request.path + " " + request.body + ".");
  }

  std::optional<HttpServer> server_;

 private:
  FileDescriptor stop_{::eventfd(0, EFD_CLOEXEC)};
  std::thread thread_;
};

TEST_F(HttpServerTest, OneConnectionServesManyRequests) {
  start(echo);
  Client one = client();
  one.say("POST /a?b=c HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody");
  EXPECT_THAT(one.hear_until("POST /a body."), StartsWith("HTTP/1.1 200 OK\r\n"));
  one.say("POST /d HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n");
  (void)one.hear_until("POST /d abc.");
  one.say("GET /e HTTP/1.1\r\nHost: x\r\n\r\nGET /f HTTP/1.1\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(one.hear_all(), AllOf(HasSubstr("GET /e ."), HasSubstr("GET /f .")));
}

TEST_F(HttpServerTest, HeadIsAnsweredAsGetWithoutTheBody) {
  start([](const HttpRequest& request, HttpReply& reply) {
    if (request.path != "/stream") return echo(request, reply);
    EXPECT_FALSE(reply.send_event("one"));
  });
  Client one = client();
  one.say("HEAD /a HTTP/1.1\r\nHost: x\r\n\r\nHEAD /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  one.say("GET /b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  const std::string heard = one.hear_all();
  EXPECT_THAT(heard, AllOf(HasSubstr("Content-Length: 8\r\n"), Not(HasSubstr("GET /a")),
                           HasSubstr("text/event-stream"), Not(HasSubstr("data:")), EndsWith("GET /b .")));
  std::size_t answers = 0;
  for (std::size_t at = 0; (at = heard.find("HTTP/1.1 200 OK\r\n", at)) != std::string::npos; ++at) ++answers;
  EXPECT_EQ(answers, 3U);
}

TEST_F(HttpServerTest, ARequestTargetMayNameTheHost) {
  start(echo);
  Client one = client();
  const auto path_of = [&](const std::string& target) {
    one.say("GET " + target + " HTTP/1.1\r\nHost: x\r\n\r\n");
    const std::string heard = one.hear_until(" .");
    return heard.substr(heard.find("\r\n\r\n") + 4);
  };
  EXPECT_EQ(path_of("http://x:80/v1/models?a=b"), "GET /v1/models .");
  EXPECT_EQ(path_of("HTTPS://x/health"), "GET /health .");
  EXPECT_EQ(path_of("http://x"), "GET / .");
  EXPECT_EQ(path_of("http://x?a=/b"), "GET / .");
  EXPECT_EQ(path_of("/http://x/a"), "GET /http://x/a .");
}

TEST_F(HttpServerTest, EventsAreSentInChunks) {
  start([](const HttpRequest&, HttpReply& reply) {
    EXPECT_TRUE(reply.send_event("one"));
    EXPECT_TRUE(reply.send_event("two"));
  });
  Client one = client();
  one.say("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(one.hear_until("\r\n0\r\n\r\n"),
              AllOf(HasSubstr("text/event-stream"),
                    HasSubstr("\r\n\r\nb\r\ndata: one\n\n\r\nb\r\ndata: two\n\n\r\n")));
}

TEST_F(HttpServerTest, AStreamToAnHttp10ClientEndsWithTheConnection) {
  start([](const HttpRequest&, HttpReply& reply) { EXPECT_TRUE(reply.send_event("one")); });
  Client one = client();
  one.say("GET / HTTP/1.0\r\n\r\n");
  EXPECT_THAT(one.hear_all(), EndsWith("\r\n\r\ndata: one\n\n"));
}

TEST_F(HttpServerTest, AClientThatExpectsContinueGetsIt) {
  start(echo);
  Client one = client();
  one.say("POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_THAT(one.hear_until("\r\n\r\n"), StartsWith("HTTP/1.1 100 Continue\r\n"));
  one.say("ab");
  (void)one.hear_until("POST / ab.");
}

TEST_F(HttpServerTest, ABodyThatIsTooLongIsRefusedBeforeItIsReceived) {
  start(echo, {.body_bytes = 10});
  Client one = client(), other = client();
  one.say("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 11\r\n\r\n");
  EXPECT_THAT(one.hear_all(), AllOf(StartsWith("HTTP/1.1 413 "), HasSubstr("longer than 10 bytes")));
  other.say("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nb\r\n01234567890\r\n");
  EXPECT_THAT(other.hear_all(), StartsWith("HTTP/1.1 413 "));
}

TEST_F(HttpServerTest, AHeaderThatIsTooLongIsRefused) {
  start(echo, {.header_bytes = 100});
  Client one = client();
  one.say("GET / HTTP/1.1\r\nX: " + std::string(200, 'x'));
  EXPECT_THAT(one.hear_all(), AllOf(StartsWith("HTTP/1.1 431 "), HasSubstr("longer than 100 bytes")));
}

TEST_F(HttpServerTest, TextThatIsNoHttpIsRefused) {
  start(echo);
  for (const char* const text :
       {"garbage\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length: a\r\n\r\n"}) {
    Client one = client();
    one.say(text);
    EXPECT_THAT(one.hear_all(), AllOf(StartsWith("HTTP/1.1 400 "), HasSubstr("not a valid HTTP request")));
  }
}

TEST_F(HttpServerTest, ARequestThatDoesNotArriveCompletelyTimesOut) {
  start(echo, {.request = 20ms});
  Client one = client();
  one.say("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab");
  EXPECT_THAT(one.hear_all(), StartsWith("HTTP/1.1 408 "));
}

TEST_F(HttpServerTest, AnIdleConnectionIsClosed) {
  start(echo, {.idle = 20ms});
  EXPECT_EQ(client().hear_all(), "");
}

TEST_F(HttpServerTest, AHandlerSeesThatItsClientHasDisconnected) {
  std::promise<void> began, seen;
  start([&](const HttpRequest&, HttpReply& reply) {
    began.set_value();
    while (!reply.client_gone()) std::this_thread::yield();
    seen.set_value();
  });
  Client one = client();
  one.say("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  began.get_future().wait();
  one.leave();
  EXPECT_EQ(seen.get_future().wait_for(std::chrono::milliseconds(patience_ms)), std::future_status::ready);
}

TEST_F(HttpServerTest, AClientThatShutsDownItsWritingGetsItsAnswer) {
  std::promise<void> began, closed;
  start([&](const HttpRequest& request, HttpReply& reply) {
    began.set_value();
    closed.get_future().wait();
    for (int i = 0; i < 1000; ++i) EXPECT_FALSE(reply.client_gone());
    echo(request, reply);
  });
  Client one = client();
  one.say("GET /a HTTP/1.1\r\nHost: x\r\n\r\n");
  began.get_future().wait();
  one.say_no_more();
  closed.set_value();
  EXPECT_THAT(one.hear_all(), AllOf(StartsWith("HTTP/1.1 100 Continue\r\n\r\n"),
                                    HasSubstr("\r\n\r\nHTTP/1.1 200 OK\r\n"), EndsWith("GET /a .")));
}

TEST_F(HttpServerTest, AClientThatShutsDownItsWritingGetsItsStream) {
  std::promise<void> began, closed;
  start([&](const HttpRequest&, HttpReply& reply) {
    EXPECT_TRUE(reply.send_event("one"));
    began.set_value();
    closed.get_future().wait();
    EXPECT_FALSE(reply.client_gone());
    EXPECT_TRUE(reply.send_event("two"));
  });
  Client one = client();
  one.say("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  began.get_future().wait();
  one.say_no_more();
  closed.set_value();
  EXPECT_THAT(one.hear_all(), AllOf(HasSubstr("data: one\n\n"), HasSubstr("\r\n: "),
                                    HasSubstr("data: two\n\n"), EndsWith("\r\n0\r\n\r\n")));
}

TEST_F(HttpServerTest, AHandlerSeesADisconnectAfterAShutdownOfWriting) {
  std::promise<void> began, closed, seen;
  start([&](const HttpRequest&, HttpReply& reply) {
    began.set_value();
    closed.get_future().wait();
    EXPECT_FALSE(reply.client_gone());
    while (!reply.client_gone()) std::this_thread::yield();
    seen.set_value();
  });
  Client one = client();
  one.say("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  began.get_future().wait();
  one.say_no_more();
  closed.set_value();
  (void)one.hear_until("100 Continue\r\n\r\n");
  one.leave();
  EXPECT_EQ(seen.get_future().wait_for(std::chrono::milliseconds(patience_ms)), std::future_status::ready);
}

TEST_F(HttpServerTest, AnHttp10ClientThatShutsDownItsWritingGetsItsAnswer) {
  std::promise<void> began, closed;
  start([&](const HttpRequest& request, HttpReply& reply) {
    began.set_value();
    closed.get_future().wait();
    EXPECT_FALSE(reply.client_gone());
    echo(request, reply);
  });
  Client one = client();
  one.say("GET /a HTTP/1.0\r\n\r\n");
  began.get_future().wait();
  one.say_no_more();
  closed.set_value();
  EXPECT_THAT(one.hear_all(), AllOf(StartsWith("HTTP/1.0 200 "), EndsWith("GET /a .")));
}

TEST_F(HttpServerTest, AClientThatReadsNothingTimesOut) {
  std::promise<void> given_up;
  start(
      [&](const HttpRequest&, HttpReply& reply) {
        while (reply.send_event(std::string(100'000, 'x'))) {
        }
        given_up.set_value();
      },
      {.write = 20ms});
  Client one = client();
  one.say("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(given_up.get_future().wait_for(std::chrono::milliseconds(patience_ms)),
            std::future_status::ready);
}

TEST_F(HttpServerTest, AnExceptionEndsItsOwnRequestOnly) {
  start([](const HttpRequest& request, HttpReply& reply) {
    if (request.path == "/bad") throw std::runtime_error("reason");
    echo(request, reply);
  });
  Client one = client();
  one.say("GET /bad HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(one.hear_until("}}"), AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("reason")));
  one.say("GET /good HTTP/1.1\r\nHost: x\r\n\r\n");
  (void)one.hear_until("GET /good .");
}

TEST_F(HttpServerTest, AConnectionAboveTheLimitIsRefused) {
  start(echo, {.connections = 1});
  Client one = client();
  one.say("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  (void)one.hear_until("GET / .");
  EXPECT_THAT(client().hear_all(), AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("1 connections already")));
}

TEST_F(HttpServerTest, AStopEndsEveryConnection) {
  std::promise<void> began;
  start([&](const HttpRequest&, HttpReply& reply) {
    began.set_value();
    while (!reply.stopping()) std::this_thread::yield();
    (void)reply.send_event("last words");
  });
  Client idle = client(), half = client(), waiting = client();
  half.say("GET / HT");
  waiting.say("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  began.get_future().wait();
  stop();
  EXPECT_THAT(waiting.hear_all(), HasSubstr("data: last words\n\n"));
  EXPECT_EQ(idle.hear_all(), "");
  EXPECT_EQ(half.hear_all(), "");
}

TEST_F(HttpServerTest, AClientThatReadsNothingDoesNotDelayAStop) {
  std::promise<void> began;
  start(
      [&](const HttpRequest&, HttpReply& reply) {
        began.set_value();
        while (reply.send_event(std::string(100'000, 'x'))) {
        }
      },
      {.write = 1h});
  Client one = client();
  one.say("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  began.get_future().wait();
  stop();
}

TEST(HttpPort, APortInUseIsRefusedWithAdvice) {
  auto first = HttpServer::open("127.0.0.1", 0);
  ASSERT_TRUE(first.ok() && first->listen().ok());
  const auto port =
      static_cast<std::uint16_t>(std::stoi(first->address().substr(first->address().rfind(':') + 1)));
  const auto second = HttpServer::open("127.0.0.1", port);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.code(), Code::invalid_argument);
  EXPECT_THAT(second.error().message, AllOf(HasSubstr(std::to_string(port)),
                                            HasSubstr("another program uses it"), HasSubstr("--serve 0")));
}

TEST(HttpPort, AnAddressOfAnotherMachineIsRefused) {
  const auto server = HttpServer::open("192.0.2.1", 0);
  ASSERT_FALSE(server.ok());
  EXPECT_THAT(server.error().message, HasSubstr("--host must be an address of this machine"));
}

}  // namespace
}  // namespace headrace::cli::demo
