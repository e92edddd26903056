// SPDX-License-Identifier: Apache-2.0
// Posts to a peer: looked at, put into frames, ended.
#include "rail/stream/next_free.hpp"
#include "rail/stream/peer.hpp"

#include <utility>

namespace headrace::rail::stream {
namespace {

// Fewer bytes are copied twice, through the stream, in less time than the system takes to be asked.
constexpr std::uint64_t least_fetched_bytes = 16 * 1024;

}  // namespace

Result<RemoteId> Peer::load(std::string_view key) {
  HEADRACE_TRY(read, read_key(key));
  if (life_ != Life::usable) return make_error(Code::not_found, "{} is not ready", setup_.where);
  if (read.life != their_life_)
    return make_error(Code::corrupt, "a key of life {:016x}, the peer is {:016x}", read.life, their_life_);
  const std::uint32_t id =
      next_free(next_remote_, [this](std::uint32_t number) { return loaded_.contains(number); });
  loaded_.emplace(id, Loaded{read.memory, read.gpu});
  return RemoteId{id};
}

/// In the host's memory.
bool Peer::is_registered(const Range& range) const {
  Memories::View view(state_.memories);
  return range.length > 0 && view.find(range, Access::local) != nullptr;
}

Status Peer::look_at(std::span<const Move> moves, Moves& looked) const {
  if (life_ != Life::usable) return {Code::peer_lost};
  if (moves.size() > max_ranges) return {Code::invalid_argument};
  Memories::View view(state_.memories);
  for (const Move& move : moves) {
    const Range local{static_cast<std::uint32_t>(move.local), move.local_offset, move.bytes};
    const auto remote = loaded_.find(static_cast<std::uint32_t>(move.remote));
    const RegisteredMemory* const memory = view.memory_of(local, Access::local);
    if (remote == loaded_.end() || memory == nullptr || move.bytes == 0) return {Code::invalid_argument};
    looked.local.push_back(local);
    looked.remote.push_back({remote->second.memory, move.remote_offset, move.bytes});
    looked.gpu = looked.gpu || memory->device || remote->second.gpu;
    looked.bytes += move.bytes;
  }
  return posts_.size() < max_posts ? Status{} : Status{Code::would_block};
}

std::uint64_t Peer::keep(Post post) {
  posts_.emplace(next_post_, std::move(post));
  return next_post_++;
}

Status Peer::write(const Write& write) {
  Moves moves;
  if (const Status looked = look_at(write.moves, moves); !looked.ok()) return looked;
  if (write.moves.empty() && !write.mark) return {Code::invalid_argument};
  if (moves.gpu && !stream_->peer_fetches()) return {Code::not_supported};
  if (moves.gpu || (moves.bytes >= least_fetched_bytes && stream_->peer_fetches()))
    return let_fetch(write.token, std::move(moves), write.mark);
  send_write(write.token, std::move(moves), write.mark);
  return {};
}

void Peer::send_write(std::uint64_t token, Moves moves, std::optional<std::uint32_t> mark) {
  OutFrame frame{.role = OutFrame::Role::post};
  frame.post = keep({.type = FrameType::write, .token = token, .done = true});
  frame.head = encode({.type = FrameType::write,
                       .flags = mark ? flag_mark : std::uint8_t{0},
                       .post = frame.post,
                       .payload = moves.bytes,
                       .value = mark.value_or(0)},
                      moves.remote);
  frame.payload = RangeCursor(std::move(moves.local), Access::local);
  outgoing_.push(std::move(frame));
}

/// Where the ranges lie in this process, for a peer that copies. Memory of GPUs is shown to it first.
Result<std::vector<Source>> Peer::tell_places(const std::vector<Range>& ranges, Access least) {
  std::vector<Source> sources;
  std::uint32_t shown = 0;  // ids begin at 1
  for (const Range& range : ranges) {
    std::optional<RegisteredMemory> memory;
    {
      Memories::View view(state_.memories);
      if (const RegisteredMemory* const found = view.memory_of(range, least)) memory = *found;
    }
    if (!memory) return make_error(Code::not_found, "memory {} is registered no more", range.region);
    const bool gpu = memory->device.has_value();
    if (gpu && shown != memory->id) HEADRACE_TRY_VOID(stream_->show(*memory));
    if (gpu) shown = memory->id;
    sources.push_back({reinterpret_cast<std::uintptr_t>(memory->base + range.offset), range.length, gpu});
  }
  return sources;
}

/// Tells the peer where the bytes lie: it copies them by itself.
Status Peer::let_fetch(std::uint64_t token, Moves moves, std::optional<std::uint32_t> mark) {
  const auto sources = tell_places(moves.local, Access::local);
  if (!sources) return {sources.code()};
  OutFrame frame{.role = OutFrame::Role::post};
  const std::string places = encode(*sources);
  FrameHeader header{.type = FrameType::fetch,
                     .flags = mark ? flag_mark : std::uint8_t{0},
                     .payload = places.size(),
                     .value = mark.value_or(0)};
  header.post = frame.post = next_post_;
  frame.head = encode(header, moves.remote) + places;
  keep({.type = FrameType::fetch,
        .token = token,
        .local = std::move(moves.local),
        .remote = std::move(moves.remote),
        .mark = mark,
        .gpu = moves.gpu,
        .done = true});
  outgoing_.push(std::move(frame));
  return {};
}

/// The peer may not fetch after all.
void Peer::send_instead(std::map<std::uint64_t, Post>::iterator at) {
  if (at->second.gpu) return end_post(at, Code::not_supported);
  Post post = std::move(at->second);
  posts_.erase(at);
  Moves moves{std::move(post.local), std::move(post.remote)};
  for (const Range& range : moves.local) moves.bytes += range.length;
  send_write(post.token, std::move(moves), post.mark);
}

Status Peer::read(const Read& read) {
  Moves moves;
  if (const Status looked = look_at(read.moves, moves); !looked.ok()) return looked;
  if (read.moves.empty()) return {Code::invalid_argument};
  if (moves.gpu && !stream_->can_fetch()) return {Code::not_supported};
  OutFrame frame{.role = OutFrame::Role::post};
  frame.post = keep(
      {.type = FrameType::read, .token = read.token, .local = std::move(moves.local), .bytes = moves.bytes});
  const bool by_fetch = moves.gpu || (moves.bytes >= least_fetched_bytes && stream_->can_fetch());
  frame.head =
      encode({.type = FrameType::read, .flags = by_fetch ? flag_lend : std::uint8_t{0}, .post = frame.post},
             moves.remote);
  outgoing_.push(std::move(frame));
  return {};
}

Status Peer::message(const LocalRange& bytes, std::uint64_t token) {
  const Range local{static_cast<std::uint32_t>(bytes.memory), bytes.offset, bytes.bytes};
  if (life_ != Life::usable) return {Code::peer_lost};
  if (bytes.bytes > max_message_bytes || !is_registered(local)) return {Code::invalid_argument};
  if (posts_.size() >= max_posts) return {Code::would_block};
  const bool is_short = bytes.bytes <= max_short_message_bytes;
  OutFrame frame{.role = OutFrame::Role::post};
  frame.post = keep(
      {.type = FrameType::offer, .token = token, .local = {local}, .done = is_short, .bytes = bytes.bytes});
  frame.head = encode({.type = FrameType::offer,
                       .post = frame.post,
                       .payload = is_short ? bytes.bytes : 0,
                       .value = static_cast<std::uint32_t>(bytes.bytes)});
  if (is_short) frame.payload = RangeCursor({local}, Access::local);
  outgoing_.push(std::move(frame));
  return {};
}

void Peer::cancel(std::uint64_t token) {
  for (auto at = posts_.begin(); at != posts_.end(); ++at) {
    const bool offered = at->second.type == FrameType::offer && at->second.done && !at->second.sent;
    const bool is_long = at->second.bytes > max_short_message_bytes;
    if (at->second.token != token || (offered && is_long)) continue;  // a receive waits for it there
    if (outgoing_.withdraw(at->first)) return end_post(at, Code::canceled);
  }
}

void Peer::finished(const OutFrame& frame) {
  if (frame.role != OutFrame::Role::post) return;
  if (const auto at = posts_.find(frame.post); at != posts_.end()) at->second.sent = true;
}

void Peer::end_post(std::map<std::uint64_t, Post>::iterator at, Code code) {
  say({.kind = Event::Kind::ended, .token = at->second.token, .status = {code}});
  posts_.erase(at);
}

}  // namespace headrace::rail::stream
