// SPDX-License-Identifier: Apache-2.0
#include "host_link/post_message.hpp"

#include "host_link/link.hpp"

namespace headrace::host_link {

Status PostMessage::begin(Link& link, const headrace_post_v1& args) {
  there_is_one_ = false;
  if (args.has_message == 0) return {};
  const std::string_view bytes(static_cast<const char*>(args.message.data), args.message.length);
  if (bytes.size() > max_message_bytes) return {Code::invalid_argument};
  if (const Status reserved = link.messages().reserve(bytes.size()); !reserved.ok()) return reserved;
  there_is_one_ = true;
  channel_ = args.channel;
  bytes_.assign(bytes);
  return {};
}

void PostMessage::keep_place(Link& link) {
  if (there_is_one_ && !place_) place_ = link.messages().take_place(channel_);
}

void PostMessage::end(Link& link, Outcome& outcome) {
  if (!there_is_one_) return;
  if (outcome.status.ok() && !link.usable()) outcome = link.why_lost();
  MessagePipe& messages = link.messages();
  const std::optional<MessagePipe::Place> place = std::exchange(place_, std::nullopt);
  if (outcome.status.ok()) {
    if (place) {
      messages.fill_place(*place, bytes_);
    } else {
      messages.send_reserved(channel_, bytes_);
    }
  } else if (place) {
    messages.give_up_place(channel_, *place, bytes_.size());
  } else {
    messages.cancel_reservation(bytes_.size());
  }
}

}  // namespace headrace::host_link
