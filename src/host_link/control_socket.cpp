// SPDX-License-Identifier: Apache-2.0
#include "host_link/control_socket.hpp"

#include <array>
#include <iterator>

namespace headrace::host_link {

void ControlSocket::send(const ControlMessage& message, std::vector<int> descriptors,
                         std::vector<SharedFd> kept, MessageName name) {
  waiting_.push_back({encode(*protocol_, message), std::move(descriptors), std::move(kept), name});
  if (name != no_name) named_.emplace(name, std::prev(waiting_.end()));
  flush();
}

bool ControlSocket::take_back(MessageName name) {
  const auto found = named_.find(name);
  if (found == named_.end()) return false;
  forget(found->second);
  flush();  // it may have been the one for which there were too few descriptors
  return true;
}

void ControlSocket::forget(std::list<Packet>::iterator packet) {
  if (packet->name != no_name) named_.erase(packet->name);
  waiting_.erase(packet);
}

void ControlSocket::flush() {
  while (!waiting_.empty()) {
    const Packet& packet = waiting_.front();
    const auto sent = socket_.send(std::as_bytes(std::span(packet.bytes)), packet.descriptors);
    if (!sent) {
      out_of_descriptors_ = sent.code() == Code::exhausted;
      if (out_of_descriptors_ || sent.code() == Code::would_block) return;
      named_.clear();
      waiting_.clear();  // nobody is there any more; the reading side of the socket tells it
      return;
    }
    forget(waiting_.begin());
  }
}

Result<ControlSocket::Received> ControlSocket::receive() {
  std::array<std::byte, max_control_bytes> buffer;
  HEADRACE_TRY(packet, socket_.receive(buffer));
  HEADRACE_TRY(message, decode(*protocol_, std::span(buffer).first(packet.bytes), packet.descriptors.size()));
  return Received{std::move(message), std::move(packet.descriptors)};
}

}  // namespace headrace::host_link
