// SPDX-License-Identifier: Apache-2.0
#include "backends/tcp/greeting.hpp"

#include "backends/tcp/lingering_close.hpp"
#include "base/errors.hpp"

#include <sys/socket.h>

#include <array>
#include <cerrno>

namespace headrace::tcp {

Result<std::shared_ptr<Greeting>> Greeting::start(const Context& context, IoThread& thread, UniqueFd fd,
                                                  wire::Handshake::Config config, bool connecting, Done done,
                                                  std::shared_ptr<const void> held) {
  HEADRACE_TRY(handshake, wire::Handshake::begin(std::move(config)));
  const int raw = fd.get();
  std::shared_ptr<Greeting> greeting(new Greeting(context, thread, std::move(fd), std::move(handshake),
                                                  connecting, std::move(done), std::move(held)));
  HEADRACE_TRY_VOID(thread.watch(greeting, raw, connecting ? EPOLLIN | EPOLLOUT : EPOLLIN));
  return greeting;
}

Greeting::Greeting(const Context& context, IoThread& thread, UniqueFd fd, wire::Handshake handshake,
                   bool connecting, Done done, std::shared_ptr<const void> held)
    : context_(context),
      thread_(thread),
      fd_(std::move(fd)),
      handshake_(std::move(handshake)),
      connecting_(connecting),
      wants_out_(connecting),
      done_(std::move(done)),
      held_(std::move(held)),
      deadline_ns_(context.host.now_ns() +
                   static_cast<std::uint64_t>(context.settings.handshake_timeout.count())) {}

void Greeting::stop() {
  if (!fd_) return;
  thread_.forget(*this, fd_.get());
  context_.calls->forget(fd_.get());
  fd_.reset();
  held_.reset();
  done_ = nullptr;
}

std::uint64_t Greeting::on_time(std::uint64_t now_ns) {
  if (!fd_) return never;
  if (now_ns < deadline_ns_) return deadline_ns_;
  finish(make_error(Code::timed_out, "{} within {} ms",
                    connecting_ ? "it did not answer" : "the handshake was not complete",
                    context_.settings.handshake_timeout.count() / 1'000'000));
  return never;
}

void Greeting::on_ready(std::uint32_t events) {
  if (!fd_) return;
  if (connecting_) {
    int error = 0;
    socklen_t length = sizeof error;
    if (::getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &length) < 0) error = errno;
    if (error != 0) return finish(make_error(Code::peer_lost, "{}", os_error_text(error)));
    if ((events & EPOLLOUT) == 0) return;
    connecting_ = false;
  }
  move_on();
}

/// As far as it goes without waiting.
void Greeting::move_on() {
  using State = wire::Handshake::State;
  if (handshake_.state() == State::running && !receive()) return;
  if (!send()) return;
  if (!handshake_.to_send().empty()) return;
  if (handshake_.state() == State::done) return finish({});
  if (handshake_.state() == State::refused) return finish(handshake_.refusal());
}

/// False: it is over.
bool Greeting::send() {
  while (!handshake_.to_send().empty()) {
    const std::string_view text = handshake_.to_send();
    iovec piece{const_cast<char*>(text.data()), text.size()};
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    const ssize_t n = context_.calls->sendmsg(fd_.get(), &message, false);
    if (n >= 0) {
      handshake_.sent(static_cast<std::size_t>(n));
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK)
      return finish(make_error(Code::peer_lost, "{}", os_error_text(errno))), false;
    break;
  }
  const bool want_out = !handshake_.to_send().empty();
  if (want_out != wants_out_) {
    wants_out_ = want_out;
    (void)thread_.change(*this, fd_.get(), want_out ? EPOLLIN | EPOLLOUT : EPOLLIN);
  }
  return true;
}

/// False: it is over.
bool Greeting::receive() {
  std::array<char, 2048> bytes;
  while (handshake_.state() == wire::Handshake::State::running) {
    iovec piece{bytes.data(), bytes.size()};
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    const ssize_t n = context_.calls->recvmsg(fd_.get(), &message);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    if (n < 0) return finish(make_error(Code::peer_lost, "{}", os_error_text(errno))), false;
    if (n == 0)
      return finish(make_error(Code::peer_lost, "it closed the connection during the handshake")), false;
    const std::string_view came(bytes.data(), static_cast<std::size_t>(n));
    const std::size_t taken = handshake_.feed(came);
    early_.append(came.substr(taken));
  }
  return true;
}

void Greeting::finish(Result<void> result) {
  if (!fd_) return;
  thread_.forget(*this, fd_.get());
  Outcome outcome{std::move(result), {}, std::move(early_), handshake_.peer()};
  if (outcome.result.ok()) {
    outcome.fd = std::move(fd_);
  } else {
    context_.calls->forget(fd_.get());
    // The peer may be reading why.
    if (handshake_.state() == wire::Handshake::State::refused) {
      close_lingering(thread_, std::move(fd_), context_, std::move(held_),
                      {.until_ns = context_.host.now_ns() + farewell_patience_ns});
    } else {
      fd_.reset();
    }
  }
  held_.reset();
  if (const Done done = std::exchange(done_, nullptr)) done(std::move(outcome));
}

}  // namespace headrace::tcp
