// SPDX-License-Identifier: Apache-2.0
// One exchange over the metadata socket as two state machines without sockets: server and client.
// docs/wire.md section 6.
#pragma once

#include "base/errors.hpp"
#include "wire/handshake.hpp"
#include "wire/metadata_request.hpp"

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace headrace::metadata {

/// The server's handlers for requests. Called on the server's thread: they should be quick.
struct MetadataHandlers {
  std::function<Result<std::string>(const std::string& label, std::uint64_t since)> fetch;
  /// `sender`: who says that this is its metadata.
  std::function<Result<void>(const wire::Hello& sender, std::string_view metadata)> send;
  std::function<void()> refused;  ///< a limit was reached; may be empty
};

/// The number of bytes that all sessions of a server may hold together.
class ByteBudget {
 public:
  explicit ByteBudget(std::size_t most) : most_(most), left_(most) {}
  [[nodiscard]] std::size_t most() const noexcept { return most_; }
  [[nodiscard]] bool take(std::size_t bytes) noexcept {
    if (bytes > left_) return false;
    left_ -= bytes;
    return true;
  }
  void give(std::size_t bytes) noexcept { left_ += bytes; }
  [[nodiscard]] std::size_t left() const noexcept { return left_; }

 private:
  const std::size_t most_;
  std::size_t left_;
};

/// Collects one message: its length as u32, then its bytes.
class MessageCollector {
 public:
  /// The largest length of a message that begins with these bytes (two, or all if there are fewer).
  using Limit = std::function<std::size_t(std::string_view first_bytes)>;
  MessageCollector(const char* what, Limit limit) : what_(what), limit_(std::move(limit)) {}

  /// Takes the bytes of the message from the beginning of `bytes`.
  ///   errors  corrupt (longer than the limit)
  Result<void> feed(std::string_view& bytes);
  [[nodiscard]] bool complete() const noexcept { return length_ && message_.size() == *length_; }
  [[nodiscard]] std::string_view message() const noexcept { return message_; }
  [[nodiscard]] std::string take() && { return std::move(message_); }
  /// The length that the message announces; known once its first bytes are here and within the limit.
  [[nodiscard]] std::optional<std::size_t> length() const noexcept {
    return checked_ ? length_ : std::nullopt;
  }

 private:
  const char* what_;
  Limit limit_;
  std::string head_;
  std::optional<std::size_t> length_;
  bool checked_ = false;
  std::string message_;  // grows with the received bytes, not with the announced length
};

/// The server's side of an exchange.
class ServerSession {
 public:
  /// `handlers` and `budget` must outlive it.
  ServerSession(wire::Handshake handshake, const MetadataHandlers& handlers, ByteBudget& budget);
  ~ServerSession();
  ServerSession(const ServerSession&) = delete;
  ServerSession& operator=(const ServerSession&) = delete;

  enum class Phase {
    handshake,
    request,
    answer,   ///< the answer or the refusal is being sent
    closing,  ///< everything is sent: shut down this half, ignore further bytes, close when the client has
              ///< closed
  };
  [[nodiscard]] Phase phase() const noexcept { return phase_; }

  /// Takes all bytes; ignores bytes after the request.
  void feed(std::string_view bytes);
  [[nodiscard]] std::string_view to_send() const noexcept;
  void sent(std::size_t count);
  /// The number of bytes that the current phase moves, as far as known; its time limit depends on it.
  [[nodiscard]] std::size_t phase_bytes() const noexcept;
  /// The error, if there was one: for the log.
  [[nodiscard]] const std::optional<Error>& error() const noexcept { return error_; }
  [[nodiscard]] const std::string& peer_name() const noexcept { return handshake_.peer().name; }

 private:
  void feed_handshake(std::string_view& bytes);
  void feed_request(std::string_view& bytes);
  void serve();
  void answer(std::string message);
  void refuse(Error error);
  void out_of_memory();

  wire::Handshake handshake_;
  const MetadataHandlers& handlers_;
  ByteBudget& budget_;
  std::size_t charged_ = 0;  // bytes charged to the budget
  Phase phase_ = Phase::handshake;
  MessageCollector request_;
  std::string answer_;
  std::size_t answer_sent_ = 0;
  std::optional<Error> error_;
};

/// The client's side of an exchange.
class ClientSession {
 public:
  /// `request`: a message with its length before it.
  ClientSession(wire::Handshake handshake, std::string request);

  enum class State { running, done, failed };
  [[nodiscard]] State state() const noexcept { return state_; }
  void feed(std::string_view bytes);
  [[nodiscard]] std::string_view to_send() const noexcept;
  void sent(std::size_t count);
  /// The answer without its length. Valid when done.
  /// Who answers. Valid when done.
  [[nodiscard]] const wire::Hello& server() const noexcept { return handshake_.peer(); }
  [[nodiscard]] std::string take_answer() && { return std::move(answer_).take(); }
  /// Valid when failed.
  [[nodiscard]] const Error& error() const noexcept { return error_; }
  /// The current step, for errors: "in the handshake", "waiting for its answer".
  [[nodiscard]] const char* doing() const noexcept;

 private:
  void fail(Error error);

  wire::Handshake handshake_;
  std::string request_;
  std::size_t request_sent_ = 0;
  MessageCollector answer_;
  State state_ = State::running;
  Error error_;
};

}  // namespace headrace::metadata
