// SPDX-License-Identifier: Apache-2.0
#include "transport/message_inbox.hpp"

namespace headrace::transport {
namespace {

// A sender may have this many messages under way a channel, and each may be bound to a write of its own.
constexpr std::size_t max_open_writes = max_message_channels * max_unacknowledged_messages;
// The sender is told at a quarter of what it may have under way, so that it never has to stop.
constexpr std::uint64_t tell_after_messages = max_unacknowledged_messages / 4;
constexpr std::uint64_t tell_after_bytes = max_unacknowledged_message_bytes / 4;

}  // namespace

Result<void> MessageInbox::chunk(std::uint64_t request, bool landed) {
  Write& write = writes_[request];
  if (writes_.size() > max_open_writes)
    return make_error(Code::corrupt, "more than {} writes wait for their messages", max_open_writes);
  if (write.chunks && write.chunks_seen == *write.chunks)
    return make_error(Code::corrupt, "request {} has more than its {} chunks", request, *write.chunks);
  ++write.chunks_seen;
  if (!landed) write.failed = true;
  return {};
}

/// The message says of how many chunks its write is made.
Result<void> MessageInbox::bind(const MessageHead& head) {
  Write& write = writes_[head.request];
  if (write.chunks || write.chunks_seen > head.chunks)
    return make_error(Code::corrupt, "a message for request {} of {} chunks, of which {} came", head.request,
                      head.chunks, write.chunks_seen);
  write.chunks = head.chunks;
  return {};
}

Result<void> MessageInbox::message(const MessageHead& head, std::string bytes) {
  if (!lanes_.contains(head.channel) && lanes_.size() == max_message_channels)
    return make_error(Code::corrupt, "a message on channel {}, the {}th: at most {} are allowed",
                      head.channel, lanes_.size() + 1, max_message_channels);
  Lane& lane = lanes_[head.channel];
  if (head.number < lane.delivered) return {};
  const std::uint64_t at = head.number - lane.delivered;
  if (at < lane.queue.size() && lane.queue[at]) return {};
  if (at >= max_unacknowledged_messages || lane.bytes + bytes.size() > max_unacknowledged_message_bytes)
    return make_error(Code::corrupt, "{} messages of {} bytes wait on channel {}, and number {} came",
                      lane.queue.size(), lane.bytes, head.channel, head.number);
  if (head.request != 0) HEADRACE_TRY_VOID(bind(head));
  if (at >= lane.queue.size()) lane.queue.resize(at + 1);
  lane.bytes += bytes.size();
  lane.queue[at] = Waiting{head.request, head.dropped, head.counted, std::move(bytes)};
  return {};
}

std::uint64_t MessageInbox::next_number(std::uint16_t channel) const {
  const auto at = lanes_.find(channel);
  return at == lanes_.end() ? 0 : at->second.delivered + at->second.queue.size();
}

std::optional<InMessage> MessageInbox::next() {
  for (auto& [channel, lane] : lanes_) {
    while (!lane.queue.empty() && lane.queue.front()) {
      Waiting& first = *lane.queue.front();
      bool dropped = first.dropped;
      if (first.request != 0) {
        const auto write = writes_.find(first.request);
        if (write->second.chunks_seen < *write->second.chunks) break;
        dropped = dropped || write->second.failed;
        writes_.erase(write);
      }
      InMessage message{channel, first.counted, std::move(first.bytes)};
      lane.bytes -= message.bytes.size();
      lane.untold_bytes += message.bytes.size();
      ++lane.delivered;
      lane.queue.pop_front();
      if (!dropped) return message;
    }
  }
  return std::nullopt;
}

std::optional<MessageInbox::Acknowledgement> MessageInbox::acknowledgement() {
  for (auto& [channel, lane] : lanes_) {
    if (lane.delivered - lane.told < tell_after_messages && lane.untold_bytes < tell_after_bytes) continue;
    lane.told = lane.delivered;
    lane.untold_bytes = 0;
    return Acknowledgement{channel, lane.delivered};
  }
  return std::nullopt;
}

void MessageInbox::clear() {
  lanes_.clear();
  writes_.clear();
}

}  // namespace headrace::transport
