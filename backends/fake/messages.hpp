// SPDX-License-Identifier: Apache-2.0
// Messages and counts: numbered where they are sent, and given to the host in order and once, whatever the
// way did to them.
#pragma once

#include "backends/fake/instance.hpp"
#include "backends/fake/link_end.hpp"

#include <string_view>

namespace headrace::fake {

class Messages {
 public:
  static constexpr std::uint64_t max_bytes =
      65'536 + 16;  ///< what an agent may send: 64 KiB and its own 16 bytes

  explicit Messages(FakeInstance& here) : here_(here) {}

  // Without the lock.

  Status notify(LinkEnd& link, std::uint32_t channel, std::string_view bytes);
  [[nodiscard]] std::uint64_t unsent(const LinkEnd& link) const;

  // With the lock held. `now` is the host's clock, read before.

  /// Whether a message or a count may be sent now, or with a post that begins now.
  static Status may_send(const LinkEnd& link);
  static Status may_send(const LinkEnd& link, std::uint32_t channel, std::uint64_t bytes);
  /// Takes the next place in the channel's order. The far side waits for the message with this number.
  static std::uint64_t take_place(LinkEnd& link, std::uint32_t channel);
  void send(LinkEnd& from, Message message, const Mishap& mishap, std::uint64_t now);
  /// Sends what a post that has succeeded adds to at the peer.
  void send_count(LinkEnd& from, plugin::Immediate immediate, const Mishap& mishap);
  /// A message has come in. Lets the lock go to call the host.
  void receive(Lock& lock, const std::shared_ptr<LinkEnd>& link, Message message);

 private:
  void give_to_host(Lock& lock, LinkEnd& link, const Message& message);

  FakeInstance& here_;
};

}  // namespace headrace::fake
