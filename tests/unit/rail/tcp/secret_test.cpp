// SPDX-License-Identifier: Apache-2.0
// tcp NICs with a secret: who is let in, and what those hear that are not.
#include "base/hash.hpp"
#include "rail/stream/hello.hpp"
#include "rail/tcp/address.hpp"
#include "rail/tcp/provider.hpp"
#include "unit/rail/wait_for_nics.hpp"

#include <gtest/gtest.h>

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace headrace::rail::tcp {
namespace {

using Kind = Event::Kind;
using wire::Handshake;

/// A keyed hash in the place of an HMAC.
Result<wire::Proof> keyed_hash(std::string_view key, std::string_view message) {
  wire::Proof proof{};
  for (std::size_t i = 0; i < 4; ++i) {
    const std::uint64_t seed = hash64(std::as_bytes(std::span(key)), i);
    const std::uint64_t part = hash64(std::as_bytes(std::span(message)), seed);
    std::memcpy(proof.data() + 8 * i, &part, sizeof part);
  }
  return proof;
}

/// One side, and what it was told.
struct Side {
  explicit Side(const std::string& token) {
    auto opened = TcpProvider::open("127.0.0.1", {}, {token, token.empty() ? wire::Hmac() : keyed_hash});
    EXPECT_TRUE(opened) << opened.error().message;
    nic = std::move(*opened);
  }
  [[nodiscard]] const Event* find(Kind kind) const {
    const auto at =
        std::find_if(events.begin(), events.end(), [kind](const Event& e) { return e.kind == kind; });
    return at == events.end() ? nullptr : &*at;
  }
  std::unique_ptr<TcpProvider> nic;
  std::vector<Event> events;
};

bool until(const std::vector<Side*>& sides, const std::function<bool()>& holds) {
  for (int i = 0; i < 20'000; ++i) {
    std::vector<TcpProvider*> idle;
    for (Side* const side : sides) {
      std::array<Event, 8> some;
      const std::size_t n = side->nic->poll(some);
      side->events.insert(side->events.end(), some.begin(), some.begin() + static_cast<std::ptrdiff_t>(n));
      idle.push_back(side->nic.get());
    }
    if (holds()) return true;
    test::wait_for_nics(idle);
  }
  return false;
}

/// The first connects to the second and is not let in; the sentence has these words.
void expect_apart(const std::string& one, const std::string& other, const std::string& words) {
  SCOPED_TRACE("\"" + one + "\" to \"" + other + "\"");
  Side here(one), there(other);
  ASSERT_TRUE(here.nic->add_peer(there.nic->address(), "hello"));
  ASSERT_TRUE(until({&here, &there}, [&] { return here.find(Kind::lost) != nullptr; }));
  EXPECT_NE(here.find(Kind::lost)->text.find(words), std::string::npos) << here.find(Kind::lost)->text;
  EXPECT_EQ(here.find(Kind::ready), nullptr);
  EXPECT_TRUE(there.events.empty());
}

TEST(TcpSecret, NICs_with_the_same_secret_meet_and_bytes_move) {
  Side here("secret"), there("secret");
  std::vector<char> bytes(100'000, 'x'), place(100'000);
  const auto at = [](std::vector<char>& memory, Access access) {
    return Memory{reinterpret_cast<std::uintptr_t>(memory.data()), memory.size(), {}, access};
  };
  const auto source = here.nic->register_memory(at(bytes, Access::local));
  const auto target = there.nic->register_memory(at(place, Access::peers_read_and_write));
  ASSERT_TRUE(source && target);
  const auto peer = here.nic->add_peer(there.nic->address(), "hello");
  ASSERT_TRUE(peer);
  ASSERT_TRUE(until({&here, &there}, [&] { return here.find(Kind::ready) && there.find(Kind::joined); }));
  EXPECT_EQ(there.find(Kind::joined)->text, "hello");
  const auto key = here.nic->load_memory(*peer, target->key);
  ASSERT_TRUE(key);
  const std::array moves{Move{source->id, *key, 0, 0, bytes.size()}};
  ASSERT_TRUE(here.nic->post_write({*peer, moves, 7, 1}).ok());
  ASSERT_TRUE(until({&here, &there}, [&] { return here.find(Kind::ended) && there.find(Kind::marked); }));
  EXPECT_EQ(place, bytes);
}

TEST(TcpSecret, others_do_not_meet_whichever_connects_and_hear_why) {
  expect_apart("secret", "another", "have different shared tokens");
  expect_apart("secret", "", "has no secret or another one");
  expect_apart("", "secret", "a NIC with a secret refuses peers without it");
}

/// A socket that connects to a NIC.
class Caller {
 public:
  explicit Caller(const TcpProvider& nic) : address_(*read_address(nic.address())) {
    fd_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(fd_.get(), address_.at.get(), address_.at.length), 0);
  }
  void say(std::string_view bytes) const {
    EXPECT_EQ(::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  void say_hello() const { say(encode(stream::Hello{1, address_.life, "forged"})); }
  bool closed() {
    std::array<char, 4096> some;
    const ssize_t n = ::recv(fd_.get(), some.data(), some.size(), MSG_DONTWAIT);
    if (n > 0) heard.append(some.data(), static_cast<std::size_t>(n));
    return n == 0 || (n < 0 && errno != EAGAIN);
  }
  std::string heard;

 private:
  NicAddress address_;
  UniqueFd fd_;
};

Handshake handshake_of(wire::Purpose purpose, const std::string& token) {
  Handshake::Config config;
  config.mine.purpose = purpose;
  config.mine.incarnation = 1;
  config.mine.name = "forger";
  config.token = token;
  config.hmac = keyed_hash;
  auto begun = Handshake::begin(std::move(config));
  EXPECT_TRUE(begun) << begun.error().message;
  return std::move(*begun);
}

/// Says all that the handshake has to say, and reads the answers until the NIC closes.
void play(Handshake& handshake, Caller& caller, Side& side) {
  std::size_t fed = 0;
  EXPECT_TRUE(until({&side}, [&] {
    caller.say(handshake.to_send());
    handshake.sent(handshake.to_send().size());
    const bool closed = caller.closed();
    fed += handshake.feed(std::string_view(caller.heard).substr(fed));
    return closed;
  }));
}

TEST(TcpSecret, forged_hellos_end_the_connection_and_make_no_peer) {
  Side side("secret");
  Caller without(*side.nic);  // no proof at all
  without.say_hello();
  ASSERT_TRUE(until({&side}, [&] { return without.closed(); }));
  EXPECT_TRUE(without.heard.empty());

  Caller guesses(*side.nic);
  auto guess = handshake_of(wire::Purpose::fabric, "guess");
  play(guess, guesses, side);
  EXPECT_EQ(guess.state(), Handshake::State::refused);
  EXPECT_NE(guess.refusal().message.find("different shared tokens"), std::string::npos);

  Caller elsewhere(*side.nic);  // a proof for the port of an agent is none here
  auto agent = handshake_of(wire::Purpose::tcp_backend, "secret");
  play(agent, elsewhere, side);
  EXPECT_EQ(agent.state(), Handshake::State::refused);

  Caller hasty(*side.nic);  // the proof of another connection, and a hello behind it
  auto other = handshake_of(wire::Purpose::fabric, "secret");
  hasty.say(other.to_send());
  hasty.say(std::string(sizeof(wire::Proof), 'p'));
  hasty.say_hello();
  ASSERT_TRUE(until({&side}, [&] { return hasty.closed(); }));
  EXPECT_TRUE(side.events.empty());

  Side honest("secret");
  ASSERT_TRUE(honest.nic->add_peer(side.nic->address(), "hello"));
  EXPECT_TRUE(until({&side, &honest}, [&] { return side.find(Kind::joined) != nullptr; }));
}

TEST(TcpSecret, one_who_does_not_know_the_secret_cannot_take_a_NICs_place) {
  Side here("secret");
  UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  SocketAddress at = read_address(here.nic->address())->at;
  reinterpret_cast<sockaddr_in&>(at.storage).sin_port = 0;
  ASSERT_EQ(::bind(listener.get(), at.get(), at.length), 0);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  ASSERT_TRUE(here.nic->add_peer(encode(NicAddress{*SocketAddress::local_of(listener.get()), 1}), "hello"));
  const UniqueFd accepted(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  wire::Hello mine;
  mine.purpose = wire::Purpose::fabric;
  mine.incarnation = 1;
  mine.capabilities = wire::capability_authentication;
  mine.name = "impostor";
  const std::string says =
      *encode(mine) + encode(wire::HelloVerdict{}) + std::string(32, 'p') + encode(stream::Hello{1, 1, {}});
  ASSERT_EQ(::send(accepted.get(), says.data(), says.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(says.size()));
  ASSERT_TRUE(until({&here}, [&] { return here.find(Kind::lost) != nullptr; }));
  EXPECT_EQ(here.find(Kind::ready), nullptr);
  EXPECT_NE(here.find(Kind::lost)->text.find("different shared tokens"), std::string::npos)
      << here.find(Kind::lost)->text;
}

}  // namespace
}  // namespace headrace::rail::tcp
