// SPDX-License-Identifier: Apache-2.0
// Notifications that have come in and have not been taken yet: oldest first, each delivered once, found by
// peer and prefix.
//
// Nothing is dropped: each link has a share of the inbox, and the peer may send as much as its share has room
// for (wire::Credit). A link's room returns when its messages are taken.
#pragma once

#include <headrace/agent.hpp>

#include "base/event_fd.hpp"
#include "engine/payload_index.hpp"
#include "wire/agent_message.hpp"

#include <atomic>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace headrace::engine {

/// Which message of which life of a peer this is: (0, 0) for those sent on their own.
struct MessageKey {
  std::uint64_t life = 0;  ///< PeerLife::serial: no number that a peer claims
  std::uint64_t request = 0;
  std::uint64_t post = 0;
};

/// Of all peers together, about: each link that has sent something has an equal share, and at least what
/// `wire::first_credit` says.
struct InboxLimits {
  std::size_t messages = 1 << 20;
  std::size_t bytes = 256 << 20;
};

class Inbox {
 public:
  /// The token of no link: messages of this agent to itself, which need no credit.
  static constexpr std::uint64_t self = 0;
  /// What a peer should be told now. Told late or twice it is right, too.
  struct Due {
    std::uint64_t link = self;
    wire::Credit credit;
  };
  struct Receipt {
    bool flooded = false;  ///< far more of this peer waits than its credit allows: the message was not taken
    std::optional<Due> due;
  };
  struct Taken {
    std::vector<Notification> notifications;
    std::vector<Due> dues;
  };
  explicit Inbox(InboxLimits limits);

  /// A message that came over this link, `bytes` long on the wire. One that was seen before is taken for
  /// delivered.
  Receipt put(std::uint64_t link, const MessageKey& key, std::size_t bytes, Notification notification);
  /// The same of what has no meaning: it takes room no longer.
  Receipt put_nothing(std::uint64_t link, const std::string& peer, std::size_t bytes);
  Taken take(const NotificationFilter& filter);
  /// Takes the oldest into `taken`, if there is one.
  std::optional<Due> take_one(const NotificationFilter& filter, std::optional<Notification>& taken);
  [[nodiscard]] bool empty() const { return waiting_.load(std::memory_order_acquire) == 0; }
  /// Whether this agent may send to itself.
  [[nodiscard]] bool has_room() const;

  /// Readable while messages wait, and from the close on.
  Result<int> descriptor();
  /// An eventfd that is signaled when a message arrives that passes the filter, and when one waits already.
  /// The watch ends with its last owner.
  struct Watch {
    NotificationFilter filter;
    EventFd bell;
  };
  Result<std::shared_ptr<const Watch>> watch(NotificationFilter filter);
  /// Signals all descriptors: what waits for one sees that the agent is closed.
  void close();

  /// No message comes over this link any more.
  void link_gone(std::uint64_t link);
  /// No message of this life comes any more.
  void forget(std::uint64_t life);

 private:
  struct Peer {
    std::string name;
    PayloadIndex waiting;
    wire::Credit waiting_in_all;  ///< over all its links, also those that are gone
    std::size_t links = 0;
  };
  /// The account of one link: how much came over it in all, how much of that waits, and what the peer was
  /// told.
  struct Share {
    std::uint64_t link = self;
    Peer* peer = nullptr;
    wire::Credit came;
    wire::Credit waiting;
    wire::Credit told = wire::first_credit;
    bool gone = false;
  };
  struct Entry : PayloadIndex::Entry {
    Notification notification;
    Share* share = nullptr;
    std::size_t bytes = 0;
    bool indexed = false;
    std::list<Entry>::iterator place;
  };
  /// The posts of one life of which a message has come.
  struct Seen {
    std::unordered_map<std::uint64_t, std::uint64_t> last_post;  // by request
    std::deque<std::uint64_t> requests;                          // oldest first, to forget them again
  };

  Share& share_of(std::uint64_t link, const std::string& peer);
  void divide();
  [[nodiscard]] const wire::Credit* due(Share& share) const;
  [[nodiscard]] Receipt receipt_of(Share& share) const;
  [[nodiscard]] bool is_flood(const Share& share, std::size_t bytes) const;
  void keep(Share& share, std::size_t bytes, Notification notification);
  void index_all();
  [[nodiscard]] Entry* oldest(const NotificationFilter& filter);
  [[nodiscard]] std::vector<Entry*> all(const NotificationFilter& filter);
  [[nodiscard]] Taken take_all();
  [[nodiscard]] Taken take_fitting(const NotificationFilter& filter);
  Notification move_out(Entry& entry);
  [[nodiscard]] const wire::Credit* settle(Share& share);
  void drop_if_done(Share& share);
  bool seen(const MessageKey& key);
  void ring(const Notification& notification);
  void count_waiting();
  void quiet_if_empty();

  static constexpr std::size_t most_spare = 64;
  static constexpr std::size_t most_fresh = 64;

  const InboxLimits limits_;
  const wire::Credit largest_share_;
  mutable std::mutex mutex_;
  wire::Credit room_of_one_;   // of each link's share at present
  std::list<Entry> messages_;  // oldest first
  std::list<Entry> spare_;     // a place for each message would be allocated anew otherwise
  std::size_t fresh_ = 0;      // at most so many of the newest are not in the index
  std::uint64_t next_number_ = 0;
  std::unordered_map<std::string, Peer> peers_;
  std::unordered_map<std::uint64_t, Share> shares_;  // by link
  Share* latest_share_ = nullptr;                    // most messages come over the link of the one before
  std::unordered_map<std::uint64_t, Seen> seen_;     // by life
  std::size_t bytes_ = 0;                            // that wait
  std::optional<EventFd> bell_;
  bool closed_ = false;
  std::vector<std::weak_ptr<const Watch>> watches_;
  std::atomic<std::size_t> waiting_{0};
};

}  // namespace headrace::engine
