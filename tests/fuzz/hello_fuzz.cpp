// SPDX-License-Identifier: Apache-2.0
// The handshake, in two ways: a conversation of two sides in which the input changes bytes, so that the
// fuzzer gets behind the proofs; and bytes of the input against one side.
#include "wire/handshake.hpp"

#include "base/hash.hpp"

#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

using namespace headrace;

namespace {

using State = wire::Handshake::State;

Result<wire::Proof> toy_hmac(std::string_view key, std::string_view message) {
  wire::Proof proof{};
  const std::uint64_t hash = hash64(std::as_bytes(std::span(message)), hash64(std::as_bytes(std::span(key))));
  for (std::size_t i = 0; i < 4; ++i) {
    const std::uint64_t part = hash * (2 * i + 1);
    std::memcpy(proof.data() + 8 * i, &part, sizeof part);
  }
  return proof;
}

wire::Handshake side(wire::HelloRole role, bool token, std::uint8_t variant) {
  wire::Handshake::Config config;
  config.role = role;
  config.mine.name = role == wire::HelloRole::connecting ? "connecting" : "accepting";
  config.mine.incarnation = 7;
  config.mine.purpose = wire::Purpose::metadata;
  config.mine.expected_incarnation = variant % 3 == 1 ? 7 : 0;
  config.nonce.emplace().fill(static_cast<std::uint8_t>(role));
  if (token) config.token = "secret";
  config.hmac = toy_hmac;
  return std::move(wire::Handshake::begin(std::move(config))).value();
}

/// Takes bytes from the input until it is empty.
class Input {
 public:
  explicit Input(std::string_view bytes) : bytes_(bytes) {}
  [[nodiscard]] bool empty() const { return bytes_.empty(); }
  std::uint8_t byte() {
    if (bytes_.empty()) return 0;
    const auto value = static_cast<std::uint8_t>(bytes_.front());
    bytes_.remove_prefix(1);
    return value;
  }
  std::string_view piece(std::size_t most) {
    const std::string_view taken = bytes_.substr(0, most);
    bytes_.remove_prefix(taken.size());
    return taken;
  }

 private:
  std::string_view bytes_;
};

/// Feeds the rest of the input to a handshake, in chunks whose lengths the input gives.
void listen_to_stranger(wire::Handshake& handshake, Input& input) {
  while (!input.empty() && handshake.state() == State::running) {
    handshake.sent(handshake.to_send().size());
    const std::string_view piece = input.piece(1 + input.byte());
    if (handshake.feed(piece) > piece.size()) std::abort();
  }
}

/// A conversation of two sides. The input gives the length of each chunk, and the bytes to change.
void converse(Input& input, bool token, std::uint8_t variant) {
  wire::Handshake connecting = side(wire::HelloRole::connecting, token, variant);
  wire::Handshake accepting = side(wire::HelloRole::accepting, token, variant);
  bool changed = false;
  const auto move = [&](wire::Handshake& from, wire::Handshake& to) {
    std::string bytes(from.to_send().substr(0, 1 + input.byte()));
    if (bytes.empty()) return false;
    from.sent(bytes.size());
    const std::uint8_t change = input.byte();
    if (change != 0) {
      char& target = bytes[input.byte() % bytes.size()];
      target = static_cast<char>(target ^ change);
      changed = true;
    }
    to.feed(bytes);
    return true;
  };
  while (move(connecting, accepting) || move(accepting, connecting)) {
  }
  const bool both = connecting.state() == State::done && accepting.state() == State::done;
  if (!changed && !both) std::abort();
  // With a token every byte that is changed before the verdict must be noticed; the verdict itself is not
  // protected.
  if (token && both && (connecting.peer().name != "accepting" || accepting.peer().name != "connecting"))
    std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  Input input(bytes.substr(1));
  const bool token = (data[0] & 4) != 0;
  switch (data[0] % 4) {
    case 0: {
      wire::Handshake handshake = side(wire::HelloRole::connecting, token, data[0] / 8);
      listen_to_stranger(handshake, input);
      break;
    }
    case 1: {
      wire::Handshake handshake = side(wire::HelloRole::accepting, token, data[0] / 8);
      listen_to_stranger(handshake, input);
      if (token && handshake.state() == State::done) std::abort();
      break;
    }
    case 2:
      converse(input, token, data[0] / 8);
      break;
    default: {
      if (const auto hello = wire::decode_hello(bytes.substr(1)); hello.ok()) {
        if (*wire::encode(*hello) != bytes.substr(1)) std::abort();
      }
      if (const auto verdict = wire::decode_verdict(bytes.substr(1));
          verdict.ok() && verdict->text.size() > wire::HelloVerdict::text_bytes)
        std::abort();
    }
  }
  return 0;
}
