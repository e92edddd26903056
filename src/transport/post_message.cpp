// SPDX-License-Identifier: Apache-2.0
#include "transport/post_message.hpp"

#include <cstring>
#include <string_view>

namespace headrace::transport {

std::optional<PostMessage> message_of(const headrace_post_v1& args) {
  if (args.has_message == 0 && args.has_immediate == 0) return std::nullopt;
  PostMessage message;
  if (args.has_immediate != 0) {
    const CountedImmediate counted{args.scope, args.immediate};
    message.counted = true;
    message.bytes.assign(reinterpret_cast<const char*>(&counted), sizeof counted);
  }
  if (args.has_message != 0) {
    message.channel = static_cast<std::uint16_t>(args.channel);
    message.bytes.append(static_cast<const char*>(args.message.data), args.message.length);
  }
  return message;
}

void tell(const plugin::Host& host, std::uint64_t link_token, const InMessage& message) {
  std::string_view bytes = message.bytes;
  if (message.counted) {
    CountedImmediate counted;
    std::memcpy(&counted, bytes.data(), sizeof counted);
    bytes.remove_prefix(sizeof counted);
    host.counted(link_token, {counted.scope, counted.immediate});
  }
  if (message.channel != count_channel) host.received(link_token, message.channel, bytes);
}

}  // namespace headrace::transport
