// SPDX-License-Identifier: Apache-2.0
#include "rail/tcp/stream.hpp"

#include "rail/tcp/sockets.hpp"

#include <sys/socket.h>

#include <cerrno>

namespace headrace::rail::tcp {
namespace {

msghdr message_of(std::span<const iovec> pieces) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(pieces.data());
  message.msg_iovlen = pieces.size();
  return message;
}

bool nothing_now() { return errno == EAGAIN || errno == EWOULDBLOCK; }

}  // namespace

TcpStream::~TcpStream() {
  if (epoll_ != nullptr) static_cast<void>(epoll_->remove(socket_.get()));
  reset(socket_);
}

Result<void> TcpStream::watch(Epoll& epoll, std::uint64_t key) {
  HEADRACE_TRY_VOID(epoll.add(socket_.get(), EPOLLIN | (is_open() ? 0U : EPOLLOUT), key));
  epoll_ = &epoll;
  key_ = key;
  return {};
}

Result<void> TcpStream::open() {
  HEADRACE_TRY_VOID(connect_result(socket_.get()));
  state_ = State::connected;
  return tell_room(false);
}

Result<void> TcpStream::tell_room(bool on) {
  return epoll_->modify(socket_.get(), EPOLLIN | (on ? EPOLLOUT : 0U), key_);
}

Result<std::size_t> TcpStream::send(std::span<const iovec> pieces) {
  const msghdr message = message_of(pieces);
  for (;;) {
    const ssize_t n = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) return static_cast<std::size_t>(n);
    if (nothing_now()) return std::size_t{0};
    if (errno != EINTR) return os_error(errno, "send to the peer");
  }
}

Result<std::size_t> TcpStream::receive(std::span<const iovec> places) {
  msghdr message = message_of(places);
  for (;;) {
    const ssize_t n = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT);
    if (n > 0) return static_cast<std::size_t>(n);
    if (n == 0) return make_error(Code::peer_lost, "the peer has closed the connection");
    if (nothing_now()) return std::size_t{0};
    if (errno != EINTR) return os_error(Code::peer_lost, errno, "receive from the peer");
  }
}

}  // namespace headrace::rail::tcp
