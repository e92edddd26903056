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

TcpStream::TcpStream(UniqueFd socket, State state, std::optional<wire::Handshake> handshake)
    : socket_(std::move(socket)), state_(state), handshake_(std::move(handshake)) {
  if (state_ == State::connected && handshake_) state_ = State::proving;
}

TcpStream::~TcpStream() {
  if (epoll_ != nullptr) static_cast<void>(epoll_->remove(socket_.get()));
  if (peer_reads_) {
    socket_.reset();
  } else {
    reset(socket_);
  }
}

Result<void> TcpStream::watch(Epoll& epoll, std::uint64_t key) {
  HEADRACE_TRY_VOID(epoll.add(socket_.get(), EPOLLIN | (is_open() ? 0U : EPOLLOUT), key));
  epoll_ = &epoll;
  key_ = key;
  return {};
}

Result<void> TcpStream::open() {
  if (state_ == State::connecting) {
    HEADRACE_TRY_VOID(connect_result(socket_.get()));
    state_ = handshake_ ? State::proving : State::connected;
  }
  if (state_ == State::proving) return prove();
  return tell_room(false);
}

/// As far as it goes without waiting.
Result<void> TcpStream::prove() {
  using Step = wire::Handshake::State;
  HEADRACE_TRY_VOID(send_proof());
  while (handshake_->state() == Step::running) {
    char some[256];
    const iovec place{some, sizeof some};
    auto came = receive({&place, 1});
    if (!came)
      return std::move(came).error().within(
          "the peer ended the handshake: it has no secret or another one, give both the same auth_token");
    if (*came == 0) break;
    const std::size_t taken = handshake_->feed({some, *came});
    HEADRACE_TRY_VOID(send_proof());
    if (taken < *came && handshake_->state() == Step::done)
      return make_error(Code::corrupt, "the peer has said more before the handshake was over");
  }
  if (handshake_->state() == Step::refused) {
    peer_reads_ = true;
    return handshake_->refusal();
  }
  if (handshake_->state() == Step::running || !handshake_->to_send().empty())
    return tell_room(!handshake_->to_send().empty());
  handshake_.reset();
  state_ = State::connected;
  return tell_room(false);
}

Result<void> TcpStream::send_proof() {
  while (!handshake_->to_send().empty()) {
    const std::string_view bytes = handshake_->to_send();
    const iovec piece{const_cast<char*>(bytes.data()), bytes.size()};
    HEADRACE_TRY(sent, send({&piece, 1}));
    if (sent == 0) return {};
    handshake_->sent(sent);
  }
  return {};
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
