// SPDX-License-Identifier: Apache-2.0
// What waits for a link that is not ready: posts, and messages in their order. A backend gets both on ready
// links only. Bounded: beyond it the answer is would_block.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::engine {

class RequestCore;

class LinkQueue {
 public:
  static constexpr std::size_t most_posts = 16384;
  static constexpr std::size_t most_message_bytes = std::size_t{16} << 20;

  struct Message {
    std::uint32_t channel = 0;
    std::string bytes;
  };
  enum class Answer {
    waits,  ///< it is in the queue
    full,   ///< would_block
    pass,   ///< nothing need wait: it goes to the backend
  };

  // --- posts

  Answer add(std::shared_ptr<RequestCore> post);
  /// Takes a post out, because it is canceled. False if it does not wait here.
  [[nodiscard]] bool remove(const RequestCore& post);

  // --- messages

  /// A message passes once all that waited before it have been taken.
  Answer add(std::uint32_t channel, std::string_view bytes);

  // --- the link is ready

  /// Posts pass from here on, messages once those that wait have been taken. Returns whether something waits:
  /// one thread hands it over.
  [[nodiscard]] bool open();
  /// The posts that waited, in order.
  [[nodiscard]] std::vector<std::shared_ptr<RequestCore>> take_posts();
  /// The message that goes next. Empty: messages pass from here on.
  [[nodiscard]] std::optional<Message> next_message();
  /// The backend did not take it: it stays the next.
  void put_back(Message message);

  /// The link has ended. Nothing waits from here on.
  struct Left {
    std::vector<std::shared_ptr<RequestCore>> posts;
    std::vector<Message> messages;
  };
  [[nodiscard]] Left close();

 private:
  std::atomic<bool> messages_pass_{false};
  std::mutex mutex_;  ///< guards all below, and the change of the one above
  bool open_ = false;
  std::deque<std::shared_ptr<RequestCore>> posts_;
  std::deque<Message> messages_;
  std::size_t message_bytes_ = 0;
};

}  // namespace headrace::engine
