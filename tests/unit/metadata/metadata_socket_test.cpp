// SPDX-License-Identifier: Apache-2.0
#include "metadata/metadata_socket.hpp"

#include "base/tcp_address.hpp"
#include "base/unique_fd.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <thread>

namespace headrace::metadata {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

Deadline soon() { return Deadline::after(30s); }

SocketIdentity identity(const std::string& name, const std::string& token = {}) {
  return SocketIdentity{name, 7, token, {}};
}

/// A TCP connection that does not follow the protocol.
UniqueFd raw_connection(const std::string& address) {
  const auto where = TcpAddress::parse(address)->resolve(TcpAddress::Use::connect)->front();
  UniqueFd fd(::socket(where.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(fd.get(), where.get(), where.length) < 0)
    throw std::runtime_error("cannot connect to " + address);
  return fd;
}

/// Reads until the other side closes; false if it has not closed within 30 s.
bool closes(const UniqueFd& fd) {
  char buffer[4096];
  for (;;) {
    pollfd entry{fd.get(), POLLIN, 0};
    if (::poll(&entry, 1, 30'000) <= 0) return false;
    if (::recv(fd.get(), buffer, sizeof buffer, 0) <= 0) return true;
  }
}

class MetadataSocket : public ::testing::Test {
 protected:
  std::unique_ptr<MetadataServer> serve(const std::string& listen = "127.0.0.1:0",
                                        const std::string& token = {}) {
    options_.listen = listen;
    options_.identity = identity("server", token);
    MetadataHandlers handlers;
    handlers.fetch = [](const std::string& label, std::uint64_t since) -> Result<std::string> {
      if (label == "none") return make_error(Code::not_found, "no label \"none\"");
      if (label == "big") return std::string(since, 'b');
      return label + "/" + std::to_string(since);
    };
    handlers.refused = [this] { ++refused_; };
    handlers.send = [this](const wire::Hello& /*sender*/, std::string_view metadata) -> Result<void> {
      if (metadata == "throw") throw std::runtime_error("a defect");
      if (metadata == "refuse") return make_error(Code::corrupt, "not metadata");
      const std::scoped_lock lock(mutex_);
      given_ += metadata;
      return {};
    };
    auto server = MetadataServer::open(options_, std::move(handlers), logger_);
    if (!server) throw std::runtime_error(server.error().message);
    return std::move(server).value();
  }

  MetadataServerOptions options_;
  Logger logger_;
  std::mutex mutex_;
  std::string given_;
  std::atomic<int> refused_ = 0;
};

TEST_F(MetadataSocket, MetadataIsFetchedAndSentOverIPv4) {
  const auto server = serve();
  EXPECT_THAT(server->address(), ::testing::StartsWith("127.0.0.1:"));
  const auto fetched = fetch_from(server->address(), identity("client"), "label", 5, soon());
  ASSERT_TRUE(fetched.ok()) << fetched.error().message;
  EXPECT_EQ(*fetched, "label/5");
  const auto sent = send_to(server->address(), identity("client"), "metadata", soon());
  ASSERT_TRUE(sent.ok()) << sent.error().message;
  EXPECT_EQ(given_, "metadata");
}

TEST_F(MetadataSocket, MetadataIsFetchedOverIPv6) {
  const auto server = serve("[::1]:0");
  EXPECT_THAT(server->address(), ::testing::StartsWith("[::1]:"));
  EXPECT_EQ(*fetch_from(server->address(), identity("client"), "l", 1, soon()), "l/1");
}

TEST_F(MetadataSocket, AServerIsReachedByHostNameAndOnEveryAddressOfTheMachine) {
  const auto named = serve("localhost:0");
  EXPECT_THAT(named->address(), ::testing::StartsWith("localhost:"));
  EXPECT_EQ(*fetch_from(named->address(), identity("client"), "l", 1, soon()), "l/1");
  const auto everywhere = serve(":0");
  const std::string port = std::to_string(TcpAddress::parse(everywhere->address())->port);
  for (const char* host : {"127.0.0.1:", "[::1]:", "localhost:"}) {
    const auto fetched = fetch_from(host + port, identity("client"), "l", 1, soon());
    EXPECT_TRUE(fetched.ok()) << host << ": " << fetched.error().message;
  }
}

TEST_F(MetadataSocket, ErrorsOfTheServerReachTheClientWithTheAddress) {
  const auto server = serve();
  const auto fetched = fetch_from(server->address(), identity("client"), "none", 0, soon());
  EXPECT_EQ(fetched.code(), Code::not_found);
  EXPECT_THAT(fetched.error().message, ::testing::AllOf(HasSubstr("no label"), HasSubstr(server->address())));
  EXPECT_EQ(send_to(server->address(), identity("client"), "refuse", soon()).code(), Code::corrupt);
}

TEST_F(MetadataSocket, ASharedTokenAdmitsOnlyClientsThatHaveIt) {
  const auto server = serve("127.0.0.1:0", "secret");
  EXPECT_EQ(*fetch_from(server->address(), identity("client", "secret"), "l", 1, soon()), "l/1");
  for (const char* token : {"", "other"}) {
    const auto fetched = fetch_from(server->address(), identity("client", token), "l", 1, soon());
    EXPECT_EQ(fetched.code(), Code::invalid_argument);
    EXPECT_THAT(fetched.error().message, HasSubstr("token"));
  }
  const auto open = serve();
  EXPECT_EQ(fetch_from(open->address(), identity("client", "secret"), "l", 1, soon()).code(),
            Code::invalid_argument);
}

TEST_F(MetadataSocket, MegabytesAreFetchedAndSent) {
  const auto server = serve();
  const std::size_t size = std::size_t{24} << 20;
  EXPECT_TRUE(*fetch_from(server->address(), identity("client"), "big", size, soon()) ==
              std::string(size, 'b'));
  const std::string metadata(size, 'm');
  ASSERT_TRUE(send_to(server->address(), identity("client"), metadata, soon()).ok());
  EXPECT_TRUE(given_ == metadata);
}

TEST_F(MetadataSocket, AServerServesManyClientsAtOnce) {
  const auto server = serve();
  std::atomic<int> right = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 16; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 10; ++i) {
        const auto fetched = fetch_from(server->address(), identity("client"), std::to_string(t),
                                        static_cast<std::uint64_t>(i), soon());
        if (fetched.ok() && *fetched == std::to_string(t) + "/" + std::to_string(i)) ++right;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 160);
}

TEST_F(MetadataSocket, ASilentClientIsDropped) {
  options_.handshake_timeout = 1s;  // it also holds for the next client, which may come on a busy machine
  const auto server = serve();
  const UniqueFd silent = raw_connection(server->address());
  EXPECT_TRUE(closes(silent));
  EXPECT_EQ(*fetch_from(server->address(), identity("client"), "l", 1, soon()), "l/1");
}

TEST_F(MetadataSocket, AClientThatSendsTooSlowlyIsDropped) {
  options_.handshake_timeout = 200ms;
  const auto server = serve();
  const UniqueFd slow = raw_connection(server->address());
  // Each byte comes well within the timeout; the whole hello does not.
  const std::string hello = "HRWT" + std::string("\1\0\0\0", 4) + std::string(10'000, '\1');
  bool closed = false;
  for (std::size_t i = 0; i < hello.size() && !closed; ++i) {
    closed = ::send(slow.get(), &hello[i], 1, MSG_NOSIGNAL) < 0;
    pollfd entry{slow.get(), POLLIN, 0};
    char byte = 0;
    if (!closed && ::poll(&entry, 1, 20) > 0) closed = ::recv(slow.get(), &byte, 1, 0) <= 0;
  }
  EXPECT_TRUE(closed);
}

TEST_F(MetadataSocket, AClientThatDoesNotReadItsAnswerIsDropped) {
  options_.handshake_timeout = 2s;  // it also holds for the handshakes here, also on a busy machine
  options_.timeout_per_mib = 10ms;
  const auto server = serve();
  const UniqueFd fd = raw_connection(server->address());
  wire::Handshake::Config config;
  config.mine.name = "lazy";
  config.mine.incarnation = 1;
  config.mine.purpose = wire::Purpose::metadata;
  ClientSession client(
      std::move(wire::Handshake::begin(std::move(config))).value(),
      std::move(wire::encode(wire::MetadataRequest(wire::FetchRequest{"big", std::uint64_t{32} << 20})))
          .value());
  const auto flush = [&] {
    const std::string bytes(client.to_send());
    ASSERT_EQ(::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
    client.sent(bytes.size());
  };
  flush();
  char buffer[1024];
  while (client.to_send().empty()) {  // until the handshake is done and the request can be sent
    const ssize_t got = ::recv(fd.get(), buffer, sizeof buffer, 0);
    ASSERT_GT(got, 0);
    client.feed({buffer, static_cast<std::size_t>(got)});
  }
  flush();
  // The answer is longer than the socket buffers, and this client does not read. The server serves others
  // meanwhile.
  EXPECT_EQ(*fetch_from(server->address(), identity("client"), "l", 1, soon()), "l/1");
  // The server must close although the client does not read: a read would return the buffered bytes before
  // the end.
  pollfd entry{fd.get(), POLLRDHUP, 0};
  EXPECT_EQ(::poll(&entry, 1, 30'000), 1);
}

TEST_F(MetadataSocket, WhatAHandlerThrowsEndsTheClientAlone) {
  const auto server = serve();
  EXPECT_EQ(send_to(server->address(), identity("client"), "throw", soon()).code(), Code::peer_lost);
  EXPECT_EQ(*fetch_from(server->address(), identity("client"), "l", 1, soon()), "l/1");
  EXPECT_EQ(refused_, 1);
}

TEST_F(MetadataSocket, TheServersNameComesWithItsMetadata) {
  const auto server = serve();
  wire::Hello hello;
  ASSERT_TRUE(fetch_from(server->address(), identity("client"), "l", 1, soon(), &hello).ok());
  EXPECT_EQ(hello.name, "server");
}

TEST_F(MetadataSocket, AClientOfAnotherProtocolIsDisconnected) {
  const auto server = serve();
  const UniqueFd stranger = raw_connection(server->address());
  constexpr std::string_view request = "GET / HTTP/1.1\r\n\r\n";
  ASSERT_EQ(::send(stranger.get(), request.data(), request.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(request.size()));
  EXPECT_TRUE(closes(stranger));
}

TEST_F(MetadataSocket, SilentClientsDoNotBlockOthers) {
  options_.most_clients = 4;
  const auto server = serve();
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 12; ++i) silent.push_back(raw_connection(server->address()));
  EXPECT_EQ(*fetch_from(server->address(), identity("client"), "l", 1, soon()), "l/1");
  EXPECT_TRUE(closes(silent.front()));
}

TEST_F(MetadataSocket, AMissingServerIsPeerLostAndASilentServerTimesOut) {
  std::string address;
  {
    const auto server = serve();
    address = server->address();
  }
  const auto nobody = fetch_from(address, identity("client"), "", 0, soon());
  EXPECT_EQ(nobody.code(), Code::peer_lost);
  EXPECT_THAT(nobody.error().message, HasSubstr(address));
  EXPECT_THAT(nobody.error().message, HasSubstr("nothing listens there: the other side has not started"));

  const UniqueFd silent(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto any = TcpAddress::parse("127.0.0.1:0")->resolve(TcpAddress::Use::listen)->front();
  ASSERT_EQ(::bind(silent.get(), any.get(), any.length), 0);
  ASSERT_EQ(::listen(silent.get(), 1), 0);
  const auto waited = fetch_from(SocketAddress::local_of(silent.get())->text(), identity("client"), "", 0,
                                 Deadline::after(50ms));
  EXPECT_EQ(waited.code(), Code::timed_out);
  EXPECT_THAT(waited.error().message, HasSubstr("handshake"));
}

TEST_F(MetadataSocket, AServerThatHangsUpIsPeerLost) {
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto any = TcpAddress::parse("127.0.0.1:0")->resolve(TcpAddress::Use::listen)->front();
  ASSERT_EQ(::bind(listener.get(), any.get(), any.length), 0);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  std::thread hang_up([&] { UniqueFd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC)).reset(); });
  const auto ended =
      fetch_from(SocketAddress::local_of(listener.get())->text(), identity("client"), "", 0, soon());
  EXPECT_EQ(ended.code(), Code::peer_lost);
  EXPECT_THAT(ended.error().message, HasSubstr("is this the metadata socket of an agent of Headrace?"));
  hang_up.join();
}

TEST_F(MetadataSocket, ADestroyedServerDisconnectsItsWaitingClients) {
  auto server = serve();
  const UniqueFd silent = raw_connection(server->address());
  EXPECT_EQ(*fetch_from(server->address(), identity("client"), "l", 1, soon()), "l/1");
  server.reset();
  EXPECT_TRUE(closes(silent));
}

TEST_F(MetadataSocket, AnAddressThatCannotBeListenedOnIsRefused) {
  const auto server = serve();
  const auto open = [&](const std::string& listen) {
    MetadataServerOptions options;
    options.listen = listen;
    options.identity = identity("second");
    return MetadataServer::open(options, {}, logger_);
  };
  const auto taken = open(server->address());
  EXPECT_EQ(taken.code(), Code::backend_failed);
  EXPECT_THAT(taken.error().message, HasSubstr(server->address()));
  EXPECT_EQ(open("nonsense").code(), Code::invalid_argument);
  EXPECT_EQ(open("192.0.2.1:0").code(), Code::invalid_argument);  // this machine has no such address
}

}  // namespace
}  // namespace headrace::metadata
