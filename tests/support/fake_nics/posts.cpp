// SPDX-License-Identifier: Apache-2.0
// How posts are carried: each move, the mark and the end at a moment of its own.
#include "support/fake_nics/state.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace headrace::test::fake_nics {

using Kind = rail::Event::Kind;

std::byte* bytes_of(const Nic& nic, std::uint64_t memory, std::uint64_t offset, std::uint64_t bytes,
                    rail::Access least) {
  const auto at = nic.memories.find(static_cast<std::uint32_t>(memory));
  if (at == nic.memories.end() || at->second.access < least) return nullptr;
  if (offset > at->second.bytes || bytes > at->second.bytes - offset) return nullptr;
  return reinterpret_cast<std::byte*>(at->second.address) + offset;
}

void State::start(const std::shared_ptr<Connection>& connection, const std::shared_ptr<Post>& post) {
  connection->posts.push_back(post);
  ++connection->ends[post->side].nic->posts;
  if (connection->silent || draw_percent(faults.lost_percent)) return;
  if (post->kind == Post::Kind::message)
    at(draw(), [this, connection, post] { offer(connection, post); });
  else
    carry(connection, post);
}

/// All bytes come before the mark and before the end; nothing else is ordered. A second time is no exception:
/// no network places bytes after it has said that they are there.
void State::carry(const std::shared_ptr<Connection>& connection, const std::shared_ptr<Post>& post) {
  const int times = post->kind == Post::Kind::write && draw_percent(faults.doubled_percent) ? 2 : 1;
  std::uint64_t placed_ns = now_ns;
  for (std::size_t i = 0; i < times * post->moves.size(); ++i) {
    const auto when = draw();
    placed_ns = std::max(placed_ns, when);
    ++post->unplaced;
    at(when, [this, connection, post, i] { place(*connection, *post, i % post->moves.size()); });
  }
  for (int i = 0; post->mark && i < times; ++i)
    at(draw(placed_ns), [this, connection, post] { mark(*connection, *post); });
  at(draw(placed_ns),
     [this, connection, post] { carried(*connection, post, post->refused ? Code::not_found : Code::ok); });
}

void State::place(Connection& connection, Post& post, std::size_t index) {
  const End& target = connection.ends[1 - post.side];
  if (connection.silent || !target.takes_bytes()) return;
  const bool write = post.kind == Post::Kind::write;
  if (post.ended && post.copies.empty()) return;  // a read
  const auto& move = post.moves[index];
  std::byte* const there =
      bytes_of(*target.nic, static_cast<std::uint64_t>(move.remote), move.remote_offset, move.bytes,
               write ? rail::Access::peers_read_and_write : rail::Access::peers_read);
  --post.unplaced;
  if (there == nullptr) {
    post.refused = true;
  } else if (!post.copies.empty()) {
    std::memcpy(there, post.copies[index].data(), move.bytes);
  } else {
    std::byte* const here = bytes_of(*connection.ends[post.side].nic, static_cast<std::uint64_t>(move.local),
                                     move.local_offset, move.bytes, rail::Access::local);
    std::memcpy(write ? there : here, write ? here : there, move.bytes);
  }
}

void State::mark(Connection& connection, Post& post) {
  const End& target = connection.ends[1 - post.side];
  if (connection.silent || !target.takes_bytes() || post.refused || post.unplaced > 0) return;
  say(*target.nic, {.kind = Kind::marked, .peer = target.peer, .status = {}, .mark = *post.mark, .text = {}});
}

void State::carried(Connection& connection, const std::shared_ptr<Post>& post, Code code) {
  const End& end = connection.ends[post->side];
  const bool answered = !connection.silent && post->unplaced == 0 &&
                        connection.ends[1 - post->side].takes_bytes() && end.life != End::Life::lost;
  if (answered) this->end(connection, post, code);
}

void State::end(Connection& connection, const std::shared_ptr<Post>& post, Code code) {
  if (std::exchange(post->ended, true)) return;
  const End& end = connection.ends[post->side];
  std::erase(connection.posts, post);
  --end.nic->posts;
  say(*end.nic, {.kind = Kind::ended, .peer = end.peer, .token = post->token, .status = {code}, .text = {}});
}

void State::offer(const std::shared_ptr<Connection>& connection, const std::shared_ptr<Post>& post) {
  const int to = 1 - post->side;
  if (post->ended || connection->silent || !connection->ends[to].takes_bytes()) return;
  connection->waiting[to].push_back(post);
  serve_waiting(*connection->ends[to].nic);
}

namespace {

bool copy_message(const End& from, const End& to, const Post& post, const Nic::Receive& receive) {
  if (post.message.bytes > receive.room.bytes) return false;
  std::memcpy(bytes_of(*to.nic, static_cast<std::uint64_t>(receive.room.memory), receive.room.offset,
                       post.message.bytes, rail::Access::local),
              bytes_of(*from.nic, static_cast<std::uint64_t>(post.message.memory), post.message.offset,
                       post.message.bytes, rail::Access::local),
              post.message.bytes);
  return true;
}

}  // namespace

void State::serve_waiting(Nic& nic) {
  const auto peers = nic.peers;
  for (const auto& [number, connection] : peers) {
    const int to =
        connection->ends[0].nic == &nic && connection->ends[0].peer == rail::PeerId{number} ? 0 : 1;
    auto& waiting = connection->waiting[to];
    while (!waiting.empty() && !nic.receives.empty()) {
      const auto post = waiting.front();
      waiting.pop_front();
      if (post->ended) continue;
      const auto receive = nic.receives.front();
      const bool fits = copy_message(connection->ends[1 - to], connection->ends[to], *post, receive);
      if (fits) {
        nic.receives.pop_front();
        nic.given.insert_or_assign(receive.token, receive);
        say(nic, {.kind = Kind::received,
                  .peer = connection->ends[to].peer,
                  .token = receive.token,
                  .status = {},
                  .bytes = post->message.bytes,
                  .text = {}});
      }
      at(draw(), [this, connection, post, fits] {
        carried(*connection, post, fits ? Code::ok : Code::invalid_argument);
      });
    }
  }
}

}  // namespace headrace::test::fake_nics
