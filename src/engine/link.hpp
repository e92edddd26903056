// SPDX-License-Identifier: Apache-2.0
// A link: one connection of one backend to one life of one peer, with what was loaded for it and what is in
// flight on it.
#pragma once

#include "engine/backend_instance.hpp"
#include "engine/gate.hpp"
#include "engine/id_ranges.hpp"
#include "engine/in_flight.hpp"
#include "engine/link_queue.hpp"
#include "engine/send_credit.hpp"

#include <memory>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <unordered_map>

namespace headrace::engine {

struct PeerLife;

enum class LinkState : std::uint32_t { connecting, ready, lost };

class Link {
 public:
  Link(std::uint64_t token, BackendInstance& backend, std::weak_ptr<PeerLife> life)
      : token_(token), backend_(backend), life_(std::move(life)) {}
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  [[nodiscard]] std::uint64_t token() const { return token_; }
  [[nodiscard]] BackendInstance& backend() const { return backend_; }
  [[nodiscard]] std::shared_ptr<PeerLife> life() const { return life_.lock(); }
  [[nodiscard]] LinkState state() const { return state_.load(std::memory_order_acquire); }
  [[nodiscard]] void* connection() const { return connection_.load(std::memory_order_acquire); }
  // A link is ready once the backend has said so and `connect` has returned: the order of the two is open.
  // Each of them returns whether the link is ready by it.

  /// What the backend made. If the link has been lost and closed meanwhile, its connection goes at once.
  bool set_connection(void* connection);
  bool set_ready();
  void set_lost(Status status, std::string_view why);
  [[nodiscard]] Status lost_status() const;
  [[nodiscard]] std::string lost_text() const;
  /// What a call that finds it lost or closed returns: exhausted if one side had no descriptors, else
  /// peer_lost.
  [[nodiscard]] Code lost_code() const;

  /// Inside it the connection and what was loaded for it may be used.
  Gate& gate() { return gate_; }
  InFlight& in_flight() { return in_flight_; }

  /// What waits until it is ready.
  LinkQueue& queue() { return queue_; }

  /// Sends a message, or keeps it until the link is ready; either way a user's takes its credit. The gate
  /// must be held. would_block: too many wait, or the peer's inbox has no room.
  Status send(std::uint32_t channel, std::string_view message);
  /// The same of a message that has waited.
  Status send_waited(LinkQueue::Message& message);
  /// Whether no message waits that `close` would lose. Of a link that is lost none can leave.
  [[nodiscard]] bool messages_have_left();
  /// What the peer's inbox has room for. A post takes it for the message that it carries.
  SendCredit& credit() { return credit_; }
  /// The peer's region for this link, loaded at first use. The gate must be held.
  Result<void*> load(std::uint32_t region_id, const headrace_remote_region_v1& region);
  /// Drops the handles of these regions (rising); no post uses them any more. The gate must be held.
  void unload(std::span<const IdRange> ranges);
  /// Held shared by a thread that prepares with loaded handles, exclusively by `unload`: a handle is not
  /// given back under a call that takes it.
  std::shared_mutex& handles_mutex() { return handles_mutex_; }

  /// Ends it: no call uses the connection when this returns; every post on it has been completed. Several
  /// threads may call it.
  void close();

 private:
  bool become_ready();

  const std::uint64_t token_;
  BackendInstance& backend_;
  const std::weak_ptr<PeerLife> life_;
  std::atomic<void*> connection_{nullptr};
  std::atomic<LinkState> state_{LinkState::connecting};
  Gate gate_;
  std::mutex closing_;
  InFlight in_flight_;
  LinkQueue queue_;
  SendCredit credit_;
  std::shared_mutex handles_mutex_;
  mutable std::mutex mutex_;
  std::unordered_map<std::uint32_t, void*> remotes_;
  bool said_ready_ = false;
  Status lost_status_;
  std::string lost_text_;
};

}  // namespace headrace::engine
