// SPDX-License-Identifier: Apache-2.0
#include "wire/handshake.hpp"

#include "base/errors.hpp"
#include "base/hash.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <span>

namespace headrace::wire {
namespace {

using ::testing::HasSubstr;
using State = Handshake::State;

/// A keyed hash in the place of an HMAC. The handshake cannot tell the difference.
Result<Proof> toy_hmac(std::string_view key, std::string_view message) {
  Proof proof{};
  for (std::size_t i = 0; i < 4; ++i) {
    const std::uint64_t seed = hash64(std::as_bytes(std::span(key)), i);
    const std::uint64_t part = hash64(std::as_bytes(std::span(message)), seed);
    std::memcpy(proof.data() + 8 * i, &part, sizeof part);
  }
  return proof;
}

Handshake::Config side(HelloRole role, std::string token = {}) {
  Handshake::Config config;
  config.role = role;
  config.mine.name = role == HelloRole::connecting ? "caller" : "listener";
  config.mine.incarnation = role == HelloRole::connecting ? 0xaaaa : 0xbbbb;
  config.mine.purpose = Purpose::metadata;
  config.token = std::move(token);
  config.hmac = toy_hmac;
  return config;
}

Handshake begin(Handshake::Config config) {
  auto handshake = Handshake::begin(std::move(config));
  EXPECT_TRUE(handshake.ok());
  return std::move(handshake).value();
}

/// Moves at most `chunk` bytes from one side to the other. `tamper` may change them. Returns their number.
std::size_t move_bytes(Handshake& from, Handshake& to, std::size_t chunk,
                       const std::function<void(std::string&)>& tamper = {}) {
  std::string bytes(from.to_send().substr(0, chunk));
  from.sent(bytes.size());
  if (tamper) tamper(bytes);
  std::string_view rest = bytes;
  rest.remove_prefix(to.feed(rest));
  EXPECT_TRUE(rest.empty() || to.state() != State::running)
      << "bytes are left over while the handshake is running";
  return bytes.size();
}

void run(Handshake& connecting, Handshake& accepting, std::size_t chunk = 4096) {
  while (move_bytes(connecting, accepting, chunk) + move_bytes(accepting, connecting, chunk) != 0) {
  }
}

TEST(Hello, EveryFieldIsDecodedAsItWasEncoded) {
  Hello hello;
  hello.minor = 3;
  hello.incarnation = 0x1122334455667788;
  hello.capabilities = capability_checksums;
  hello.purpose = Purpose::metadata;
  hello.channel = 7;
  hello.nonce.fill(0x5a);
  hello.link_id = 99;
  hello.expected_incarnation = 0x99;
  hello.name = std::string(255, 'n');
  const std::string bytes = *encode(hello);
  EXPECT_EQ(bytes.size(), Hello::fixed_bytes + 255);
  EXPECT_EQ(*decode_hello(bytes), hello);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(decode_hello(std::string_view(bytes).substr(0, size)).code(), Code::corrupt) << size;
  }
  EXPECT_EQ(decode_hello(bytes + "x").code(), Code::corrupt);
}

TEST(Hello, EveryFieldLiesAtItsOffsetOnTheWire) {
  Hello hello;
  hello.incarnation = 0x0807060504030201;
  hello.purpose = Purpose::metadata;
  hello.channel = 9;
  hello.link_id = 0x11;
  hello.expected_incarnation = 0x22;
  hello.nonce.fill('N');
  hello.name = "ab";
  const std::string bytes = *encode(hello);
  EXPECT_EQ(bytes.substr(0, 8), std::string("HRWT\1\0\0\0", 8));
  EXPECT_EQ(bytes.substr(8, 8), "\1\2\3\4\5\6\7\10");
  EXPECT_EQ(bytes[20], 2);
  EXPECT_EQ(bytes[21], 9);
  EXPECT_EQ(bytes[22], 2);
  EXPECT_EQ(bytes.substr(24, 32), std::string(32, 'N'));
  EXPECT_EQ(bytes[56], 0x11);
  EXPECT_EQ(bytes[64], 0x22);
  EXPECT_EQ(bytes.substr(72), "ab");
}

TEST(Hello, AHelloWithoutAValidNameOrIncarnationIsNotEncoded) {
  Hello hello;
  hello.incarnation = 1;
  EXPECT_EQ(encode(hello).code(), Code::invalid_argument);
  hello.name.assign(256, 'n');
  EXPECT_EQ(encode(hello).code(), Code::invalid_argument);
  hello.name = "a";
  hello.incarnation = 0;
  EXPECT_EQ(encode(hello).code(), Code::invalid_argument);
}

TEST(Hello, AVerdictIsDecodedAsItWasEncodedAndItsTextIsCutAtTheLimit) {
  const HelloVerdict verdict{Code::peer_lost, "restarted"};
  EXPECT_EQ(*decode_verdict(encode(verdict)), verdict);
  EXPECT_EQ(decode_verdict(encode(HelloVerdict{Code::internal, std::string(2000, 'x')}))->text.size(),
            HelloVerdict::text_bytes);
  EXPECT_EQ(decode_verdict(std::string(7, '\0')).code(), Code::corrupt);
  EXPECT_EQ(decode_verdict(std::string("\0\0\0\0\1\0\0\0", 8)).code(), Code::corrupt);
}

TEST(Handshake, TheConnectingSideRefusesAnAgentOfAnotherName) {
  for (const char* const token : {"", "secret"}) {
    Handshake::Config config = side(HelloRole::connecting, token);
    config.expected_name = "somebody";
    Handshake connecting = begin(std::move(config)), accepting = begin(side(HelloRole::accepting, token));
    run(connecting, accepting);
    ASSERT_EQ(connecting.state(), State::refused);
    EXPECT_EQ(connecting.refusal().code, Code::peer_lost);
    EXPECT_THAT(connecting.refusal().message, HasSubstr("\"listener\", and \"somebody\" was looked for"));
  }
  Handshake::Config config = side(HelloRole::connecting);
  config.expected_name = "listener";
  Handshake connecting = begin(std::move(config)), accepting = begin(side(HelloRole::accepting));
  run(connecting, accepting);
  EXPECT_EQ(connecting.state(), State::done);
}

TEST(Handshake, BothSidesFinishForEverySizeOfTheChunks) {
  for (const std::string token : {"", "secret"}) {
    for (const std::size_t chunk : {std::size_t{1}, std::size_t{7}, std::size_t{71}, std::size_t{4096}}) {
      Handshake connecting = begin(side(HelloRole::connecting, token));
      Handshake accepting = begin(side(HelloRole::accepting, token));
      run(connecting, accepting, chunk);
      ASSERT_EQ(connecting.state(), State::done) << connecting.refusal().message;
      ASSERT_EQ(accepting.state(), State::done) << accepting.refusal().message;
      EXPECT_EQ(connecting.peer().name, "listener");
      EXPECT_EQ(accepting.peer().name, "caller");
      EXPECT_EQ(connecting.peer().incarnation, 0xbbbbU);
      EXPECT_EQ(connecting.minor(), 0);
    }
  }
}

TEST(Handshake, TheHandshakeTakesNoByteAfterItsEnd) {
  Handshake connecting = begin(side(HelloRole::connecting, "t"));
  Handshake accepting = begin(side(HelloRole::accepting, "t"));
  move_bytes(connecting, accepting, 4096);  // hello
  move_bytes(accepting, connecting, 4096);  // hello
  std::string bytes(connecting.to_send());  // proof
  EXPECT_EQ(bytes.size(), 32U);
  EXPECT_EQ(accepting.feed(bytes + "frame"), 32U);
  EXPECT_EQ(accepting.state(), State::done);
  bytes = std::string(accepting.to_send());  // verdict, proof
  EXPECT_EQ(connecting.feed(bytes + "frame"), bytes.size());
  EXPECT_EQ(connecting.state(), State::done);
  EXPECT_EQ(connecting.feed("frame"), 0U);
}

TEST(Handshake, BothSidesUseTheLowerMinor) {
  Handshake::Config newer = side(HelloRole::connecting);
  newer.mine.minor = 5;
  Handshake connecting = begin(std::move(newer));
  Handshake accepting = begin(side(HelloRole::accepting));
  run(connecting, accepting);
  ASSERT_EQ(connecting.state(), State::done);
  EXPECT_EQ(connecting.minor(), 0);
  EXPECT_EQ(accepting.minor(), 0);
}

TEST(Handshake, AnotherMajorIsRefusedOnBothSidesWithBothVersions) {
  Handshake::Config other = side(HelloRole::connecting);
  other.mine.major = 2;
  other.mine.minor = 4;
  Handshake connecting = begin(std::move(other));
  Handshake accepting = begin(side(HelloRole::accepting));
  // The first 8 bytes decide: the layout of the bytes that follow may differ in another major.
  EXPECT_EQ(accepting.feed(connecting.to_send().substr(0, 8)), 8U);
  ASSERT_EQ(accepting.state(), State::refused);
  EXPECT_EQ(accepting.refusal().code, Code::not_supported);
  EXPECT_THAT(accepting.refusal().message, ::testing::AllOf(HasSubstr("2.4"), HasSubstr("1.0")));
  // The answer is our hello, which names our version, and a verdict.
  const std::string_view answer = accepting.to_send();
  const std::size_t hello_size = Hello::fixed_bytes + std::string_view("listener").size();
  ASSERT_GT(answer.size(), hello_size);
  EXPECT_EQ(decode_hello(answer.substr(0, hello_size))->name, "listener");
  EXPECT_EQ(decode_verdict(answer.substr(hello_size))->code, Code::not_supported);

  Handshake::Config later = side(HelloRole::accepting);
  later.mine.major = 2;
  Handshake ours = begin(side(HelloRole::connecting));
  const std::string later_hello = *encode(later.mine);
  ours.feed(later_hello);
  ASSERT_EQ(ours.state(), State::refused);
  EXPECT_EQ(ours.refusal().code, Code::not_supported);
  EXPECT_THAT(ours.refusal().message, ::testing::AllOf(HasSubstr("2.0"), HasSubstr("1.0")));
}

TEST(Handshake, AClientOfAnotherProtocolGetsNoAnswer) {
  Handshake accepting = begin(side(HelloRole::accepting));
  accepting.feed("GET / HTTP/1.1\r\n");
  ASSERT_EQ(accepting.state(), State::refused);
  EXPECT_EQ(accepting.refusal().code, Code::corrupt);
  EXPECT_THAT(accepting.refusal().message, HasSubstr("the other program is not Headrace"));
  EXPECT_TRUE(accepting.to_send().empty());
}

void expect_refused(Handshake::Config connecting_config, Handshake::Config accepting_config, Code code,
                    const char* sentence) {
  Handshake connecting = begin(std::move(connecting_config));
  Handshake accepting = begin(std::move(accepting_config));
  run(connecting, accepting, 5);
  ASSERT_EQ(connecting.state(), State::refused);
  EXPECT_NE(accepting.state(), State::done);
  EXPECT_EQ(connecting.refusal().code, code);
  EXPECT_THAT(connecting.refusal().message, HasSubstr(sentence));
}

TEST(Handshake, AnIncarnationOtherThanExpectedIsPeerLost) {
  Handshake::Config config = side(HelloRole::connecting);
  config.mine.expected_incarnation = 0xbbbb;
  Handshake connecting = begin(config);
  Handshake accepting = begin(side(HelloRole::accepting));
  run(connecting, accepting);
  EXPECT_EQ(connecting.state(), State::done);

  config.mine.expected_incarnation = 0xcccc;
  expect_refused(config, side(HelloRole::accepting), Code::peer_lost, "has restarted");
}

TEST(Handshake, AnotherPurposeIsRefused) {
  Handshake::Config config = side(HelloRole::connecting);
  config.mine.purpose = Purpose::tcp_backend;
  expect_refused(config, side(HelloRole::accepting), Code::invalid_argument, "purpose");
}

TEST(Handshake, ATokenOnOneSideOnlyIsRefusedOnEitherSide) {
  expect_refused(side(HelloRole::connecting, "secret"), side(HelloRole::accepting), Code::invalid_argument,
                 "token");
  expect_refused(side(HelloRole::connecting), side(HelloRole::accepting, "secret"), Code::invalid_argument,
                 "token");
}

TEST(Handshake, AWrongTokenIsRefusedByBothSides) {
  Handshake connecting = begin(side(HelloRole::connecting, "right"));
  Handshake accepting = begin(side(HelloRole::accepting, "wrong"));
  run(connecting, accepting);
  ASSERT_EQ(connecting.state(), State::refused);
  ASSERT_EQ(accepting.state(), State::refused);
  EXPECT_EQ(connecting.refusal().code, Code::invalid_argument);
  EXPECT_THAT(connecting.refusal().message, HasSubstr("different shared tokens"));
}

TEST(Handshake, AnAcceptingSideWithAWrongProofIsRefused) {
  Handshake connecting = begin(side(HelloRole::connecting, "secret"));
  Handshake accepting = begin(side(HelloRole::accepting, "secret"));
  move_bytes(connecting, accepting, 4096);
  move_bytes(accepting, connecting, 4096);
  move_bytes(connecting, accepting, 4096);
  move_bytes(accepting, connecting, 4096,
             [](std::string& bytes) { bytes.back() = static_cast<char>(bytes.back() ^ 1); });
  ASSERT_EQ(connecting.state(), State::refused);
  EXPECT_EQ(connecting.refusal().code, Code::invalid_argument);
}

TEST(Handshake, WithATokenAnyFlippedBitOfTheHellosIsRefused) {
  const std::size_t hello_bits = 8 * (Hello::fixed_bytes + 6);
  for (const bool tamper_connecting : {true, false}) {
    for (std::size_t bit = 0; bit < hello_bits; ++bit) {
      Handshake connecting = begin(side(HelloRole::connecting, "secret"));
      Handshake accepting = begin(side(HelloRole::accepting, "secret"));
      const auto flip = [bit](std::string& bytes) {
        bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
      };
      move_bytes(connecting, accepting, 4096, tamper_connecting ? flip : std::function<void(std::string&)>());
      if (!accepting.to_send().empty()) {
        move_bytes(accepting, connecting, 4096,
                   tamper_connecting ? std::function<void(std::string&)>() : flip);
      }
      run(connecting, accepting);
      EXPECT_FALSE(connecting.state() == State::done && accepting.state() == State::done) << bit;
      EXPECT_NE(connecting.state(), State::done) << bit;
      EXPECT_NE(accepting.state(), State::done) << bit;
    }
  }
}

TEST(Handshake, AProofCannotBeReplayedOrReflected) {
  // The proof of one connection is invalid on the next, because the nonces differ.
  Handshake first = begin(side(HelloRole::connecting, "secret"));
  Handshake accepting = begin(side(HelloRole::accepting, "secret"));
  const std::string hello(first.to_send());
  move_bytes(first, accepting, 4096);
  move_bytes(accepting, first, 4096);
  const std::string proof(first.to_send());
  Handshake again = begin(side(HelloRole::accepting, "secret"));
  again.feed(hello);
  again.feed(proof);
  EXPECT_EQ(again.state(), State::refused);
  // The proofs of the two roles over the same hellos differ.
  EXPECT_NE(*compute_proof(toy_hmac, "secret", HelloRole::connecting, "a", "b"),
            *compute_proof(toy_hmac, "secret", HelloRole::accepting, "a", "b"));
}

TEST(Handshake, AdmitIsAskedOnlyAboutProvenPeersAndMayRefuse) {
  int asked = 0;
  Handshake::Config config = side(HelloRole::accepting, "secret");
  config.admit = [&](const Hello& peer) -> Result<void> {
    ++asked;
    EXPECT_EQ(peer.name, "caller");
    return make_error(Code::exhausted, "too many links");
  };
  expect_refused(side(HelloRole::connecting, "other"), config, Code::invalid_argument, "token");
  EXPECT_EQ(asked, 0);
  expect_refused(side(HelloRole::connecting, "secret"), config, Code::exhausted,
                 "\"listener\" refused the connection: too many links");
  EXPECT_EQ(asked, 1);
}

TEST(Handshake, AFailingHmacRefusesTheConnection) {
  const auto broken = [](std::string_view, std::string_view) -> Result<Proof> {
    return make_error(Code::not_supported, "no cryptography here");
  };
  Handshake::Config config = side(HelloRole::connecting, "t");
  config.hmac = broken;
  Handshake connecting = begin(config);
  Handshake accepting = begin(side(HelloRole::accepting, "t"));
  run(connecting, accepting);
  EXPECT_EQ(connecting.state(), State::refused);
  config = side(HelloRole::accepting, "t");
  config.hmac = broken;
  expect_refused(side(HelloRole::connecting, "t"), config, Code::not_supported, "no cryptography");
  config.hmac = {};
  EXPECT_EQ(Handshake::begin(config).code(), Code::invalid_argument);
}

}  // namespace
}  // namespace headrace::wire
