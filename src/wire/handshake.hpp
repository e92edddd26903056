// SPDX-License-Identifier: Apache-2.0
// The opening of a connection as a state machine: bytes in, bytes out, and at its end a peer or a refusal. It
// has no socket and no clock and never waits, so any event loop can run it.
#pragma once

#include "wire/hello.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

namespace headrace::wire {

/// One side of docs/wire.md section 3:
///
///   connecting   hello                 [proof]
///   accepting           hello                   verdict [proof]
///
/// The owner moves the bytes: it passes received bytes to `feed` and sends the bytes of `to_send`. It closes
/// the connection if the option handshake_timeout passes before `done`.
class Handshake {
 public:
  struct Config {
    HelloRole role = HelloRole::connecting;
    Hello mine;                 ///< nonce and authentication bit are filled in
    std::string token;          ///< shared by all agents that may talk; empty: no authentication
    Hmac hmac;                  ///< may be empty if there is no token
    std::string expected_name;  ///< connecting side: of the peer; empty: any
    /// Accepting side: checks the peer after its proof. An error refuses the peer, with its code and text.
    std::function<Result<void>(const Hello& peer)> admit;
    std::optional<Nonce> nonce;  ///< for tests; nullopt: random
  };

  enum class State {
    running,
    done,     ///< the peer is proved; later bytes of the connection are not the handshake's
    refused,  ///< send the remaining bytes of `to_send`, then close
  };

  ///   errors  invalid_argument (name, incarnation, a token without hmac)
  [[nodiscard]] static Result<Handshake> begin(Config config);

  /// Takes received bytes; returns how many belong to the handshake. Once done or refused it takes none.
  std::size_t feed(std::string_view bytes);

  [[nodiscard]] std::string_view to_send() const noexcept { return std::string_view(out_).substr(sent_); }
  void sent(std::size_t count) noexcept { sent_ += count; }

  [[nodiscard]] State state() const noexcept { return state_; }
  /// The peer's hello. Valid when done; before, the fields known so far.
  [[nodiscard]] const Hello& peer() const noexcept { return peer_; }
  /// The lower of the two minor versions, which both sides use. Valid when done.
  [[nodiscard]] std::uint16_t minor() const noexcept { return std::min(peer_.minor, config_.mine.minor); }
  /// Why it was refused, by either side. Valid when refused.
  [[nodiscard]] const Error& refusal() const noexcept { return refusal_; }

 private:
  enum class Step { prefix, fixed, name, proof, verdict, verdict_text };

  explicit Handshake(Config config) : config_(std::move(config)) {}

  void take_step();
  void expect(Step step, std::size_t bytes_in_all) noexcept;
  void take_prefix();
  void take_name_length();
  void take_hello();
  void take_hello_connecting();
  void take_hello_accepting();
  void take_proof();
  void take_verdict_length();
  void take_verdict();
  void welcome();
  void refuse(Error error);

  [[nodiscard]] bool accepting() const noexcept { return config_.role == HelloRole::accepting; }
  [[nodiscard]] bool authenticated() const noexcept {
    return ((config_.mine.capabilities | peer_.capabilities) & capability_authentication) != 0;
  }
  [[nodiscard]] std::optional<Error> check_peer() const;
  Result<Proof> proof_of(HelloRole role) const;

  Config config_;
  std::string my_hello_;
  std::string peer_hello_;  // as received: the proofs cover these bytes
  Hello peer_;
  State state_ = State::running;
  Step step_ = Step::prefix;
  std::size_t wanted_ = Hello::prefix_bytes;
  std::string in_;  // received bytes of the current step: at most one hello or verdict
  std::string out_;
  std::size_t sent_ = 0;
  Error refusal_;
};

}  // namespace headrace::wire
