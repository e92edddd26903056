// SPDX-License-Identifier: Apache-2.0
// What waits for a link that is not ready: posts, and the messages of each channel in their order. A backend
// gets both on ready links only. Bounded: beyond it the answer is would_block. Messages that another link of
// the peer left wait here, too.
#pragma once

#include <headrace/plugin/backend_v1.h>

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
  static constexpr std::size_t most_message_bytes = std::size_t{16} << 20;  ///< of one channel

  struct Message {
    std::uint32_t channel = 0;
    std::string bytes;
    bool has_credit = true;  ///< of this link; false: it comes from another link
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

  /// A message passes once all of its channel that waited before it have been taken. While some wait that
  /// have no credit the queue is full: later ones would take their credit.
  Answer add(std::uint32_t channel, std::string_view bytes);
  /// Appends messages of users that another link left. False: this link has ended, and `left` is unchanged.
  [[nodiscard]] bool adopt(std::vector<Message>& left);
  /// How many wait.
  [[nodiscard]] std::size_t messages() const;
  /// None waits, and none is on its way to the backend.
  [[nodiscard]] bool messages_have_left() const;

  // --- the link is ready

  /// Posts pass from here on, messages once those that wait have been taken.
  void open();
  /// Returns whether something waits that no thread hands over: then the caller must.
  [[nodiscard]] bool begin_handing_over();
  /// Returns whether no message waits. If one does, the caller goes on handing over.
  [[nodiscard]] bool end_handing_over();
  /// The posts that waited, in order.
  [[nodiscard]] std::vector<std::shared_ptr<RequestCore>> take_posts();
  /// The message of the channel that goes next. Empty: its messages pass from here on.
  [[nodiscard]] std::optional<Message> next_message(std::uint32_t channel);
  /// The backend did not take it: it stays the next.
  void put_back(Message message);

  /// The link has ended. Nothing waits from here on.
  struct Left {
    std::vector<std::shared_ptr<RequestCore>> posts;
    std::vector<Message> messages;
  };
  [[nodiscard]] Left close();

 private:
  struct Lane {
    std::atomic<bool> passes{false};
    std::deque<Message> messages;
    std::size_t bytes = 0;
    std::size_t without_credit = 0;
  };
  Lane& lane(std::uint32_t channel) { return channel == HEADRACE_CHANNEL_USER ? users_ : agents_; }
  [[nodiscard]] bool has_messages() const { return !users_.messages.empty() || !agents_.messages.empty(); }

  mutable std::mutex mutex_;  ///< guards all below; `passes` is read without it
  bool open_ = false;
  bool closed_ = false;
  bool handing_over_ = false;
  std::deque<std::shared_ptr<RequestCore>> posts_;
  Lane users_, agents_;
};

}  // namespace headrace::engine
