// SPDX-License-Identifier: Apache-2.0
// The opening of a connection as a machine: bytes in, bytes out, and in the end a peer or a refusal. It has
// no socket, no clock and never waits, so that every user can drive it from an event loop of its own.
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
/// The owner moves bytes: what the socket has goes to `feed`, what `to_send` shows goes to the socket. It
/// closes the connection when the option handshake_timeout has passed before `done`.
class Handshake {
 public:
  struct Config {
    HelloRole role = HelloRole::connecting;
    Hello mine;         ///< nonce and the authentication bit are filled in
    std::string token;  ///< shared by all agents that may talk; empty: we ask for none and have none
    Hmac hmac;          ///< may be empty without a token
    /// Accepting side: looks at the peer once it has proved itself. An error refuses it, with its code and
    /// text.
    std::function<Result<void>(const Hello& peer)> admit;
    std::optional<Nonce> nonce;  ///< for tests; none: random
  };

  enum class State {
    running,
    done,     ///< the peer is who it says; what comes next on the connection is not the handshake's
    refused,  ///< send what `to_send` still shows, then close
  };

  ///   errors  invalid_argument (name, incarnation, a token without hmac)
  [[nodiscard]] static Result<Handshake> begin(Config config);

  /// Takes bytes that came in; returns how many were the handshake's. Once done or refused it takes none.
  std::size_t feed(std::string_view bytes);

  [[nodiscard]] std::string_view to_send() const noexcept { return std::string_view(out_).substr(sent_); }
  void sent(std::size_t count) noexcept { sent_ += count; }

  [[nodiscard]] State state() const noexcept { return state_; }
  /// The peer's hello. Valid when done; before, what is known of it.
  [[nodiscard]] const Hello& peer() const noexcept { return peer_; }
  /// The minor version that both speak. Valid when done.
  [[nodiscard]] std::uint16_t minor() const noexcept { return std::min(peer_.minor, config_.mine.minor); }
  /// Why it was refused, by us or by the peer. Valid when refused.
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
  std::string peer_hello_;  // as it came: what the proofs are over
  Hello peer_;
  State state_ = State::running;
  Step step_ = Step::prefix;
  std::size_t wanted_ = Hello::prefix_bytes;
  std::string in_;  // what came of the current step: at most one hello or verdict
  std::string out_;
  std::size_t sent_ = 0;
  Error refusal_;
};

}  // namespace headrace::wire
