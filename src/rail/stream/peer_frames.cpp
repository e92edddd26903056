// SPDX-License-Identifier: Apache-2.0
// What a peer's frames mean. All of it is bytes from outside: what cannot be is a lie, and ends the peer.
#include "memory/peer_memory_access.hpp"
#include "rail/stream/peer.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace headrace::rail::stream {
namespace {

// A peer has at most `max_posts` posts that have not ended. Each makes two answers at most.
constexpr std::size_t most_answers = 4UL * max_posts;
// Messages of one peer that were asked for and have not come.
constexpr std::size_t most_taken = 4;

Range range_of(const LocalRange& room, std::uint64_t bytes) {
  return {static_cast<std::uint32_t>(room.memory), room.offset, bytes};
}

}  // namespace

Error Peer::lie(std::uint64_t post, std::string_view what) const {
  return make_error(Code::corrupt, "the peer's frame for post {} cannot be: {}", post, what);
}

Result<void> Peer::begin(const FrameHeader& header, std::vector<Range> ranges) {
  refused_ = false;
  switch (header.type) {
    case FrameType::write:
    case FrameType::read:
    case FrameType::offer:
    case FrameType::fetch:
      return begin_request(header, std::move(ranges));
    case FrameType::data:
      return begin_data(header);
    case FrameType::message:
      return begin_message(header);
    case FrameType::lend:
      reader_.keep();
      return {};
    default:
      return {};
  }
}

Result<void> Peer::end(const FrameHeader& header, std::string_view kept, bool refused) {
  switch (header.type) {
    case FrameType::write:
      end_write(header, refused);
      return {};
    case FrameType::read:
      return {};
    case FrameType::data:
      return end_data(header, refused);
    case FrameType::offer:
      return end_offer(header, kept);
    case FrameType::take:
      return taken(header);
    case FrameType::message:
      end_message(header, kept);
      return {};
    case FrameType::end:
      return ended(header);
    case FrameType::fetch:
      return end_fetch(header, kept);
    case FrameType::lend:
      return end_lend(header, kept);
    case FrameType::returned:
      return returned(header);
  }
  return {};
}

Result<void> Peer::begin_request(const FrameHeader& header, std::vector<Range> ranges) {
  if (header.post <= last_request_) return lie(header.post, fmt::format("{} came before", last_request_));
  last_request_ = header.post;
  if (outgoing_.size() > most_answers + max_posts)
    return lie(header.post, fmt::format("{} answers wait for a peer that takes none", outgoing_.size()));
  if (header.type == FrameType::write) {
    begin_write(std::move(ranges));
  } else if (header.type == FrameType::read) {
    begin_read(header, std::move(ranges));
  } else {
    fetched_ = std::move(ranges);  // none of an offer
    reader_.keep();
  }
  return {};
}

// Requests of the peer.

void Peer::begin_write(std::vector<Range> ranges) {
  RangeCursor cursor(std::move(ranges), Access::peers_read_and_write);
  Memories::View view(state_.memories);
  refused_ = !cursor.allowed(view);
  if (!refused_) reader_.place(std::move(cursor));
}

void Peer::end_write(const FrameHeader& header, bool refused) {
  if (refused || refused_) return answer(header.post, Code::not_found);
  if ((header.flags & flag_mark) != 0) say({.kind = Event::Kind::marked, .mark = header.value});
  answer(header.post, Code::ok);
}

Result<void> Peer::end_fetch(const FrameHeader& header, std::string_view sources) {
  if (fetches_.size() >= 2UL * max_posts)  // its writes, and our reads
    return lie(header.post, fmt::format("{} fetches wait already", fetches_.size()));
  RangeCursor places(std::move(fetched_), Access::peers_read_and_write, Reach::any);
  HEADRACE_TRY(read, read_sources(sources, places.left()));
  if (!is_allowed(places)) {
    answer(header.post, Code::not_found);
    return {};
  }
  const bool gpu = is_of_gpu(places, read);
  fetches_.emplace_back(header, std::move(places), std::move(read), gpu);
  return {};
}

bool Peer::is_allowed(const RangeCursor& cursor) const {
  Memories::View view(state_.memories);
  return cursor.allowed(view);
}

/// Whether memory of GPUs takes part in a copy.
bool Peer::is_of_gpu(const RangeCursor& cursor, const std::vector<Source>& sources) const {
  Memories::View view(state_.memories);
  return cursor.gpu(view).has_value() ||
         std::any_of(sources.begin(), sources.end(), [](const Source& source) { return source.gpu; });
}

/// The first one.
Result<void> Peer::finish_fetch(Code code) {
  const FrameHeader header = fetches_.front().header;
  fetches_.pop_front();
  if (header.type == FrameType::lend) {
    if (code == Code::not_found)
      return make_error(Code::internal, "memory of read {} was deregistered before its end", header.post);
    Post& post = posts_.find(header.post)->second;
    post.lent = post.done = code == Code::ok;
    send_answer({.type = FrameType::returned, .post = header.post, .value = code_value(code)});
    return {};
  }
  if (code == Code::ok && (header.flags & flag_mark) != 0)
    say({.kind = Event::Kind::marked, .mark = header.value});
  answer(header.post, code);
  return {};
}

void Peer::begin_read(const FrameHeader& header, std::vector<Range> ranges) {
  const bool lends = (header.flags & flag_lend) != 0;
  if (!is_allowed(RangeCursor(ranges, Access::peers_read, lends ? Reach::any : Reach::host)))
    return answer(header.post, Code::not_found);
  const Code lent = lends ? lend(header.post, ranges) : Code::would_block;
  if (lent == Code::ok) return;
  if (!is_allowed(RangeCursor(ranges, Access::peers_read))) return answer(header.post, Code::not_supported);
  send_data(header.post, std::move(ranges));
}

void Peer::send_data(std::uint64_t post, std::vector<Range> ranges) {
  RangeCursor cursor(std::move(ranges), Access::peers_read);
  OutFrame data{.role = OutFrame::Role::data, .post = post};
  data.head = encode({.type = FrameType::data, .post = post, .payload = cursor.left()});
  data.payload = std::move(cursor);
  outgoing_.push(std::move(data));
  answer(post, Code::ok);  // which `outgoing_` changes if the memory goes meanwhile
}

/// Tells the peer where the bytes lie. Not ok: they cannot be reached, or it has given none back for long.
Code Peer::lend(std::uint64_t post, const std::vector<Range>& ranges) {
  if (lent_.size() >= max_posts) return Code::would_block;
  const auto sources = tell_places(ranges, Access::peers_read);
  if (!sources) return sources.code();
  const std::string places = encode(*sources);
  outgoing_.push({.head = encode({.type = FrameType::lend, .post = post, .payload = places.size()}) + places,
                  .post = post});
  lent_.emplace(post, ranges);
  return Code::ok;
}

/// Ids of memory are not used twice: what is registered now was so while the peer copied.
Result<void> Peer::returned(const FrameHeader& header) {
  auto lent = lent_.extract(header.post);
  if (lent.empty()) return lie(header.post, "nothing was lent to it");
  const bool is_here = is_allowed(RangeCursor(lent.mapped(), Access::peers_read, Reach::any));
  if (!is_here || header.value == code_value(Code::ok)) {
    answer(header.post, is_here ? Code::ok : Code::not_found);
  } else if (is_allowed(RangeCursor(lent.mapped(), Access::peers_read))) {
    send_data(header.post, std::move(lent.mapped()));
  } else {
    answer(header.post, Code::not_supported);
  }
  return {};
}

Result<void> Peer::end_offer(const FrameHeader& header, std::string_view kept) {
  if (offers_.size() + taken_.size() >= max_posts)
    return lie(header.post,
               fmt::format("{} messages wait already, {} posts are allowed", offers_.size(), max_posts));
  offers_.push_back({header.post, header.value, std::string(kept)});
  while (serve_offer()) {
  }
  return {};
}

/// A long message is asked for when there is a receive, and gets one when it has come: a peer that stalls
/// must not keep receives from others.
bool Peer::serve_offer() {
  if (life_ != Life::usable || offers_.empty() || state_.receives.empty()) return false;
  const bool has_come = !offers_.front().message.empty();
  const bool fits = offers_.front().bytes <= state_.receives.front().room.bytes;
  if (fits && !has_come && taken_.size() >= most_taken) return false;
  const Offer offer = std::move(offers_.front());
  offers_.pop_front();
  if (!fits) {
    answer(offer.post, Code::invalid_argument);
  } else if (has_come) {
    const Receive receive = state_.receives.front();
    state_.receives.pop_front();
    if (deliver(offer, receive)) answer(offer.post, Code::ok);
  } else {
    taken_.emplace(offer.post, offer.bytes);
    send_answer({.type = FrameType::take, .post = offer.post});
  }
  return true;
}

/// False: the receive's memory is not registered any more. The offer waits for another receive.
bool Peer::deliver(const Offer& offer, const Receive& receive) {
  {
    Memories::View view(state_.memories);
    std::byte* const room = view.find(range_of(receive.room, offer.bytes), Access::local);
    if (room == nullptr) {
      offers_.push_front(offer);
      return false;
    }
    const PeerMemoryAccess access;
    std::memcpy(room, offer.message.data(), offer.bytes);
  }
  say_received(receive, offer.bytes);
  return true;
}

Result<void> Peer::begin_message(const FrameHeader& header) {
  const auto at = taken_.find(header.post);
  if (at == taken_.end()) return lie(header.post, "no receive was given to this message");
  if (header.payload != at->second)
    return lie(header.post,
               fmt::format("a message of {} bytes was offered, {} come", at->second, header.payload));
  reader_.keep();
  return {};
}

void Peer::end_message(const FrameHeader& header, std::string_view kept) {
  const auto taken = taken_.extract(header.post);
  offers_.push_front({header.post, taken.mapped(), std::string(kept)});
  while (serve_offer()) {
  }
}

void Peer::say_received(const Receive& receive, std::uint32_t bytes) {
  say({.kind = Event::Kind::received, .token = receive.token, .bytes = bytes});
}

void Peer::answer(std::uint64_t post, Code code) {
  send_answer({.type = FrameType::end, .post = post, .value = code_value(code)});
}

void Peer::send_answer(FrameHeader header) { outgoing_.push({.head = encode(header), .post = header.post}); }

// Answers to our own posts.

Result<void> Peer::begin_data(const FrameHeader& header) {
  const auto at = posts_.find(header.post);
  if (at == posts_.end() || at->second.type != FrameType::read || !at->second.sent || at->second.done ||
      at->second.lent)
    return lie(header.post, "no read waits for these bytes");
  Post& post = at->second;
  if (header.payload != post.bytes)
    return lie(header.post, fmt::format("{} bytes were asked for, {} come", post.bytes, header.payload));
  reader_.place(RangeCursor(post.local, Access::local));
  return {};
}

Result<void> Peer::end_lend(const FrameHeader& header, std::string_view sources) {
  const auto at = posts_.find(header.post);
  const bool waits = at != posts_.end() && at->second.type == FrameType::read && at->second.sent &&
                     !at->second.done && !at->second.lent;
  if (!waits) return lie(header.post, "no read waits for these places");
  HEADRACE_TRY(read, read_sources(sources, at->second.bytes));
  at->second.lent = true;
  RangeCursor places(at->second.local, Access::local, Reach::any);
  const bool gpu = is_of_gpu(places, read);
  fetches_.emplace_back(header, std::move(places), std::move(read), gpu);
  return {};
}

Result<void> Peer::end_data(const FrameHeader& header, bool refused) {
  if (refused)
    return make_error(Code::internal, "memory of read {} was deregistered before its end", header.post);
  posts_.find(header.post)->second.done = true;
  return {};
}

Result<void> Peer::taken(const FrameHeader& header) {
  const auto at = posts_.find(header.post);
  if (at == posts_.end() || at->second.type != FrameType::offer || !at->second.sent || at->second.done)
    return lie(header.post, "no message waits for a receive");
  Post& post = at->second;
  post.sent = false;
  post.done = true;
  OutFrame message{.role = OutFrame::Role::post, .post = header.post};
  message.head = encode({.type = FrameType::message, .post = header.post, .payload = post.bytes});
  message.payload = RangeCursor(post.local, Access::local);
  outgoing_.push(std::move(message));
  return {};
}

Result<void> Peer::ended(const FrameHeader& header) {
  const auto at = posts_.find(header.post);
  if (at == posts_.end()) return lie(header.post, "there is no such post");
  const auto code = static_cast<Code>(header.value);
  if (!at->second.sent) return lie(header.post, "it ends before all of it has left");
  if (at->second.lent && !at->second.done) return lie(header.post, "it ends while its bytes are copied");
  if (code == Code::ok && !at->second.done) return lie(header.post, "it ends well, and nothing has moved");
  const bool is_message = at->second.type == FrameType::offer;
  if (code == (is_message ? Code::not_found : Code::invalid_argument))
    return lie(header.post, fmt::format("such a post does not end with code {}", header.value));
  if (code == Code::not_supported) {
    if (at->second.type == FrameType::fetch) {
      send_instead(at);
      return {};
    }
    if (at->second.type != FrameType::read) return lie(header.post, "nothing was to be fetched");
  }
  end_post(at, code);
  return {};
}

}  // namespace headrace::rail::stream
