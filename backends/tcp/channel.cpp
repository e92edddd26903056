// SPDX-License-Identifier: Apache-2.0
#include "backends/tcp/channel.hpp"

#include "backends/tcp/context.hpp"
#include "backends/tcp/lingering_close.hpp"
#include "backends/tcp/link.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>

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
  if (state_.index == 0) state_.link->check_cancels(now_ns, calls);
  beat(now_ns, calls);
  const std::chrono::nanoseconds half = state_.context.settings.heartbeat_interval / 2;
  return now_ns + std::clamp<std::uint64_t>(static_cast<std::uint64_t>(half.count()), 1'000'000, 250'000'000);
}

/// Gives up a peer that has been silent for too long, and pings one that is.
void Channel::beat(std::uint64_t now_ns, HostCalls& calls) {
  const auto ns = [](std::chrono::nanoseconds d) { return static_cast<std::uint64_t>(d.count()); };
  const std::uint64_t interval = ns(state_.context.settings.heartbeat_interval);
  if (state_.heard.exchange(false) || state_.starved.load())
    heard_ns_ = now_ns;  // what the peer says may stand behind what waits
  if (state_.spoke.exchange(false)) spoke_ns_ = now_ns;
  if (now_ns - heard_ns_ >= ns(state_.context.settings.heartbeat_timeout)) {
    calls.lose({Code::peer_lost},
               fmt::format("socket {} {} {} ms", state_.index,
                           state_.retired.load() ? "was closed without the others for" : "was silent for",
                           (now_ns - heard_ns_) / 1'000'000));
    return;
  }
  const bool quiet = now_ns - heard_ns_ >= interval || now_ns - spoke_ns_ >= interval;
  if (!quiet || now_ns - pinged_ns_ < interval) return;
  pinged_ns_ = now_ns;
  {
    const std::scoped_lock lock(state_.link->mutex_);
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
  const bool told = farewell && sender_.say_farewell();
  sender_.stop();
  receiver_.stop();
  state_.thread.forget(*this, fd.get());
  state_.context.calls->forget(fd.get());
  if (told) {
    close_lingering(state_.thread, std::move(fd), state_.context);
  } else {
    ::shutdown(fd.get(), SHUT_RDWR);
    fd.reset();
  }
  sender_.release();
  receiver_.release();
  state_.clear();
}

}  // namespace headrace::tcp
