// SPDX-License-Identifier: Apache-2.0
#include "rail/stream/provider.hpp"

#include "base/clock.hpp"
#include "base/descriptor_reserve.hpp"

#include <sys/timerfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace headrace::rail::stream {
namespace {

constexpr std::uint64_t listener_key = 0;
constexpr std::uint64_t timer_key = 1;
constexpr int accepts_at_once = 16;
// When descriptors run out, accept would fail at once, again and again.
constexpr std::uint64_t listening_pause_ns = 50'000'000;

void set_timer(int timer, std::uint64_t at_ns) {
  itimerspec when{};
  when.it_value.tv_sec = static_cast<time_t>(at_ns / 1'000'000'000);
  when.it_value.tv_nsec = static_cast<long>(at_ns % 1'000'000'000);
  static_cast<void>(::timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, nullptr));
}

}  // namespace

Result<StreamProvider::Parts> StreamProvider::Parts::open(int listener) {
  HEADRACE_TRY(epoll, Epoll::create());
  UniqueFd timer(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!timer) return os_error(errno, "create a timer for a NIC");
  HEADRACE_TRY_VOID(epoll.add(listener, EPOLLIN, listener_key));
  HEADRACE_TRY_VOID(epoll.add(timer.get(), EPOLLIN, timer_key));
  return Parts{std::move(epoll), std::move(timer)};
}

StreamProvider::StreamProvider(Parts parts, int listener, const Options& options, std::uint64_t life)
    : options_(options), state_(std::move(parts.epoll)), timer_(std::move(parts.timer)), listener_(listener) {
  state_.life = life;
  info_.max_moves = max_ranges;
  info_.moves_with_mark = max_ranges;
  info_.max_posts = max_posts;
  info_.marks_in_flight = UINT32_MAX;
  info_.max_message_bytes = max_message_bytes;
}

StreamProvider::~StreamProvider() { peers_.clear(); }

Result<Registered> StreamProvider::register_memory(const Memory& memory) {
  if (memory.device && !info_.gpu_memory)
    return make_error(Code::not_supported, "this NIC reaches host memory alone, this is memory of GPU {}",
                      *memory.device);
  HEADRACE_TRY(identity, identify(memory));
  HEADRACE_TRY(id, state_.memories.add(memory, std::move(identity)));
  return Registered{
      id, encode(Key{state_.life, static_cast<std::uint32_t>(id), memory.bytes, memory.device.has_value()})};
}

void StreamProvider::deregister(MemoryId memory) {
  if (!state_.memories.remove(memory)) return;
  const std::lock_guard lock(gone_mutex_);
  gone_.push_back(memory);
}

bool StreamProvider::is_open_at_peers(MemoryId memory) {
  {
    const std::lock_guard lock(gone_mutex_);
    if (std::find(gone_.begin(), gone_.end(), memory) != gone_.end()) return true;
  }
  return std::any_of(peers_.begin(), peers_.end(), [memory](const auto& each) {
    return each.second->is_open_there(static_cast<std::uint32_t>(memory));
  });
}

/// Tells all peers to close the memory that was deregistered here.
void StreamProvider::hide_gone() {
  std::vector<MemoryId> gone;
  {
    const std::lock_guard lock(gone_mutex_);
    gone.swap(gone_);
  }
  for (const MemoryId memory : gone)
    for (const auto& [id, peer] : peers_) peer->hide(static_cast<std::uint32_t>(memory));
}

// Peers.

Peer* StreamProvider::find(PeerId peer) {
  const auto at = peers_.find(peer);
  return at == peers_.end() || at->second->is_stranger() ? nullptr : at->second.get();
}

PeerId StreamProvider::make_peer(Peer::Role role, NewStream made, std::string_view hello) {
  const PeerId id{next_peer_++};
  const auto timeout = static_cast<std::uint64_t>(options_.hello_timeout.count());
  Peer::Setup setup{id, role, made.life, std::string(hello), now_ns() + timeout, std::move(made.where)};
  peers_.emplace(id, std::make_unique<Peer>(state_, std::move(setup), std::move(made.stream)));
  greeting_.push_back(id);
  return id;
}

Result<PeerId> StreamProvider::add_peer(std::string_view address, std::string_view hello) {
  if (hello.size() > max_hello_text_bytes)
    return make_error(Code::invalid_argument, "a hello of {} bytes, at most {} are allowed", hello.size(),
                      max_hello_text_bytes);
  if (descriptors_left() < options_.kept_descriptors)
    return make_error(Code::exhausted,
                      "fewer than {} file descriptors are left, which stay free for the rest of the process: "
                      "raise its limit (ulimit -n)",
                      options_.kept_descriptors);
  HEADRACE_TRY(reached, reach(address));
  return make_peer(Peer::Role::added, std::move(reached), hello);
}

void StreamProvider::drop_peer(PeerId peer) {
  Peer* const found = find(peer);
  if (found == nullptr) return;
  found->drop();
  peers_.erase(peer);
}

Result<RemoteId> StreamProvider::load_memory(PeerId peer, std::string_view key) {
  if (Peer* const found = find(peer)) return found->load(key);
  return make_error(Code::not_found, "there is no peer {}", static_cast<std::uint64_t>(peer));
}

void StreamProvider::unload_memory(PeerId peer, RemoteId memory) {
  if (Peer* const found = find(peer)) found->unload(memory);
}

// Posts.

Status StreamProvider::post_write(const Write& write) {
  Peer* const found = find(write.peer);
  return found == nullptr ? Status{Code::peer_lost} : found->write(write);
}

Status StreamProvider::post_read(const Read& read) {
  Peer* const found = find(read.peer);
  return found == nullptr ? Status{Code::peer_lost} : found->read(read);
}

Status StreamProvider::post_message(PeerId peer, const LocalRange& bytes, std::uint64_t token) {
  Peer* const found = find(peer);
  return found == nullptr ? Status{Code::peer_lost} : found->message(bytes, token);
}

Status StreamProvider::post_receive(const LocalRange& room, std::uint64_t token) {
  {
    Memories::View view(state_.memories);
    const Range range{static_cast<std::uint32_t>(room.memory), room.offset, room.bytes};
    if (room.bytes == 0 || view.find(range, Access::local) == nullptr) return {Code::invalid_argument};
  }
  state_.receives.push_back({room, token});
  serve_offers();
  return {};
}

/// One of each peer in turn, so that none takes all receives.
void StreamProvider::serve_offers() {
  for (bool served = true; served && !state_.receives.empty();) {
    served = false;
    for (const auto& [id, peer] : peers_) served = peer->serve_offer() || served;
  }
}

void StreamProvider::cancel(PeerId peer, std::uint64_t token) {
  if (Peer* const found = find(peer)) found->cancel(token);
}

bool StreamProvider::heard_from(PeerId peer) {
  Peer* const found = find(peer);
  return found != nullptr && found->take_heard();
}

// Work.

std::size_t StreamProvider::poll(std::span<Event> events) {
  if (state_.events.size() < events.size()) {
    hide_gone();
    flush_all();
    const bool slept = std::exchange(armed_, false);
    if (slept || !greeting_.empty() || must_ask_system()) take_events();
    look_at_peers(slept);
    look_at_time();
    flush_all();
  }
  std::size_t count = 0;
  for (; count < events.size() && !state_.events.empty(); ++count) {
    events[count] = std::move(state_.events.front());
    state_.events.pop_front();
  }
  return count;
}

void StreamProvider::flush_all() {
  for (const auto& [id, peer] : peers_)
    if (peer->has_output()) peer->flush();
}

/// Those of streams that have news which the epoll set does not tell.
void StreamProvider::look_at_peers(bool slept) {
  for (const auto& [id, peer] : peers_) {
    if (slept) peer->disarm();
    peer->look();
  }
  for (const auto& [id, peer] : peers_) peer->fetch();
  forget_strangers();
}

void StreamProvider::take_events() {
  std::array<epoll_event, 32> ready;
  const auto waited = state_.epoll.wait(ready, Deadline::at_ns(0));
  if (!waited) return;
  for (std::size_t i = 0; i < *waited; ++i) {
    const std::uint64_t key = ready[i].data.u64;
    if (key == listener_key) {
      accept_strangers();
    } else if (key == timer_key) {
      set_timer(timer_.get(), 0);
    } else if (const auto at = peers_.find(PeerId{key}); at != peers_.end()) {
      at->second->on_event(ready[i].events);
    }
  }
}

void StreamProvider::accept_strangers() {
  for (int i = 0; i < accepts_at_once; ++i) {
    auto made = accept();
    if (!made) {
      if (made.code() == Code::not_supported) continue;  // another user's
      if (made.code() != Code::would_block) pause_listening();
      return;
    }
    if (descriptors_left() < options_.kept_descriptors) return pause_listening();  // closes it
    make_peer(Peer::Role::stranger, std::move(*made));
    limit_strangers();
  }
}

/// Honest peers are done within a round trip: the oldest is the least likely to be one.
void StreamProvider::limit_strangers() {
  const auto is_stranger = [this](PeerId id) {
    const auto at = peers_.find(id);
    return at != peers_.end() && at->second->is_stranger();
  };
  const auto strangers = std::count_if(greeting_.begin(), greeting_.end(), is_stranger);
  if (static_cast<std::size_t>(strangers) <= options_.most_strangers) return;
  const auto oldest = std::find_if(greeting_.begin(), greeting_.end(), is_stranger);
  peers_.erase(*oldest);
  greeting_.erase(oldest);
}

void StreamProvider::pause_listening() {
  listen_again_ns_ = now_ns() + listening_pause_ns;
  static_cast<void>(state_.epoll.modify(listener_, 0, listener_key));
}

/// Those that were closed before they had a user.
void StreamProvider::forget_strangers() {
  std::erase_if(greeting_, [this](PeerId id) {
    const auto at = peers_.find(id);
    if (at == peers_.end()) return true;
    if (at->second->greets()) return false;
    if (at->second->is_stranger()) peers_.erase(at);
    return true;
  });
}

void StreamProvider::look_at_time() {
  if (greeting_.empty() && listen_again_ns_ == 0) return;
  const std::uint64_t now = now_ns();
  if (listen_again_ns_ != 0 && now >= listen_again_ns_) {
    listen_again_ns_ = 0;
    static_cast<void>(state_.epoll.modify(listener_, EPOLLIN, listener_key));
  }
  for (const PeerId id : greeting_) {
    const auto at = peers_.find(id);
    if (at != peers_.end() && at->second->greets() && at->second->deadline_ns() <= now)
      at->second->lose(make_error(Code::timed_out, "no hello came within {} ms",
                                  options_.hello_timeout.count() / 1'000'000));
  }
  forget_strangers();
}

std::uint64_t StreamProvider::next_deadline_ns() const {
  std::uint64_t next = listen_again_ns_ == 0 ? UINT64_MAX : listen_again_ns_;
  for (const PeerId id : greeting_)
    if (const auto at = peers_.find(id); at != peers_.end()) next = std::min(next, at->second->deadline_ns());
  return next;
}

bool StreamProvider::arm() {
  if (!state_.events.empty()) return false;
  for (const auto& [id, peer] : peers_)
    if (peer->has_output() || peer->has_fetches()) return false;
  const std::uint64_t next = next_deadline_ns();
  set_timer(timer_.get(), next == UINT64_MAX ? 0 : std::max<std::uint64_t>(next, 1));
  armed_ = true;
  for (const auto& [id, peer] : peers_)
    if (!peer->arm()) return false;
  return true;
}

}  // namespace headrace::rail::stream
