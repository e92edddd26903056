// SPDX-License-Identifier: Apache-2.0
// The Unix socket of a link, with a queue before it: what the socket does not take at once waits here, with
// its descriptors.
#pragma once

#include "base/unix_socket.hpp"
#include "host_link/control_messages.hpp"

#include <deque>
#include <memory>
#include <span>
#include <vector>

namespace headrace::host_link {

using SharedFd = std::shared_ptr<const UniqueFd>;

/// Not thread-safe: the link's lock is held around it.
class ControlSocket {
 public:
  ControlSocket(const Protocol& protocol, UnixSocket socket)
      : protocol_(&protocol), socket_(std::move(socket)) {}

  /// Sends, or keeps for flush(). Raw descriptors must stay open until then; `kept` ones are held.
  void send(const ControlMessage& message, std::vector<int> descriptors = {},
            std::vector<SharedFd> kept = {});
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
  };

  const Protocol* protocol_;
  UnixSocket socket_;
  std::deque<Packet> waiting_;
  bool out_of_descriptors_ = false;
};

}  // namespace headrace::host_link
