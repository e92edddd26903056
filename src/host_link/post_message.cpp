// SPDX-License-Identifier: Apache-2.0
#include "host_link/post_message.hpp"

#include "host_link/link.hpp"

namespace headrace::host_link {

Status PostMessage::begin(Link& link, const headrace_post_v1& args) {
  there_is_one_ = false;
  immediate_.reset();
  const std::string_view bytes =
      args.has_message != 0
          ? std::string_view(static_cast<const char*>(args.message.data), args.message.length)
          : std::string_view();
  if (bytes.size() > max_message_bytes) return {Code::invalid_argument};
  if (args.has_message != 0 && args.channel == count_channel) return {Code::invalid_argument};
  if (args.has_immediate != 0) {
    if (const Status room = link.messages().reserve(sizeof(CountRecord)); !room.ok()) return room;
  }
  if (args.has_message != 0) {
    if (const Status room = link.messages().reserve(bytes.size()); !room.ok()) {
      if (args.has_immediate != 0) link.messages().cancel_reservation(sizeof(CountRecord));
      return room;
    }
    there_is_one_ = true;
    channel_ = args.channel;
    bytes_.assign(bytes);
  }
  immediate_ = plugin::Immediate::of(args);
  return {};
}

void PostMessage::keep_place(Link& link) {
  if (there_is_one_ && !place_) place_ = link.messages().take_place(channel_);
}

void PostMessage::end(Link& link, Outcome& outcome) {
  if (!there_is_one_ && !immediate_) return;
  if (outcome.status.ok() && !link.usable()) outcome = link.why_lost();
  if (outcome.status.ok())
    send(link.messages());
  else
    take_back(link.messages());
}

void PostMessage::send(MessagePipe& messages) {
  const std::optional<MessagePipe::Place> place = std::exchange(place_, std::nullopt);
  if (there_is_one_ && place)
    messages.fill_place(*place, bytes_);
  else if (there_is_one_)
    messages.send_reserved(channel_, bytes_);
  if (immediate_) messages.send_reserved(count_channel, CountRecord{*immediate_}.bytes());
}

void PostMessage::take_back(MessagePipe& messages) {
  const std::optional<MessagePipe::Place> place = std::exchange(place_, std::nullopt);
  if (there_is_one_ && place)
    messages.give_up_place(channel_, *place, bytes_.size());
  else if (there_is_one_)
    messages.cancel_reservation(bytes_.size());
  if (immediate_) messages.cancel_reservation(sizeof(CountRecord));
}

}  // namespace headrace::host_link
