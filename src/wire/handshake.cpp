// SPDX-License-Identifier: Apache-2.0
#include "wire/handshake.hpp"

#include "base/errors.hpp"
#include "base/random.hpp"

#include <algorithm>
#include <cstring>
#include <span>

namespace headrace::wire {

Result<Handshake> Handshake::begin(Config config) {
  if (!config.token.empty() && !config.hmac) {
    return make_error(Code::invalid_argument, "a handshake with a token needs an hmac function");
  }
  if (config.nonce) {
    config.mine.nonce = *config.nonce;
  } else {
    fill_random(std::as_writable_bytes(std::span(config.mine.nonce)));
  }
  config.mine.capabilities &= ~capability_authentication;
  if (!config.token.empty()) config.mine.capabilities |= capability_authentication;

  Handshake handshake(std::move(config));
  HEADRACE_TRY(hello, encode(handshake.config_.mine));
  handshake.my_hello_ = std::move(hello);
  if (!handshake.accepting()) handshake.out_ = handshake.my_hello_;
  return handshake;
}

std::size_t Handshake::feed(std::string_view bytes) {
  std::size_t taken = 0;
  while (state_ == State::running) {
    const std::size_t count = std::min(bytes.size() - taken, wanted_ - in_.size());
    in_.append(bytes.substr(taken, count));
    taken += count;
    if (in_.size() < wanted_) break;
    take_step();
  }
  return taken;
}

void Handshake::take_step() {
  switch (step_) {
    case Step::prefix:
      return take_prefix();
    case Step::fixed:
      return take_name_length();
    case Step::name:
      return take_hello();
    case Step::proof:
      return take_proof();
    case Step::verdict:
      return take_verdict_length();
    case Step::verdict_text:
      return take_verdict();
  }
}

/// Waits for `step`, which is complete when `in_` holds this many bytes.
void Handshake::expect(Step step, std::size_t bytes_in_all) noexcept {
  step_ = step;
  wanted_ = bytes_in_all;
}

/// The prefix is the same in all versions. It decides whether the rest can be read.
void Handshake::take_prefix() {
  std::memcpy(&peer_.major, in_.data() + 4, sizeof peer_.major);
  if (in_.starts_with("HRWT") && peer_.major == Hello::own_major)
    return expect(Step::fixed, Hello::fixed_bytes);

  // decode_hello makes the error: it fails at the magic or at the version.
  Error error = decode_hello(in_).error();
  if (error.code == Code::not_supported && accepting()) {
    out_ = my_hello_;
    return refuse(std::move(error));
  }
  // An unknown program gets no answer.
  refusal_ = std::move(error);
  state_ = State::refused;
}

void Handshake::take_name_length() {
  std::uint16_t length = 0;
  std::memcpy(&length, in_.data() + 22, sizeof length);
  expect(Step::name, Hello::fixed_bytes + std::min<std::size_t>(length, Hello::name_bytes));
}

void Handshake::take_hello() {
  auto hello = decode_hello(in_);
  if (!hello) {
    refusal_ = std::move(hello).error();
    state_ = State::refused;
    return;
  }
  peer_ = std::move(hello).value();
  peer_hello_ = std::exchange(in_, {});
  if (accepting()) {
    take_hello_accepting();
  } else {
    take_hello_connecting();
  }
}

/// The reasons to refuse a peer that both sides check.
std::optional<Error> Handshake::check_peer() const {
  const Hello& mine = config_.mine;
  if (peer_.purpose != mine.purpose) {
    return make_error(Code::invalid_argument,
                      "\"{}\" asks for purpose {}, and \"{}\" offers purpose {} here: check the port",
                      peer_.name, static_cast<int>(peer_.purpose), mine.name, static_cast<int>(mine.purpose));
  }
  const Hello& connecting = accepting() ? peer_ : mine;
  const Hello& met = accepting() ? mine : peer_;
  if (connecting.expected_incarnation != 0 && connecting.expected_incarnation != met.incarnation) {
    return make_error(
        Code::peer_lost,
        "\"{}\" is incarnation {:016x}, expected was {:016x}: it has restarted, fetch its metadata again",
        met.name, met.incarnation, connecting.expected_incarnation);
  }
  if (!config_.expected_name.empty() && config_.expected_name != peer_.name) {
    return make_error(Code::peer_lost,
                      "the agent there is \"{}\", and \"{}\" was looked for: the address is not that agent's "
                      "(any more), fetch its metadata again",
                      peer_.name, config_.expected_name);
  }
  if (authenticated() && config_.token.empty()) {
    return make_error(Code::invalid_argument,
                      "\"{}\" asks for a shared token and \"{}\" has none: set the option auth_token",
                      peer_.name, mine.name);
  }
  return std::nullopt;
}

void Handshake::take_hello_connecting() {
  if (auto error = check_peer(); error && error->code != Code::peer_lost) {
    // The accepting side needs no message: it sees the connection close.
    refusal_ = std::move(*error);
    state_ = State::refused;
    return;
  }
  // If it is another agent than the one that is looked for, the accepting side's verdict may say more.
  if (authenticated()) {
    auto proof = proof_of(config_.role);
    if (!proof) return refuse(std::move(proof).error());
    out_.append(proof->begin(), proof->end());
  }
  expect(Step::verdict, HelloVerdict::fixed_bytes);
}

void Handshake::take_hello_accepting() {
  out_ = my_hello_;
  if (auto error = check_peer()) return refuse(std::move(*error));
  if (authenticated()) return expect(Step::proof, std::tuple_size_v<Proof>);
  welcome();
}

Result<Proof> Handshake::proof_of(HelloRole role) const {
  return compute_proof(config_.hmac, config_.token, role, accepting() ? peer_hello_ : my_hello_,
                       accepting() ? my_hello_ : peer_hello_);
}

void Handshake::take_proof() {
  const HelloRole peer_role = accepting() ? HelloRole::connecting : HelloRole::accepting;
  auto expected = proof_of(peer_role);
  if (!expected) return refuse(std::move(expected).error());
  if (!equal_in_constant_time(*expected, in_)) {
    return refuse(make_error(
        Code::invalid_argument,
        "\"{}\" and \"{}\" have different shared tokens: set the option auth_token to the same value",
        config_.mine.name, peer_.name));
  }
  in_.clear();
  if (accepting()) return welcome();
  state_ = State::done;
}

/// Accepting side: the peer is accepted unless the owner's `admit` refuses it.
void Handshake::welcome() {
  std::string proof;
  if (authenticated()) {
    auto computed = proof_of(config_.role);
    if (!computed) return refuse(std::move(computed).error());
    proof.assign(computed->begin(), computed->end());
  }
  if (config_.admit) {
    if (auto admitted = config_.admit(peer_); !admitted) return refuse(std::move(admitted).error());
  }
  out_ += encode(HelloVerdict{});
  out_ += proof;
  state_ = State::done;
}

void Handshake::take_verdict_length() {
  std::uint32_t length = 0;
  std::memcpy(&length, in_.data() + 4, sizeof length);
  expect(Step::verdict_text,
         HelloVerdict::fixed_bytes + std::min<std::size_t>(length, HelloVerdict::text_bytes));
}

void Handshake::take_verdict() {
  auto verdict = decode_verdict(in_);
  in_.clear();
  if (!verdict) return refuse(std::move(verdict).error());
  if (verdict->code != Code::ok) {
    return refuse(make_error(verdict->code, "\"{}\" refused the connection: {}", peer_.name, verdict->text));
  }
  if (auto error = check_peer())
    return refuse(std::move(*error));  // another agent, which its verdict did not report
  if (authenticated()) return expect(Step::proof, std::tuple_size_v<Proof>);
  state_ = State::done;
}

/// Ends the handshake; the accepting side sends the reason.
void Handshake::refuse(Error error) {
  if (accepting()) out_ += encode(HelloVerdict{error.code, error.message});
  refusal_ = std::move(error);
  state_ = State::refused;
}

}  // namespace headrace::wire
