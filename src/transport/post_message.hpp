// SPDX-License-Identifier: Apache-2.0
// The message and the immediate of a post, as they travel: the immediate stands before the message.
#pragma once

#include "transport/message.hpp"
#include "transport/message_inbox.hpp"

#include <headrace/plugin/backend.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace headrace::transport {

/// Whether the user may send so long a message on that channel.
[[nodiscard]] constexpr bool may_be_sent(std::uint32_t channel, std::uint64_t bytes) {
  return channel < count_channel && bytes <= max_message_bytes;
}

struct PostMessage {
  std::uint16_t channel = count_channel;
  bool counted = false;
  std::string bytes;
};

/// None: the peer hears nothing of the post. The message of `args` may be sent.
[[nodiscard]] std::optional<PostMessage> message_of(const headrace_post_v1& args);

/// Tells the host what a message brought: an immediate, a message of the peer's, or both.
void tell(const plugin::Host& host, std::uint64_t link_token, const InMessage& message);

}  // namespace headrace::transport
