// SPDX-License-Identifier: Apache-2.0
// What the peer hears of a post, its message and its count: from the room that is made for them to the end.
#pragma once

#include "host_link/message_pipe.hpp"
#include "host_link/post.hpp"

#include <headrace/plugin/backend.hpp>

#include <optional>
#include <string>

namespace headrace::host_link {

class Link;

/// One for each request, of its current post; whoever holds the post calls it.
class PostMessage {
 public:
  /// Makes room for the message and the count of a post that begins, if it has them. After an error the post
  /// has not begun.
  ///   errors   invalid_argument (too long, or on the channel of counts), would_block
  [[nodiscard]] Status begin(Link& link, const headrace_post_v1& args);
  /// The post will end later: what is sent on the channel meanwhile comes after its message.
  void keep_place(Link& link);
  /// Sends them if the bytes were moved and the link can still be used. If it cannot, that becomes the
  /// outcome.
  void end(Link& link, Outcome& outcome);

 private:
  void send(MessagePipe& messages);
  void take_back(MessagePipe& messages);

  bool there_is_one_ = false;
  std::uint32_t channel_ = 0;
  std::string bytes_;
  std::optional<MessagePipe::Place> place_;  // in the order of its channel
  std::optional<plugin::Immediate> immediate_;
};

}  // namespace headrace::host_link
