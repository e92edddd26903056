// SPDX-License-Identifier: Apache-2.0
// One socket of a link: a receiver and a sender, woken by an I/O thread or driven by a caller.
//
// Locks, in the order in which they may be taken:
//   receiver's   one thread at a time takes bytes from the socket   (what comes in, where it goes)
//   sender's     one thread at a time puts bytes into it            (the batch on its way)
//   link's       short: queues, windows, requests
// A thread writes payload to memory under the receiver's lock and sends it under the sender's. A thread that
// holds both locks knows that no memory is in use.
#pragma once

#include "backends/tcp/receiver.hpp"
#include "backends/tcp/sender.hpp"

#include <string_view>

namespace headrace::tcp {

class Channel final : public Watched {
 public:
  Channel(std::shared_ptr<Link> link, unsigned index, UniqueFd fd, IoThread& thread)
      : state_(*this, std::move(link), index, std::move(fd), thread) {}

  /// Begins to receive; `early` are bytes that came with the handshake.
  Result<void> watch();
  void start(HostCalls& calls, std::string_view early);

  void on_ready(std::uint32_t events) override;
  void on_kick() override;
  std::uint64_t on_time(std::uint64_t now_ns) override;
  [[nodiscard]] std::uint64_t due_ns() const override;
  Look on_look() override;

  /// Takes bytes from the socket. Whether there were any.
  bool receive(HostCalls& calls, Driver driver) { return receiver_.receive(calls, driver); }
  /// Sends what is to be sent.
  void pump(HostCalls& calls, Driver driver) { sender_.pump(calls, driver); }
  /// The I/O thread sends what is to be sent, soon.
  void kick() { state_.kick(); }
  /// The I/O thread looks after canceled writes in time.
  void hurry() { state_.thread.hurry(shared_from_this()); }

  // With the link's lock.
  /// Whether it has nothing to send and nobody else is about to pump it. Then the caller must.
  [[nodiscard]] bool claim();
  /// Whether it has nothing to send and waits for no answer.
  [[nodiscard]] bool quiet() const { return state_.idle && state_.reads.size() + state_.writes.size() == 0; }

  /// Keeps what is still to come for this post of a read out of its memory, and counts it as answered.
  void abandon(std::uint64_t wire_id) { receiver_.abandon(wire_id); }
  /// Keeps peers out of a region that is going away: the rest of a write into it is thrown away, the rest of
  /// an answer from it is copied first.
  void detach(const Region& region);
  /// Whether the peer has closed the socket.
  [[nodiscard]] bool closed_by_peer() { return receiver_.closed_by_peer(); }
  /// No memory is touched after it. With `farewell` the peer is told, behind all that it has still to hear;
  /// else the socket is reset.
  void close(bool farewell);

 private:
  void beat(std::uint64_t now_ns, HostCalls& calls);
  [[nodiscard]] bool rests() const;

  std::uint64_t cancel_due_ns_ = never;  // of the I/O thread
  ChannelState state_;
  Receiver receiver_{state_};
  Sender sender_{state_};
};

}  // namespace headrace::tcp
