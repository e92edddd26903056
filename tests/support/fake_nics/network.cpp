// SPDX-License-Identifier: Apache-2.0
#include "support/fake_nics/state.hpp"

#include <algorithm>

namespace headrace::test {
namespace fake_nics {

using rail::Event;
using Kind = rail::Event::Kind;

std::uint64_t State::draw(std::uint64_t after_ns) {
  const auto shortest = static_cast<std::uint64_t>(faults.shortest.count());
  const auto longest = std::max(static_cast<std::uint64_t>(faults.longest.count()), shortest);
  return std::max(now_ns, after_ns) + shortest + random_() % (longest - shortest + 1);
}

bool State::run_next() {
  if (due.empty()) return false;
  auto first = due.extract(due.begin());
  now_ns = std::max(now_ns, first.key());
  first.mapped()();
  return true;
}

void State::connect(const std::shared_ptr<Connection>& made, const std::string& name, std::string hello) {
  const auto at_ns = draw();
  at(at_ns, [this, made, name, hello = std::move(hello)] {
    const auto found = nics.find(name);
    if (found == nics.end() || !found->second->open || found->second->dead || found->second->down ||
        made->ends[0].nic->dead || made->ends[0].nic->down) {
      lose(made, 0, "NIC " + name + " does not answer");
      return;
    }
    if (made->ends[0].life != End::Life::unknown) return;  // dropped meanwhile
    Nic& nic = *found->second;
    made->ends[1] = {&nic, rail::PeerId{nic.next_peer++}, End::Life::usable, {}};
    nic.peers.emplace(static_cast<std::uint64_t>(made->ends[1].peer), made);
    say(nic, {.kind = Kind::joined, .peer = made->ends[1].peer, .status = {}, .text = hello});
    at(draw(), [made] {
      if (made->ends[0].life != End::Life::unknown || made->silent) return;
      made->ends[0].life = End::Life::usable;
      say(*made->ends[0].nic, {.kind = Kind::ready, .peer = made->ends[0].peer, .status = {}, .text = {}});
    });
  });
}

void State::lose(const std::shared_ptr<Connection>& connection, int side, const std::string& why) {
  End& end = connection->ends[side];
  if (end.nic == nullptr || (end.life != End::Life::unknown && end.life != End::Life::usable)) return;
  end.life = End::Life::lost;
  say(*end.nic, {.kind = Kind::lost, .peer = end.peer, .status = {Code::peer_lost}, .text = why});
}

void State::drop(const std::shared_ptr<Connection>& connection, int side) {
  End& end = connection->ends[side];
  if (end.life == End::Life::dropping || end.life == End::Life::dropped) return;
  end.life = End::Life::dropping;
  at(draw(), [this, connection, side] { finish_drop(connection, side); });
}

namespace {

void copy_bytes(const Nic& nic, Post& post) {
  for (const auto& move : post.moves) {
    const std::byte* from = bytes_of(nic, static_cast<std::uint64_t>(move.local), move.local_offset,
                                     move.bytes, rail::Access::local);
    post.copies.emplace_back(reinterpret_cast<const char*>(from), move.bytes);
  }
}

}  // namespace

void State::finish_drop(const std::shared_ptr<Connection>& connection, int side) {
  End& end = connection->ends[side];
  const auto posts = connection->posts;
  for (const auto& post : posts) {
    if (post->side != side) continue;
    // The network has copies of what was under way: it may arrive until the other side has dropped us too.
    if (post->kind == Post::Kind::write) copy_bytes(*end.nic, *post);
    this->end(*connection, post, Code::backend_failed);
  }
  end.life = End::Life::dropped;
  connection->waiting[side].clear();
  end.nic->peers.erase(static_cast<std::uint64_t>(end.peer));
  say(*end.nic, {.kind = Kind::dropped, .peer = end.peer, .status = {}, .text = {}});
  at(draw(), [this, connection, side] {
    if (!connection->silent) lose(connection, 1 - side, "the peer has dropped this NIC");
  });
}

void State::tell_death(Nic& nic) {
  nic.down = true;
  say(nic, {.kind = Kind::down, .status = {Code::backend_failed}, .text = nic.info.name + " is dead"});
  const auto peers = nic.peers;
  for (const auto& [number, connection] : peers)
    for (int side = 0; side < 2; ++side) lose(connection, side, nic.info.name + " is dead");
}

namespace {

/// What has come and was not polled goes with the hardware, though its sender was told that it is there.
void lose_unread(Nic& nic) {
  std::erase_if(nic.events, [&nic](const Event& event) {
    if (event.kind == Kind::received) nic.receives.push_back(nic.given.extract(event.token).mapped());
    return event.kind == Kind::received || event.kind == Kind::marked;
  });
}

}  // namespace
}  // namespace fake_nics

FakeNics::FakeNics(std::uint64_t seed) : state_(std::make_shared<fake_nics::State>(seed)) {}
FakeNics::~FakeNics() {
  const std::lock_guard lock(state_->mutex);
  state_->due.clear();
}

std::unique_ptr<rail::Provider> FakeNics::open(const std::string& name, std::uint64_t bits_per_second) {
  const std::lock_guard lock(state_->mutex);
  auto& nic = state_->nics[name];
  if (nic) state_->closed.push_back(std::move(nic));
  nic = std::make_unique<fake_nics::Nic>();
  nic->info = {.name = name,
               .bits_per_second = bits_per_second,
               .max_moves = fake_nics::max_moves,
               .moves_with_mark = fake_nics::max_moves,
               .max_posts = fake_nics::max_posts,
               .marks_in_flight = 4096,
               .max_message_bytes = fake_nics::max_message_bytes,
               .gpu_memory = false};
  return make_provider(state_, *nic);
}

void FakeNics::set_faults(const FakeFaults& faults) {
  const std::lock_guard lock(state_->mutex);
  state_->faults = faults;
}

void FakeNics::kill(const std::string& name, Told told) {
  const std::lock_guard lock(state_->mutex);
  fake_nics::Nic& nic = *state_->nics.at(name);
  if (told == Told::early) {
    // What is on its way arrives until the peers are dropped.
    state_->tell_death(nic);
    return;
  }
  nic.dead = true;
  fake_nics::lose_unread(nic);
  for (const auto& [number, connection] : nic.peers) connection->silent = true;
  nic.down = told == Told::by_health;
  if (told == Told::never || nic.down) return;
  const auto late = static_cast<std::uint64_t>(state_->faults.late.count());
  state_->at(state_->now_ns + late, [state = state_.get(), &nic] {
    if (nic.dead) state->tell_death(nic);
  });
}

void FakeNics::revive(const std::string& name) {
  const std::lock_guard lock(state_->mutex);
  fake_nics::Nic& nic = *state_->nics.at(name);
  nic.dead = nic.down = false;
  say(nic, {.kind = rail::Event::Kind::up, .status = {}, .text = {}});
}

void FakeNics::cut(const std::string& one, const std::string& other) {
  const std::lock_guard lock(state_->mutex);
  const auto peers = state_->nics.at(one)->peers;
  for (const auto& [number, connection] : peers)
    for (int side = 0; side < 2; ++side)
      if (connection->ends[side].nic == state_->nics.at(other).get())
        for (int each = 0; each < 2; ++each) state_->lose(connection, each, "the connection was cut");
}

void FakeNics::advance(std::chrono::nanoseconds by) {
  const std::lock_guard lock(state_->mutex);
  const auto until = state_->now_ns + static_cast<std::uint64_t>(by.count());
  while (!state_->due.empty() && state_->due.begin()->first <= until) state_->run_next();
  state_->now_ns = until;
}

bool FakeNics::run_next() {
  const std::lock_guard lock(state_->mutex);
  return state_->run_next();
}

std::uint64_t FakeNics::now_ns() const {
  const std::lock_guard lock(state_->mutex);
  return state_->now_ns;
}

std::size_t FakeNics::pending() const {
  const std::lock_guard lock(state_->mutex);
  std::size_t count = state_->due.size();
  for (const auto& [name, nic] : state_->nics) count += nic->posts;
  return count;
}

}  // namespace headrace::test
