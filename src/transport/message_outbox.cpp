// SPDX-License-Identifier: Apache-2.0
#include "transport/message_outbox.hpp"

namespace headrace::transport {

bool MessageOutbox::has_room(std::uint16_t channel, std::size_t bytes) const {
  const auto at = lanes_.find(channel);
  if (at == lanes_.end()) return true;
  const Lane& lane = at->second;
  return lane.queue.size() + lane.unacknowledged.size() < max_unacknowledged_messages &&
         lane.bytes + bytes <= max_unacknowledged_message_bytes;
}

std::shared_ptr<OutMessage> MessageOutbox::add(std::uint16_t channel, std::string bytes,
                                               OutMessage::State state) {
  Lane& lane = lanes_[channel];
  auto message = std::make_shared<OutMessage>();
  message->channel = channel;
  message->state = state;
  message->bytes = std::move(bytes);
  lane.bytes += message->bytes.size();
  lane.queue.push_back(message);
  return message;
}

/// Dropped messages of which the peer has heard nothing leave without a trace.
void MessageOutbox::drop_what_never_left(Lane& lane) {
  while (!lane.queue.empty()) {
    const OutMessage& first = *lane.queue.front();
    if (first.state != OutMessage::State::dropped || (first.request != 0 && first.chunks != 0)) return;
    lane.bytes -= first.bytes.size();
    lane.queue.pop_front();
  }
}

bool MessageOutbox::anything_ready() {
  for (auto& [channel, lane] : lanes_) {
    drop_what_never_left(lane);
    if (!lane.queue.empty() && lane.queue.front()->state != OutMessage::State::waiting) return true;
  }
  return false;
}

std::uint64_t MessageOutbox::unsent() const {
  std::uint64_t all = 0;
  for (const auto& [channel, lane] : lanes_) all += lane.queue.size();
  return all;
}

std::optional<MessageOutbox::Next> MessageOutbox::next() {
  for (auto& [channel, lane] : lanes_) {
    drop_what_never_left(lane);
    if (lane.queue.empty() || lane.queue.front()->state == OutMessage::State::waiting) continue;
    const std::shared_ptr<OutMessage> message = std::move(lane.queue.front());
    lane.queue.pop_front();
    Next next;
    next.head = {channel,
                 lane.sent++,
                 message->request,
                 message->chunks,
                 message->state == OutMessage::State::dropped,
                 message->counted};
    if (next.head.dropped) {
      lane.bytes -= message->bytes.size();  // they stay here: the peer does not count them
    } else {
      next.bytes = std::move(message->bytes);
    }
    lane.unacknowledged.push_back(next.bytes.size());
    return next;
  }
  return std::nullopt;
}

Result<void> MessageOutbox::acknowledged(std::uint16_t channel, std::uint64_t delivered_in_all) {
  const auto at = lanes_.find(channel);
  if (at == lanes_.end())
    return make_error(Code::corrupt, "messages of channel {} were acknowledged, none was sent", channel);
  Lane& lane = at->second;
  if (delivered_in_all < lane.acknowledged || delivered_in_all > lane.sent)
    return make_error(Code::corrupt, "{} messages of channel {} were acknowledged after {}, {} were sent",
                      delivered_in_all, channel, lane.acknowledged, lane.sent);
  for (; lane.acknowledged < delivered_in_all; ++lane.acknowledged) {
    lane.bytes -= lane.unacknowledged.front();
    lane.unacknowledged.pop_front();
  }
  return {};
}

}  // namespace headrace::transport
