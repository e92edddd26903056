// SPDX-License-Identifier: Apache-2.0
#include "metadata/metadata_session.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <new>
#include <vector>

namespace headrace::metadata {
namespace {

using ::testing::HasSubstr;
using State = ClientSession::State;
using Phase = ServerSession::Phase;

wire::Handshake handshake(wire::HelloRole role) {
  wire::Handshake::Config config;
  config.role = role;
  config.mine.name = role == wire::HelloRole::connecting ? "client" : "server";
  config.mine.incarnation = 1;
  config.mine.purpose = wire::Purpose::metadata;
  return std::move(wire::Handshake::begin(std::move(config))).value();
}

std::string message_of(const wire::MetadataRequest& request) {
  return std::move(wire::encode(request)).value();
}

class Sessions : public ::testing::Test {
 protected:
  Sessions() {
    handlers_.fetch = [](const std::string& label, std::uint64_t since) -> Result<std::string> {
      if (label == "none") return make_error(Code::not_found, "no label \"none\"");
      return label + "/" + std::to_string(since);
    };
    handlers_.refused = [this] { ++refused_; };
    handlers_.send = [this](const wire::Hello& sender, std::string_view metadata) -> Result<void> {
      given_ = metadata;
      sender_ = sender.name;
      return {};
    };
  }
  /// Moves bytes until both sides have sent everything.
  static void run(ClientSession& client, ServerSession& server, std::size_t chunk) {
    for (bool moved = true; moved;) {
      moved = false;
      if (const std::string bytes(client.to_send().substr(0, chunk)); !bytes.empty()) {
        client.sent(bytes.size());
        server.feed(bytes);
        moved = true;
      }
      if (const std::string bytes(server.to_send().substr(0, chunk)); !bytes.empty()) {
        server.sent(bytes.size());
        client.feed(bytes);
        moved = true;
      }
    }
  }
  std::string ask(const wire::MetadataRequest& request, std::size_t chunk = 1 << 20) {
    ClientSession client(handshake(wire::HelloRole::connecting), message_of(request));
    ServerSession server(handshake(wire::HelloRole::accepting), handlers_, budget_);
    run(client, server, chunk);
    EXPECT_EQ(client.state(), State::done);
    EXPECT_EQ(server.phase(), Phase::closing);
    return std::move(client).take_answer();
  }

  MetadataHandlers handlers_;
  ByteBudget budget_{1 << 20};
  std::string given_, sender_;
  int refused_ = 0;
};

TEST_F(Sessions, FetchAndSendWorkForEverySizeOfTheChunks) {
  for (const std::size_t chunk : {std::size_t{1}, std::size_t{5}, std::size_t{1} << 20}) {
    EXPECT_EQ(*wire::decode_fetch_answer(ask(wire::FetchRequest{"label", 7}, chunk)), "label/7");
    EXPECT_TRUE(wire::decode_send_answer(ask(wire::SendRequest{"metadata"}, chunk)).ok());
    EXPECT_EQ(given_, "metadata");
    EXPECT_EQ(sender_, "client");
  }
}

TEST_F(Sessions, AHandlersErrorReachesTheClient) {
  const std::string answer = ask(wire::FetchRequest{"none", 0});
  EXPECT_EQ(wire::decode_fetch_answer(answer).code(), Code::not_found);
  EXPECT_THAT(wire::decode_fetch_answer(answer).error().message, HasSubstr("no label"));
  handlers_ = {};
  EXPECT_EQ(wire::decode_fetch_answer(ask(wire::FetchRequest{"", 0})).code(), Code::not_supported);
  EXPECT_EQ(wire::decode_send_answer(ask(wire::SendRequest{"m"})).code(), Code::not_supported);
}

/// A server after the handshake; the test writes the client's bytes.
class GreetedServer {
 public:
  GreetedServer(const MetadataHandlers& handlers, ByteBudget& budget)
      : server_(handshake(wire::HelloRole::accepting), handlers, budget),
        client_(handshake(wire::HelloRole::connecting)) {
    server_.feed(client_.to_send());
    client_.sent(client_.to_send().size());
    client_.feed(server_.to_send());
    server_.sent(server_.to_send().size());
    EXPECT_EQ(client_.state(), wire::Handshake::State::done);
  }
  ServerSession* operator->() { return &server_; }
  Error refusal() const {
    const std::string_view bytes = server_.to_send();
    return wire::decode_send_answer(bytes.substr(std::min<std::size_t>(4, bytes.size()))).error();
  }

 private:
  ServerSession server_;
  wire::Handshake client_;
};

TEST_F(Sessions, ARequestThatAnnouncesTooManyBytesIsRefusedBeforeItIsReceived) {
  GreetedServer server(handlers_, budget_);
  server->feed(std::string("\xff\xff\xff\x7f\x93\x01", 6));  // a fetch of 2 GiB
  EXPECT_EQ(server->phase(), Phase::answer);
  EXPECT_EQ(server.refusal().code, Code::corrupt);
  EXPECT_THAT(server.refusal().message, HasSubstr("4096"));
  GreetedServer longer(handlers_, budget_);
  longer->feed(std::string("\x01\x00\x00\x40\x92\x02", 6));  // a send of a byte over 1 GiB
  EXPECT_EQ(longer.refusal().code, Code::corrupt);
  ByteBudget large(std::size_t{4} << 30);
  GreetedServer right(handlers_, large);
  right->feed(std::string("\x00\x00\x00\x40\x92\x02", 6));
  EXPECT_EQ(right->phase(), Phase::request);
  EXPECT_EQ(right->phase_bytes(), std::size_t{1} << 30);
}

TEST_F(Sessions, AMalformedRequestIsRefused) {
  for (const std::string& bytes :
       {std::string(4, '\0'), std::string("\1\0\0\0\xc0", 5), std::string("\2\0\0\0\x91\x07", 6)}) {
    GreetedServer server(handlers_, budget_);
    server->feed(bytes);
    EXPECT_EQ(server->phase(), Phase::answer);
    EXPECT_EQ(server.refusal().code, Code::corrupt);
  }
}

TEST_F(Sessions, OneSendHasAtMostAQuarterOfTheBytes) {
  const std::string request = message_of(wire::SendRequest{std::string(budget_.most() / 4 + 1, 'm')});
  GreetedServer server(handlers_, budget_);
  server->feed(std::string_view(request).substr(0, 100));
  EXPECT_EQ(server->phase(), Phase::answer) << "it is refused before it is received";
  EXPECT_EQ(server.refusal().code, Code::exhausted);
  EXPECT_THAT(server.refusal().message, HasSubstr("metadata_bytes"));
  EXPECT_EQ(refused_, 1);
}

TEST_F(Sessions, ARequestForWhichThereIsNoMemoryIsRefused) {
  handlers_.send = [](const wire::Hello&, std::string_view) -> Result<void> { throw std::bad_alloc(); };
  EXPECT_EQ(wire::decode_send_answer(ask(wire::SendRequest{"metadata"})).code(), Code::exhausted);
  EXPECT_EQ(refused_, 1);
  EXPECT_EQ(budget_.left(), budget_.most());
}

TEST_F(Sessions, TheBytesOfAllSessionsTogetherHaveALimit) {
  const std::string metadata(budget_.most() / 4 - 100, 'm');
  const std::string request = message_of(wire::SendRequest{metadata});
  {
    std::vector<std::unique_ptr<GreetedServer>> waiting;
    for (int i = 0; i < 4; ++i) {
      waiting.push_back(std::make_unique<GreetedServer>(handlers_, budget_));
      (*waiting.back())->feed(std::string_view(request).substr(0, request.size() - 1));
    }
    GreetedServer last(handlers_, budget_);
    last->feed(request);
    EXPECT_EQ(last->phase(), Phase::answer);
    EXPECT_EQ(last.refusal().code, Code::exhausted);
    GreetedServer& first = *waiting.front();
    first->feed(std::string_view(request).substr(request.size() - 1));
    EXPECT_TRUE(wire::decode_send_answer(first->to_send().substr(4)).ok());
  }
  EXPECT_EQ(budget_.left(), std::size_t{1} << 20);
  // Answers count, too.
  handlers_.fetch = [](const std::string&, std::uint64_t) { return std::string((1 << 20) + 1, 'a'); };
  EXPECT_EQ(wire::decode_fetch_answer(ask(wire::FetchRequest{"", 0})).code(), Code::exhausted);
}

TEST_F(Sessions, AClientOfAnotherProtocolIsDisconnectedWithoutAnAnswer) {
  ServerSession server(handshake(wire::HelloRole::accepting), handlers_, budget_);
  server.feed("GET / HTTP/1.1\r\n\r\n");
  EXPECT_EQ(server.phase(), Phase::closing);
  EXPECT_TRUE(server.to_send().empty());
  server.feed("more");
}

TEST_F(Sessions, AnAnswerThatAnnouncesTooManyBytesFailsTheClient) {
  ClientSession client(handshake(wire::HelloRole::connecting), message_of(wire::FetchRequest{"", 0}));
  ServerSession server(handshake(wire::HelloRole::accepting), handlers_, budget_);
  server.feed(client.to_send());
  client.feed(server.to_send());
  client.feed(std::string("\xff\xff\xff\xff\x92\x00", 6));
  ASSERT_EQ(client.state(), State::failed);
  EXPECT_EQ(client.error().code, Code::corrupt);
}

}  // namespace
}  // namespace headrace::metadata
