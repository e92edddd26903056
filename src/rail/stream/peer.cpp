// SPDX-License-Identifier: Apache-2.0
// A peer's life: connecting, greeting, and its end.
#include "rail/stream/peer.hpp"

#include "memory/peer_memory_access.hpp"

#include <algorithm>
#include <utility>

namespace headrace::rail::stream {
namespace {

constexpr int receives_at_once = 16;  // then other peers have their turn
constexpr int fetch_steps_at_once = 4;
constexpr std::size_t most_gpu_fetches = 8;

}  // namespace

Peer::Peer(NicState& state, Setup setup, std::unique_ptr<Stream> stream)
    : state_(state),
      setup_(std::move(setup)),
      stream_(std::move(stream)),
      life_(stream_->is_open() ? Life::greeting : Life::connecting),
      reader_(state.memories) {
  if (setup_.role == Role::added)
    outgoing_.push({.head = encode(Hello{state.life, setup_.wanted_life, setup_.hello})});
  const auto watched = stream_->watch(state_.epoll, static_cast<std::uint64_t>(setup_.id));
  if (!watched) lose(watched.error());
}

Peer::~Peer() { close(); }

void Peer::close() {
  if (stream_ == nullptr) return;
  stream_.reset();
  taken_.clear();
  offers_.clear();
  fetches_.clear();
  lent_.clear();
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

void Peer::set_blocked(bool blocked) {
  blocked_ = blocked;
  const auto told = stream_->tell_room(blocked);
  if (!told) lose(told.error());
}

void Peer::on_event(std::uint32_t events) {
  if (stream_ == nullptr) return;
  stream_->woken();
  on_ready(events);
}

void Peer::look() {
  if (stream_ == nullptr) return;
  if (const std::uint32_t news = stream_->news(); news != 0) on_ready(news);
}

void Peer::on_ready(std::uint32_t events) {
  if (life_ == Life::connecting) {
    if (const auto opened = stream_->open(); !opened) return lose(opened.error());
    if (!stream_->is_open()) return;
    life_ = Life::greeting;
  }
  if ((events & EPOLLOUT) != 0 && blocked_) set_blocked(false);
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) == 0 || life_ == Life::lost) return;
  auto received = life_ == Life::greeting ? receive_hello() : receive();
  if (received) return;
  if (life_ == Life::greeting)
    return lose(std::move(received).error().within(
        "no hello came; a NIC that was opened again refuses its old address, then ask for the new one; a NIC "
        "with a secret refuses peers without it, then set the same auth_token"));
  lose(received.error());
}

void Peer::flush() {
  const auto full = outgoing_.flush(*stream_, state_.memories, [this](const OutFrame& f) { finished(f); });
  if (!full) return lose(full.error());
  if (*full) set_blocked(true);
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
    const iovec place{some, wanted - hello_.size()};
    HEADRACE_TRY(n, stream_->receive({&place, 1}));
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
  stream_->greeted();
  if (added)
    say({.kind = Event::Kind::ready});
  else
    say({.kind = Event::Kind::joined, .text = theirs.text});
  return {};
}

/// Those behind the first one: a GPU has the next copy when it is done with one. What cannot begin is looked
/// at again when it is the first.
void Peer::begin_gpu_fetches() {
  for (std::size_t i = 1; i < std::min(fetches_.size(), most_gpu_fetches); ++i) {
    if (!fetches_[i].waits_for_gpu()) continue;
    const auto state = fetches_[i].step(*stream_, state_.memories);
    if (!state && state.code() != Code::not_supported) return lose(state.error());
  }
}

void Peer::fetch() {
  for (int i = 0; i < fetch_steps_at_once && !fetches_.empty(); ++i) {
    const auto state = fetches_.front().step(*stream_, state_.memories);
    if (!state && state.code() != Code::not_supported) return lose(state.error());
    if (state && *state == Fetch::State::under_way) continue;
    Code code = Code::not_supported;
    if (state) code = *state == Fetch::State::done ? Code::ok : Code::not_found;
    if (const auto finished = finish_fetch(code); !finished) return lose(finished.error());
  }
  begin_gpu_fetches();
}

Result<std::size_t> Peer::receive_some() {
  Memories::View view(state_.memories);
  const auto targets = reader_.targets(view);
  const PeerMemoryAccess access;
  return stream_->receive(targets);
}

Result<void> Peer::receive() {
  for (int i = 0; i < receives_at_once; ++i) {
    HEADRACE_TRY(n, receive_some());
    if (n == 0) return {};
    heard_ = true;
    HEADRACE_TRY_VOID(reader_.took(n, *this));
  }
  return {};
}

}  // namespace headrace::rail::stream
