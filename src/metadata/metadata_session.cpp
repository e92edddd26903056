// SPDX-License-Identifier: Apache-2.0
#include "metadata/metadata_session.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <stdexcept>
#include <utility>

namespace headrace::metadata {

using Limits = wire::MetadataSocketLimits;

Result<void> MessageCollector::feed(std::string_view& bytes) {
  const auto move_to = [&](std::string& target, std::size_t wanted) {
    const std::size_t count = std::min(bytes.size(), wanted - target.size());
    target.append(bytes.substr(0, count));
    bytes.remove_prefix(count);
  };
  if (!length_) {
    move_to(head_, Limits::length_bytes);
    if (head_.size() < Limits::length_bytes) return {};
    std::uint32_t length = 0;
    std::memcpy(&length, head_.data(), sizeof length);
    length_ = length;
  }
  if (!checked_) {
    const std::size_t first = std::min<std::size_t>(2, *length_);
    move_to(message_, first);
    if (message_.size() < first) return {};
    const std::size_t most = limit_(message_);
    if (*length_ > most) {
      return make_error(Code::corrupt,
                        "{} is corrupt at offset 0: {} bytes are announced, at most {} are allowed", what_,
                        *length_, most);
    }
    checked_ = true;
  }
  move_to(message_, *length_);
  return {};
}

// --- serving

ServerSession::ServerSession(wire::Handshake handshake, const MetadataHandlers& handlers, ByteBudget& budget)
    : handshake_(std::move(handshake)),
      handlers_(handlers),
      budget_(budget),
      request_("a metadata request", wire::metadata_request_limit) {}

ServerSession::~ServerSession() { budget_.give(charged_); }

void ServerSession::feed(std::string_view bytes) {
  try {
    if (phase_ == Phase::handshake) feed_handshake(bytes);
    if (phase_ == Phase::request) feed_request(bytes);
  } catch (const std::bad_alloc&) {
    out_of_memory();
  } catch (const std::length_error&) {
    out_of_memory();
  }
}

/// What a client sends must not end the process.
void ServerSession::out_of_memory() {
  budget_.give(std::exchange(charged_, 0));
  request_ = MessageCollector("a metadata request", wire::metadata_request_limit);
  refuse(
      make_error(Code::exhausted, "this agent has no memory left for the request: retry later, or in parts"));
}

/// A limit was reached.
void ServerSession::refuse(Error error) {
  if (handlers_.refused) handlers_.refused();
  error_ = std::move(error);
  answer_ = wire::encode_send_answer(*error_);
  phase_ = Phase::answer;
}

void ServerSession::feed_handshake(std::string_view& bytes) {
  bytes.remove_prefix(handshake_.feed(bytes));
  if (handshake_.state() == wire::Handshake::State::running) return;
  if (handshake_.state() == wire::Handshake::State::done) {
    phase_ = Phase::request;
    return;
  }
  error_ = handshake_.refusal();
  phase_ = to_send().empty() ? Phase::closing : Phase::answer;
}

void ServerSession::feed_request(std::string_view& bytes) {
  const std::size_t before = bytes.size();
  auto fed = request_.feed(bytes);
  const std::size_t taken = before - bytes.size();
  const std::size_t length = request_.length().value_or(0);
  if (fed && length > Limits::small_bytes && length > budget_.most() / 4)
    return refuse(
        make_error(Code::exhausted,
                   "metadata of {} bytes: this agent takes at most {} in one piece, a quarter of its "
                   "option metadata_bytes; let it fetch the metadata, or send parts",
                   length, budget_.most() / 4));
  if (fed && !budget_.take(taken))
    return refuse(make_error(Code::exhausted,
                             "the current requests fill this agent's memory for metadata, {} bytes (option "
                             "metadata_bytes): retry later",
                             budget_.most()));
  if (fed) charged_ += taken;
  if (!fed) {
    error_ = fed.error();
    return answer(wire::encode_send_answer(fed));
  }
  if (request_.complete()) serve();
}

void ServerSession::serve() {
  auto request = wire::decode_metadata_request(request_.message());
  if (!request) {
    error_ = request.error();
    return answer(wire::encode_send_answer(std::move(request).error()));
  }
  if (const auto* fetch = std::get_if<wire::FetchRequest>(&*request)) {
    auto metadata = handlers_.fetch
                        ? handlers_.fetch(fetch->label, fetch->since)
                        : make_error(Code::not_supported, "this agent does not serve its metadata");
    if (!metadata) error_ = metadata.error();
    return answer(wire::encode_fetch_answer(metadata));
  }
  const std::string_view metadata = std::get<wire::SendRequest>(*request).metadata;
  auto taken = handlers_.send ? handlers_.send(handshake_.peer(), metadata)
                              : make_error(Code::not_supported,
                                           "this agent does not accept metadata that it did not ask for");
  if (!taken) error_ = taken.error();
  answer(wire::encode_send_answer(taken));
}

void ServerSession::answer(std::string message) {
  if (!budget_.take(message.size()))
    return refuse(make_error(Code::exhausted,
                             "the current answers fill this agent's memory for metadata, {} bytes (option "
                             "metadata_bytes): retry later",
                             budget_.most()));
  charged_ += message.size();
  answer_ = std::move(message);
  phase_ = Phase::answer;
}

std::string_view ServerSession::to_send() const noexcept {
  // The end of the handshake is sent first, even if the answer is ready.
  if (!handshake_.to_send().empty()) return handshake_.to_send();
  return std::string_view(answer_).substr(answer_sent_);
}

void ServerSession::sent(std::size_t count) {
  const std::size_t of_handshake = std::min(count, handshake_.to_send().size());
  handshake_.sent(of_handshake);
  answer_sent_ += count - of_handshake;
  if (phase_ == Phase::answer && to_send().empty()) phase_ = Phase::closing;
}

std::size_t ServerSession::phase_bytes() const noexcept {
  if (phase_ == Phase::request) return request_.length().value_or(0);
  // Also while closing: the sockets may still hold all of it.
  return phase_ == Phase::answer || phase_ == Phase::closing ? answer_.size() : 0;
}

// --- asking

ClientSession::ClientSession(wire::Handshake handshake, std::string request)
    : handshake_(std::move(handshake)),
      request_(std::move(request)),
      answer_("the answer to a metadata request", [](std::string_view) { return Limits::large_bytes; }) {}

void ClientSession::fail(Error error) {
  error_ = std::move(error);
  state_ = State::failed;
}

void ClientSession::feed(std::string_view bytes) {
  if (state_ != State::running) return;
  bytes.remove_prefix(handshake_.feed(bytes));
  if (handshake_.state() == wire::Handshake::State::refused) return fail(handshake_.refusal());
  if (handshake_.state() == wire::Handshake::State::running || bytes.empty()) return;
  // A refusal may come before the whole request was sent: the answer is complete all the same.
  if (auto fed = answer_.feed(bytes); !fed) return fail(std::move(fed).error());
  if (answer_.complete()) state_ = State::done;
}

std::string_view ClientSession::to_send() const noexcept {
  if (!handshake_.to_send().empty()) return handshake_.to_send();
  if (handshake_.state() != wire::Handshake::State::done) return {};
  return std::string_view(request_).substr(request_sent_);
}

void ClientSession::sent(std::size_t count) {
  const std::size_t of_handshake = std::min(count, handshake_.to_send().size());
  handshake_.sent(of_handshake);
  request_sent_ += count - of_handshake;
}

const char* ClientSession::doing() const noexcept {
  if (handshake_.state() == wire::Handshake::State::running) return "in the handshake";
  return to_send().empty() ? "waiting for its answer" : "sending the request";
}

}  // namespace headrace::metadata
