// SPDX-License-Identifier: Apache-2.0
// The message of a post, from the room that is made for it to its end.
#pragma once

#include "host_link/message_pipe.hpp"
#include "host_link/post.hpp"

#include <headrace/plugin/backend_v1.h>

#include <optional>
#include <string>

namespace headrace::host_link {

class Link;

/// One for each request, of its current post; whoever holds the post calls it.
class PostMessage {
 public:
  /// Makes room for the message of a post that begins, if it has one. After an error the post has not begun.
  ///   errors   invalid_argument (too long), would_block
  [[nodiscard]] Status begin(Link& link, const headrace_post_v1& args);
  /// The post will end later: what is sent on the channel meanwhile comes after its message.
  void keep_place(Link& link);
  /// Sends it if the bytes were moved and somebody is there to hear of it; that nobody is becomes the
  /// outcome.
  void end(Link& link, Outcome& outcome);

 private:
  bool there_is_one_ = false;
  std::uint32_t channel_ = 0;
  std::string bytes_;
  std::optional<MessagePipe::Place> place_;  // in the order of its channel
};

}  // namespace headrace::host_link
