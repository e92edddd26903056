// SPDX-License-Identifier: Apache-2.0
#include "backends/tcp/channel.hpp"

#include "backends/tcp/context.hpp"
#include "backends/tcp/lingering_close.hpp"
#include "backends/tcp/link.hpp"
#include "backends/tcp/socket_setup.hpp"

#include <sys/epoll.h>

#include <algorithm>

namespace headrace::tcp {

Result<void> Channel::watch() { return state_.thread.watch(shared_from_this(), state_.fd.get(), 0); }

void Channel::start(HostCalls& calls, std::string_view early) {
  if (!receiver_.start(calls, early)) return;
  sender_.start();
  pump(calls, Driver::io_thread);
}

bool Channel::claim() {
  if (!state_.idle || state_.retired.load()) return false;
  state_.idle = false;
  return true;
}

// ------------------------------------------------------------------ the I/O thread

void Channel::on_ready(std::uint32_t events) {
  if (events == EPOLLIN && receiver_.left_to_caller()) return;
  HostCalls calls(*state_.link);
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) receive(calls, Driver::io_thread);
  sender_.pump(calls, Driver::io_thread, (events & EPOLLOUT) != 0);
}

void Channel::on_kick() {
  HostCalls calls(*state_.link);
  pump(calls, Driver::io_thread);
}

std::uint64_t Channel::on_time(std::uint64_t now_ns) {
  HostCalls calls(*state_.link);
  cancel_due_ns_ = state_.index == 0 ? state_.link->check_cancels(now_ns, calls) : never;
  beat(now_ns, calls);
  return rests() ? never : std::min(cancel_due_ns_, state_.heartbeat.next_ns(now_ns));
}

std::uint64_t Channel::due_ns() const { return std::min(cancel_due_ns_, state_.heartbeat.due_ns()); }

bool Channel::rests() const {
  const std::scoped_lock lock(state_.link->mutex_);
  return state_.resting;
}

/// Gives up a peer that has been silent for too long, and pings one that is. A socket other than the first,
/// on which nothing is under way, rests instead: the kernel's keepalive watches it.
void Channel::beat(std::uint64_t now_ns, HostCalls& calls) {
  using Beat = transport::Heartbeat::Beat;
  if (state_.starved.load()) state_.heartbeat.heard();  // what the peer says may stand behind what waits
  const Beat beat = state_.heartbeat.beat(now_ns);
  if (beat == Beat::lost)
    calls.lose({Code::peer_lost},
               fmt::format("socket {} {} {} ms", state_.index,
                           state_.retired.load() ? "was closed without the others for" : "was silent for",
                           state_.heartbeat.silence().count()));
  if (beat != Beat::ping) return;
  {
    const std::scoped_lock lock(state_.link->mutex_);
    state_.resting = state_.index != 0 && quiet() && !state_.retired.load();
    if (state_.resting) return;
    state_.ping_due = true;
  }
  pump(calls, Driver::io_thread);
}

Watched::Look Channel::on_look() {
  HostCalls calls(*state_.link);
  bool moved = false;
  const bool starved = state_.starved.load();
  if (starved) {
    moved = receive(calls, Driver::io_thread);
  } else if (state_.landing.load()) {
    moved = receiver_.look(calls);
  }
  const bool gathered = state_.gathering.load();
  if (moved || gathered || starved || sender_.must_listen_anew()) pump(calls, Driver::io_thread);
  moved = moved || (gathered && !state_.gathering.load());
  if (state_.gathering.load() || state_.landing.load() || state_.starved.load())
    return moved ? Look::moved : Look::idle;
  return Look::over;
}

// ------------------------------------------------------------------ the end

void Channel::detach(const Region& region) {
  receiver_.detach(region);
  sender_.detach(region);
}

void Channel::close(bool farewell) {
  const std::scoped_lock both(receiver_.mutex(), sender_.mutex());
  UniqueFd& fd = state_.fd;
  if (!fd) return;
  auto words = farewell ? sender_.farewell() : std::nullopt;
  sender_.stop();
  receiver_.stop();
  state_.thread.forget(*this, fd.get());
  if (words) {
    close_lingering(state_.thread, std::move(fd), state_.context, state_.context.farewells.begin(),
                    *std::move(words));
  } else {
    state_.context.calls->forget(fd.get());
    abort_connection(std::move(fd));
  }
  sender_.release();
  receiver_.release();
  state_.clear();
}

}  // namespace headrace::tcp
