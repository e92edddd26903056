// SPDX-License-Identifier: Apache-2.0
// The Unix socket of a link, with a queue before it: what the socket does not take at once waits here, with
// its descriptors.
//
// A peer that is stopped reads nothing, however long. What comes and goes meanwhile must not make the queue
// grow, so a message may have a name, by which it is found, and taken back, while it waits.
#pragma once

#include "base/unix_socket.hpp"
#include "host_link/control_messages.hpp"

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

namespace headrace::host_link {

using SharedFd = std::shared_ptr<const UniqueFd>;

/// Of a message, among those that wait for the socket; the backend deals them out.
using MessageName = std::uint64_t;
inline constexpr MessageName no_name = 0;

/// Not thread-safe: the link's lock is held around it.
class ControlSocket {
 public:
  ControlSocket(const Protocol& protocol, UnixSocket socket)
      : protocol_(&protocol), socket_(std::move(socket)) {}

  /// Sends, or keeps for flush(). Raw descriptors must stay open until then; `kept` ones are held.
  /// A name must not be one that waits.
  void send(const ControlMessage& message, std::vector<int> descriptors = {}, std::vector<SharedFd> kept = {},
            MessageName name = no_name);
  /// Whether the message of that name has not left yet.
  [[nodiscard]] bool waits(MessageName name) const { return named_.contains(name); }
  /// Drops it, with its descriptors; false: it has left, or there was none.
  bool take_back(MessageName name);
  /// Sends what waits as far as the socket takes it.
  void flush();
  /// Whether something waits for the socket to be writable.
  [[nodiscard]] bool blocked() const { return !waiting_.empty() && !out_of_descriptors_; }
  /// Whether something waits for the system to let more descriptors be under way (RLIMIT_NOFILE): try again
  /// later.
  [[nodiscard]] bool out_of_descriptors() const { return !waiting_.empty() && out_of_descriptors_; }

  struct Received {
    ControlMessage message;
    std::vector<UniqueFd> descriptors;
  };
  /// The next message with its descriptors.
  ///   errors   would_block, peer_lost, corrupt, not_supported
  [[nodiscard]] Result<Received> receive();

  [[nodiscard]] int fd() const { return socket_.fd(); }

 private:
  struct Packet {
    std::string bytes;
    std::vector<int> descriptors;
    std::vector<SharedFd> kept;
    MessageName name = no_name;
  };
  void forget(std::list<Packet>::iterator packet);

  const Protocol* protocol_;
  UnixSocket socket_;
  std::list<Packet> waiting_;
  std::unordered_map<MessageName, std::list<Packet>::iterator> named_;  // of those
  bool out_of_descriptors_ = false;
};

}  // namespace headrace::host_link
