// SPDX-License-Identifier: Apache-2.0
// The posts on a link, from post to end: which chunk is cut next, which answers are still to come, and when a
// post has ended.
//
// A post ends exactly once: when all of its chunks are cut and answered, or with the link. A cancel and an
// error stop the cutting; the post still waits for the chunks that are under way, because they touch its
// memory. Answers name the post by its wire id, which no other post of the link has: an answer to a post that
// has ended is ignored, even if the request was posted again or is gone.
#pragma once

#include "transport/chunk.hpp"
#include "transport/host_calls.hpp"
#include "transport/message_outbox.hpp"
#include "transport/post_message.hpp"
#include "transport/request.hpp"

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace headrace::transport {

/// Not thread-safe: its link's lock guards it. Ends go to the HostCalls of the work that caused them.
class RequestBook {
 public:
  /// Messages of posts take their places in `outbox`. Both arguments outlive the book.
  RequestBook(MessageOutbox& outbox, const std::string& peer_name) : outbox_(outbox), peer_name_(peer_name) {}

  /// A post begins. If it has no bytes, it also ends.
  ///   errors  invalid_argument (the request is posted, or its message is on one channel too many),
  ///           would_block (no room for its message). Nothing has begun then
  Status begin(Request& request, std::uint64_t token, std::optional<PostMessage> message, HostCalls& calls);

  // Chunks.
  /// The request whose turn it is among reads, writes, or both; null: none has anything left to be cut.
  [[nodiscard]] Request* next(bool reads, bool writes, bool reads_first) const;
  /// Of all posts together.
  [[nodiscard]] std::uint64_t uncut_bytes() const { return uncut_bytes_; }
  /// A chunk of that request, which `next` gave, is on its way. Then it is another request's turn.
  void cut(Request& request, const Chunk& chunk);
  /// No chunk of the request can be made any more.
  void refuse(Request& request, Status status, std::string text, HostCalls& calls);

  /// What became of a chunk.
  struct Answer {
    Status status;
    std::uint64_t good_bytes = UINT64_MAX;  ///< of a chunk that failed: how many at its beginning did not
    std::string_view why{};                 ///< empty: the peer refused it
  };
  /// A chunk has been answered, by the peer or by what became of it here. Each chunk once.
  void answered(std::uint64_t wire_id, const Chunk& chunk, const Answer& answer, HostCalls& calls);

  // Cancel.
  /// Ends the post as soon as its chunks allow it. A write waits for their answers. Returns the wire id of a
  /// read that is still posted: the transport keeps the rest of it out of its memory, says `abandoned` for
  /// each of its chunks, and then `end_if_done`. 0: nothing is to be done.
  [[nodiscard]] std::uint64_t cancel(Request& request, std::uint64_t now_ns, HostCalls& calls);
  /// A chunk of the canceled read is kept out of its memory, and counts as answered.
  void abandoned(std::uint64_t wire_id);
  /// Not all of the read will be in its memory: it ends canceled, once its chunks are answered.
  void will_be_canceled(std::uint64_t wire_id);
  void end_if_done(std::uint64_t wire_id, HostCalls& calls);
  /// When the cancel came that waits longest for its post's end; none: no cancel waits.
  [[nodiscard]] std::optional<std::uint64_t> oldest_cancel_ns() const;

  /// The link has ended, and no memory is touched any more: ends every post. Canceled ones end canceled.
  void end_all(Status status, const std::string& text, HostCalls& calls);

  /// Whether bytes of a write that has not ended may be on their way.
  [[nodiscard]] bool writes_are_under_way() const;
  /// Whether a message may have become ready in the outbox since the last call.
  [[nodiscard]] bool messages_changed() { return std::exchange(messages_changed_, false); }

 private:
  [[nodiscard]] Request* find(std::uint64_t wire_id) const;
  [[nodiscard]] std::deque<Request*>& queue_of(const Request& request) {
    return request.is_write() ? writes_ : reads_;
  }
  void start(Request& request, std::uint64_t token);
  void stop_cutting(Request& request);
  void fail(Request& request, const Chunk& chunk, const Answer& answer);
  void end_if_done(Request& request, HostCalls& calls);
  void release_message(Request& request);

  MessageOutbox& outbox_;
  const std::string& peer_name_;
  std::unordered_map<std::uint64_t, Request*> posted_;  // by wire id
  std::deque<Request*> reads_;                          // that have chunks left to be cut, the next one first
  std::deque<Request*> writes_;
  std::uint64_t uncut_bytes_ = 0;  // of the requests in the two queues
  std::uint64_t next_wire_id_ = 1;
  unsigned canceling_ = 0;
  bool messages_changed_ = false;
};

}  // namespace headrace::transport
