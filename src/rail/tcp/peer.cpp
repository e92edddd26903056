// SPDX-License-Identifier: Apache-2.0
// A peer's life: connecting, greeting, and its end.
#include "rail/tcp/peer.hpp"

#include "memory/peer_memory_access.hpp"
#include "rail/tcp/sockets.hpp"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace headrace::rail::tcp {
namespace {

constexpr int receives_at_once = 16;  // then other peers have their turn

}  // namespace

Peer::Peer(NicState& state, Setup setup, UniqueFd socket)
    : state_(state),
      setup_(std::move(setup)),
      socket_(std::move(socket)),
      life_(setup_.role == Role::added ? Life::connecting : Life::greeting),
      reader_(state.memories) {
  const bool connecting = life_ == Life::connecting;
  if (connecting) outgoing_.push({.head = encode(Hello{state.life, setup_.wanted_life, setup_.hello})});
  const auto watched = state_.epoll.add(socket_.get(), EPOLLIN | (connecting ? EPOLLOUT : 0U),
                                        static_cast<std::uint64_t>(setup_.id));
  if (!watched) lose(watched.error());
}

Peer::~Peer() { close(); }

void Peer::close() {
  if (!socket_) return;
  static_cast<void>(state_.epoll.remove(socket_.get()));
  reset(socket_);
  for (const auto& [post, taken] : taken_) state_.receives.push_front(taken.receive);
  taken_.clear();
  offers_.clear();
}

void Peer::lose(const Error& why) {
  if (life_ == Life::lost) return;
  close();
  life_ = Life::lost;
  while (!posts_.empty()) end_post(posts_.begin(), Code::peer_lost);
  if (is_stranger()) return;
  say({.kind = Event::Kind::lost,
       .status = {why.code},
       .text = fmt::format("{}: {}", setup_.where, why.message)});
}

void Peer::drop() {
  close();
  life_ = Life::lost;
  while (!posts_.empty()) end_post(posts_.begin(), Code::peer_lost);
  say({.kind = Event::Kind::dropped});
}

void Peer::say(Event event) {
  event.peer = setup_.id;
  state_.events.push_back(std::move(event));
}

void Peer::watch(bool output) {
  const auto changed = state_.epoll.modify(socket_.get(), EPOLLIN | (output ? EPOLLOUT : 0U),
                                           static_cast<std::uint64_t>(setup_.id));
  if (!changed) lose(changed.error());
}

void Peer::on_ready(std::uint32_t events) {
  if (life_ == Life::connecting) return on_connected();
  if ((events & EPOLLOUT) != 0 && blocked_) {
    blocked_ = false;
    watch(false);
  }
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) == 0 || life_ == Life::lost) return;
  auto received = life_ == Life::greeting ? receive_hello() : receive();
  if (received) return;
  if (life_ == Life::greeting)
    return lose(std::move(received).error().within(
        "no hello came; a NIC that was opened again refuses its old address, then ask for the new one"));
  lose(received.error());
}

void Peer::on_connected() {
  const auto result = connect_result(socket_.get());
  if (!result) return lose(result.error());
  life_ = Life::greeting;
  watch(false);
}

void Peer::flush() {
  const auto full =
      outgoing_.flush(socket_.get(), state_.memories, [this](const OutFrame& f) { finished(f); });
  if (!full) return lose(full.error());
  if (!*full) return;
  blocked_ = true;
  watch(true);
}

/// 0: nothing is there now.
Result<std::size_t> Peer::receive_some(std::byte* at, std::size_t bytes) {
  for (;;) {
    const ssize_t n = ::recv(socket_.get(), at, bytes, MSG_DONTWAIT);
    if (n > 0) return static_cast<std::size_t>(n);
    if (n == 0) return make_error(Code::peer_lost, "the peer has closed the connection");
    if (errno == EAGAIN || errno == EWOULDBLOCK) return std::size_t{0};
    if (errno != EINTR) return os_error(Code::peer_lost, errno, "receive from the peer");
  }
}

/// Takes no byte beyond the hello: what follows is the frame reader's.
Result<void> Peer::receive_hello() {
  for (std::size_t wanted = hello_head_bytes;;) {
    if (hello_.size() >= hello_head_bytes) {
      HEADRACE_TRY(length, hello_bytes(hello_));
      wanted = length;
    }
    if (hello_.size() == wanted) return greeted();
    std::byte some[hello_head_bytes + max_hello_text_bytes];
    HEADRACE_TRY(n, receive_some(some, wanted - hello_.size()));
    if (n == 0) return {};
    hello_.append(reinterpret_cast<const char*>(some), n);
  }
}

Result<void> Peer::greeted() {
  HEADRACE_TRY(theirs, read_hello(hello_));
  const bool added = setup_.role == Role::added;
  if (theirs.wanted != state_.life || (added && theirs.life != setup_.wanted_life))
    return make_error(Code::peer_lost, "its hello is for another life of a NIC at this address");
  their_life_ = theirs.life;
  if (!added) outgoing_.push({.head = encode(Hello{state_.life, theirs.life, {}})});
  life_ = Life::usable;
  joined_ = true;
  if (added)
    say({.kind = Event::Kind::ready});
  else
    say({.kind = Event::Kind::joined, .text = theirs.text});
  return {};
}

Result<void> Peer::receive() {
  for (int i = 0; i < receives_at_once; ++i) {
    ssize_t n = 0;
    {
      Memories::View view(state_.memories);
      const auto targets = reader_.targets(view);
      const PeerMemoryAccess access;
      msghdr message{};
      message.msg_iov = targets.data();
      message.msg_iovlen = targets.size();
      n = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT);
    }
    if (n == 0) return make_error(Code::peer_lost, "the peer has closed the connection");
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return {};
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return os_error(Code::peer_lost, errno, "receive from the peer");
    HEADRACE_TRY_VOID(reader_.took(static_cast<std::size_t>(n), *this));
  }
  return {};
}

}  // namespace headrace::rail::tcp
